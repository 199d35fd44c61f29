package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// Programs that count in SQL and services add up. Nothing of a transaction that is rolled
// back counts, and a service does not wait for one that is open.
func TestCountUsage(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	ctx := context.Background()
	must(t, pool, "select dipwell.define('api', 5, interval '1 minute', usage => true)")
	st, other := newStore(t, pool, pgstore.Config{Poll: -1}), newStore(t, pool, pgstore.Config{Poll: -1})
	var at time.Time
	if err := pool.QueryRow(ctx, "select date_trunc('hour', now(), 'UTC')").Scan(&at); err != nil {
		t.Fatal(err)
	}
	count := func(s *pgstore.Store) error {
		return s.Abilities().Usage.AddUsage(ctx, []store.UsageLine{{Limit: "api", Key: "k", Hour: at.UnixMicro(), Allowed: 100, Refused: 10, Tokens: 1000}})
	}
	rolledBack := errors.New("rolled back")
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		must(t, tx, "select dipwell.count_usage('api', 'k', 1, 1, 1)")
		if err := count(st); err != nil {
			t.Error(err)
		}
		return rolledBack
	})
	if !errors.Is(err, rolledBack) {
		t.Error(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 5 {
				if _, err := pool.Exec(ctx, "select dipwell.count_usage('api', 'k', allowed => 1, tokens => 7)"); err != nil {
					t.Error(err)
				}
			}
			if _, err := pool.Exec(ctx, "select dipwell.count_usage('api', 'k', refused => 1)"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Go(func() {
		if err := errors.Join(count(st), count(other)); err != nil {
			t.Error(err)
		}
	})
	wg.Wait()
	list, err := other.Abilities().Usage.Usage(ctx, &store.Definition{Limit: store.Limit{Name: "api"}}, "k", at.UnixMicro(), at.Add(2*time.Hour).UnixMicro())
	if err != nil {
		t.Fatal(err)
	}
	var sum store.UsageLine // the hour may have ended meanwhile
	for i := range list {
		sum.Add(&list[i])
	}
	if got, want := fmt.Sprint(sum.Allowed, sum.Refused, sum.Tokens), fmt.Sprint(300+40, 30+8, 3000+280); got != want || len(list) > 2 {
		t.Errorf("%s in %v, want %s", got, list, want)
	}
	must(t, pool, "update dipwell.usage set hour = hour - interval '32 days' where by_sql; select dipwell.sweep()")
	var rows int
	if err = pool.QueryRow(ctx, "select count(*) from dipwell.usage").Scan(&rows); err != nil || rows != 1 {
		t.Errorf("after a sweep: %d rows, %v", rows, err)
	}
	must(t, pool, "select dipwell.drop('api')")
	if err = pool.QueryRow(ctx, "select count(*) from dipwell.usage").Scan(&rows); err != nil || rows != 0 {
		t.Errorf("after a drop: %d rows, %v", rows, err)
	}
}

// A transaction that locks a limit, such as one that drops it, must not make a service lose
// what it counted of any limit: the error says that nothing was added.
func TestAddUsageOfLockedLimit(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	ctx := context.Background()
	must(t, pool, "select dipwell.define(x, 5, interval '1 minute', usage => true) from unnest(array['api', 'login']) x")
	st := newStore(t, pool, pgstore.Config{Poll: -1})
	at := time.Now().Truncate(time.Hour).UnixMicro()
	add := func() error {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		return st.Abilities().Usage.AddUsage(ctx, []store.UsageLine{{Limit: "api", Key: "k", Hour: at, Allowed: 1}, {Limit: "login", Key: "k", Hour: at, Allowed: 1}})
	}
	tx, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	must(t, tx, "select dipwell.drop('login')")
	if err = add(); !errors.Is(err, store.ErrLocked) || errors.Is(err, store.ErrOutcomeUnknown) {
		t.Errorf("while a limit is locked: %v, want ErrLocked", err)
	}
	if err = errors.Join(tx.Rollback(ctx), add()); err != nil {
		t.Fatal(err)
	}
	var allowed []int64
	if err = pool.QueryRow(ctx, "select array_agg(u.allowed) from dipwell.usage u").Scan(&allowed); err != nil || fmt.Sprint(allowed) != "[1 1]" {
		t.Errorf("stored %v, %v, want [1 1]", allowed, err)
	}
}
