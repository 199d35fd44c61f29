package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// freshDatabase returns a database without the schema.
func freshDatabase(t *testing.T) string {
	t.Helper()
	return pgtest.Database(t, "empty", func(string) error { return nil })
}

// migratedDatabase returns a database after migrate up.
func migratedDatabase(t *testing.T) string {
	t.Helper()
	return databaseFor(t, "migrated", pgstore.MigrateOptions{})
}

// databaseFor returns the URL of a database of its own, migrated with options.
func databaseFor(t *testing.T, name string, o pgstore.MigrateOptions) string {
	t.Helper()
	return pgtest.Database(t, name, func(dsn string) error {
		conn, err := pgx.Connect(context.Background(), dsn)
		if err != nil {
			return err
		}
		defer conn.Close(context.Background())
		_, err = pgstore.Migrate(context.Background(), conn, o)
		return err
	})
}

func connectTo(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// eventually waits until f returns nil.
func eventually(t *testing.T, f func() error) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatal(err)
		}
	}
}

func TestMigrate(t *testing.T) {
	dsn := freshDatabase(t)
	last := fmt.Sprintf("schema version %d, tables logged", pgstore.SchemaVersion)
	for _, tc := range []struct {
		args string
		code int
		want string // in standard output, or in standard error for code 2
	}{
		{"migrate status --store " + dsn, 1, "0001 tables       not applied"},
		{"take login --store " + dsn, 2, "run: dipwell migrate up"},
		{"serve --listen 127.0.0.1:0 --store " + dsn, 2, "run: dipwell migrate up"},
		{"migrate up --store " + dsn, 0, "applied 0001 tables\n"},
		{"migrate status --store " + dsn, 0, last},
		{"take login user:7 --limit login=5/1m,burst=20 --store " + dsn, 0, "19 of 20"},
		{"migrate up --unlogged --store " + dsn, 0, "tables unlogged: after a crash all buckets are full again"},
		{"migrate up --store " + dsn, 0, "tables unlogged"},
		{"take login user:7 --store " + dsn, 0, "18 of 20"},
		{"inspect login user:7 --store " + dsn, 0, "login user:7: 18 of 20 remaining"},
		{"keys login --prefix user: --store " + dsn, 0, "user:7"},
		{"limits --store " + dsn, 0, "login=5/1m,burst=20  (code)"},
		{"inspect nobody user:7 --store " + dsn, 2, "unknown limit"},
		{"check login user:7 --cost 21 --json --store " + dsn, 1, `"never":true`},
		{"migrate up --logged --store " + dsn, 0, last},
		{"take login user:7 --store " + dsn, 0, "17 of 20"},
		{"migrate print", 0, "create table dipwell.buckets ("},
		{"migrate print --from 1", 0, "create function dipwell.take("},
		{"migrate print --from 9", 2, "from: 9 is not a version from 0 to 1"},
		{"migrate print --unlogged", 0, "create unlogged table dipwell.buckets ("},
		{"migrate print --for flyway", 0, "create table dipwell.buckets ("},
		{"migrate print --for rails --from 1", 0, "class DipwellV1 < ActiveRecord::Migration"},
		{"migrate print --for pg_tle --from 1", 0, "pgtle.install_update_path('dipwell', '1', '1',"},
		{"migrate print --for make", 2, "for: \"make\" is none of psql, goose,"},
		{"migrate print --for goose --store yugabyte://h/d", 2, "for: goose runs the SQL of PostgreSQL, not that of YugabyteDB"},
		{"migrate print --citus", 0, "create_distributed_table"},
		{"migrate print --store cockroach://h/d", 0, "create table"},
		{"migrate print --unlogged --store cockroach://h/d", 2, "--unlogged: unlogged tables are for PostgreSQL without Citus, not for CockroachDB"},
		{"migrate print --unlogged --citus", 2, "not for Citus"},
		{"migrate print --citus --store yugabyte://h/d", 2, "--citus: the store is a YugabyteDB"},
		{"migrate up --citus --store yugabyte://h/d", 2, "--citus: the store is a YugabyteDB"},
		{"migrate down --store " + dsn, 2, "with all limits and buckets; if you mean that, add --yes"},
		{"migrate status --store " + dsn, 0, last},
		{"migrate down --yes --store " + dsn, 0, "the schema dipwell was removed"},
		{"migrate down --store " + dsn, 0, "there is no schema dipwell"},
		{"migrate status --store " + dsn, 1, "not applied"},
		{"migrate up", 2, "--store postgres://USER@HOST/DATABASE"},
		{"migrate up --store memory:", 2, `"memory:" has no schema to migrate`},
		{"migrate up --store cassandra://user:hunter2@h/x", 2, `"cassandra://...@h/x" has no schema`},
		{"migrate up --store postgres://user:hunter2@127.0.0.1:1/x", 2, "store postgres://127.0.0.1:1/x: "},
		{"migrate up --store postgres://user:hunter2@h:x/x", 2, "store: "},
		{"migrate up --logged --unlogged --store " + dsn, 2, "can't be used together"},
	} {
		code, stdout, stderr := program(t, strings.Fields(tc.args)...)
		got := stdout
		if tc.code == 2 {
			got = stderr
		}
		if code != tc.code || !strings.Contains(got, tc.want) || strings.Contains(stderr, "hunter2") {
			t.Errorf("%s: %d, want %d with %q\n%s%s", tc.args, code, tc.code, tc.want, stdout, stderr)
		}
	}
}

