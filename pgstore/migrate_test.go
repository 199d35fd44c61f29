package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// TestEncodings checks that a database whose encoding cannot keep UTF-8 is refused with a
// sentence, and that others are inspected.
func TestEncodings(t *testing.T) {
	pool := connect(t, pgtest.Database(t, "empty", func(string) error { return nil }))
	ctx := context.Background()
	for encoding, says := range map[string]string{"EUC_JP": "the database is in EUC_JP, which dipwell cannot use", "LATIN1": "", "SQL_ASCII": ""} {
		name := pgx.Identifier{fmt.Sprintf("%s_%d", strings.ToLower(encoding), time.Now().UnixNano())}.Sanitize()
		if _, err := pool.Exec(ctx, "create database "+name+" encoding '"+encoding+"' lc_collate 'C' lc_ctype 'C' template template0"); err != nil {
			t.Fatal(err)
		}
		defer func() { _, _ = pool.Exec(ctx, "drop database "+name+" with (force)") }()
		config := pool.Config().ConnConfig
		config.Database = strings.Trim(name, `"`)
		conn, err := pgx.ConnectConfig(ctx, config)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(ctx)
		_, err = pgstore.Migrate(ctx, conn, pgstore.MigrateOptions{})
		if says != "" {
			if err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("%s: %v", encoding, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", encoding, err)
		}
		c, err := pgstore.Inspect(ctx, conn)
		if err != nil || c.Encoding != encoding {
			t.Errorf("%s: %+v %v", encoding, c, err)
		}
	}
}

// TestMigrate runs up, concurrent up, a change of durability, and down; opening
// a store on a schema of another version must return an error that says what to
// run.
func TestMigrate(t *testing.T) {
	pool := connect(t, pgtest.Database(t, "empty", func(string) error { return nil }))
	ctx := context.Background()
	opens := func(have int, says string) {
		t.Helper()
		_, err := pgstore.New(ctx, pool, pgstore.Config{})
		var schema *pgstore.SchemaError
		if !errors.As(err, &schema) || schema.Have != have || !strings.Contains(err.Error(), says) {
			t.Errorf("opening at version %d: %v", have, err)
		}
	}
	opens(0, "run: dipwell migrate up")
	errs := make(chan error, 4)
	for range 4 {
		go func() {
			_, err := pgstore.Migrate(ctx, pool, pgstore.MigrateOptions{Tables: "unlogged"})
			errs <- err
		}()
	}
	for range 4 {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	if p := persistence(t, pool); p != "u" {
		t.Errorf("unlogged tables are %q", p)
	}
	for _, to := range []struct {
		tables string
		want   string
	}{{"", "u"}, {"logged", "p"}, {"unlogged", "u"}} {
		applied, err := pgstore.Migrate(ctx, pool, pgstore.MigrateOptions{Tables: to.tables})
		if p := persistence(t, pool); err != nil || len(applied) != 0 || p != to.want {
			t.Errorf("to %v: %v, %v, tables are %q", to.tables, applied, err, p)
		}
	}
	status, err := pgstore.MigrationStatus(ctx, pool)
	if err != nil || len(status) == 0 || status[len(status)-1].Version != pgstore.SchemaVersion || status[0].AppliedAt.IsZero() {
		t.Errorf("status %+v, %v", status, err)
	}
	newStore(t, pool, pgstore.Config{Poll: -1})
	must(t, pool, "insert into dipwell.migrations (version, name) values (999, 'later')")
	opens(999, "run a newer dipwell")
	must(t, pool, "delete from dipwell.migrations where version = 999")
	if err := pgstore.MigrateDown(ctx, pool); err != nil {
		t.Fatal(err)
	}
	opens(0, "run: dipwell migrate up")
	if err := (&pgstore.SchemaError{Have: 1, Want: 2}); err.Error() != "the dipwell schema is version 1 and this program needs 2; run: dipwell migrate up" {
		t.Error(err)
	}
	if _, err := pool.Exec(ctx, pgstore.MigrationSQL(pgstore.MigrateOptions{})); err != nil {
		t.Errorf("what is printed does not run: %v", err)
	}
	newStore(t, pool, pgstore.Config{Poll: -1})
}

func persistence(t *testing.T, pool *pgxpool.Pool) (p string) {
	t.Helper()
	err := pool.QueryRow(context.Background(), "select string_agg(distinct relpersistence::text, '') from pg_class where oid in ('dipwell.buckets'::regclass, 'dipwell.reservations'::regclass)").Scan(&p)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestWatch checks that changes made elsewhere arrive by notifications alone,
// and by polling alone behind a proxy that drops notifications as PgBouncer
// does in transaction mode.
func TestWatch(t *testing.T) {
	t.Parallel()
	notified := func(t *testing.T, pool, watching *pgxpool.Pool) {
		t.Helper()
		l := newWatchingLimiter(t, watching, time.Hour)
		eventually(t, "listening", func() bool {
			var n int
			err := pool.QueryRow(context.Background(), "select count(*) from pg_stat_activity where application_name = 'watcher' and state = 'idle' and query = 'listen dipwell' and datname = current_database()").Scan(&n)
			return err == nil && n == 1
		})
		checkFollows(t, pool, l)
	}
	t.Run("notified", func(t *testing.T) {
		dsn := pgtest.Database(t, "dipwell", migrated)
		notified(t, connect(t, dsn), connect(t, dsn+"&application_name=watcher"))
	})
	t.Run("notified, with a hook", func(t *testing.T) {
		pool := newPool(t)
		config := pool.Config()
		database := config.ConnConfig.Database
		config.ConnConfig.Database = "filled_in_by_the_hook"
		config.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
			c.Database, c.RuntimeParams["application_name"] = database, "watcher"
			return nil
		}
		watching, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(watching.Close)
		notified(t, pool, watching)
	})
	t.Run("polled", func(t *testing.T) {
		pool := newPool(t)
		p := newProxy(t, pgtest.Shared(t))
		p.dropNotifications = true
		behind := connect(t, fmt.Sprintf("postgres://postgres@%s/%s?sslmode=disable", p.Addr(), pool.Config().ConnConfig.Database))
		checkFollows(t, pool, newWatchingLimiter(t, behind, time.Second))
		if p.swallowed.Load() == 0 {
			t.Error("no notification was swallowed: this was no test of the poll")
		}
	})
}

// newWatchingLimiter returns a limiter that follows changes made elsewhere.
func newWatchingLimiter(t *testing.T, pool *pgxpool.Pool, poll time.Duration) *dipwell.Limiter {
	t.Helper()
	l, err := dipwell.New(newStore(t, pool, pgstore.Config{Poll: poll, OnError: func(err error) {
		if !errors.Is(err, context.DeadlineExceeded) { // may be late once on a busy machine
			t.Error(err)
		}
	}}))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// checkFollows checks that the limiter follows what SQL defines, changes and
// drops.
func checkFollows(t *testing.T, pool *pgxpool.Pool, l *dipwell.Limiter) {
	t.Helper()
	ctx := context.Background()
	arrives := func(want int64) {
		t.Helper()
		eventually(t, fmt.Sprint("changed to ", want), func() bool {
			d := l.Limit("login")
			return d == nil && want == 0 || d != nil && d.Rate == want
		})
	}
	must(t, pool, "select dipwell.define('login', 5, interval '1 minute')")
	arrives(5)
	must(t, pool, "select dipwell.define('login', 7, interval '1 minute')")
	arrives(7)
	if d := l.Limit("login"); d.Number != 2 || len(d.Past) != 1 || d.Owner != terms.OwnerSQL {
		t.Errorf("%+v", d)
	}
	if _, err := l.Define(ctx, store.Limit{Name: "login", Rate: 9, Period: time.Minute}, store.OwnerCode); !errors.Is(err, store.ErrOwner) {
		t.Errorf("a program changes SQL's limit: %v", err)
	}
	must(t, pool, "select dipwell.drop('login')")
	arrives(0)
}

// TestChangedElsewhere checks that a store without notifications reads the
// limits when it finds rows of a newer version or a missing limit.
func TestChangedElsewhere(t *testing.T) {
	pool := newPool(t)
	ctx := context.Background()
	must(t, pool, "select dipwell.define('login', 5, interval '1 hour')")
	l, err := dipwell.New(newStore(t, pool, pgstore.Config{Poll: -1}))
	if err != nil {
		t.Fatal(err)
	}
	if d, err := l.Take(ctx, "login", "u", 5); err != nil || !d.Allowed {
		t.Fatalf("%+v %v", d, err)
	}
	must(t, pool, "select dipwell.define('login', 50, interval '1 hour')")
	must(t, pool, "select dipwell.refund('login', 'u', 1)")
	if d, err := l.Take(ctx, "login", "u", 1); err != nil || !d.Allowed || d.Capacity != 50 {
		t.Errorf("%+v %v", d, err)
	}
	must(t, pool, "select dipwell.drop('login')")
	if _, err := l.Check(ctx, "login", "u", 1); err != nil {
		t.Errorf("a look at a limit that was dropped a moment ago: %v", err)
	}
	if _, err := l.TakeAll(ctx, dipwell.Take{Limit: "login", Key: "u", Cost: 1}, dipwell.Take{Limit: "login", Key: "v", Cost: 1}); !errors.Is(err, store.ErrUnknownLimit) {
		t.Errorf("a limit that is gone: %v", err)
	}
}

// TestNoTransactionForRefusal checks that a refusal writes nothing and uses no
// transaction id.
func TestNoTransactionForRefusal(t *testing.T) {
	pool := newPool(t)
	ctx := context.Background()
	l, err := dipwell.New(newStore(t, pool, pgstore.Config{Poll: -1}), store.Limit{Name: "login", Rate: 1, Period: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if d, err := l.Take(ctx, "login", "u", 1); err != nil || !d.Allowed {
		t.Fatalf("%+v %v", d, err)
	}
	before := ownXID(t, pool)
	for range 10 {
		if d, err := l.Take(ctx, "login", "u", 1); err != nil || d.Allowed || d.RetryAfter <= 0 {
			t.Fatalf("%+v %v", d, err)
		}
		must(t, pool, "select dipwell.take('login', 'u')")
		must(t, pool, "select dipwell.take_all('{login,login}', '{u,v}')")
	}
	if after := ownXID(t, pool); after != before+1 {
		t.Errorf("30 refusals burned %d transaction ids", after-before-1)
	}
}

func ownXID(t *testing.T, db pgstore.DB) (id int64) {
	t.Helper()
	if err := db.QueryRow(context.Background(), "select pg_current_xact_id()::text::bigint").Scan(&id); err != nil {
		t.Fatal(err)
	}
	return id
}

// TestMigrateOptions checks that an unknown option is an error that names it,
// and changes nothing.
func TestMigrateOptions(t *testing.T) {
	pool := connect(t, pgtest.Database(t, "empty", func(string) error { return nil }))
	for field, o := range map[string]pgstore.MigrateOptions{"tables": {Tables: "Unlogged"}, "engine": {Engine: "citus"}} {
		var bad *store.FieldError
		if _, err := pgstore.Migrate(t.Context(), pool, o); !errors.As(err, &bad) || bad.Field != field {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if status, err := pgstore.MigrationStatus(t.Context(), pool); err != nil || !status[0].AppliedAt.IsZero() {
		t.Errorf("after options that were refused: %+v, %v", status, err)
	}
}

// TestMigrateIgnoresSearchPath checks that no operator of a schema in the search path gets
// into the views, and that a transaction of the caller's keeps its search path.
func TestMigrateIgnoresSearchPath(t *testing.T) {
	inTx(t, newPool(t), func(tx pgx.Tx) {
		if err := pgstore.MigrateDown(t.Context(), tx); err != nil {
			t.Fatal(err)
		}
		must(t, tx, `create schema trap; set local search_path = trap, public;
			create function trap.fail(bigint, interval) returns interval language plpgsql as $$ begin raise 'the operator of trap'; end $$;
			create operator trap.* (leftarg = bigint, rightarg = interval, function = trap.fail)`)
		if _, err := pgstore.Migrate(t.Context(), tx, pgstore.MigrateOptions{}); err != nil {
			t.Fatal(err)
		}
		var path string
		if err := tx.QueryRow(t.Context(), "select current_setting('search_path')").Scan(&path); err != nil || path != "trap, public" {
			t.Errorf("the search path is %q, %v", path, err)
		}
		must(t, tx, "select dipwell.define('api', 5, interval '1 minute'), dipwell.override('api', 'o', burst => 9, until => now() + interval '1 hour')")
		if n := number(t, tx, "select count(x::text) from dipwell.overrides x"); n != 1 {
			t.Errorf("%d overrides", n)
		}
	})
}
