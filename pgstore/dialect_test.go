package pgstore_test

import (
	"context"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
	"github.com/dipwell/dipwell/storetest"
)

// TestPortable runs the suite with the portable statements on PostgreSQL. It
// tests the algebra, not the engines.
func TestPortable(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t testing.TB, now func() int64) store.Store {
		return newStore(t, recycledPool(t, "portable", migratedPortable), pgstore.Config{Clock: now, Poll: -1})
	}, storetest.Options{Quick: true, Parallel: true})
}

// TestPortableSerializable checks for the exact count and no error under
// SERIALIZABLE.
func TestPortableSerializable(t *testing.T) {
	config := portablePool(t).Config()
	config.MaxConns = 64
	config.ConnConfig.RuntimeParams["default_transaction_isolation"] = "serializable"
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	hammer(t, newStore(t, pool, pgstore.Config{Poll: -1}), 64)
}

func portablePool(t testing.TB) *pgxpool.Pool {
	return connect(t, pgtest.Database(t, "portable", migratedPortable))
}

func migratedFor(dsn string, engine string) error {
	return migratedAs(dsn, pgstore.MigrateOptions{Engine: engine})
}

func migratedPortable(dsn string) error { return migratedFor(dsn, "Portable") }

// TestPortableMigrate runs up, up again, status and down, with the engine
// detected.
func TestPortableMigrate(t *testing.T) {
	pool := portablePool(t)
	ctx := context.Background()
	if applied, err := pgstore.Migrate(ctx, pool, pgstore.MigrateOptions{}); err != nil || len(applied) != 0 {
		t.Errorf("up again: %v, %v", applied, err)
	}
	if _, err := pgstore.Migrate(ctx, pool, pgstore.MigrateOptions{Engine: "Portable", Tables: "unlogged"}); err == nil {
		t.Error("unlogged tables were promised")
	}
	newStore(t, pool, pgstore.Config{Poll: -1})
	if err := pgstore.MigrateDown(ctx, pool); err != nil {
		t.Fatal(err)
	}
	var left int
	if err := pool.QueryRow(ctx, "select count(*) from pg_namespace where nspname = 'dipwell'").Scan(&left); err != nil || left != 0 {
		t.Errorf("%d schemas left, %v", left, err)
	}
}

// TestEngines runs the suite on clusters named in the environment. The schema
// is removed before and after each case.
func TestEngines(t *testing.T) {
	for name, engine := range map[string]string{"POSTGRES": "PostgreSQL", "YUGABYTE": "YugabyteDB",
		"COCKROACH": "CockroachDB", "CITUS": "Citus"} {
		dsn := os.Getenv("DIPWELL_TEST_" + name)
		if dsn == "" {
			t.Logf("DIPWELL_TEST_%s names no database: %s is not tested here", name, engine)
			continue
		}
		t.Run(engine, func(t *testing.T) {
			storetest.Run(t, func(t testing.TB, now func() int64) store.Store {
				pool := connect(t, pgstore.ConnString(dsn))
				down := func() {
					if err := pgstore.MigrateDown(context.Background(), pool); err != nil {
						t.Error(err)
					}
				}
				down()
				if err := migratedFor(dsn, engine); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(down)
				return newStore(t, pool, pgstore.Config{Clock: now, Poll: -1})
			}, storetest.Options{Quick: true})
		})
	}
}

// A lint is a documented limitation of an engine that its statements must
// respect.
type lint struct {
	engines string
	about   string // pattern of the statements to check
	never   string // pattern that must not occur in them
	why     string
}

var lints = []lint{
	{"YugabyteDB CockroachDB Citus", "(?s)do update.*", `clock_timestamp|statement_timestamp|transaction_timestamp|now\(|current_|random`, "Citus refuses functions that are not immutable in DO UPDATE"},
	{"YugabyteDB CockroachDB Citus", "(?s)returning.*", `\(`, "Citus refuses functions that are not immutable in RETURNING"},
	{"YugabyteDB CockroachDB Citus", "(?s)do update.*", `\bselect\b`, "a subquery in DO UPDATE is not routed by key"},
	{"CockroachDB", "(?s).*", `[^/]/[^/]`, "/ of integers is a decimal"},
	{"YugabyteDB Citus", "(?s).*", `//`, "// is CockroachDB's"},
	{"YugabyteDB CockroachDB Citus", "(?si).*", `unlogged|fillfactor|autovacuum|advisory|lock table|skip locked|\bnotify\b|\blisten\b`, "the engine refuses or ignores it"},
	{"YugabyteDB CockroachDB Citus", "(?si).*", `language plpgsql|create function|create type|\bdo \$\$|create role`, "functions are not among these tables"},
	{"YugabyteDB CockroachDB Citus", "(?si)^(insert|update|delete).*", `;`, "one mutation a statement"},
	{"YugabyteDB CockroachDB Citus", "(?si).*", `\bwith\b[^;]*\b(insert|update|delete)\b`, "one mutation of a table a statement"},
	{"CockroachDB", "(?si).*", `collate|generated always|identity|foreign key|references`, "not in this form"},
}