// Engines without SQL functions have only the tables, with the same version.
func TestEngineOf(t *testing.T) {
	for url, want := range map[string]string{
		"postgres://h/d": "", "postgresql://h/d": "", "host=h dbname=d": "",
		"yugabyte://u:p@h:5433/d": "YugabyteDB", "cockroach://h:26257/d": "CockroachDB",
	} {
		if got := engineOf(url); got != want {
			t.Errorf("%s is %q", url, got)
		}
	}
}

// Engines without SQL functions have the tables alone, under the same version.
func TestMigratePortable(t *testing.T) {
	dsn := freshDatabase(t)
	if _, err := pgstore.Migrate(t.Context(), connectTo(t, dsn), pgstore.MigrateOptions{Engine: "Portable"}); err != nil {
		t.Fatal(err)
	}
	for _, url := range []string{dsn, strings.Replace(dsn, "postgres:", "yugabyte:", 1)} {
		if code, out, stderr := program(t, "migrate", "status", "--store", url); code != 0 || strings.Contains(out, "not applied") {
			t.Error(code, out, stderr)
		}
		if code, out, stderr := program(t, "take", "login", "k", "--limit", "login=5/1m", "--store", url); code != 0 {
			t.Error(code, out, stderr)
		}
	}
	if _, found := doctor(t, "--store", dsn); strings.Contains(fmt.Sprint(found), "dipwell.sweep") || found["sweep"] == "" {
		t.Errorf("doctor advises what these tables do not have: %v", found)
	}
}

func TestMigrateNewerSchema(t *testing.T) {
	dsn := migratedDatabase(t)
	if _, err := connectTo(t, dsn).Exec(t.Context(), "insert into dipwell.migrations (version, name) values (999, 'future')"); err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{"take login", "migrate up", "migrate down --yes", "serve --listen 127.0.0.1:0"} {
		code, _, stderr := program(t, append(strings.Fields(args), "--store", dsn)...)
		// migrate down would delete every limit, and this program refuses it.
		if code != 2 || !strings.Contains(stderr, "knows only") || strings.Contains(stderr, "migrate down") {
			t.Errorf("%s: %d %s", args, code, stderr)
		}
	}
	if code, out, _ := program(t, "migrate", "status", "--store", dsn); code != 1 || !strings.Contains(out, "unknown to this program") {
		t.Error(code, out)
	}
}

