package pgstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/pgstore"
)

// A batch read the clock and waits for somebody's lock on its first key. Its
// second key's row becomes full meanwhile; were it swept, the batch would insert
// it at its own, earlier time, and the refill since then would count twice.
func TestSweepLeavesWhatATakeUnderWayCanSee(t *testing.T) {
	ctx := context.Background()
	pool := newPool(t)
	s := newStore(t, pool, pgstore.Config{Poll: -1})
	slow, err := s.Define(ctx, drained("slow", 5), dipwell.OwnerCode)
	if err != nil {
		t.Fatal(err)
	}
	fast, err := s.Define(ctx, dipwell.Limit{Name: "fast", Rate: 10, Period: time.Second, Burst: 10}, dipwell.OwnerCode)
	if err != nil {
		t.Fatal(err)
	}
	take := func(s *pgstore.Store, d *dipwell.Definition, keys ...string) {
		t.Helper()
		var b dipwell.Batch
		for _, key := range keys {
			b.Groups = append(b.Groups, dipwell.Group{Ops: []dipwell.Op{{Def: d, Key: key, Verb: dipwell.VerbTake, Cost: 5}}})
		}
		if err := s.Apply(ctx, &b); err != nil {
			t.Error(err)
			return
		}
		for i := range b.Groups {
			if g := &b.Groups[i]; g.Err != nil || !g.Allowed {
				t.Error(g.Ops[0].Key, g.Allowed, g.Err)
			}
		}
	}
	swept := func() int {
		t.Helper()
		n, err := s.Sweep(ctx, 100)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	take(s, fast, "a", "b")
	take(s, slow, "kept")
	tx, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(ctx)
	take(s.With(tx), fast, "a") // holds its row
	waiting := make(chan struct{})
	go func() { defer close(waiting); take(s, fast, "a", "b") }()
	until(t, "the batch waits for a lock", func() bool {
		var n int
		if err := pool.QueryRow(ctx, "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n > 0
	})
	time.Sleep(2500 * time.Millisecond) // b is full for two seconds
	if n := swept(); n != 0 {
		t.Errorf("%d rows were swept under a take that had read the clock before they were full", n)
	}
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	<-waiting
	time.Sleep(2500 * time.Millisecond)
	if n := swept(); n != 2 {
		t.Errorf("%d rows were swept, want both that are full", n)
	}
}

// TestSweepSkipsLocked: rows that somebody holds are left alone, and not waited
// for, whichever sweeps.
func TestSweepSkipsLocked(t *testing.T) {
	ctx := context.Background()
	pool := newPool(t)
	s := newStore(t, pool, pgstore.Config{Poll: -1})
	must(t, pool, "select dipwell.define('fast', 1000, interval '1 second')")
	must(t, pool, "select dipwell.take('fast', k) from unnest('{a,b,c}'::text[]) k")
	must(t, pool, "update dipwell.buckets set ts = ts - 3600000000") // full for an hour
	tx, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(ctx)
	must(t, tx, "select from dipwell.buckets where key = 'b' for update")
	swept := func(want int, who string, sweep func() (int, error)) {
		t.Helper()
		if n, err := sweep(); err != nil || n != want {
			t.Errorf("%s swept %d rows, want %d; %v", who, n, want, err)
		}
	}
	bySQL := func() (n int, err error) {
		err = pool.QueryRow(ctx, "select dipwell.sweep()").Scan(&n)
		return n, err
	}
	swept(2, "SQL", bySQL)
	swept(0, "Go", func() (int, error) { return s.Sweep(ctx, 100) })
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	swept(1, "SQL", bySQL)
}

// TestSweepLooksAgain: a row that was full when the sweep began to look, and is
// charged before the sweep has it, stays.
func TestSweepLooksAgain(t *testing.T) {
	ctx := context.Background()
	pool := newPool(t)
	must(t, pool, "select dipwell.define('day', 5, interval '1 day', algorithm => 'fixed_window', start => '00:00 UTC')") // by dipwell_internal.is_full
	must(t, pool, "select dipwell.take('day', 'k', 5)")
	must(t, pool, "update dipwell.buckets set ts = ts - 7 * 86400000000")
	must(t, pool, `alter function dipwell_internal.is_full(int, text, bigint, bigint, int, bigint) rename to truly_full;
		create function dipwell_internal.is_full(limit_id int, key text, used bigint, ts bigint, version int, n bigint) returns boolean language plpgsql as $$
		begin
			perform pg_advisory_lock_shared(7);
			perform pg_advisory_unlock_shared(7);
			return dipwell_internal.truly_full(limit_id, key, used, ts, version, n);
		end $$`)
	gate, err := pool.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer gate.Release()
	must(t, gate.Conn(), "select pg_advisory_lock(7)")
	swept := make(chan int)
	go func() {
		n := -1
		if err := pool.QueryRow(ctx, "select dipwell.sweep()").Scan(&n); err != nil {
			t.Error(err)
		}
		swept <- n
	}()
	until(t, "looking", func() (looks bool) {
		err := pool.QueryRow(ctx, "select exists (select from pg_locks where locktype = 'advisory' and not granted and database = (select oid from pg_database where datname = current_database()))").Scan(&looks)
		return err == nil && looks
	})
	must(t, pool, "select dipwell.take('day', 'k', 2)")
	must(t, gate.Conn(), "select pg_advisory_unlock(7)")
	if n := <-swept; n != 0 {
		t.Errorf("%d rows were swept", n)
	}
	var left int
	if err := pool.QueryRow(ctx, "select remaining from dipwell.check('day', 'k')").Scan(&left); err != nil || left != 3 {
		t.Errorf("%d are left, want 3; %v", left, err)
	}
}