// TestDialects applies the lints to all statements of each engine.
func TestDialects(t *testing.T) {
	for engine, statements := range pgstore.Statements(t) {
		looked := 0
		for _, l := range lints {
			if !strings.Contains(l.engines, engine) {
				continue
			}
			for _, s := range statements {
				code := regexp.MustCompile(`--[^\n]*`).ReplaceAllString(s, "")
				for _, part := range regexp.MustCompile(l.about).FindAllString(code, -1) {
					looked++
					if found := regexp.MustCompile(l.never).FindString(part); found != "" {
						t.Errorf("%s: %q: %s\n%s", engine, found, l.why, s)
					}
				}
			}
		}
		if looked < 50 {
			t.Errorf("%s: only %d parts of %d statements were looked at", engine, looked, len(statements))
		}
	}
	yugabyte := pgstore.MigrationSQL(pgstore.MigrateOptions{Engine: "YugabyteDB"})
	if !strings.Contains(yugabyte, "primary key ((limit_id, key) hash)") {
		t.Error("YugabyteDB's keys are not distributed by hash")
	}
	citus := pgstore.MigrationSQL(pgstore.MigrateOptions{Engine: "Citus"})
	for _, want := range []string{"create_distributed_table('dipwell.buckets', 'key')", "create_reference_table('dipwell.limits')"} {
		if !strings.Contains(citus, want) {
			t.Errorf("Citus is not told %s", want)
		}
	}
}

// TestLintsDetect checks the lints against statements that violate them.
func TestLintsDetect(t *testing.T) {
	for _, bad := range []string{
		"insert into b values (1) on conflict (k) do update set ts = clock_timestamp()",
		"select a / b", "create unlogged table b ()", "insert into b values (1) returning b.n, clock_timestamp()",
	} {
		caught := false
		for _, l := range lints {
			for _, part := range regexp.MustCompile(l.about).FindAllString(bad, -1) {
				caught = caught || regexp.MustCompile(l.never).MatchString(part)
			}
		}
		if !caught {
			t.Errorf("passed: %s", bad)
		}
	}
}

// TestURLs checks what of a URL is left for pgx.
func TestURLs(t *testing.T) {
	for url, want := range map[string]string{
		"postgres://h/d": "postgres://h/d", "postgresql://h/d": "postgresql://h/d",
		"yugabyte://u:p@h:5433/d?sslmode=disable": "postgres://u:p@h:5433/d?sslmode=disable",
		"cockroach://h:26257/d":                   "postgres://h:26257/d",
	} {
		if got := pgstore.ConnString(url); got != want {
			t.Errorf("%s is %s", url, got)
		}
	}
}

// TestPortableClock checks the times of a take, a refusal and a reservation
// under the server's clock.
func TestPortableClock(t *testing.T) {
	ctx := context.Background()
	s := newStore(t, portablePool(t), pgstore.Config{Poll: -1})
	l, err := dipwell.New(s, store.Limit{Name: "hour", Rate: 2, Period: time.Hour, MaxDebt: 2})
	if err != nil {
		t.Fatal(err)
	}
	first, err := l.Take(ctx, "hour", "k", 2)
	if err != nil || !first.Allowed || first.ResetAfter != time.Hour {
		t.Errorf("first: %+v, %v", first, err)
	}
	second, err := l.Take(ctx, "hour", "k", 1)
	if err != nil || second.Allowed || second.RetryAfter > 30*time.Minute || second.RetryAfter < 20*time.Minute {
		t.Errorf("second: %+v, %v", second, err)
	}
	third, err := l.Reserve(ctx, "hour", "k", 1)
	if err != nil || !third.Allowed || third.Delay > 30*time.Minute || third.Delay < 20*time.Minute {
		t.Errorf("reserved: %+v, %v", third, err)
	}
	if err = l.Cancel(ctx, third.Reservation); err != nil {
		t.Error(err)
	}
	if err = l.Cancel(ctx, third.Reservation); err == nil {
		t.Error("cancelled twice")
	}
}

// TestPortableKeepsColumns: a change of a limit leaves columns alone that a newer
// program has added, as on PostgreSQL with functions.
func TestPortableKeepsColumns(t *testing.T) {
	ctx := context.Background()
	pool := portablePool(t)
	s := newStore(t, pool, pgstore.Config{Poll: -1})
	limit := store.Limit{Name: "newer", Rate: 2, Period: time.Hour}
	l, err := dipwell.New(s, limit)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = pool.Exec(ctx, "alter table dipwell.limits add column later text default 'lost'; update dipwell.limits set later = 'kept'"); err != nil {
		t.Fatal(err)
	}
	limit.Rate = 3
	if d, err := l.Define(ctx, limit, store.OwnerCode); err != nil || d.Number != 2 {
		t.Errorf("%+v, %v", d, err)
	}
	var later string
	var changed bool
	if err = pool.QueryRow(ctx, `select definition like '%["rate","3"]%', later from dipwell.limits where name = 'newer'`).Scan(&changed, &later); err != nil || !changed || later != "kept" {
		t.Errorf("changed %v, later %q, %v", changed, later, err)
	}
}
