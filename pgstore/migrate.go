package pgstore

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell/internal/background"
	"github.com/dipwell/dipwell/store"
)

// MigrateOptions are options of Migrate and MigrationSQL. The zero value
// upgrades or creates logged tables for the engine that the server reports.
type MigrateOptions struct {
	// Tables is "logged" (a crash of the server loses nothing that was answered) or
	// "unlogged" (faster, but after a crash all buckets are full). Limits and overrides are
	// logged either way. Changing Tables rewrites the tables, while calls wait. Default of
	// Tables: existing tables are kept as they are, and new ones are logged.
	Tables string

	// Engine is PostgreSQL, YugabyteDB, CockroachDB, Citus or Portable:
	// PostgreSQL with the tables and statements of the others, without functions.
	// Default: By default Migrate finds the engine by the server's version and
	// tables, and MigrationSQL prints for PostgreSQL.
	Engine string

	// From is the current version of the schema, for MigrationSQL. Default of From: 0, no
	// schema.
	From int

	// Down makes MigrationSQL return the statements of MigrateDown.
	Down bool

	// Waiting is called each time before Migrate tries again, with a description of the
	// transaction that holds it up. Default of Waiting: nobody is told.
	Waiting func(why string)
}

func (o *MigrateOptions) check() error {
	switch o.Tables {
	case "", "logged", "unlogged":
	default:
		return &store.FieldError{Field: "tables", Reason: fmt.Sprintf("%q is neither logged nor unlogged", o.Tables)}
	}
	if o.Engine != "" && o.Engine != postgreSQL && dialects[o.Engine] == nil {
		return &store.FieldError{Field: "engine", Reason: fmt.Sprintf("%q is none of PostgreSQL, YugabyteDB, CockroachDB, Citus, Portable", o.Engine)}
	}
	return nil
}

// A Migration is one step of the schema. Steps are applied in the order of their
// versions, and Migrate replaces all functions whenever it applies a step.
type Migration struct {
	Version   int       // version that the schema has after the step
	Name      string    // a few words, as in the name of the step's file
	AppliedAt time.Time // when it was applied, on the server's clock; zero: not applied

	up string
}

// SchemaError reports that the schema of the database has another version than this
// program needs. Its message says what to run. New, Open and Migrate return a
// SchemaError; nothing was changed. If Have is above Want, a newer program has migrated
// the database, and this program must be upgraded.
type SchemaError struct {
	Have, Want int // versions; Have is 0 if there is no schema
}

// Error returns both versions and what to run: dipwell migrate up, or a newer dipwell.
func (e *SchemaError) Error() string {
	switch {
	case e.Have == 0:
		return "the database has no dipwell schema; run: dipwell migrate up"
	case e.Have < e.Want:
		return fmt.Sprintf("the dipwell schema is version %d and this program needs %d; run: dipwell migrate up", e.Have, e.Want)
	}
	return fmt.Sprintf("the dipwell schema is version %d and this program knows only %d; run a newer dipwell", e.Have, e.Want)
}

// schemaFiles has the numbered migrations of the tables, and in repeatable/ the
// functions, views, types, grants and comments of the current version. portable/ has the
// migrations of the other engines.
//
//go:embed schema
var schemaFiles embed.FS

// A schema is what a program creates in a database of PostgreSQL: the tables, step by
// step, and then all else.
type schema struct {
	migrations []Migration
	repeatable string
}

var (
	current            = schema{readMigrations(""), readRepeatable()}
	portableMigrations = readMigrations("portable/")
	downSQL            = readSchema("down.sql")
)

// SchemaVersion is the version of the schema that this program needs.
var SchemaVersion = current.version()

func (s *schema) version() int { return s.migrations[len(s.migrations)-1].Version }

// readMigrations lists the files NNNN_name.sql of a directory.
func readMigrations(dir string) (out []Migration) {
	for _, name := range schemaNames(dir, "0*_*.sql") {
		number, title, _ := strings.Cut(strings.TrimSuffix(name, ".sql"), "_")
		version, err := strconv.Atoi(number)
		if err != nil {
			panic(fmt.Sprintf("migration %s: %v", name, err))
		}
		out = append(out, Migration{Version: version, Name: title, up: readSchema(dir + name)})
	}
	return out
}

