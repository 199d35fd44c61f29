package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/internal/redistest"
	"github.com/dipwell/dipwell/pgstore"
)

// doctor runs the built program, and returns its status and findings.
func doctor(t *testing.T, args ...string) (code int, found map[string]string) {
	t.Helper()
	cmd := built(t, append([]string{"doctor"}, args...)...)
	out, err := cmd.Output()
	lines := regexp.MustCompile(`(?m)^(ok|warning|problem) +(\S+) +(.*)$`).FindAllStringSubmatch(string(out), -1)
	if lines == nil || strings.Contains(string(out), "%!") {
		t.Fatalf("%v: %v: %s", args, err, out)
	}
	found = map[string]string{}
	for _, m := range lines {
		found[m[2]] += m[1] + ": " + m[3] + "\n"
	}
	return cmd.ProcessState.ExitCode(), found
}

// expect compares findings with pairs of a check and a prefix of one of its
// lines.
func expect(t *testing.T, found map[string]string, pairs ...string) {
	t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		if !strings.Contains("\n"+found[pairs[i]], "\n"+pairs[i+1]) {
			t.Errorf("%s: %q, want %q", pairs[i], found[pairs[i]], pairs[i+1])
		}
	}
}

func TestDoctorPostgres(t *testing.T) {
	dsn := freshDatabase(t)
	code, found := doctor(t, "--store", dsn)
	if code != 1 {
		t.Errorf("without a schema: %d", code)
	}
	expect(t, found, "store", "ok: postgres", "clock", "ok: ", "schema", "problem: the database has no dipwell schema")
	if code, _, stderr := program(t, "migrate", "up", "--unlogged", "--store", dsn); code != 0 {
		t.Fatal(stderr)
	}
	conn := connectTo(t, dsn)
	exec := func(sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
	}
	exec("select dipwell.define('login', 5, interval '1 minute')")
	before := rowsOf(t, conn)
	_, found = doctor(t, "--store", dsn)
	expect(t, found, "schema", "ok: version", "limits", "ok: the store has 1", "durability", "warning: the tables are unlogged",
		"roles", "ok: dipwell_app, dipwell_service and dipwell_admin are there\n", "sweep", "ok: a running service deletes full rows")
	if rowsOf(t, conn) != before {
		t.Errorf("rows %s, before %s", rowsOf(t, conn), before)
	}
	exec("revoke usage on schema dipwell from dipwell_app")
	_, found = doctor(t, "--store", dsn)
	expect(t, found, "roles", "warning: missing, or without rights on the schema: dipwell_app")
	exec("select dipwell_internal.grant_roles()") // as doctor says
	_, found = doctor(t, "--store", dsn)
	expect(t, found, "roles", "ok: dipwell_app, dipwell_service and dipwell_admin are there\n")
	for _, c := range []struct{ wrong, right, check, good, bad string }{
		{"alter table dipwell.buckets enable row level security", "alter table dipwell.buckets disable row level security", "rights",
			"ok: dipwell_service and dipwell_admin have what services need", "problem: services would fail: dipwell_admin: row security of dipwell.buckets is on"},
		{"revoke insert on dipwell.buckets from dipwell_service", "grant insert on dipwell.buckets to dipwell_service", "rights",
			"ok: dipwell_service", "problem: services would fail: dipwell_service: insert on dipwell.buckets"},
		{"grant create on schema dipwell_internal to public", "revoke create on schema dipwell_internal from public", "owner",
			"ok: the schemas and everything in them belong to postgres", "problem: others can run code with the rights of postgres and of every caller: everybody may create objects in schema dipwell_internal"},
	} {
		exec(c.wrong)
		_, found = doctor(t, "--store", dsn)
		expect(t, found, c.check, c.bad)
		exec(c.right)
		_, found = doctor(t, "--store", dsn)
		expect(t, found, c.check, c.good)
	}
	exec("grant create on schema public to public; alter role postgres in database " + conn.Config().Database + " set search_path = pg_catalog, pg_temp")
	if _, found = doctor(t, "--store", dsn); strings.Contains(found["roles"], "everybody may create") {
		t.Error(found["roles"])
	}
	exec("alter role postgres in database " + conn.Config().Database + " reset search_path")
	_, found = doctor(t, "--store", dsn)
	expect(t, found, "roles", "warning: everybody may create functions and operators in a schema of the search path")
	exec("revoke create on schema public from public")
	exec("select dipwell.define('day', 5, interval '1 day', algorithm => 'fixed_window', start => '00:00 " + pgtest.MovedZone + "')")
	if _, found = doctor(t, "--store", dsn); strings.Contains(found["limits"], "warning") {
		t.Errorf("the same zones: %s", found["limits"])
	}
	t.Setenv("ZONEINFO", t.TempDir())
	if err := pgtest.MoveZone(os.Getenv("ZONEINFO"), pgtest.MovedZone); err != nil {
		t.Fatal(err)
	}
	_, found = doctor(t, "--store", dsn)
	expect(t, found, "limits", "warning: limit day: start: from 20")
	exec("insert into dipwell.migrations (version, name) values (99, 'tomorrow')")
	if code, found = doctor(t, "--store", dsn); code != 1 || !strings.Contains(found["schema"], "problem: the dipwell schema is version 99") {
		t.Errorf("a newer schema: %d %s", code, found["schema"])
	}
}

