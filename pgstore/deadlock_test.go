package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// TestDeadlock has other transactions lock the rows of a call in the opposite
// order, again and again. The call must end with an error after a bounded
// number of tries, and what it had charged must be given back.
func TestDeadlock(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	// The victims check for a deadlock after a time in which a partner comes to wait too,
	// on a busy machine only a long one, and give up before it does.
	victims := func(check time.Duration) *dipwell.Limiter {
		config := pool.Config()
		config.ConnConfig.RuntimeParams["deadlock_timeout"] = fmt.Sprint(check.Milliseconds())
		config.ConnConfig.RuntimeParams["application_name"] = "victim"
		own, err := pgxpool.NewWithConfig(context.Background(), config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(own.Close)
		l, err := dipwell.New(newStore(t, own, pgstore.Config{Poll: -1}),
			store.Limit{Name: "first", Rate: 1, Period: 24 * time.Hour, Burst: 9}, store.Limit{Name: "second", Rate: 1, Period: 24 * time.Hour, Burst: 9})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	check := 100 * time.Millisecond
	l := victims(check)
	ctx := t.Context()
	both := []dipwell.Take{{Limit: "first", Key: "k", Cost: 1}, {Limit: "second", Key: "k", Cost: 1}}
	if _, err := l.TakeAll(ctx, both...); err != nil {
		t.Fatal(err)
	}
	left := int64(8)

	// Two partners, so that one of them is waiting for the row when the other
	// releases it, and the call never gets it.
	quit, partners := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() { partner(quit, t, pool) })
	}
	eventually(t, "one partner at the second row, and the other behind it", func() bool {
		var waits bool
		err := pool.QueryRow(ctx, "select exists (select from pg_stat_activity where datname = current_database() and cardinality(pg_blocking_pids(pid)) > 0)").Scan(&waits)
		return err == nil && waits
	})
	// A partner may be too late for the check, so that the call gets the row. Then
	// the call is made again.
	var err error
	for range 4 {
		if _, err = l.TakeAll(ctx, both...); err != nil {
			break
		}
		left--
		check *= 3
		l = victims(check)
	}
	partners()
	wg.Wait()
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != "40P01" || !errors.Is(err, store.ErrStore) || errors.Is(err, store.ErrOutcomeUnknown) {
		t.Fatalf("a call that always deadlocks: %v", err)
	}
	eventually(t, "counted", func() bool { // statistics are updated with a delay
		var n int
		if err := pool.QueryRow(ctx, "select deadlocks from pg_stat_database where datname = current_database()").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n >= pgstore.MaxTries
	})
	if d, err := l.TakeAll(ctx, both...); err != nil || d.Remaining != left-1 {
		t.Errorf("when they are gone: %+v %v", d, err)
	}
}

// partner locks the second row, and asks for the first one whenever the call
// waits for the second.
func partner(ctx context.Context, t *testing.T, pool *pgxpool.Pool) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Release()
	must(t, conn.Conn(), "set deadlock_timeout = '1h'") // so that it is never the victim
	for ctx.Err() == nil {
		err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, lockRow, "second")
			for err == nil {
				err = collide(ctx, pool, tx)
			}
			return err
		})
		// A call that checked for a deadlock too early does not check again: it
		// now meets the other partner.
		if pg := (*pgconn.PgError)(nil); !errors.As(err, &pg) || pg.Code != "55P03" {
			if ctx.Err() == nil {
				t.Error(err)
			}
			return
		}
	}
}

const lockRow = "select from dipwell.buckets b where limit_id = (select id from dipwell.limits where name = $1) and key = 'k' for update"

// collide waits until the call waits, asks for the first row, and releases only
// that one.
func collide(ctx context.Context, pool *pgxpool.Pool, tx pgx.Tx) error {
	for waits := false; !waits; {
		err := pool.QueryRow(ctx, "select exists (select from pg_stat_activity where application_name = 'victim' and datname = current_database() and cardinality(pg_blocking_pids(pid)) > 0) from pg_sleep(0.005)").Scan(&waits)
		if err != nil {
			return err
		}
	}
	inner, err := tx.Begin(ctx)
	if err != nil {
		return err
	}
	if _, err = inner.Exec(ctx, "set local lock_timeout = '4s'"); err == nil {
		_, err = inner.Exec(ctx, lockRow, "first")
	}
	if back := inner.Rollback(ctx); err == nil {
		err = back
	}
	return err
}