// Runs the program with a real server that is changed by SQL and then crashes.
func TestServePostgres(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t, "fsync=off")
	dsn := server.DSN("postgres")
	if code, _, stderr := program(t, "migrate", "up", "--store", dsn); code != 0 {
		t.Fatal(stderr)
	}
	p := start(t, "--listen", "127.0.0.1:0", "--store", dsn, "--limit", "login=1/1d,burst=5", "--limit", "spare=1/1d,on_store_error=open")
	for i, want := range []int{200, 200, 200, 200, 200, 429} {
		if status, body := post(t, p.url+"/v1/take", "limit=login&key=user:7"); status != want {
			t.Fatalf("call %d: %d, want %d: %s", i, status, want, body)
		}
	}
	conn := connectTo(t, dsn)
	var allowed bool
	var remaining int64
	err := conn.QueryRow(t.Context(), "select allowed, remaining from dipwell.take('login', 'user:7')").Scan(&allowed, &remaining)
	if err != nil || allowed || remaining != 0 {
		t.Error("SQL sees another bucket: ", allowed, remaining, err)
	}
	changeBySQL(t, p, conn)
	crash(t, p, server)
	if err := p.stop(); err != nil {
		t.Error(err)
	}
}

// changeBySQL changes a limit in SQL that the service is using.
func changeBySQL(t *testing.T, p *process, conn *pgx.Conn) {
	t.Helper()
	for _, burst := range []int64{3, 7} {
		if _, err := conn.Exec(t.Context(), "select dipwell.define('sql', 1, '1 day', $1)", burst); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() error {
			status, body := post(t, p.url+"/v1/check", "limit=sql&key=k&cost=0")
			var a answer
			if err := json.Unmarshal([]byte(body), &a); err != nil || status != 200 || a.Capacity != burst {
				return fmt.Errorf("burst %d: %d %s", burst, status, body)
			}
			return nil
		})
	}
	if status, body := do(t, "PUT", p.url+"/v1/limits/sql", "rate=1&per=1s"); status != 409 || !strings.Contains(body, "belongs to SQL") {
		t.Error(status, body)
	}
}

// crash kills the server, makes calls while it is down, and restarts it.
func crash(t *testing.T, p *process, server *pgtest.Server) {
	t.Helper()
	if err := server.SignalAll(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	server.Wait()
	if status, body := post(t, p.url+"/v1/take", "limit=login&key=away"); status != 503 {
		t.Error(status, body)
	}
	if status, body := post(t, p.url+"/v1/take", "limit=spare&key=away"); status != 200 || !strings.Contains(body, "fallback-open") {
		t.Error(status, body)
	}
	if status, body := do(t, "GET", p.url+"/readyz", ""); status != 503 {
		t.Error(status, body)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if status, body := do(t, "GET", p.url+"/readyz", ""); status != 200 {
			return fmt.Errorf("readyz: %d %s", status, body)
		}
		return nil
	})
	eventually(t, func() error { // each connection that broke is found out once
		if status, body := post(t, p.url+"/v1/take", "limit=login&key=user:7"); status != 429 || !strings.Contains(body, `"source":"store"`) {
			return fmt.Errorf("what was taken before the crash is forgotten: %d %s", status, body)
		}
		return nil
	})
}

