package pgstore_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// A batch reads the clock and waits for a lock on its first key. Meanwhile the
// row of its second key becomes full. If the row were swept, the batch would
// insert it at the earlier time, and count the refill since then twice.
func TestSweepSparesRowsOfRunningTakes(t *testing.T) {
	ctx := context.Background()
	pool := newPool(t)
	s := newStore(t, pool, pgstore.Config{Poll: -1})
	slow, err := s.Define(ctx, drained("slow", 5), store.OwnerCode)
	if err != nil {
		t.Fatal(err)
	}
	fast, err := s.Define(ctx, store.Limit{Name: "fast", Rate: 1000, Period: time.Second, Burst: 10}, store.OwnerCode)
	if err != nil {
		t.Fatal(err)
	}
	take := func(s *pgstore.Store, d *store.Definition, keys ...string) {
		t.Helper()
		var b store.Batch
		for _, key := range keys {
			b.Groups = append(b.Groups, store.Group{Ops: []store.Op{{Def: d, Key: key, Verb: store.VerbTake, Cost: 5}}})
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
		n, err := store.AbilitiesOf(s).Sweep(ctx, 100)
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
	take(s.With(tx), fast, "a") // locks its row
	waiting := make(chan struct{})
	go func() { defer close(waiting); take(s, fast, "a", "b") }()
	eventually(t, "the batch waits for a lock", func() bool {
		var n int
		if err := pool.QueryRow(ctx, "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n > 0
	})
	must(t, pool, "update dipwell.buckets set ts = dipwell_internal.now_us() where key = 'b'") // full in five milliseconds
	eventually(t, "full for more than a second", func() bool {
		return number(t, pool, "select count(*) from dipwell.buckets where key = 'b' and ts < dipwell_internal.now_us() - 1100000") == 1
	})
	if n := swept(); n != 0 {
		t.Errorf("%d rows were swept under a take that had read the clock before they were full", n)
	}
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	<-waiting
	must(t, pool, "update dipwell.buckets set ts = ts - 60000000 where key <> 'kept'")
	if n := swept(); n != 2 {
		t.Errorf("%d rows were swept, want both that are full", n)
	}
}

// TestSweepSkipsLocked checks that a sweep, by either kind of statement,
// neither deletes locked rows nor waits for them.
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
	swept(0, "Go", func() (int, error) { return store.AbilitiesOf(s).Sweep(ctx, 100) })
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	swept(1, "SQL", bySQL)
}

// TestSweepRechecksRows checks that a row is kept if it was full when the sweep
// read it, but was charged before the sweep locked it.
func TestSweepRechecksRows(t *testing.T) {
	ctx := context.Background()
	pool := newPool(t)
	must(t, pool, "select dipwell.define('day', 5, interval '1 day', algorithm => 'fixed_window', start => '00:00 UTC')") // when dipwell_internal.is_full is called
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
	eventually(t, "looking", func() (looks bool) {
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

// longTable creates live rows and as many full rows after them, and returns the
// pages of the table. The statistics are those of the empty table.
func longTable(t *testing.T, pool *pgxpool.Pool, rows int) (pages int) {
	t.Helper()
	must(t, pool, "alter table dipwell.buckets set (autovacuum_enabled = off)")
	must(t, pool, "select dipwell.define('slow', 1, interval '1 day'), dipwell.define('fast', 1000, interval '1 second')")
	for _, limit := range []string{"slow", "fast"} {
		if _, err := pool.Exec(t.Context(), `insert into dipwell.buckets (used, ts, limit_id, version, key)
			select l.unit, dipwell_internal.now_us() - 60000000, l.id, l.version, 'k' || i from dipwell.limits l, generate_series(1, $1::int) i where l.name = $2`, rows, limit); err != nil {
			t.Fatal(err)
		}
	}
	return number(t, pool, "select pg_relation_size('dipwell.buckets') / 8192")
}

func number(t *testing.T, db pgstore.DB, sql string) (n int) {
	t.Helper()
	if err := db.QueryRow(context.Background(), sql).Scan(&n); err != nil {
		t.Fatal(sql, err)
	}
	return n
}

// TestSweepContinues checks that a sweep goes once over the table, starting
// where the last one stopped, also in another session.
func TestSweepContinues(t *testing.T) {
	pool := newPool(t)
	pages := longTable(t, pool, 10000)
	const next = "(select (min(ctid)::text::point)[0]::int from dipwell.buckets where limit_id = (select id from dipwell.limits where name = 'fast'))"
	sweep := func(most, swept int) {
		t.Helper()
		if n := number(t, pool, fmt.Sprintf("select dipwell.sweep(%d)", most)); n != swept {
			t.Errorf("%d rows were swept, want %d", n, swept)
		}
	}
	at := func() int { return number(t, pool, "select page from dipwell.sweep_state") }
	if n := number(t, pool, "select swept from dipwell_internal.sweep_at(1000, dipwell_internal.settled(), 64)"); n != 0 || at() != 64 {
		t.Errorf("%d rows were swept, and the next sweep goes on at page %d", n, at())
	}
	for _, rows := range []int{1000, 4000, 2000} {
		sweep(rows, rows)
		if full := number(t, pool, "select "+next); at() > full || at() < full-16 {
			t.Errorf("the next sweep goes on at page %d; the first full row is on page %d of %d", at(), full, pages)
		}
	}
	must(t, pool, "update dipwell.buckets set ts = ts - 86400000000 where key = 'k7'") // passed already, full now
	sweep(6000, 3001)                                                                  // once around
	sweep(1000, 0)
	if left := number(t, pool, "select count(*) from dipwell.buckets"); left != 9999 {
		t.Errorf("%d rows are left, want those that are not full", left)
	}
	if swept := number(t, pool, "select swept from dipwell.sweep_state"); swept != 10001 {
		t.Errorf("the state says that %d rows were swept", swept)
	}
}

// TestSweepPages checks that a sweep reads few pages, for any length of the
// table and any statistics: in the middle, and at its end.
func TestSweepPages(t *testing.T) {
	pool := newPool(t)
	longTable(t, pool, 30000)
	most := 1000
	if number(t, pool, "select current_setting('server_version_num')::int") < 140000 { // reads each tuple id of a page separately
		most = 20000
	}
	for _, analyze := range []string{"select 1", "analyze dipwell.buckets"} {
		must(t, pool, analyze)
		inTx(t, pool, func(tx pgx.Tx) {
			before := pagesRead(t, tx)
			if n := number(t, tx, "select looked from dipwell_internal.sweep_at(1000, dipwell_internal.settled(), 64)"); n != 64 {
				t.Errorf("%d pages are done with, want 64", n)
			}
			if n := pagesRead(t, tx) - before; n > most {
				t.Errorf("after %q a sweep of 64 pages touched %d", analyze, n)
			}
			before = pagesRead(t, tx)
			must(t, tx, "update dipwell.sweep_state set page = 500")
			if n := number(t, tx, "select dipwell.sweep(100)"); n != 100 {
				t.Errorf("%d rows were swept", n)
			}
			if n := pagesRead(t, tx) - before; n > most {
				t.Errorf("after %q a sweep of 100 rows touched %d pages", analyze, n)
			}
		})
	}
}

// pagesRead returns how many pages of buckets, its index, and the sequence of
// scans this transaction has read.
func pagesRead(t *testing.T, tx pgx.Tx) int {
	t.Helper()
	return number(t, tx, `select sum(pg_stat_get_xact_blocks_fetched(c)) from unnest(array['dipwell.buckets'::regclass, 'dipwell.buckets_pkey'::regclass]) c`)
}

// TestSweepRewritten checks that after VACUUM FULL a sweep starts again and
// finds all full rows.
func TestSweepRewritten(t *testing.T) {
	pool := newPool(t)
	longTable(t, pool, 3000)
	must(t, pool, "delete from dipwell.buckets where key like '%7'")
	must(t, pool, "update dipwell.sweep_state set page = 60")
	must(t, pool, "vacuum full dipwell.buckets")
	if n := number(t, pool, "select dipwell.sweep()"); n != 2700 {
		t.Errorf("%d rows were swept, want 2700", n)
	}
	must(t, pool, "truncate dipwell.buckets")
	if n := number(t, pool, "select dipwell.sweep()"); n != 0 {
		t.Errorf("%d rows of an empty table were swept", n)
	}
	must(t, pool, "select dipwell.take('fast', 'k')")
}

// TestSweepOneAtATime checks that a sweep neither deletes rows nor waits while
// another one runs, and that concurrent sweeps delete each row once.
func TestSweepOneAtATime(t *testing.T) {
	pool := newPool(t)
	s := newStore(t, pool, pgstore.Config{Poll: -1})
	longTable(t, pool, 5000)
	inTx(t, pool, func(tx pgx.Tx) {
		if n := number(t, tx, "select dipwell.sweep(10)"); n != 10 {
			t.Errorf("%d rows were swept, want 10", n)
		}
		if n, err := store.AbilitiesOf(s).Sweep(t.Context(), 100); n != 0 || err != nil {
			t.Errorf("beside another sweep %d rows were swept; %v", n, err)
		}
	})
	var swept atomic.Int64
	var sweepers sync.WaitGroup
	for range 4 {
		sweepers.Go(func() {
			for swept.Load() < 5000 {
				n, err := store.AbilitiesOf(s).Sweep(t.Context(), 700)
				if err != nil {
					t.Error(err)
					return
				}
				swept.Add(int64(n))
			}
		})
	}
	sweepers.Wait()
	if left := number(t, pool, "select count(*) from dipwell.buckets"); swept.Load() != 5000 || left != 5000 {
		t.Errorf("%d rows were swept, and %d are left", swept.Load(), left)
	}
}

// partitioned returns a database in which buckets is a partitioned table.
func partitioned(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := newPool(t)
	must(t, pool, `alter table dipwell.buckets rename to plain;
		create table dipwell.buckets (used bigint not null, ts bigint not null, limit_id int not null, version int not null, key text collate "C" not null,
			lows bigint[], low bigint, due bigint, primary key (limit_id, key)) partition by hash (limit_id, key);
		create table dipwell.part0 partition of dipwell.buckets for values with (modulus 2, remainder 0);
		create table dipwell.part1 partition of dipwell.buckets for values with (modulus 2, remainder 1)`)
	return pool
}

// TestPartitions checks that statements which delete rows by ctid do not delete
// a row with the same ctid in another partition.
func TestPartitions(t *testing.T) {
	t.Parallel()
	const keys = 200
	pool := partitioned(t)
	s := newStore(t, pool, pgstore.Config{Poll: -1})
	l, err := dipwell.New(s, drained("one", 10), drained("two", 10))
	if err != nil {
		t.Fatal(err)
	}
	for k := range keys {
		if _, err := l.Take(t.Context(), "one", fmt.Sprint(k), 10); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.Reset(t.Context(), "one", "0"); err != nil {
		t.Fatal(err)
	}
	for k := range 20 { // the new row is inserted before the other refuses
		if d, err := l.TakeAll(t.Context(), dipwell.Take{Limit: "one", Key: "1", Cost: 1}, dipwell.Take{Limit: "two", Key: fmt.Sprint(k), Cost: 1}); err != nil || d.Allowed {
			t.Error(d, err)
		}
	}
	if left := number(t, pool, "select count(*) from dipwell.buckets"); left != keys-1 {
		t.Errorf("%d rows are left of %d", left, keys-1)
	}
}

// TestSweepPartitions checks that a sweep does not mix up the ctids of
// different partitions.
func TestSweepPartitions(t *testing.T) {
	pool := partitioned(t)
	must(t, pool, "select dipwell.define('slow', 1, interval '1 day'), dipwell.define('fast', 1000, interval '1 second')")
	must(t, pool, `insert into dipwell.buckets (used, ts, limit_id, version, key)
		select l.unit, dipwell_internal.now_us() - 60000000, l.id, l.version, 'k' || i from generate_series(1, 5000) i, dipwell.limits l`)
	swept := 0
	for n := 700; n == 700; swept += n {
		n = number(t, pool, "select dipwell.sweep(700)")
	}
	if left := number(t, pool, "select count(*) from dipwell.buckets b join dipwell.limits l on l.id = b.limit_id where l.name = 'slow'"); swept != 5000 || left != 5000 {
		t.Errorf("%d rows were swept, and %d that are not full are left", swept, left)
	}
}

// TestJanitor checks that a janitor sweeps a table and counts what it did.
func TestJanitor(t *testing.T) {
	pool := newPool(t)
	longTable(t, pool, 5000)
	s := newStore(t, pool, pgstore.Config{Poll: -1, Sweep: true, OnError: func(err error) { t.Error(err) }})
	number := func(name string) float64 {
		for _, m := range s.Abilities().Metrics() {
			if m.Name == "dipwell_store_sweep_"+name {
				return m.Value
			}
		}
		t.Fatalf("no metric %s", name)
		return 0
	}
	eventually(t, "swept", func() bool { return number("passes_total") > 0 })
	if number("rows_total") != 5000 || number("seconds_total") <= 0 || number("lag_seconds") > time.Hour.Seconds() {
		t.Errorf("%+v", s.Abilities().Metrics())
	}
}

// TestSweepKeepsUpWithHolds checks that records of holds that ended long ago do not pile
// up, however many there are, and that expired holds behind them are given back.
func TestSweepKeepsUpWithHolds(t *testing.T) {
	t.Parallel()
	const ended = 15_000
	pool := newPool(t)
	must(t, pool, "select dipwell.define('slots', burst => 10, algorithm => 'concurrency')")
	pile := func() {
		must(t, pool, "select dipwell.hold('slots', 'k', 1, interval '1 millisecond', gen_random_uuid()::text)")
		must(t, pool, fmt.Sprintf(`insert into dipwell.hold_parts (expires, due, till, ttl, units, unit, tokens, number, mark, limit_id, part, parts, takes, live, free, keep, reset, settled, id, key, cost)
			select 1, 1, 1, 1000, 1, 1, 1, 0, 0, l.id, 1, 1, 1, false, false, false, false, true, 'ended' || i, 'k', 1 from dipwell.limits l, generate_series(1, %d) i`, ended))
	}
	left := func() int {
		return number(t, pool, "select count(*) from dipwell.hold_parts where live or due = 1")
	}
	pile()
	must(t, pool, "select dipwell.sweep(1000)")
	if n := left(); n > 1 {
		t.Errorf("%d records are left by dipwell.sweep", n)
	}
	eventually(t, "given back", func() bool { // a second after it has expired
		must(t, pool, "select dipwell.sweep(1000)")
		return left() == 0
	})
	pile()
	newStore(t, pool, pgstore.Config{Poll: -1, Sweep: true, OnError: func(err error) { t.Error(err) }})
	eventually(t, "swept", func() bool { return left() == 0 })
}