// rowsOf returns the numbers of rows, which doctor must not change.
func rowsOf(t *testing.T, conn *pgx.Conn) (s string) {
	t.Helper()
	err := conn.QueryRow(t.Context(), `select (select count(*) from dipwell.buckets) || ' buckets, ' || (select count(*) from dipwell.reservations) || ' reservations, revision '
		|| (select sum(n) from dipwell.revision) || ', limits ' || (select string_agg(name, ',') from dipwell.limits)`).Scan(&s)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestDoctorRedis(t *testing.T) {
	server := redistest.Start(t)
	code, found := doctor(t, "--store", server.URL())
	if code != 0 {
		t.Errorf("%d %v", code, found)
	}
	expect(t, found, "store", "ok: "+server.Addr(), "clock", "ok: ", "eviction", "ok: ", "durability", "warning: ", "limits", "ok: the store has 0")
	for _, set := range [][]any{{"config", "set", "maxmemory", "64mb"}, {"config", "set", "maxmemory-policy", "allkeys-lru"}, {"config", "set", "appendonly", "yes"}} {
		if _, err := server.Do(set...); err != nil {
			t.Fatal(err)
		}
	}
	if code, found = doctor(t, "--store", server.URL()); code != 1 {
		t.Errorf("%d %v", code, found)
	}
	expect(t, found, "eviction", "problem: maxmemory-policy of "+server.Addr()+" is allkeys-lru", "durability", "ok: ")
	if code, found = doctor(t, "--store", server.URL()+"?eviction=allow"); code != 0 || !strings.Contains(found["eviction"], "warning: ") {
		t.Errorf("accepted: %d %v", code, found)
	}
	if code, _, stderr := program(t, "take", "login", "k", "--limit", "login=5/1m", "--store", server.URL()+"?eviction=allow"); code != 0 {
		t.Fatal(stderr)
	}
	keys, err := server.Do("dbsize")
	if err != nil {
		t.Fatal(err)
	}
	_, found = doctor(t, "--store", server.URL()+"?eviction=allow")
	expect(t, found, "limits", "ok: the store has 1")
	if now, err := server.Do("dbsize"); err != nil || now != keys {
		t.Errorf("%v keys, before %v", now, keys)
	}
	server.Stop()
	if code, found = doctor(t, "--store", server.URL()); code != 1 || !strings.Contains(found["store"], "problem: "+server.URL()+" does not answer") {
		t.Errorf("away: %d %v", code, found)
	}
}

func TestDoctorRedisCluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	var hosts []string
	for _, n := range cluster.Nodes[:3] {
		hosts = append(hosts, n.Addr())
	}
	code, found := doctor(t, "--store", "redis+cluster://"+strings.Join(hosts, ","))
	if code != 0 || strings.Count(found["store"], "ok: ") != 3 || strings.Count(found["clock"], "ok: ") != 3 {
		t.Errorf("%d %v", code, found)
	}
	expect(t, found, "cluster", "ok: cluster_state is ok at "+hosts[0], "cluster", "ok: hash_tag=key")
}