// The server is down when the service starts.
func TestServeBeforePostgres(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t, "fsync=off")
	dsn := server.DSN("postgres")
	if code, _, stderr := program(t, "migrate", "up", "--store", dsn); code != 0 {
		t.Fatal(stderr)
	}
	server.Stop()
	p := start(t, "--listen", "127.0.0.1:0", "--store", dsn, "--limit", "closed=1/1d,burst=5",
		"--limit", "open=1/1d,on_store_error=open", "--limit", "local=1/1d,on_store_error=local")
	for _, tc := range []struct { // whether limit nobody exists is not known yet
		form   string
		status int
		want   string
	}{
		{"limit=closed&key=k", 503, ""}, {"limit=open&key=k", 200, "fallback-open"},
		{"limit=local&key=k", 200, "fallback-local"}, {"limit=local&key=k", 429, "fallback-local"}, {"limit=nobody", 503, ""},
	} {
		if status, body := post(t, p.url+"/v1/take", tc.form); status != tc.status || !strings.Contains(body, tc.want) {
			t.Errorf("%s: %d %s", tc.form, status, body)
		}
	}
	if status, body := do(t, "GET", p.url+"/readyz", ""); status != 503 || !strings.Contains(body, "connection refused") || strings.Contains(body, "127.0.0.1") {
		t.Error(status, body)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if status, body := do(t, "GET", p.url+"/readyz", ""); status != 200 {
			return errors.New(body)
		}
		return nil
	})
	eventually(t, func() error {
		if status, body := post(t, p.url+"/v1/take", "limit=closed&key=k"); status != 200 || !strings.Contains(body, `"source":"store"`) {
			return errors.New(body)
		}
		return nil
	})
}

// TestSweep checks that a service deletes full rows.
func TestSweep(t *testing.T) {
	dsn := migratedDatabase(t)
	conn := connectTo(t, dsn)
	if _, err := conn.Exec(t.Context(), `select dipwell.define('a', 1, interval '1 hour');
		insert into dipwell.buckets select 1, 0, id, version, n::text from dipwell.limits, generate_series(1, 3000) n`); err != nil {
		t.Fatal(err)
	}
	var over atomic.Bool // what cannot be written any more is no fault
	o := storeOptions{report: func(err error) {
		if !over.Load() {
			t.Error(err)
		}
	}}
	s, err := openStore(t.Context(), dsn, o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	can := store.AbilitiesOf(s.Store)
	eventually(t, func() error {
		if n := valueOf(t, can.Metrics(), "dipwell_store_sweep_rows_total"); n != 3000 {
			return fmt.Errorf("%v rows were swept, want 3000", n)
		}
		return nil
	})
	if err = can.Ready(t.Context()); err != nil {
		t.Error(err)
	}
	over.Store(true)
	if _, err = conn.Exec(t.Context(), "alter database "+conn.Config().Database+" set default_transaction_read_only = on"); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error { // new connections are read-only
		if _, err := conn.Exec(t.Context(), "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"); err != nil {
			t.Fatal(err)
		}
		if err := can.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "read-only") {
			return fmt.Errorf("ready on a read-only database: %w", err)
		}
		return nil
	})
}

func valueOf(t *testing.T, list []store.Metric, name string) float64 {
	t.Helper()
	i := slices.IndexFunc(list, func(m store.Metric) bool { return m.Name == name })
	if i < 0 {
		t.Fatalf("no metric %s", name)
	}
	return list[i].Value
}

// TestConnections checks that the connections of lanes open when they are needed.
func TestConnections(t *testing.T) {
	dsn := migratedDatabase(t)
	conn := connectTo(t, dsn)
	s, err := openStore(t.Context(), dsn, storeOptions{report: func(err error) { t.Error(err) }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const side = sideConns + 1 // one listens
	open := func() (lanes, all int, err error) {
		err = conn.QueryRow(t.Context(), `select count(*) filter (where query = ''), count(*) from pg_stat_activity
			where datname = current_database() and application_name = 'dipwell'`).Scan(&lanes, &all)
		return lanes, all, err
	}
	eventually(t, func() error {
		if lanes, all, err := open(); err != nil || lanes != 0 || all > side {
			return fmt.Errorf("%d connections without a statement and %d in all, %w", lanes, all, err)
		}
		return nil
	})
	if n := s.Lanes; n < 2 || n > 4 {
		t.Errorf("%d lanes", n)
	}
}

func TestRepeatedErrors(t *testing.T) {
	var out strings.Builder
	c := logger{to: &out}
	for range 3 {
		c.error(errors.New("away"))
	}
	c.error(errors.New("gone"))
	if out.String() != "dipwell: away\ndipwell: gone\n" {
		t.Error(out.String())
	}
}
