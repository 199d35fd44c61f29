package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// gated opens a store with two limits and a row of key "k" in each.
func gated(t *testing.T, settings string) (*pgxpool.Pool, *pgstore.Store, *dipwell.Limiter) {
	pool := connect(t, pgtest.Database(t, "dipwell", migrated)+"&synchronous_commit=on"+settings)
	s := newStore(t, pool, pgstore.Config{Poll: -1})
	l, err := dipwell.New(s, store.Limit{Name: "first", Rate: 1, Period: 24 * time.Hour, Burst: 100}, store.Limit{Name: "second", Rate: 1, Period: 24 * time.Hour, Burst: 100})
	if err != nil {
		t.Fatal(err)
	}
	takes(t, l, "k", "k")
	return pool, s, l
}

// takes takes from both limits, or from one of them if the other key is empty.
func takes(t *testing.T, l *dipwell.Limiter, first, second string) {
	t.Helper()
	if err := tryTakes(t.Context(), l, first, second); err != nil {
		t.Fatal(err)
	}
}

func tryTakes(ctx context.Context, l *dipwell.Limiter, first, second string) error {
	var all []dipwell.Take
	for limit, key := range map[string]string{"first": first, "second": second} {
		if key != "" {
			all = append(all, dipwell.Take{Limit: limit, Key: key, Cost: 1})
		}
	}
	d, err := l.TakeAll(ctx, all...)
	if err == nil && !d.Allowed {
		err = errors.New("refused")
	}
	return err
}

// held begins a transaction that holds the row of a key.
func held(t *testing.T, pool *pgxpool.Pool, s *pgstore.Store, l *dipwell.Limiter, first, second string) (pgx.Tx, *dipwell.Limiter) {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	inside := l.With(s.With(tx))
	takes(t, inside, first, second)
	return tx, inside
}

const waitingSQL = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"

// TestGateInFlight: of many calls of a locked row few wait in the database; a call whose
// context ends meanwhile has sent nothing; calls of other rows, and of the transaction
// that holds the row, wait for nobody; and when the row is free everybody gets a token.
func TestGateInFlight(t *testing.T) {
	t.Parallel()
	for _, second := range []string{"", "k"} {
		t.Run(fmt.Sprint("TakeAll=", second != ""), func(t *testing.T) {
			pool, s, l := gated(t, "&pool_max_conns=12")
			pgstore.GatesWait(s)
			tx, inside := held(t, pool, s, l, "k", "")
			const calls = 8
			done := make(chan error, calls)
			for range calls {
				go func() { done <- tryTakes(t.Context(), l, "k", second) }()
			}
			eventually(t, "waiting for the row", func() bool { return number(t, pool, waitingSQL) == pgstore.RowSeats })
			gone, cancel := context.WithCancel(t.Context())
			cancel()
			if err := tryTakes(gone, l, "k", second); !errors.Is(err, context.Canceled) || errors.Is(err, store.ErrOutcomeUnknown) {
				t.Errorf("a call whose context has ended: %v", err)
			}
			takes(t, inside, "k", second)
			takes(t, l, "other", "k2")
			if n := number(t, pool, waitingSQL); n != pgstore.RowSeats {
				t.Errorf("%d calls wait in the database, want %d", n, pgstore.RowSeats)
			}
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			for range calls {
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
			d, err := l.Check(t.Context(), "first", "k", 0)
			if err != nil || d.Remaining != 100-1-2-calls {
				t.Errorf("%d remain, %v", d.Remaining, err)
			}
		})
	}
}

// TestGateFailedStatement: a statement that fails frees its seats.
func TestGateFailedStatement(t *testing.T) {
	t.Parallel()
	for _, second := range []string{"", "k"} {
		pool, s, l := gated(t, "&lock_timeout=20ms")
		pgstore.GatesWait(s)
		tx, _ := held(t, pool, s, l, "k", "")
		for range 2 * pgstore.RowSeats {
			if err := tryTakes(t.Context(), l, "k", second); !errors.Is(err, store.ErrLocked) {
				t.Errorf("a call of a locked row: %v", err)
			}
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		takes(t, l, "k", second)
	}
}

// TestGateBehindOwnTransaction: the owner of a transaction makes another call, of a row
// whose seats are taken by calls that wait for the transaction. Nobody may wait for ever.
func TestGateBehindOwnTransaction(t *testing.T) {
	t.Parallel()
	pool, s, l := gated(t, "")
	tx, _ := held(t, pool, s, l, "k", "")
	done := make(chan error, pgstore.RowSeats)
	for range pgstore.RowSeats {
		go func() { done <- tryTakes(t.Context(), l, "k", "k") }()
	}
	eventually(t, "waiting for the row", func() bool { return number(t, pool, waitingSQL) == pgstore.RowSeats })
	takes(t, l, "", "k")
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range pgstore.RowSeats {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