func TestDoctorFile(t *testing.T) {
	dir := t.TempDir()
	url := "file:" + filepath.Join(dir, "dipwell.db")
	code, found := doctor(t, "--store", url)
	if code != 0 {
		t.Errorf("%d %v", code, found)
	}
	expect(t, found, "store", "warning: file ", "durability", "ok: a crash loses the decisions of the last 100ms")
	if list, _ := os.ReadDir(dir); len(list) > 0 {
		t.Error("the doctor made ", list[0])
	}
	p := start(t, "--listen", "127.0.0.1:0", "--store", url, "--limit", "login=5/1m")
	_, found = doctor(t, "--store", url)
	expect(t, found, "store", "ok: file "+filepath.Join(dir, "dipwell.db")+" is in use by process "+fmt.Sprint(p.cmd.Process.Pid), "schema", "ok: version")
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	_, found = doctor(t, "--store", url+"?durability=each")
	expect(t, found, "store", "ok: file "+filepath.Join(dir, "dipwell.db")+" is not in use", "durability", "ok: each decision")
	if err := os.WriteFile(filepath.Join(dir, "dipwell.db"), []byte("somebody else's"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, found = doctor(t, "--store", url); code != 1 || !strings.Contains(found["store"], "belongs to another program") {
		t.Errorf("damaged: %d %v", code, found)
	}
}

func TestDoctorConfigAndServer(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "dipwell.yaml")
	write := func(path, text string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(dir, "token"), "s3cret", 0o644)
	write(file, "admin_token_file: "+filepath.Join(dir, "token")+"\nlimits:\n  - {name: a, rate: 1, per: 1h}\n", 0o644)
	code, found := doctor(t, "--config", file)
	if code != 0 {
		t.Errorf("%d %v", code, found)
	}
	expect(t, found, "configuration", "ok: "+file+": 1 limit, store memory:", "configuration", "warning: admin_token_file", "store", "ok: memory:")
	p := start(t, "--listen", "127.0.0.1:0", "--config", file)
	if code, found = doctor(t, "--server", p.url); code != 0 {
		t.Errorf("%d %v", code, found)
	}
	expect(t, found, "service", "ok: "+p.url, "store", "ok: it can decide")
	write(filepath.Join(dir, "rules.yaml"), "domian: d\n", 0o644)
	write(file, "rls_config: "+filepath.Join(dir, "rules.yaml")+"\n", 0o644)
	if code, found = doctor(t, "--config", file); code != 1 || !strings.Contains(found["configuration"], "did you mean domain?") {
		t.Errorf("bad descriptors: %d %v", code, found)
	}
	expect(t, found, "configuration", "problem: ", "store", "ok: memory:") // the rest is looked at all the same
	write(file, "limits:\n  - {name: a, rate: 1, per: 1h, brust: 2}\n", 0o644)
	if code, found = doctor(t, "--config", file); code != 1 || !strings.Contains(found["configuration"], "did you mean burst?") {
		t.Errorf("a bad file: %d %v", code, found)
	}
	p.stderr.wait(t, "last good configuration stays in force")
	if code, _ = doctor(t, "--server", "http://127.0.0.1:1"); code != 1 {
		t.Errorf("no service: %d", code)
	}
	for _, args := range [][]string{{"--store", "pigeon:x"}, {"--frobnicate"}, {"--server", "https://127.0.0.1:1", "--cacert", file}} {
		if code, _, stderr := program(t, append([]string{"doctor"}, args...)...); code != 2 || stderr == "" {
			t.Errorf("%v: %d %s", args, code, stderr)
		}
	}
	if code, out, _ := program(t, "doctor", "--store", "memory:"); code != 0 || !strings.Contains(out, "1 fine, 0 warnings, 0 problems") {
		t.Errorf("%d %s", code, out)
	}
}

// TestDoctorRefused checks a service whose proxy refuses what the doctor asks.
func TestDoctorRefused(t *testing.T) {
	for path, check := range map[string]string{"/healthz": "service", "/readyz": "store"} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == path {
				w.WriteHeader(http.StatusTooManyRequests)
			}
		}))
		if code, found := doctor(t, "--server", s.URL); code != 1 || !strings.Contains(found[check], "problem: ") {
			t.Errorf("%s: %d %v", path, code, found)
		}
		s.Close()
	}
}