func readRepeatable() string {
	var b strings.Builder
	for _, name := range schemaNames("repeatable/", "*.sql") {
		b.WriteString(readSchema("repeatable/" + name))
	}
	return b.String()
}

// schemaNames returns the sorted names of the files in a directory of schemaFiles.
func schemaNames(dir, pattern string) (out []string) {
	paths, err := fs.Glob(schemaFiles, "schema/"+dir+pattern)
	if err != nil {
		panic(err)
	}
	for _, p := range paths {
		out = append(out, path.Base(p))
	}
	return out
}

func readSchema(name string) string {
	b, err := schemaFiles.ReadFile("schema/" + name)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// migrationLock is the key of the advisory lock that a migration holds:
// "dipwell" in ASCII.
const migrationLock = 0x64697077656c6c

// guard creates the schemas, and refuses schemas in which others may replace code that
// runs with the rights of the role that migrates.
var guard = `
-- == Schemas in which others could run code are refused

do $guard$
declare
    wrong text;
begin
    if to_regnamespace('dipwell') is null then
        create schema dipwell;
    end if;
    if to_regnamespace('dipwell_internal') is null then
        create schema dipwell_internal;
    end if;
    select string_agg(u.what, '; ') into wrong from (
` + untrustedSQL + `    ) u;
    if wrong is not null then
        raise exception using errcode = 'object_not_in_prerequisite_state', message = 'refusing to migrate: ' || wrong
            || '. Others could run code with the rights of ' || current_user || '. Migrate as the owner of the schemas, or drop what is not yours, or give it to ' || current_user;
    end if;
end $guard$;
`

// untrustedSQL lists what lets others run code with the rights of the owner of the schemas.
var untrustedSQL = readSchema("untrusted.sql")

const migrationsTable = `create table if not exists dipwell.migrations (
    version    int primary key,
    name       text not null,
    applied_at timestamptz not null default now()
);
`

// Migrate upgrades the schema to SchemaVersion in one transaction, creating it if needed,
// and changes the tables to o.Tables. Several programs may call Migrate at once. Migrate
// returns the migrations that it applied. The error is a *SchemaError if the database has
// a newer schema, and a *store.FieldError if an option is invalid. Migrate refuses
// schemas that another role owns, and those in which others own or may create objects.
//
// Migrate waits for a lock only a tenth of a second, so that calls do not queue behind it.
// Then Migrate rolls back, and tries again after a pause, until ctx ends. On engines other
// than PostgreSQL, each statement runs in its own transaction, and unlogged tables are
// rejected. In a caller's transaction the migration is part of that: nothing is changed if
// it rolls back, and the lock that keeps others from migrating is held until it ends.
func Migrate(ctx context.Context, db DB, o MigrateOptions) (applied []Migration, err error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	d, err := dialectFor(ctx, db, o)
	switch {
	case err != nil:
		return nil, err
	case d != nil:
		return migratePortable(ctx, db, d, o)
	}
	return current.migrate(ctx, db, o)
}

func (s *schema) migrate(ctx context.Context, db DB, o MigrateOptions) (applied []Migration, err error) {
	err = withMigrationLock(ctx, db, o.Waiting, func(tx pgx.Tx) error {
		have, err := s.begin(ctx, tx)
		if err != nil {
			return err
		}
		applied = after(s.migrations, have)
		for _, m := range applied {
			if _, err := tx.Exec(ctx, m.upFor(o)); err != nil {
				return fmt.Errorf("migrate to %d (%s): %w", m.Version, m.Name, err)
			}
			if _, err := tx.Exec(ctx, "insert into dipwell.migrations (version, name) values ($1, $2)", m.Version, m.Name); err != nil {
				return err
			}
		}
		if len(applied) > 0 {
			if _, err := tx.Exec(ctx, s.repeatable); err != nil {
				return fmt.Errorf("migrate to %d (functions): %w", s.version(), err)
			}
		}
		if have > 0 {
			return setDurability(ctx, tx, o.Tables)
		}
		return nil
	})
	if denied(err) {
		err = fmt.Errorf("the login must own the schema dipwell, if it is there, and may need create on the database: %w", err)
	}
	return slices.Clone(applied), err
}

// begin creates the table of the migrations if it is missing, and returns the version of
// the schema. If the schema exists, begin needs only the right to read it, so that a
// login that owns nothing can find that there is nothing to do.
func (s *schema) begin(ctx context.Context, tx pgx.Tx) (have int, err error) {
	if err = checkEncoding(ctx, tx); err == nil {
		have, err = schemaVersion(ctx, tx)
	}
	if err == nil && have > s.version() {
		err = &SchemaError{have, s.version()}
	}
	if err == nil && have < s.version() {
		if _, err = tx.Exec(ctx, guard+migrationsTable); err == nil {
			err = claimTables(ctx, tx)
		}
	}
	return have, err
}

// after returns the migrations that follow a version.
func after(migrations []Migration, have int) []Migration {
	i := slices.IndexFunc(migrations, func(m Migration) bool { return m.Version > have })
	if i < 0 {
		return nil
	}
	return migrations[i:]
}

func (m *Migration) upFor(o MigrateOptions) string {
	if o.Tables == "unlogged" {
		return strings.ReplaceAll(m.up, "create /*unlogged*/ table", "create unlogged table")
	}
	return strings.ReplaceAll(m.up, "create /*unlogged*/ table", "create table")
}

func setDurability(ctx context.Context, tx pgx.Tx, tables string) error {
	if tables == "" {
		return nil
	}
	var persistence string
	if err := tx.QueryRow(ctx, "select relpersistence::text from pg_class where oid = 'dipwell.buckets'::regclass").Scan(&persistence); err != nil {
		return err
	}
	if persistence == "u" == (tables == "unlogged") {
		return nil
	}
	if err := claimTables(ctx, tx); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, "alter table dipwell.buckets set "+tables+"; alter table dipwell.reservations set "+tables+"; alter table dipwell.hold_parts set "+tables+"; select dipwell_internal.make_room()")
	return err
}

