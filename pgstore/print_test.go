package pgstore_test

import (
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/pgstore"
)

// TestPrintedSchemaWithoutRoles installs what MigrationSQL returns by psql on a server
// without our roles, as a role that may create neither roles nor databases, and follows
// the notice.
func TestPrintedSchemaWithoutRoles(t *testing.T) {
	server := pgtest.Start(t) // roles are for all databases of a server
	asPostgres, asShop := server.DSN("postgres"), strings.Replace(server.DSN("shop"), "postgres@", "shop@", 1)
	run := func(dsn, sql string) string {
		t.Helper()
		return psqlOf(t, server, dsn, sql)
	}
	run(asPostgres, "create role shop login nosuperuser nocreaterole; create role web login; create database shop owner shop")
	said := run(asShop, "begin;"+pgstore.MigrationSQL(pgstore.MigrateOptions{})+"commit")
	for _, want := range []string{"dipwell_app, dipwell_service, dipwell_admin are missing", "create role dipwell_app; create role dipwell_service; create role dipwell_admin;",
		"select dipwell_internal.grant_roles()", "grant_rights('dipwell_app', 'NAME')"} {
		if !strings.Contains(said, want) {
			t.Errorf("the notice lacks %q: %s", want, said)
		}
	}
	if strings.Count(strings.TrimSpace(said), "\n") > 0 || strings.Count(said, "NOTICE") != 1 {
		t.Error(said)
	}
	run(asShop, "select dipwell.define('login', 1, interval '1 hour')")
	allowed := func(dsn, want string) {
		t.Helper()
		if got := run(dsn, "select 'allowed:' || allowed from dipwell.take('login', 'k')"); !strings.Contains(got, want) {
			t.Errorf("%s; want %s", got, want)
		}
	}
	asWeb := strings.Replace(asShop, "shop@", "web@", 1)
	allowed(asWeb, "permission denied for schema dipwell")
	run(asShop, "select dipwell_internal.grant_rights('dipwell_app', 'web')")
	allowed(asWeb, "allowed:true")
	if got := run(asShop, "select dipwell_internal.grant_rights('dipwell', 'web')"); !strings.Contains(got, "of_role: must be") {
		t.Error(got)
	}
	run(asPostgres, "create role dipwell_app; create role dipwell_service; create role dipwell_admin; create role front login in role dipwell_app")
	if got := run(asShop, "select 'missing:' || coalesce(dipwell_internal.grant_roles()::text, 'none')"); !strings.Contains(got, "missing:none") {
		t.Error(got)
	}
	allowed(strings.Replace(asShop, "shop@", "front@", 1), "allowed:false")
	if got := run(asShop, "select dipwell_internal.lacks('dipwell_service')"); !strings.Contains(got, "{}") {
		t.Errorf("dipwell_service lacks %s", got)
	}
}

