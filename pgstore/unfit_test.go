package pgstore_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dipwell/dipwell/internal/pgtest"
)

// beside runs one statement in a transaction that commits once the other one waits for it,
// and returns the error of the other one.
func beside(t *testing.T, dsn, first, second string) error {
	t.Helper()
	ctx := t.Context()
	pool := connect(t, dsn)
	tx, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	must(t, tx, first)
	done := make(chan error, 1)
	other := connect(t, dsn)
	go func() {
		_, err := other.Exec(ctx, second)
		done <- err
	}()
	eventually(t, "waiting for the transaction", func() (waits bool) {
		err := tx.QueryRow(ctx, "select exists (select from pg_locks where not granted and pg_backend_pid() = any (pg_blocking_pids(pid)))").Scan(&waits)
		return err == nil && waits
	})
	if err = tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	return <-done
}

// TestUnfitBeside checks that of an override and a change that it does not fit, the one that
// comes second is refused, also if the first is not committed yet.
func TestUnfitBeside(t *testing.T) {
	t.Parallel()
	const set, drop = "select dipwell.override('api', 'k', plan => 'pro')", "select dipwell.drop_plan('api', 'pro')"
	for _, c := range []struct{ before, first, second, wrong, message string }{
		{"select 1", set, drop, "plans", `the override of key "k"`},
		{"select dipwell.override('api', 'other', rate => 2)", set, drop, "plans", `the override of key "k"`},
		{"select dipwell.override('api', 'other', rate => 2)", drop, set, "plan", `limit api has no plan "pro"`},
	} {
		dsn := pgtest.Database(t, "dipwell", migrated)
		pool := connect(t, dsn)
		must(t, pool, "select dipwell.define('api', 1, interval '1 hour', burst => 5)")
		must(t, pool, "select dipwell.define_plan('api', 'pro', burst => 20)")
		must(t, pool, c.before)
		var pg *pgconn.PgError
		if err := beside(t, dsn, c.first, c.second); !errors.As(err, &pg) || pg.ConstraintName != c.wrong || !strings.Contains(pg.Message, c.message) {
			t.Errorf("%s after %s: %v", c.second, c.first, err)
		}
	}
}

// A change of a setting from which only overrides are compiled begins a new version if the
// first override is set at the same time.
func TestFirstOverrideBesideChange(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Database(t, "dipwell", migrated)
	pool := connect(t, dsn)
	must(t, pool, "select dipwell.define('api', 1, interval '1 hour')")
	if err := beside(t, dsn, "select dipwell.override('api', 'k', rate => 5)", "select dipwell.define('api', 1, interval '1 hour', burst => 1)"); err != nil {
		t.Fatal(err)
	}
	if left := number(t, pool, "select remaining from dipwell.check('api', 'k')"); left != 1 {
		t.Errorf("%d left of the burst of 1 that the limit has now", left)
	}
}