// MigrateDown drops the schema with everything in it, limits and buckets included.
// MigrateDown cannot be undone: a limit that is defined again starts with full buckets.
// Without a schema MigrateDown does nothing. The error is a *SchemaError if a newer
// program has migrated the database, because this program does not know what to drop.
func MigrateDown(ctx context.Context, db DB) error {
	d, err := dialectFor(ctx, db, MigrateOptions{})
	if err != nil {
		return err
	}
	if d != nil {
		for _, statement := range portableDown {
			if err := execTx(ctx, db, statement); err != nil {
				return fmt.Errorf("migrate down: %w\n%s", err, statement)
			}
		}
		return nil
	}
	return withMigrationLock(ctx, db, nil, func(tx pgx.Tx) error {
		have, err := schemaVersion(ctx, tx)
		if err != nil || have == 0 {
			return err
		}
		if have > SchemaVersion {
			return &SchemaError{have, SchemaVersion}
		}
		if err = claimTables(ctx, tx); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, MigrationSQL(MigrateOptions{Down: true}))
		if err != nil {
			err = fmt.Errorf("migrate down from %d: %w", have, err)
		}
		return err
	})
}

// MigrationStatus returns the migrations that were applied to the database,
// followed by those that Migrate would apply (with a zero AppliedAt), in the order of
// their versions. MigrationStatus changes nothing. A database without the schema is
// no error: all migrations are then still to be applied.
func MigrationStatus(ctx context.Context, db DB) (out []Migration, err error) {
	have, err := schemaVersion(ctx, db)
	if err == nil && have > 0 {
		rows, err := db.Query(ctx, "select version, name, applied_at from dipwell.migrations order by version")
		if err == nil {
			out, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Migration])
		}
		if err != nil {
			return nil, err
		}
	}
	return append(out, after(current.migrations, have)...), err
}

// MigrationSQL returns the statements that Migrate would run on a database of
// version o.From, for use with another migration tool. The statements record the versions
// in dipwell.migrations, so that New and MigrationStatus find them. On PostgreSQL run the
// statements in one transaction; they take no lock against another migration at the same
// time. o is not checked: an unknown Engine prints for PostgreSQL.
func MigrationSQL(o MigrateOptions) string {
	switch d := dialects[o.Engine]; {
	case d != nil && o.Down:
		return strings.Join(portableDown, ";\n") + ";\n"
	case d != nil:
		return strings.Join(append(d.tables(o.From), markSQL()), ";\n\n") + ";\n"
	case o.Down:
		return readSchema("repeatable/0_drop.sql") + downSQL
	}
	return current.print(o)
}