// TestFirstPage compares the first page of the printed schema with what it makes: each
// function, table, view and role is named, the numbers of lines are right, and the statements
// that it names for removal leave nothing. The caller's search path is as before.
func TestFirstPage(t *testing.T) {
	server := pgtest.Start(t)
	dsn := server.DSN("postgres")
	const others = `select 'extension ' || extname from pg_extension union all select 'schema ' || nspname from pg_namespace where nspname !~ '^(dipwell|pg_(toast_)?temp)'
		union all select 'object ' || c.oid::regclass::text from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname = 'public' order by 1`
	before := psqlOf(t, server, dsn, others)
	sql := pgstore.MigrationSQL(pgstore.MigrateOptions{})
	got := psqlOf(t, server, dsn, "begin; set local search_path = public, pg_catalog;"+sql+"show search_path; commit")
	if !strings.Contains(got, "public, pg_catalog") || strings.Contains(got, "ERROR") {
		t.Error(got)
	}
	if after := psqlOf(t, server, dsn, others); after != before {
		t.Errorf("before\n%safter\n%s", before, after)
	}
	if strings.Contains(sql, "${") || strings.Contains(sql, `"""`) || strings.Contains(sql, "$_dipwell_$") {
		t.Error("Flyway would replace ${…}; the others end the texts in which migrate print --for puts the statements")
	}
	page, _, _ := strings.Cut(sql, "\ndo $$")
	lines := strings.Split(sql, "\n")
	parts := 0
	for line := range strings.Lines(page) {
		var n int
		if _, err := fmt.Sscanf(line, "-- %d", &n); err == nil {
			parts++
			if _, title, ok := strings.Cut(lines[n-1], "-- == "); !ok || !strings.HasSuffix(strings.TrimSuffix(line, "\n"), "  "+title) {
				t.Errorf("%q is not the line %q", lines[n-1], line)
			}
		}
	}
	if parts != strings.Count(sql, "\n-- == ") || parts < 10 {
		t.Errorf("%d parts", parts)
	}
	named := map[string]bool{}
	for _, word := range regexp.MustCompile(`\w+`).FindAllString(page, -1) {
		named[word] = true
	}
	made := strings.Fields(psqlOf(t, server, dsn, `\pset format unaligned
		\pset tuples_only
		select distinct proname from pg_proc where pronamespace = 'dipwell'::regnamespace union all select relname from pg_class where relnamespace = 'dipwell'::regnamespace and relkind in ('r', 'v')
		union all select rolname from pg_roles where rolname ~ '^dipwell' union all select nspname from pg_namespace where nspname ~ '^dipwell'`))
	for _, name := range made {
		if !named[name] {
			t.Errorf("%s is not on the first page", name)
		}
	}
	if len(made) < 40 {
		t.Errorf("made only %s", made)
	}
	for _, m := range regexp.MustCompile(`(?m)^--     (drop .*;)`).FindAllStringSubmatch(page, -1) {
		if got := psqlOf(t, server, dsn, "set client_min_messages = warning; "+m[1]); got != "" {
			t.Errorf("%s: %s", m[1], got)
		}
	}
	if left := psqlOf(t, server, dsn, "select 'left ' || nspname from pg_namespace where nspname ~ '^dipwell' union all select 'left ' || rolname from pg_roles where rolname ~ '^dipwell'"); strings.Contains(left, "left ") {
		t.Error(left)
	}
}

// TestMigrationFiles runs the files of a program with two versions of the schema one after
// the other. The functions come with the last one, and only the first can be undone.
func TestMigrationFiles(t *testing.T) {
	pool := connect(t, pgtest.Database(t, "empty", func(string) error { return nil }))
	files := pgstore.NextSchema("alter table dipwell.limits add column made_up int;\n").Files()
	names, err := fs.Glob(files, "*.sql")
	if err != nil || !slices.Equal(names, []string{"0001_tables.sql", "0002_made_up.sql"}) {
		t.Fatal(names, err)
	}
	for _, c := range []struct {
		file, part string
		version    int
		fails      string
	}{
		{"0001_tables.sql", "Up", 1, ""},
		{"0002_made_up.sql", "Up", 2, ""},
		{"0002_made_up.sql", "Down", 2, "an upgrade of dipwell cannot be undone"},
		{"0001_tables.sql", "Down", 0, ""},
	} {
		text, err := fs.ReadFile(files, c.file)
		if err != nil {
			t.Fatal(err)
		}
		up, down, _ := strings.Cut(string(text), "-- +goose Down\n")
		_, err = pool.Exec(t.Context(), map[string]string{"Up": up, "Down": down}[c.part])
		if (err == nil) != (c.fails == "") || err != nil && !strings.Contains(err.Error(), c.fails) {
			t.Fatalf("%s of %s: %v", c.part, c.file, err)
		}
		status, err := pgstore.MigrationStatus(t.Context(), pool)
		version := 0
		for _, m := range status {
			if !m.AppliedAt.IsZero() {
				version = m.Version
			}
		}
		if err != nil || version != c.version {
			t.Errorf("version %d after %s of %s, %v", version, c.part, c.file, err)
		}
		if version == 2 {
			must(t, pool, "select dipwell.check('x', 'k') from dipwell.limits")
		}
	}
}
