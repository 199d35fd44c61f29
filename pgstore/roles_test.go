package pgstore_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// TestServiceRole checks that a program with only dipwell_service can decide,
// sweep and follow changes, and cannot change a definition; also with the search path that
// the page for DBAs recommends.
func TestServiceRole(t *testing.T) {
	pool := newPool(t)
	ctx := t.Context()
	must(t, pool, "drop role if exists limiter; create role limiter login in role dipwell_service; alter role limiter set search_path = pg_catalog, pg_temp")
	t.Cleanup(func() { must(t, pool, "drop role limiter") })
	must(t, pool, `select dipwell.define('login', 5, interval '1 hour', burst => 20, max_debt => 20)`)
	dsn := strings.Replace(pool.Config().ConnString(), "postgres@", "limiter@", 1)
	login := connect(t, dsn)
	st := newStore(t, login, pgstore.Config{Poll: -1})
	l, err := dipwell.New(st)
	if err != nil {
		t.Fatal(err)
	}
	for name, call := range map[string]func() error{
		"take":    func() error { _, err := l.Take(ctx, "login", "u", 1); return err },
		"check":   func() error { _, err := l.Check(ctx, "login", "u", 1); return err },
		"charge":  func() error { _, err := l.Charge(ctx, "login", "u", 1); return err },
		"refund":  func() error { _, err := l.Refund(ctx, "login", "u", 1); return err },
		"reset":   func() error { _, err := l.Reset(ctx, "login", "v"); return err },
		"keys":    func() error { _, err := st.Abilities().Keys(ctx, l.Limit("login"), "", "", 10); return err },
		"inspect": func() error { _, err := pgstore.Inspect(ctx, login); return err },
		"take all": func() error {
			_, err := l.TakeAll(ctx, dipwell.Take{Limit: "login", Key: "a", Cost: 1}, dipwell.Take{Limit: "login", Key: "b", Cost: 1})
			return err
		},
		"cancel": func() error {
			d, err := l.Reserve(ctx, "login", "c", 30)
			if err == nil {
				err = l.Cancel(ctx, d.Reservation)
			}
			return err
		},
		"sweep": func() error {
			must(t, pool, "select dipwell.define('gone', 1, interval '1 hour'); select dipwell.define('gone', 2, interval '1 hour'); update dipwell.versions set since = 0")
			_, err := store.AbilitiesOf(st).Sweep(ctx, 100)
			return err
		},
		"logs": func() error {
			e := store.AuditEntry{Who: "here", Action: "reset", Limit: "login", What: "{}"}
			return errors.Join(st.Abilities().Audit.Record(ctx, e), st.Abilities().TopKeys.Record(ctx, e))
		},
		"SQL": func() error {
			_, err := login.Exec(ctx, "select dipwell.take('login', 'u'), dipwell.sweep()")
			return err
		},
	} {
		if err := call(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, err := range map[string]error{
		"define": func() error {
			_, err := l.Define(ctx, store.Limit{Name: "mine", Rate: 1, Period: time.Hour}, store.OwnerCode)
			return err
		}(),
		"drop": st.Drop(ctx, "login", terms.OwnerSQL),
	} {
		if !errors.Is(err, store.ErrStore) || !strings.Contains(err.Error(), "dipwell_admin") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRightsMissing checks that a login with too few rights is told which it needs, and
// that one that may only read the schema can run a migration that has nothing to do.
func TestRightsMissing(t *testing.T) {
	pool := newPool(t)
	ctx := t.Context()
	must(t, pool, "drop role if exists nobody, reader; create role nobody login in role dipwell_app; create role reader login in role dipwell_service")
	t.Cleanup(func() { must(t, pool, "drop role nobody; drop role reader") })
	as := func(who string) *pgxpool.Pool {
		return connect(t, strings.Replace(pool.Config().ConnString(), "postgres@", who+"@", 1))
	}
	for _, lazy := range []bool{false, true} {
		if st, err := pgstore.New(ctx, as("nobody"), pgstore.Config{Lazy: lazy}); err == nil || !strings.Contains(err.Error(), "grant dipwell_service to this login") {
			t.Errorf("lazy %v: %v, %v", lazy, st, err)
		}
	}
	dsn := strings.Replace(pool.Config().ConnString(), "postgres@", "nobody@", 1)
	dsn += map[bool]string{true: "&", false: "?"}[strings.Contains(dsn, "?")] + "role=dipwell_admin" // refused when a connection is opened
	if st, err := pgstore.New(ctx, connect(t, dsn), pgstore.Config{}); err == nil || strings.Contains(err.Error(), "grant dipwell_service") {
		t.Errorf("%v, %v", st, err)
	}
	for who, want := range map[string]string{"nobody": "must own the schema dipwell", "reader": ""} {
		applied, err := pgstore.Migrate(ctx, as(who), pgstore.MigrateOptions{})
		if len(applied) > 0 || (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v", who, applied, err)
		}
	}
}
