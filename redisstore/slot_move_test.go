package redisstore_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

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
	checkScanWhileSlotMoves(t, cluster, slot)
	if rows, err := s.GetAll(t.Context(), "moved:m:{k}", "moved:m:{none}"); err != nil || rows[0] == "" || rows[1] != "" {
		t.Errorf("rows %q, %v", rows, err)
	}
}

// A moving hook moves a slot before the master that has it is scanned, and after the master
// that gets it was.
type moving struct {
	t        *testing.T
	from, to string // addresses
	scanned  chan struct{}
	move     func() error
	once     *sync.Once
	node     string
}

func (*moving) DialHook(next redis.DialHook) redis.DialHook { return next }
func (*moving) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
func (m *moving) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "scan" && m.node == m.from {
			select {
			case <-m.scanned:
				m.once.Do(func() {
					if err := m.move(); err != nil {
						m.t.Error(err)
					}
				})
			case <-ctx.Done():
			}
		}
		err := next(ctx, cmd)
		if scan, ok := cmd.(*redis.ScanCmd); ok && m.node == m.to && err == nil {
			if _, cursor := scan.Val(); cursor == 0 {
				select {
				case <-m.scanned:
				default:
					close(m.scanned)
				}
			}
		}
		return err
	}
}

// checkScanWhileSlotMoves checks that a scan finds a key of a slot that moves meanwhile.
func checkScanWhileSlotMoves(t *testing.T, cluster *redistest.Cluster, slot int) {
	owner, _, err := cluster.Owner(slot)
	if err != nil {
		t.Fatal(err)
	}
	var to *redistest.Server
	for _, n := range cluster.Nodes {
		if n.IsMaster() && n != owner {
			to = n
		}
	}
	hook := moving{t: t, from: owner.Addr(), to: to.Addr(), scanned: make(chan struct{}), once: new(sync.Once), move: func() error { return cluster.MoveSlot(slot, to, nil) }}
	db := connect(t, cluster.URL())
	db.(*redis.ClusterClient).OnNewNode(func(node *redis.Client) {
		h := hook
		h.node = node.Options().Addr
		node.AddHook(&h)
	})
	s := newStore(t, db, redisstore.Config{Prefix: "moved", Poll: -1})
	rows, err := s.Abilities().Keys(t.Context(), s.Registry().Lookup("m"), "", "", 10)
	if err != nil || len(rows) != 1 || rows[0].Key != "k" {
		t.Errorf("while its slot moves: rows %+v, %v", rows, err)
	}
	if now, _, err := cluster.Owner(slot); err != nil || now != to {
		t.Errorf("the slot was not moved: %v", err)
	}
}
