package pgstore

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell/store"
)

// Engines are databases that speak PostgreSQL's protocol. Engines other than
// PostgreSQL are used through portable tables and statements, without functions.
const (
	postgreSQL  = "PostgreSQL"
	yugabyteDB  = "YugabyteDB"  // rows are distributed by a hash of the key; there are no storage parameters
	cockroachDB = "CockroachDB" // has another operator for integer division, and no advisory locks
	citus       = "Citus"       // PostgreSQL whose table buckets is distributed by key
	anyEngine   = "Portable"    // PostgreSQL with the tables and statements for other engines
)

// A dialect is an engine's variant of the portable statements.
type dialect struct {
	engine  string
	divide  string // operator for integer division
	hash    string // definition of the primary key of buckets
	collate string // clause that sorts by bytes, with a space after it
}

var dialects = map[string]*dialect{
	yugabyteDB:  {engine: yugabyteDB, divide: "/", hash: "(limit_id, key) hash", collate: `collate "C" `},
	cockroachDB: {engine: cockroachDB, divide: "//", hash: "limit_id, key"},
	citus:       {engine: citus, divide: "/", hash: "limit_id, key", collate: `collate "C" `},
	anyEngine:   {engine: anyEngine, divide: "/", hash: "limit_id, key", collate: `collate "C" `},
}

// tables returns the statements that create the schema, or upgrade it from
// version have. Each statement runs in its own transaction.
func (d *dialect) tables(have int) (out []string) {
	text := ""
	if have == 0 {
		text = "create schema if not exists dipwell;\n" + migrationsTable
	}
	for _, m := range after(portableMigrations, have) {
		text += m.up
	}
	text = strings.NewReplacer("{collate} ", d.collate, "{hash}", d.hash).Replace(text)
	for s := range strings.SplitSeq(text, ";\n") {
		if s = strings.TrimSpace(s); s != "" {
			out = append(out, s)
		}
	}
	if d.engine == citus && have == 0 {
		out = append(out,
			"select create_reference_table('dipwell.limits')",
			"select create_reference_table('dipwell.revision')",
			"select create_distributed_table('dipwell.buckets', 'key')",
			"select create_distributed_table('dipwell.records', 'key')",
			"select create_distributed_table('dipwell.reservations', 'id')",
			"select create_distributed_table('dipwell.overrides', 'key')",
			"select create_distributed_table('dipwell.holds', 'id')")
	}
	return out
}

// takeSQL returns the statement that charges a bucket with ticks of equal length, in a
// transaction of its own. The time is a value of the inserted row and the update
// refers to it as excluded.ts, so that the clock is read once, before the statement is
// sent to the node of the row. Until one of its records ends, a row with records is
// charged like any other. Its parameters are the key, the units, the grid if origins
// are spread, and the time if a test has set a clock.
func (d *dialect) takeSQL(id int32, def *store.Definition, testClock bool) string {
	r := &def.Rule
	grid, params := gridOrParam(r, 2)
	clock := timeSQL(readNow, testClock, params+1)
	ticks := ticksDividedSQL(r, "excluded.ts", grid, d.divide)
	return fmt.Sprintf(`insert into dipwell.buckets as b (limit_id, key, version, used, ts, seen)
values (%[1]d, $1::text, %[2]d, $2::bigint, %[3]s, 0)
on conflict (limit_id, key) do update
set used = %[4]s + excluded.used, ts = greatest(b.ts, excluded.ts), seen = excluded.ts, low = case when b.low >= 0 then least(b.low, %[4]s) end
where b.version = excluded.version and (b.due is null or excluded.ts < b.due and %[4]s > 0) and %[5]s
returning b.used, b.ts, b.seen`, id, def.Number, clock, leftSQL(r, ticks),
		fitsSQL(r, ticks, fmt.Sprintf("%d - excluded.used", r.Cap)))
}