func (s *schema) print(o MigrateOptions) string {
	body := s.statements(after(s.migrations, o.From), o)
	if o.From > 0 {
		return fmt.Sprintf("-- Upgrades the schema of dipwell from version %d to %d. Run it in one transaction.\n%s", o.From, s.version(), body)
	}
	return firstPage(body) + body
}

// statements returns the statements of successive migrations, and if the last one is among
// them, those that create functions, views and the rest.
func (s *schema) statements(migrations []Migration, o MigrateOptions) string {
	var b strings.Builder
	b.WriteString("\n" + safePath + guard + migrationsTable)
	for _, m := range migrations {
		fmt.Fprintf(&b, "\n-- Migration %d (%s)\n%s", m.Version, m.Name, m.upFor(o))
		fmt.Fprintf(&b, "insert into dipwell.migrations (version, name) values (%d, '%s');\n", m.Version, m.Name)
	}
	if len(migrations) == 0 || migrations[len(migrations)-1].Version == s.version() {
		b.WriteString(s.repeatable)
	}
	return b.String() + pathAgain
}

// MigrationFiles returns a file for each version of the schema of PostgreSQL, such as
// 0001_tables.sql, with the marks by which goose and dbmate find the statements that
// apply it. Undoing the first file's migration removes the schema; others cannot be undone.
// A tool should count these versions in a table of its own, apart from those of other
// migrations; New and MigrationStatus find them like those of Migrate. Of the options o
// only Tables counts, and it is not checked.
func MigrationFiles(o MigrateOptions) fs.FS { return current.files(o) }

func (s *schema) files(o MigrateOptions) fs.FS {
	down := MigrationSQL(MigrateOptions{Down: true})
	files := fstest.MapFS{}
	for i, m := range s.migrations {
		text := fmt.Sprintf("-- +goose Up\n-- migrate:up\n-- +goose StatementBegin\n%s-- +goose StatementEnd\n\n-- +goose Down\n-- migrate:down\n-- +goose StatementBegin\n%s-- +goose StatementEnd\n",
			s.statements(s.migrations[i:i+1], o), down)
		files[fmt.Sprintf("%04d_%s.sql", m.Version, m.Name)] = &fstest.MapFile{Data: []byte(text), Mode: 0o444}
		down = "do $$ begin\n    raise exception 'an upgrade of dipwell cannot be undone';\nend $$;\n"
	}
	return files
}

// firstPage returns the comment that begins the whole schema. The comment ends with the parts
// of body, which are the lines that begin with "-- == ", and the lines where they begin.
func firstPage(body string) string {
	const heading = "-- == "
	page := readSchema("first.sql")
	first := strings.Count(page, "\n") + strings.Count(body, "\n"+heading) + 1
	var b strings.Builder
	b.WriteString(page)
	for i, line := range strings.Split(body, "\n") {
		if title, ok := strings.CutPrefix(line, heading); ok {
			fmt.Fprintf(&b, "--   %5d  %s\n", first+i, title)
		}
	}
	return b.String()
}

// safePath sets the search path in a transaction as migrateOnce does, and pathAgain resets
// it, because a migration tool may continue in the same transaction.
const (
	safePath = `do $$ begin
    perform set_config('dipwell.search_path', current_setting('search_path'), true), set_config('search_path', 'pg_catalog, pg_temp', true);
end $$;
`
	pathAgain = `do $$ begin
    perform set_config('search_path', current_setting('dipwell.search_path', true), true);
end $$;
`
)

// While a migration waits for a table, calls wait behind it. So a migration gives up
// soon, and pauses for longer than it waited before the next try.
const (
	migrateWait  = "100ms"
	migratePause = time.Second

	// Autovacuum gives way after a second (deadlock_timeout). The lock that waits for
	// autovacuum stops no call.
	vacuumWait = "3s"
)

