package pgstore_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// pairLimits do not refill during a test.
var pairLimits = []store.Limit{
	{Name: "bucket", Rate: 1, Period: 100 * 24 * time.Hour, Burst: 20},
	{Name: "window", Algorithm: store.FixedWindow, Rate: 20, Period: 100 * 24 * time.Hour, Start: "0s"},
	{Name: "spread", Algorithm: store.FixedWindow, Rate: 20, Period: 100 * 24 * time.Hour},
	{Name: "interval", Algorithm: store.Interval, Rate: 3, Period: 100 * 24 * time.Hour, Burst: 20, Start: "0s"},
}

func takesOf(key string, cost int64, limits ...string) (takes []dipwell.Take) {
	for _, name := range limits {
		takes = append(takes, dipwell.Take{Limit: name, Key: key, Cost: cost})
	}
	return takes
}

// TestTakeAllTrips checks that a TakeAll of up to four existing keys with room
// is one round trip and one write per key, in any order of keys; one that is
// refused again is one round trip and writes nothing.
func TestTakeAllTrips(t *testing.T) { // not parallel to tests that use transaction ids
	ctx := context.Background()
	conn, asked := countingConn(t)
	store := newStore(t, conn, pgstore.Config{Poll: -1})
	l, err := dipwell.New(store, pairLimits...)
	if err != nil {
		t.Fatal(err)
	}
	for _, limits := range [][]string{{"bucket", "window"}, {"window", "bucket"}, {"bucket", "spread", "interval"}, {"bucket", "window", "spread", "interval"}} {
		last := limits[len(limits)-1] // the one to be emptied
		takes := takesOf(fmt.Sprint(limits), 6, limits...)
		for i, trips := range []int{0, 0, 1} { // may try to insert rows, and prepare the statement
			*asked = 0
			d, err := l.TakeAll(ctx, takes...)
			if err != nil || !d.Allowed || d.Remaining != int64(20-6*(i+1)) || trips > 0 && *asked != trips {
				t.Errorf("%s, call %d: %d trips, %+v, %v", limits, i, *asked, d, err)
			}
		}
		for i := range takes {
			if takes[i].Limit != last {
				takes[i].Cost = 1
			}
		}
		before := ownXID(t, conn)
		for i := range 3 {
			*asked = 0
			d, err := l.TakeAll(ctx, takes...)
			if err != nil || d.Allowed || d.Remaining != 2 || i > 0 && *asked != 1 {
				t.Errorf("%s, refused: %d trips, %+v, %v", limits, *asked, d, err)
			}
		}
		if used := ownXID(t, conn) - before; used != 1 {
			t.Errorf("%s: refusals used %d transaction ids", limits, used-1)
		}
		if d, err := l.TakeAll(ctx, takesOf(fmt.Sprint(limits), 2, limits...)...); err != nil || !d.Allowed {
			t.Errorf("%s, the rest: %+v, %v", limits, d, err)
		}
	}
}

// TestTakeAllDuringLockWait has a TakeAll wait for a transaction that charges,
// empties or deletes one of its rows. It must be charged in full or not at all.
func TestTakeAllDuringLockWait(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	l, err := dipwell.New(newStore(t, pool, pgstore.Config{Poll: -1}), pairLimits...)
	if err != nil {
		t.Fatal(err)
	}
	limits := []string{"bucket", "window", "spread"}
	for _, locked := range limits {
		for _, c := range []struct {
			does    string
			allowed bool
			left    int64 // in the locked row
		}{
			{"update dipwell.buckets set used = used + 5 * unit from dipwell.limits where id = limit_id", true, 9},
			{"update dipwell.buckets set used = cap - 2 * unit from dipwell.limits where id = limit_id", false, 2},
			{"delete from dipwell.buckets using dipwell.limits where id = limit_id", true, 17},
		} {
			key := fmt.Sprint(locked, c.left)
			for range 2 {
				if d, err := l.TakeAll(t.Context(), takesOf(key, 1, limits...)...); err != nil || !d.Allowed {
					t.Fatal(d, err)
				}
			}
			must(t, pool, "update dipwell.buckets set used = 3 * unit from dipwell.limits where id = limit_id and key = '"+key+"'")
			d, err := whileTxOpen(t, pool, c.does+fmt.Sprintf(" and name = '%s' and key = '%s'", locked, key), func() (dipwell.Decision, error) {
				return l.TakeAll(t.Context(), takesOf(key, 3, limits...)...)
			})
			if err != nil || d.Allowed != c.allowed {
				t.Errorf("%s in %s: %+v, %v", c.does, locked, d, err)
			}
			for _, name := range limits {
				want := int64(17)
				if c.allowed {
					want = 14
				}
				if name == locked {
					want = c.left
				}
				if d, err := l.Check(t.Context(), name, key, 1); err != nil || d.Remaining != want {
					t.Errorf("%s in %s: %d left in %s, not %d, %v", c.does, locked, d.Remaining, name, want, err)
				}
			}
		}
	}
}

