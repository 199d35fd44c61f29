package redisstore_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/redistest"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
)

// TestChangesReadNoMore counts the bytes that changes of a limit send and receive, once a
// minute while keys are in use: after a thousand changes they are as many as after a
// hundred.
func TestChangesReadNoMore(t *testing.T) {
	t.Parallel()
	db := connect(t, redistest.Start(t).URL())
	now := time.Now().UnixMicro()
	l, err := dipwell.New(newStore(t, db, redisstore.Config{Poll: -1, Clock: func() int64 { return now }}))
	if err != nil {
		t.Fatal(err)
	}
	limit := store.Limit{Name: "api", Period: 30 * 24 * time.Hour, Burst: 10_000}
	changes := 0
	change := func(n int) {
		for range n {
			now += 60e6
			limit.Rate = 1000 + int64(changes%7)
			if _, err := l.Define(t.Context(), limit, store.OwnerCode); err != nil {
				t.Fatal(err)
			}
			if d, err := l.Take(t.Context(), "api", fmt.Sprint("k", changes%20), 1); err != nil || !d.Allowed {
				t.Fatal(d, err)
			}
			changes++
		}
	}
	bytes := func() (n int64) {
		info, err := db.InfoMap(t.Context(), "stats").Result()
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"total_net_input_bytes", "total_net_output_bytes"} {
			v, err := strconv.ParseInt(info["Stats"][name], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			n += v
		}
		return n
	}
	measure := func() int64 {
		before := bytes()
		change(32)
		return bytes() - before
	}
	change(96)
	first := measure()
	change(896)
	if last := measure(); last > first+first/10 {
		t.Errorf("32 changes move %d bytes after %d changes, and %d after 96", last, changes, first)
	} else {
		t.Logf("32 changes move %d bytes, and later %d", first, last)
	}
}
