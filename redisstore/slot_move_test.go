package redisstore_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/dipwell/dipwell/internal/redistest"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
)

// TestClusterChanges checks that while the slot of a key moves, and masters are
// replaced in an orderly way, nothing is granted twice, and only calls during
// the change itself get an error. Afterwards each node, asked for the row as by a scan that
// began before, leads to it.
func TestClusterChanges(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	db := connect(t, cluster.URL())
	s := newStore(t, db, redisstore.Config{Prefix: "moved"})
	l := limiter(t, s, store.Limit{Name: "m", Rate: 1, Period: time.Hour, Burst: 1000000})
	slot, err := cluster.SlotOf("moved:m:{k}")
	if err != nil {
		t.Fatal(err)
	}
	var granted, failed int64
	stop, done := make(chan struct{}), sync.WaitGroup{}
	done.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if d, err := l.Take(t.Context(), "m", "k", 1); err == nil {
				granted += d.Granted
			} else {
				failed++
			}
		}
	})
	change := func() error {
		_, replicas, err := cluster.Owner(slot)
		if err != nil || len(replicas) == 0 {
			return fmt.Errorf("no replica: %w", err)
		}
		if err = cluster.Promote(replicas[0]); err != nil {
			return err
		}
		for _, n := range cluster.Nodes {
			if owner, _, err := cluster.Owner(slot); err == nil && n.IsMaster() && n != owner {
				return cluster.MoveSlot(slot, n, nil)
			}
		}
		return fmt.Errorf("nowhere to move slot %d", slot)
	}
	err = change()
	close(stop)
	done.Wait()
	if err != nil {
		t.Fatal(err)
	}
	retryUntil(t, testTimeout, func() error {
		d, err := l.Check(t.Context(), "m", "k", 0)
		if err == nil && (1000000-d.Remaining < granted || 1000000-d.Remaining > granted+failed) {
			t.Fatalf("%d granted and %d failed, and %d remain of 1000000", granted, failed, d.Remaining)
		}
		return err
	})
	t.Logf("%d granted, %d failed", granted, failed)
	for _, n := range cluster.Nodes {
		if rows, err := s.GetAll(t.Context(), connect(t, n.URL()), []string{"moved:m:{k}"}); err != nil || rows[0] == "" {
			t.Errorf("through %s: rows %q, %v", n.URL(), rows, err)
		}
	}
}
