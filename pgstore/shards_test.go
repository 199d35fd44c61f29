package pgstore_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/pgstore"
)

const defineSharded = "select dipwell.define('s', 1, interval '1 day', burst => 16, shards => 4)"

// TestShardsSQL checks that the SQL functions and the Go store take from the same rows.
func TestShardsSQL(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	must(t, pool, defineSharded)
	s := newStore(t, pool, pgstore.Config{})
	l, err := dipwell.New(s)
	if err != nil {
		t.Fatal(err)
	}
	var got string
	ask := func(want, sql string) {
		t.Helper()
		if err := pool.QueryRow(t.Context(), sql).Scan(&got); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", sql, got, err, want)
		}
	}
	ask("t 16", "select concat_ws(' ', allowed, remaining) from dipwell.check('s', 'k', 0)")
	ask("f t", "select concat_ws(' ', allowed, never) from dipwell.take('s', 'k', 5)")
	ask("t 4", "select concat_ws(' ', allowed, granted) from dipwell.take_up_to('s', 'k', 9)")
	for range 2 {
		if d, err := l.Take(t.Context(), "s", "k", 4); err != nil || !d.Allowed {
			t.Fatalf("%+v, %v", d, err)
		}
	}
	ask("k t 0", "select concat_ws(' ', key, allowed, remaining) from dipwell.take_all('{s}', '{k}', '{4}')")
	ask("f 0", "select concat_ws(' ', allowed, remaining) from dipwell.take('s', 'k')")
	ask("f 96:00:00", "select concat_ws(' ', allowed, date_trunc('hour', retry_after + interval '30 minutes')) from dipwell.check('s', 'k')")
	ask("k 16 0", "select string_agg(concat_ws(' ', key, capacity, remaining), ',') from dipwell.status")
	ask("t 16", "select concat_ws(' ', allowed, remaining) from dipwell.reset('s', 'k')")
	must(t, pool, "select dipwell.override('s', 'k', burst => 35)")
	ask("k 35", "select string_agg(concat_ws(' ', key, burst), ',') from dipwell.overrides")
	ask("t 32", "select concat_ws(' ', allowed, remaining) from dipwell.check('s', 'k', 0)")
	if _, err := pool.Exec(t.Context(), "select dipwell.define('s', 1, interval '1 day', burst => 16, shards => 2)"); err == nil {
		t.Error("other shards beside an override: no error")
	}
	ask("true", "select dipwell.end_override('s', 'k')::text")
	must(t, pool, "select dipwell.define('s', 1, interval '1 day', burst => 16, shards => 2)")
	ask("t 16", "select concat_ws(' ', allowed, remaining) from dipwell.check('s', 'k', 0)")
	for _, verb := range []string{"reserve", "charge", "refund", "hold"} {
		if _, err := pool.Exec(t.Context(), fmt.Sprintf("select dipwell.%s('s', 'k', 1)", verb)); err == nil {
			t.Errorf("%s: no error", verb)
		}
	}
}