// Statements that read or write a single row.
const (
	rowSQL             = "select used, ts, version, lows, low from dipwell.buckets where limit_id = $1 and key = $2"
	lockSQL            = rowSQL + " for update"
	insertRowSQL       = "insert into dipwell.buckets (limit_id, key, version, used, ts, seen) values ($1, $2, $3, 0, 0, 0) on conflict (limit_id, key) do nothing"
	updateRowSQL       = "update dipwell.buckets set used = $3, ts = $4, version = $5, lows = $6, low = $7, due = $8, seen = 0 where limit_id = $1 and key = $2"
	deleteRowSQL       = "delete from dipwell.buckets where limit_id = $1 and key = $2"
	deleteUnchangedSQL = deleteRowSQL + " and used = $3 and ts = $4 and version = $5"
	pageSQL            = "select limit_id, key, used, ts, version, lows is not null from dipwell.buckets where limit_id > $1 or limit_id = $1 and key > $2 order by limit_id, key limit $3"
)

// detect returns the dialect of a portable schema, or nil if the schema is not portable.
func detect(ctx context.Context, db rower) (*dialect, error) {
	var version string
	var portable bool
	err := db.QueryRow(ctx, `select version(), exists (select 1 from information_schema.columns
		where table_schema = 'dipwell' and table_name = 'buckets' and column_name = 'seen')`).Scan(&version, &portable)
	if err != nil || !portable {
		return nil, err
	}
	e := engineOfVersion(version)
	if e == postgreSQL {
		var extension bool
		if err = db.QueryRow(ctx, "select exists (select 1 from pg_extension where extname = 'citus')").Scan(&extension); err != nil {
			return nil, err
		}
		if e = anyEngine; extension {
			e = citus
		}
	}
	return dialects[e], nil
}

func engineOfVersion(version string) string {
	switch {
	case strings.Contains(version, "CockroachDB"):
		return cockroachDB
	case strings.Contains(version, "-YB-"):
		return yugabyteDB
	}
	return postgreSQL
}

// migratePortable creates the tables, one transaction for each statement.
// Existing tables are left alone, so that several programs may call it at once.
func migratePortable(ctx context.Context, db DB, d *dialect, o MigrateOptions) (applied []Migration, err error) {
	if o.Tables == "unlogged" {
		return nil, fmt.Errorf("unlogged tables are for PostgreSQL without Citus, not for %s", d.engine)
	}
	have := 0
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) (err error) { have, err = schemaVersion(ctx, tx); return err })
	if err != nil || have == SchemaVersion {
		return nil, err
	}
	if have > SchemaVersion {
		return nil, &SchemaError{have, SchemaVersion}
	}
	for _, statement := range d.tables(have) {
		err = execTx(ctx, db, statement)
		if slices.Contains([]string{codeUnique, "42P06", "42P07", "42710"}, codeOf(err)) { // a concurrent migration has created it; now "if not exists" succeeds
			err = execTx(ctx, db, statement)
		}
		if err != nil {
			return nil, fmt.Errorf("migrate (%s): %w\n%s", d.engine, err, statement)
		}
	}
	return []Migration{{Version: SchemaVersion, Name: "portable"}}, execTx(ctx, db, markSQL())
}

// dialectFor returns the dialect to migrate: the one in the options, the one of
// the server's version, or the one of the existing tables. nil means PostgreSQL
// with functions.
func dialectFor(ctx context.Context, db DB, o MigrateOptions) (d *dialect, err error) {
	if d = dialects[o.Engine]; d != nil {
		return d, nil
	}
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		var version string
		if err := tx.QueryRow(ctx, "select version()").Scan(&version); err != nil {
			return err
		}
		if d = dialects[engineOfVersion(version)]; d != nil {
			return nil
		}
		d, err = detect(ctx, tx)
		return err
	})
	return d, err
}

// execTx runs a statement in a transaction of its own.
func execTx(ctx context.Context, db DB, sql string) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error { _, err := tx.Exec(ctx, sql); return err })
}

func markSQL() string {
	return fmt.Sprintf("insert into dipwell.migrations (version, name) values (%d, 'portable') on conflict (version) do nothing", SchemaVersion)
}

// portableDown drops the schema and everything in it.
var portableDown = []string{
	"drop table if exists dipwell.usage", "drop table if exists dipwell.top_hours", "drop table if exists dipwell.audit", "drop table if exists dipwell.holds", "drop table if exists dipwell.overrides",
	"drop table if exists dipwell.reservations", "drop table if exists dipwell.records", "drop table if exists dipwell.buckets",
	"drop table if exists dipwell.limits", "drop table if exists dipwell.revision", "drop table if exists dipwell.migrations",
	"drop schema if exists dipwell",
}
