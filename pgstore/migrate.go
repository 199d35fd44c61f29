package pgstore

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell/store"
)

// MigrateOptions are options of Migrate and MigrationSQL. The zero value
// upgrades or creates logged tables for the engine that the server reports.
type MigrateOptions struct {
	// Tables is "logged" (a crash of the server loses nothing that was answered) or
	// "unlogged" (faster, but after a crash all buckets are full). Limits and overrides are
	// logged either way. Changing it rewrites the tables, while calls wait. Default:
	// existing tables are kept as they are, and new ones are logged.
	Tables string

	// Engine is PostgreSQL, YugabyteDB, CockroachDB, Citus or Portable:
	// PostgreSQL with the tables and statements of the others, without functions.
	// Default: Migrate finds it by the server's version and tables, and
	// MigrationSQL prints for PostgreSQL.
	Engine string

	// From is the current version of the schema, for MigrationSQL. Default 0: none.
	From int
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
// versions, which have gaps: some versions changed only functions, and Migrate replaces
// all functions whenever it applies a step.
type Migration struct {
	Version   int       // that the schema has after it
	Name      string    // a few words, as in the name of its file
	AppliedAt time.Time // on the server's clock; zero: not applied

	up string
}

// SchemaError reports that the schema of the database has another version than this
// program needs. Its message says what to run. New, Open and Migrate return it, and
// nothing was changed. If Have is above Want, a newer program has migrated the database:
// this one must be upgraded.
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
// functions, views, types, grants and comments of the current version.
//
//go:embed schema
var schemaFiles embed.FS

var (
	migrations = readMigrations()
	repeatable = readRepeatable()
	downSQL    = readSchema("down.sql")
)

// SchemaVersion is the version of the schema that this program needs.
var SchemaVersion = migrations[len(migrations)-1].Version

// readMigrations lists the files NNNN_name.sql. Versions 2 to 5 only had
// functions, which are now in repeatable/.
func readMigrations() (out []Migration) {
	for _, name := range schemaNames("", "0*_*.sql") {
		number, title, _ := strings.Cut(strings.TrimSuffix(name, ".sql"), "_")
		version, err := strconv.Atoi(number)
		if err != nil {
			panic(fmt.Sprintf("migration %s: %v", name, err))
		}
		out = append(out, Migration{Version: version, Name: title, up: readSchema(name)})
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

// schemaNames returns the sorted names of the files in a directory of
// schemaFiles.
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

const bootstrap = `create schema if not exists dipwell;
create table if not exists dipwell.migrations (
    version    int primary key,
    name       text not null,
    applied_at timestamptz not null default now()
);
`

// Migrate upgrades the schema to SchemaVersion in one transaction, creating it
// if needed, and changes the tables to o.Tables. Several programs may call it
// at once. It returns the migrations that it applied. The error is a
// *SchemaError if the database has a newer schema, and a *store.FieldError if an
// option is invalid. Other engines than PostgreSQL run each statement in its own
// transaction, and reject unlogged tables. In a transaction of the caller's the migration is
// part of it: nothing is changed if that rolls back, and the lock that keeps others from
// migrating is held until it ends.
func Migrate(ctx context.Context, db DB, o MigrateOptions) (applied []Migration, err error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	d, err := dialectFor(ctx, db, o)
	if err != nil || d != nil {
		return portableMigration(ctx, db, d, o, err)
	}
	err = withMigrationLock(ctx, db, func(tx pgx.Tx) error {
		have, err := begin(ctx, tx)
		if err != nil {
			return err
		}
		applied = missingMigrations(have)
		for _, m := range applied {
			if _, err := tx.Exec(ctx, m.upFor(o)); err != nil {
				return fmt.Errorf("migrate to %d (%s): %w", m.Version, m.Name, err)
			}
			if _, err := tx.Exec(ctx, "insert into dipwell.migrations (version, name) values ($1, $2)", m.Version, m.Name); err != nil {
				return err
			}
		}
		if len(applied) > 0 {
			if _, err := tx.Exec(ctx, repeatable); err != nil {
				return fmt.Errorf("migrate to %d (functions): %w", SchemaVersion, err)
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
// the schema. If the schema is there, it needs no right but to read it, so that a login
// that owns nothing can find that there is nothing to do.
func begin(ctx context.Context, tx pgx.Tx) (have int, err error) {
	if err = checkEncoding(ctx, tx); err == nil {
		have, err = schemaVersion(ctx, tx)
	}
	if err == nil && have == 0 {
		_, err = tx.Exec(ctx, bootstrap)
	}
	if err == nil && have > SchemaVersion {
		err = &SchemaError{have, SchemaVersion}
	}
	return have, err
}

// missingMigrations returns the migrations after version have.
func missingMigrations(have int) []Migration {
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
	_, err := tx.Exec(ctx, "alter table dipwell.buckets set "+tables+"; alter table dipwell.reservations set "+tables+"; alter table dipwell.shards set "+tables+"; alter table dipwell.hold_parts set "+tables+"; select dipwell_internal.make_room()")
	return err
}

// MigrateDown drops the schema with everything in it, limits and buckets included. It
// cannot be undone: a limit that is defined again starts with full buckets. Without a
// schema it does nothing. The error is a *SchemaError if a newer program has migrated the
// database, because this program does not know what to drop.
func MigrateDown(ctx context.Context, db DB) error {
	if d, err := dialectFor(ctx, db, MigrateOptions{}); err != nil {
		return err
	} else if d != nil {
		return portableUndo(ctx, db)
	}
	return withMigrationLock(ctx, db, func(tx pgx.Tx) error {
		have, err := schemaVersion(ctx, tx)
		if err != nil || have == 0 {
			return err
		}
		if have > SchemaVersion {
			return &SchemaError{have, SchemaVersion}
		}
		_, err = tx.Exec(ctx, readSchema("repeatable/0_drop.sql")+downSQL)
		if err != nil {
			err = fmt.Errorf("migrate down from %d: %w", have, err)
		}
		return err
	})
}

// MigrationStatus returns the migrations that were applied to the database,
// followed by those that Migrate would apply (with a zero AppliedAt), in the order of
// their versions. It changes nothing. A database without the schema is no error: all
// are then still to be applied.
func MigrationStatus(ctx context.Context, db DB) (out []Migration, err error) {
	rows, err := db.Query(ctx, "select version, name, applied_at from dipwell.migrations order by version")
	have := 0
	if err == nil {
		var m Migration
		_, err = pgx.ForEachRow(rows, []any{&m.Version, &m.Name, &m.AppliedAt}, func() error {
			have = m.Version
			out = append(out, m)
			return nil
		})
	}
	if noSchema(err) {
		err = nil
	}
	return append(out, missingMigrations(have)...), err
}

// MigrationSQL returns the statements that Migrate would run on a database of
// version o.From, for use with another migration tool. They record the versions in
// dipwell.migrations, so that New and MigrationStatus find them. On PostgreSQL run them in
// one transaction; they take no lock against another migration at the same time. o is
// not checked: an unknown Engine prints for PostgreSQL.
func MigrationSQL(o MigrateOptions) string {
	if d := dialects[o.Engine]; d != nil {
		return strings.Join(append(d.tables(o.From), markSQL()), ";\n\n") + ";\n"
	}
	var b strings.Builder
	b.WriteString(bootstrap)
	for _, m := range missingMigrations(o.From) {
		fmt.Fprintf(&b, "\n-- %04d %s\n%s", m.Version, m.Name, m.upFor(o))
		fmt.Fprintf(&b, "insert into dipwell.migrations (version, name) values (%d, '%s');\n", m.Version, m.Name)
	}
	b.WriteString("\n" + repeatable)
	return b.String()
}

func withMigrationLock(ctx context.Context, db DB, f func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		var path string
		err := tx.QueryRow(ctx, "select current_setting('search_path') from pg_advisory_xact_lock($1)", int64(migrationLock)).Scan(&path)
		if err != nil {
			return err
		}
		// Otherwise a view would use what others have created in a schema of the path, such
		// as an operator in public, with the rights of whoever reads it.
		if _, err = tx.Exec(ctx, "set local search_path = pg_catalog, pg_temp"); err == nil {
			err = f(tx)
		}
		if err == nil { // for the caller's transaction
			_, err = tx.Exec(ctx, "select set_config('search_path', $1, true)", path)
		}
		return err
	})
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

// rower is what schemaVersion needs.
type rower interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// schemaVersion returns 0 if there is no schema.
func schemaVersion(ctx context.Context, db rower) (version int, err error) {
	var there bool // checked first, because an error would abort the caller's transaction
	if err = db.QueryRow(ctx, "select to_regclass('dipwell.migrations') is not null").Scan(&there); err != nil || !there {
		return 0, err
	}
	err = db.QueryRow(ctx, "select coalesce(max(version), 0) from dipwell.migrations").Scan(&version)
	return version, err
}

func checkSchema(ctx context.Context, db rower) error {
	have, err := schemaVersion(ctx, db)
	if err == nil && have != SchemaVersion {
		err = &SchemaError{have, SchemaVersion}
	}
	return err
}

// noSchema reports whether an error says that the schema or its table is
// missing.
func noSchema(err error) bool {
	return slices.Contains([]string{"42P01", "3F000"}, codeOf(err))
}