// TestShardsUnlocked checks that a transaction that has taken from a key with shards keeps
// nobody from taking from the other rows, and that a call waits only before it is refused.
func TestShardsUnlocked(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	must(t, pool, defineSharded)
	s := newStore(t, pool, pgstore.Config{})
	l, err := dipwell.New(s)
	if err != nil {
		t.Fatal(err)
	}
	inGo := func(tx pgx.Tx) bool {
		d, err := l.With(s.With(tx)).Take(t.Context(), "s", "k", 4)
		return err == nil && d.Allowed
	}
	inGroup := func(tx pgx.Tx) bool {
		d, err := l.With(s.With(tx)).TakeAll(t.Context(), dipwell.Take{Limit: "s", Key: "k", Cost: 4})
		return err == nil && d.Allowed
	}
	inSQL := func(tx pgx.Tx) (ok bool) {
		err := tx.QueryRow(t.Context(), "select allowed from dipwell.take('s', 'k', 4)").Scan(&ok)
		return err == nil && ok
	}
	for round := range 2 { // in the first round there are no rows yet
		var txs []pgx.Tx
		for i, take := range []func(pgx.Tx) bool{inSQL, inGo, inGroup, inSQL} {
			tx, err := pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			txs = append(txs, tx)
			if !take(tx) {
				t.Fatalf("round %d: take %d beside transactions that have the other rows is not allowed", round, i)
			}
		}
		waiting := []func() bool{func() bool {
			d, err := l.Take(t.Context(), "s", "k", 4)
			return err == nil && d.Allowed
		}, func() (ok bool) {
			err := pool.QueryRow(t.Context(), "select allowed from dipwell.take('s', 'k', 4)").Scan(&ok)
			return err == nil && ok
		}}
		done := make(chan bool)
		for _, call := range waiting {
			go func() { done <- call() }()
		}
		select {
		case <-done:
			t.Error("a call was decided while all rows were locked")
		case <-time.After(100 * time.Millisecond):
		}
		for i, tx := range txs {
			if i >= 2 {
				_ = tx.Rollback(t.Context())
			} else if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		for range waiting {
			if !<-done {
				t.Error("a call that waited for rows that were given back was refused")
			}
		}
		if d, err := l.Reset(t.Context(), "s", "k"); err != nil || !d.Allowed {
			t.Fatalf("%+v, %v", d, err)
		}
	}
}

// TestShardsTransactions checks that transactions that take once from the same nearly empty
// keys are no deadlock's victims, and that they take all tokens and no more.
func TestShardsTransactions(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	must(t, pool, defineSharded)
	must(t, pool, "select dipwell.define('a', 1000000, interval '1 day'), dipwell.define('z', 1000000, interval '1 day')")
	s := newStore(t, pool, pgstore.Config{})
	l, err := dipwell.New(s)
	if err != nil {
		t.Fatal(err)
	}
	allowed := func(d dipwell.Decision, err error) (bool, error) { return d.Allowed, err }
	for round := range 10 {
		key := fmt.Sprint("k", round)
		inSQL := func(ctx context.Context, tx pgx.Tx, sql string) (ok bool, err error) {
			err = tx.QueryRow(ctx, sql, key).Scan(&ok)
			return ok, err
		}
		calls := []func(context.Context, pgx.Tx) (bool, error){
			func(ctx context.Context, tx pgx.Tx) (bool, error) {
				return inSQL(ctx, tx, "select allowed from dipwell.take('s', $1)")
			},
			func(ctx context.Context, tx pgx.Tx) (bool, error) {
				return inSQL(ctx, tx, "select bool_and(allowed) from dipwell.take_all(array['z', 's', 'a'], array[$1, $1, $1])")
			},
			func(ctx context.Context, tx pgx.Tx) (bool, error) {
				return allowed(l.With(s.With(tx)).Take(ctx, "s", key, 1))
			},
			func(ctx context.Context, tx pgx.Tx) (bool, error) {
				return allowed(l.With(s.With(tx)).TakeAll(ctx, dipwell.Take{Limit: "a", Key: key, Cost: 1}, dipwell.Take{Limit: "s", Key: key, Cost: 1}, dipwell.Take{Limit: "z", Key: key, Cost: 1}))
			},
		}
		var granted atomic.Int64
		var callers sync.WaitGroup
		for i := range 12 {
			callers.Go(func() {
				for range 4 {
					var ok bool
					err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) (err error) {
						ok, err = calls[i%len(calls)](t.Context(), tx)
						return err
					})
					if err != nil {
						t.Errorf("call %d: %v", i%len(calls), err)
					} else if ok {
						granted.Add(1)
					}
				}
			})
		}
		callers.Wait()
		if granted.Load() != 16 {
			t.Errorf("round %d: %d of 48 takes are granted, want 16", round, granted.Load())
		}
	}
}

// The override of a key decides its takes whatever its rows are, and after its end the limit
// does again.
func TestShardsOverridden(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	must(t, pool, "select dipwell.define('s', 1, interval '1 day', burst => 16, shards => 4, plans => '{\"banned\": {\"mode\": \"blocked\", \"callable\": false}}')")
	granted := func(calls int) (n int) {
		t.Helper()
		for range calls {
			var allowed bool
			if err := pool.QueryRow(t.Context(), "select allowed from dipwell.take('s', 'k')").Scan(&allowed); err != nil {
				t.Fatal(err)
			}
			if allowed {
				n++
			}
		}
		return n
	}
	before := granted(4)
	must(t, pool, "select dipwell.override('s', 'k', 'banned')")
	banned := granted(20)
	must(t, pool, "select dipwell.end_override('s', 'k')")
	if after := granted(30); before != 4 || banned != 0 || after != 12 {
		t.Errorf("%d before, %d of a banned key, %d after; want 4, 0, 12", before, banned, after)
	}
}