// A doctor with one of the schema's roles checks what the role may do, and
// reports what it may not check.
func TestDoctorPostgresRoles(t *testing.T) {
	dsn := migratedDatabase(t)
	conn := connectTo(t, dsn)
	exec := func(sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
	}
	exec("select dipwell.define('login', 5, interval '1 minute')")
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	for _, role := range []string{"app", "admin", "nobody"} {
		name := fmt.Sprintf("doctor_%s_%d", role, os.Getpid())
		exec("create role " + name + " login password 'x'")
		t.Cleanup(func() {
			if _, err := conn.Exec(context.Background(), "drop role "+name); err != nil {
				t.Error(err)
			}
		})
		if role != "nobody" {
			exec("grant dipwell_" + role + " to " + name)
		}
		u.User = url.UserPassword(name, "x")
		before := rowsOf(t, conn)
		_, found := doctor(t, "--store", u.String())
		if rowsOf(t, conn) != before {
			t.Errorf("%s: rows %s, before %s", role, rowsOf(t, conn), before)
		}
		expect(t, found, "store", "ok: postgres", "clock", "ok: ")
		want := map[string]string{"app": "warning: " + name + " may call the functions", "admin": "ok: version", "nobody": "problem: " + name + " may not use the schema dipwell"}[role]
		expect(t, found, "schema", want)
		if role == "admin" {
			expect(t, found, "limits", "ok: the store has 1", "sweep", "ok: ", "durability", "ok: the tables are logged")
		} else if found["limits"] != "" {
			t.Errorf("%s: %v", role, found)
		}
		for check, text := range found {
			if strings.Contains(text, "SQLSTATE") {
				t.Errorf("%s: %s: %s", role, check, text)
			}
		}
	}
}

// TestDoctorEngines checks that the advice is for the engine. Portable tables have no SQL
// functions and no roles.
func TestDoctorEngines(t *testing.T) {
	for _, engine := range []string{"PostgreSQL", "Portable", "Citus", "YugabyteDB", "CockroachDB"} {
		for _, sweep := range []string{"", "missing", "planned", "hidden"} {
			c := &pgstore.Condition{Engine: engine, Portable: engine != "PostgreSQL", Schema: pgstore.SchemaVersion, User: "app", SweepJob: sweep,
				Fsync: "on", FullPages: "on", SyncCommit: "on", Encoding: "UTF8", MissingRoles: []string{"dipwell_app"}}
			var x examination
			x.postgresEngine(c)
			text := fmt.Sprint(x.findings)
			if got := strings.Contains(text, "dipwell.sweep") || strings.Contains(text, "pg_cron") || strings.Contains(text, "dipwell_app"); got != (engine == "PostgreSQL") {
				t.Errorf("%v: functions and roles %v: %s", engine, got, text)
			}
			if (engine != "YugabyteDB" && engine != "CockroachDB") != strings.Contains(text, "fsync") {
				t.Errorf("%v: %s", engine, text)
			}
		}
	}
}