// TestTakeAllConcurrent has callers take from pairs of a few keys, in any
// order. No call may deadlock or fail, and every token is granted once.
func TestTakeAllConcurrent(t *testing.T) {
	t.Parallel()
	const callers, calls, keys = 8, 120, 6
	pool := newPool(t)
	l, err := dipwell.New(newStore(t, pool, pgstore.Config{Poll: -1}), pairLimits...)
	if err != nil {
		t.Fatal(err)
	}
	for k := range keys {
		for range 2 {
			if _, err := l.TakeAll(t.Context(), takesOf(fmt.Sprint(k), 1, "bucket", "window", "spread", "interval")...); err != nil {
				t.Fatal(err)
			}
		}
	}
	must(t, pool, "update dipwell.buckets set used = 0")
	var granted [4][keys]atomic.Int64
	start := make(chan struct{})
	var done sync.WaitGroup
	for c := range callers {
		done.Go(func() {
			<-start
			for i := range calls {
				a, b := (i+c)%len(pairLimits), (i*3+c*2+1)%len(pairLimits)
				if a == b {
					b = (a + 1) % len(pairLimits)
				}
				x, y := (i*7+c*5)%keys, (i*11+c*3)%keys
				d, err := l.TakeAll(t.Context(), dipwell.Take{Limit: pairLimits[a].Name, Key: fmt.Sprint(x), Cost: 1},
					dipwell.Take{Limit: pairLimits[b].Name, Key: fmt.Sprint(y), Cost: 2})
				if err != nil {
					t.Error(err)
				}
				if d.Allowed {
					granted[a][x].Add(1)
					granted[b][y].Add(2)
				}
			}
		})
	}
	close(start)
	done.Wait()
	total := int64(0)
	for a, limit := range pairLimits {
		for k := range keys {
			d, err := l.Check(t.Context(), limit.Name, fmt.Sprint(k), 1)
			n := granted[a][k].Load()
			if total += n; err != nil || n+d.Remaining != 20 {
				t.Errorf("%s %d: %d granted and %d left of 20, %v", limit.Name, k, n, d.Remaining, err)
			}
		}
	}
	if total < 20*keys || total%3 != 0 {
		t.Errorf("%d granted, in threes", total)
	}
	var deadlocks int
	if err := pool.QueryRow(t.Context(), "select deadlocks from pg_stat_database where datname = current_database()").Scan(&deadlocks); err != nil || deadlocks > 0 {
		t.Errorf("%d deadlocks, %v", deadlocks, err)
	}
}

// whileTxOpen makes a call while a transaction that has run sql is open, and
// ends it when the call waits for its lock.
func whileTxOpen(t *testing.T, pool *pgxpool.Pool, sql string, call func() (dipwell.Decision, error)) (d dipwell.Decision, err error) {
	t.Helper()
	tx, e := pool.Begin(t.Context())
	if e != nil {
		t.Fatal(e)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	must(t, tx, sql)
	done := make(chan struct{})
	go func() {
		defer close(done)
		d, err = call()
	}()
	eventually(t, "waiting", func() bool {
		var waits bool
		err := pool.QueryRow(t.Context(), "select exists (select from pg_stat_activity where datname = current_database() and cardinality(pg_blocking_pids(pid)) > 0)").Scan(&waits)
		return err == nil && waits
	})
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-done
	return d, err
}
