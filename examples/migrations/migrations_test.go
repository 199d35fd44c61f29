// Package migrations runs what `dipwell migrate print --for TOOL` prints with the tools.
package migrations

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/amacneil/dbmate/v2/pkg/dbmate"
	_ "github.com/amacneil/dbmate/v2/pkg/driver/postgres"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/pgstore"
)

// dipwell is the program.
var dipwell string

func TestMain(m *testing.M) { os.Exit(pgtest.Main(program{m})) }

// program builds the program before the tests.
type program struct{ *testing.M }

func (p program) Run() int {
	dir, err := os.MkdirTemp("", "dipwell-migrations")
	if err == nil {
		defer os.RemoveAll(dir)
		dipwell = filepath.Join(dir, "dipwell")
		build := exec.Command("go", "build", "-o", dipwell, "./cmd/dipwell")
		build.Dir = "../.."
		var out []byte
		if out, err = build.CombinedOutput(); err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return p.M.Run()
}

// TestTools lets each tool install the schema in an empty database, checks it with the
// program and by a call, lets the tool remove it, and install it again.
func TestTools(t *testing.T) {
	for _, tool := range []struct {
		name, file string
		open       func(t *testing.T, dir, dsn string) (up, down func() error)
	}{
		{"psql", "dipwell.sql", psql},
		{"goose", "00007_dipwell.sql", gooseTool},
		{"dbmate", "20260101000000_dipwell.sql", dbmateTool},
		{"alembic", "versions/dipwell.py", alembic},
		{"django", "limits/migrations/0001_dipwell.py", django},
		{"rails", "20260101000000_dipwell.rb", rails},
	} {
		t.Run(tool.name, func(t *testing.T) {
			if err := needs(tool.name); err != nil {
				if os.Getenv("CI") == "true" {
					t.Fatal(err)
				}
				t.Skipf("%v (scripts/deps installs it)", err)
			}
			dsn := pgtest.Database(t, "empty", func(string) error { return nil })
			dir := t.TempDir()
			write(t, filepath.Join(dir, tool.file), run(t, dipwell, "migrate", "print", "--for", tool.name))
			up, down := tool.open(t, dir, dsn)
			for range 2 {
				must(t, up())
				if out := run(t, dipwell, "migrate", "status", "--store", dsn); !strings.Contains(out, "schema version 1") {
					t.Error(out)
				}
				db := connect(t, dsn)
				if allowed := scan(t, db, "select dipwell.define('login', 1, interval '1 minute')::text || (dipwell.take('login', 'k')).allowed::text"); allowed != "true" {
					t.Errorf("allowed %s", allowed)
				}
				must(t, down())
				if left := scan(t, db, "select count(*) from pg_namespace where nspname like 'dipwell%'"); left != "0" {
					t.Errorf("%s schemas are left", left)
				}
			}
		})
	}
}

// needs returns an error if a tool is not installed.
func needs(tool string) error {
	switch tool {
	case "alembic":
		return command("", "alembic", "--version")
	case "django":
		return command("", "/usr/bin/python3", "-c", "import django, psycopg2")
	case "rails":
		return command("", "/usr/bin/ruby", "-e", `require "active_record"; require "pg"`)
	}
	return nil
}

func psql(_ *testing.T, dir, dsn string) (up, down func() error) {
	file := func(text string) func() error {
		return func() error { return command(dir, "psql", "-X", "-q", "-d", dsn, "-c", text) }
	}
	return file(`\i dipwell.sql`), file("drop schema dipwell, dipwell_internal cascade")
}

func gooseTool(t *testing.T, dir, dsn string) (up, down func() error) {
	p, err := goose.NewProvider(goose.DialectPostgres, connect(t, dsn), os.DirFS(dir))
	must(t, err)
	return func() error { _, err := p.Up(t.Context()); return err }, func() error { _, err := p.DownTo(t.Context(), 0); return err }
}

func dbmateTool(t *testing.T, dir, dsn string) (up, down func() error) {
	u, err := url.Parse(dsn)
	must(t, err)
	db := dbmate.New(u)
	db.MigrationsDir, db.AutoDumpSchema, db.Log = []string{dir}, false, t.Output()
	return db.Migrate, db.Rollback
}

// alembic has the env.py that alembic init writes, in short. The statements of its offline
// mode are checked too.
func alembic(t *testing.T, dir, dsn string) (up, down func() error) {
	write(t, filepath.Join(dir, "alembic.ini"), "[alembic]\nscript_location = .\nsqlalchemy.url = "+strings.Replace(dsn, "postgres://", "postgresql://", 1)+"\n")
	write(t, filepath.Join(dir, "script.py.mako"), "")
	write(t, filepath.Join(dir, "env.py"), `from alembic import context
from sqlalchemy import create_engine
url = context.config.get_main_option("sqlalchemy.url")
if context.is_offline_mode():
    context.configure(url=url, literal_binds=True, dialect_opts={"paramstyle": "named"})
    with context.begin_transaction():
        context.run_migrations()
else:
    with create_engine(url).connect() as connection:
        context.configure(connection=connection)
        with context.begin_transaction():
            context.run_migrations()
`)
	offline := exec.Command("alembic", "upgrade", "head", "--sql")
	offline.Dir = dir
	script, err := offline.Output()
	must(t, err)
	write(t, filepath.Join(dir, "offline.sql"), string(script))
	other := pgtest.Database(t, "empty", func(string) error { return nil })
	must(t, command(dir, "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", other, "-f", "offline.sql"))
	run(t, dipwell, "migrate", "status", "--store", other)
	return func() error { return command(dir, "alembic", "upgrade", "head") }, func() error { return command(dir, "alembic", "downgrade", "base") }
}

func django(t *testing.T, dir, dsn string) (up, down func() error) {
	write(t, filepath.Join(dir, "limits/__init__.py"), "")
	write(t, filepath.Join(dir, "limits/migrations/__init__.py"), "")
	u, err := url.Parse(dsn)
	must(t, err)
	write(t, filepath.Join(dir, "manage.py"), fmt.Sprintf(`import sys
from django.conf import settings
from django.core.management import execute_from_command_line
settings.configure(INSTALLED_APPS=["limits"], DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": %q, "USER": %q, "HOST": %q, "PORT": %q}})
execute_from_command_line(sys.argv)
`, strings.TrimPrefix(u.Path, "/"), u.User.Username(), u.Hostname(), u.Port()))
	manage := func(args ...string) func() error {
		return func() error { return command(dir, "/usr/bin/python3", append([]string{"manage.py"}, args...)...) }
	}
	return manage("migrate"), manage("migrate", "limits", "zero")
}

func rails(t *testing.T, dir, dsn string) (up, down func() error) {
	write(t, filepath.Join(dir, "migrate"), `require "active_record"
ActiveRecord::Base.establish_connection(ARGV[0])
context = ActiveRecord::MigrationContext.new(__dir__, ActiveRecord::SchemaMigration)
ARGV[1] == "up" ? context.migrate : context.rollback
`)
	migrate := func(way string) func() error {
		return func() error {
			return command(dir, "/usr/bin/ruby", "migrate", strings.Replace(dsn, "postgres://", "postgresql://", 1), way)
		}
	}
	return migrate("up"), migrate("down")
}

// TestMigrationFiles applies pgstore.MigrationFiles with goose and dbmate, which keep their
// own versions apart from those of a program's other migrations.
func TestMigrationFiles(t *testing.T) {
	files := pgstore.MigrationFiles(pgstore.MigrateOptions{Tables: "unlogged"})
	for name, open := range map[string]func(t *testing.T, dsn string) (up, down func() error){
		"goose": func(t *testing.T, dsn string) (up, down func() error) {
			p, err := goose.NewProvider(goose.DialectPostgres, connect(t, dsn), files, goose.WithTableName("dipwell_goose"))
			must(t, err)
			return func() error { _, err := p.Up(t.Context()); return err }, func() error { _, err := p.DownTo(t.Context(), 0); return err }
		},
		"dbmate": func(t *testing.T, dsn string) (up, down func() error) {
			u, err := url.Parse(dsn)
			must(t, err)
			db := dbmate.New(u)
			db.FS, db.MigrationsDir, db.MigrationsTableName, db.AutoDumpSchema, db.Log = files, []string{"."}, "dipwell_dbmate", false, t.Output()
			return db.Migrate, db.Rollback
		},
	} {
		t.Run(name, func(t *testing.T) {
			dsn := pgtest.Database(t, "empty", func(string) error { return nil })
			up, down := open(t, dsn)
			must(t, up())
			if out := run(t, dipwell, "migrate", "status", "--store", dsn); !strings.Contains(out, "unlogged") {
				t.Error(out)
			}
			must(t, down())
			if left := scan(t, connect(t, dsn), "select count(*) from pg_namespace where nspname like 'dipwell%'"); left != "0" {
				t.Errorf("%s schemas are left", left)
			}
		})
	}
}

func write(t *testing.T, name, text string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(name), 0o755))
	must(t, os.WriteFile(name, []byte(text), 0o644))
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", name, args, err, out)
	}
	return string(out)
}

func command(dir, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return nil
}

func connect(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", dsn)
	must(t, err)
	t.Cleanup(func() { must(t, db.Close()) })
	return db
}

func scan(t *testing.T, db *sql.DB, query string) (text string) {
	t.Helper()
	must(t, db.QueryRowContext(context.Background(), query).Scan(&text))
	return text
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