// withMigrationLock runs f while no other program migrates. If f waits too long for a lock,
// withMigrationLock rolls back and tries again, and waiting, which may be nil, is called with
// the reason.
func withMigrationLock(ctx context.Context, db DB, waiting func(why string), f func(pgx.Tx) error) error {
	for {
		err := migrateOnce(ctx, db, f)
		if codeOf(err) != codeLocked {
			return err
		}
		if waiting != nil {
			waiting(holdUp(ctx, db))
		}
		if background.Sleep(ctx, migratePause/2+rand.N(migratePause)) != nil {
			return fmt.Errorf("gave up waiting for %s: %w", holdUp(context.WithoutCancel(ctx), db), err)
		}
	}
}

func migrateOnce(ctx context.Context, db DB, f func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		var path, wait string
		err := tx.QueryRow(ctx, "select current_setting('search_path'), current_setting('lock_timeout') from pg_advisory_xact_lock($1)", int64(migrationLock)).Scan(&path, &wait)
		if err != nil {
			return err
		}
		// Without this path a view would use objects that others have created in a schema of
		// the path, such as an operator in public, with the rights of whoever reads the view.
		if _, err = tx.Exec(ctx, "set local search_path = pg_catalog, pg_temp"); err == nil {
			err = f(tx)
		}
		if err == nil { // needed for the caller's transaction
			_, err = tx.Exec(ctx, "select set_config('search_path', $1, true), set_config('lock_timeout', $2, true)", path, wait)
		}
		return err
	})
}

// claimTables keeps autovacuum and other maintenance away from the tables, which
// calls go on using, and then limits how long statements wait for locks.
func claimTables(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `set local lock_timeout = '`+vacuumWait+`';
		do $$ declare name text; begin
			for name in select c.oid::regclass from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname = 'dipwell' and c.relkind in ('r', 'p') order by c.oid loop
				execute 'lock table ' || name || ' in share update exclusive mode';
			end loop;
		end $$;
		set local lock_timeout = '`+migrateWait+`'`)
	return err
}

// holdUp describes the oldest transaction that uses tables of dipwell.
func holdUp(ctx context.Context, db DB) string {
	why := "a lock of another transaction"
	_ = db.QueryRow(ctx, `select format('a transaction that has locked tables of dipwell since %s: process %s of %s%s, %s',
			to_char(a.xact_start, 'HH24:MI:SS'), a.pid, a.usename, ' (' || nullif(a.application_name, '') || ')', a.state)
		from pg_stat_activity a where a.pid <> pg_backend_pid() and a.pid in (select k.pid from pg_locks k join pg_class c on c.oid = k.relation
			join pg_namespace n on n.oid = c.relnamespace where k.granted and n.nspname = 'dipwell' and k.database = (select d.oid from pg_database d where d.datname = current_database())) order by a.xact_start limit 1`).Scan(&why)
	return why
}

// checkEncoding returns an error if the database cannot keep the bytes of UTF-8 text
// unchanged. UTF8 can, and so can encodings in which each character is one byte.
func checkEncoding(ctx context.Context, db rower) error {
	var name string
	var wide bool
	err := db.QueryRow(ctx, "select current_setting('server_encoding'), pg_encoding_max_length(encoding) > 1 from pg_database where datname = current_database()").Scan(&name, &wide)
	if err == nil && wide && name != "UTF8" {
		err = fmt.Errorf("the database is in %s, which dipwell cannot use; make one in UTF8: create database NAME encoding 'UTF8' template template0", name)
	}
	return err
}

// rower is the method that schemaVersion needs.
type rower interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// schemaVersion returns 0 if there is no schema. schemaVersion reads nothing but a plain
// table, because a view that somebody else made would run that person's functions.
func schemaVersion(ctx context.Context, db rower) (version int, err error) {
	var there bool // existence is checked first, because an error would abort the caller's transaction
	err = db.QueryRow(ctx, `select exists (select 1 from pg_class c join pg_namespace n on n.oid = c.relnamespace
		where n.nspname = 'dipwell' and c.relname = 'migrations' and c.relkind = 'r' and not c.relrowsecurity)`).Scan(&there)
	if err != nil || !there {
		return 0, err
	}
	err = db.QueryRow(ctx, "select coalesce(max(version), 0) from dipwell.migrations").Scan(&version)
	return version, err
}
