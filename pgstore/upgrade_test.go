package pgstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// versionFive creates the schema of version 5, with rows.
func versionFive(dsn string) error {
	return versionOf(dsn, "testdata/schema-5.sql", "grant execute on function dipwell.refund, dipwell.now_us to dipwell_app")
}

// versionSix creates the schema of version 6, with rows.
func versionSix(dsn string) error {
	return versionOf(dsn, "testdata/schema-6.sql",
		"grant usage on schema dipwell_internal to dipwell_app; grant execute on function dipwell.refund, dipwell_internal.now_us to dipwell_app")
}

// versionSeven creates the schema of version 7, with rows.
func versionSeven(dsn string) error {
	return versionOf(dsn, "testdata/schema-7.sql",
		"grant usage on schema dipwell_internal to dipwell_app; grant execute on function dipwell.refund, dipwell_internal.now_us to dipwell_app")
}

// versionOf creates the schema of a file, with rows of the current and of older
// versions of limits, and a reservation that can be cancelled.
func versionOf(dsn, file, grants string) error {
	schema, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return execute(dsn, string(schema)+`
		select dipwell.define('login', 5, interval '1 hour', burst => 20, max_debt => 100);
		select dipwell.take('login', k, 20) from unnest('{old,older}'::text[]) k;
		select dipwell.define('login', 6, interval '1 hour', burst => 20, max_debt => 100);
		select dipwell.take('login', 'now', 5), dipwell.reserve('login', 'old', 7);
		select dipwell.define('day', 10, interval '1 day', algorithm => 'fixed_window', start => '00:00 UTC');
		select dipwell.charge('day', 'd', 3);
		`+grants)
}

// TestUpgrade checks that a database of version 5 to 7, upgraded by the program
// or by psql, has the same schema as a new one, and that its rows still work.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	fresh := dump(t, newPool(t))
	from := map[int]func(dsn string) error{5: versionFive, 6: versionSix, 7: versionSeven}
	if from[pgstore.SchemaVersion-1] == nil {
		t.Errorf("nothing upgrades from version %d: keep its schema in testdata", pgstore.SchemaVersion-1)
	}
	for from, fill := range from {
		t.Run(fmt.Sprint("from ", from), func(t *testing.T) { upgrades(t, from, fill, fresh) })
	}
}

func upgrades(t *testing.T, from int, fill func(dsn string) error, fresh []string) {
	ways := map[string]func(t *testing.T, pool *pgxpool.Pool){
		"Migrate": func(t *testing.T, pool *pgxpool.Pool) {
			applied, err := pgstore.Migrate(t.Context(), pool, pgstore.MigrateOptions{})
			if err != nil || len(applied) != pgstore.SchemaVersion-from || applied[0].Version != from+1 {
				t.Fatal(applied, err)
			}
		},
		"psql": func(t *testing.T, pool *pgxpool.Pool) {
			out := psql(t, pool.Config().ConnString(), pgstore.MigrationSQL(pgstore.MigrateOptions{From: from}))
			if strings.Contains(out, "ERROR") {
				t.Fatal(out)
			}
		},
	}
	for name, upgrade := range ways {
		t.Run(name, func(t *testing.T) {
			pool := connect(t, pgtest.Database(t, fmt.Sprint("version-", from), fill))
			before := bucketRows(t, pool)
			upgrade(t, pool)
			must(t, pool, "revoke all on function dipwell.refund, dipwell_internal.now_us from dipwell_app; revoke usage on schema dipwell_internal from dipwell_app") // granted by an operator
			upgraded := dump(t, pool)
			if gone, more := missing(fresh, upgraded), missing(upgraded, fresh); len(gone)+len(more) > 0 {
				t.Errorf("the upgraded schema lacks\n%s\nand has\n%s", strings.Join(gone, "\n"), strings.Join(more, "\n"))
			}
			if after := bucketRows(t, pool); !reflect.DeepEqual(before, after) {
				t.Errorf("rows were %v, and are %v", before, after)
			}
			checkOldRows(t, pool)
		})
	}
}

// checkOldRows calls every verb for rows written by an older version.
func checkOldRows(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	for _, c := range []struct {
		sql     string
		allowed bool
		left    int64
	}{
		{"check('login', 'older', 0)", true, 0},
		{"take('login', 'older')", false, 0},
		{"take('login', 'now')", true, 14},
		{"take_up_to('login', 'now', 4)", true, 10},
		{"charge('login', 'now', 3)", true, 7},
		{"reserve('login', 'now', 2)", true, 5},
		{"refund('login', 'now', 4)", true, 9},
		{"reset('login', 'older')", true, 20},
		{"take('day', 'd')", true, 6},
	} {
		var allowed bool
		var left int64
		err := pool.QueryRow(t.Context(), "select allowed, remaining from dipwell."+c.sql).Scan(&allowed, &left)
		if err != nil || allowed != c.allowed || left != c.left {
			t.Errorf("%s: %v, %d left; want %v, %d; %v", c.sql, allowed, left, c.allowed, c.left, err)
		}
	}
	must(t, pool, "select dipwell.cancel(id) from dipwell.reservations")
	newStore(t, pool, pgstore.Config{Poll: -1})
	if err := pgstore.MigrateDown(t.Context(), pool); err != nil {
		t.Error(err)
	}
}

// TestOldStatements checks that functions of the upgraded schema accept the
// parameters of the previous program and return the same columns, so that old
// and new programs can run side by side during an upgrade.
func TestOldStatements(t *testing.T) {
	old := pgstore.SchemaVersion - 1
	text, err := os.ReadFile(fmt.Sprintf("testdata/statements-%d.sql", old))
	if err != nil {
		t.Fatalf("a new version of the schema needs the statements and the schema of the one before in testdata: %v", err)
	}
	before := connect(t, pgtest.Database(t, "version-7", versionSeven))
	after := newPool(t)
	for i, sql := range strings.Split(strings.TrimSpace(string(text)), "\n\n")[1:] {
		was, err := describe(t, before, sql)
		if err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
		if is, err := describe(t, after, sql); err != nil || is != was {
			t.Errorf("statement %d: %s\nwas answered by %s\nand is by      %s %v", i+1, sql, was, is, err)
		}
	}

	must(t, after, "select dipwell.define('login', 1, interval '1 second', burst => 5)")
	must(t, after, "insert into dipwell.buckets (limit_id, key, version, used, ts) select id, 'k', version, 1, 0 from dipwell.limits")
	var rows int
	if err := after.QueryRow(t.Context(), "select dipwell_internal.sweep_at($1, coalesce($2, dipwell_internal.settled()))", 100, (*int64)(nil)).Scan(&rows); err != nil || rows != 1 {
		t.Errorf("the sweep of version 6 deleted %d rows, want 1: %v", rows, err)
	}
}

// describe returns the types of a statement's parameters and columns.
func describe(t *testing.T, pool *pgxpool.Pool, sql string) (types string, err error) {
	t.Helper()
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		return "", err
	}
	defer conn.Release()
	d, err := conn.Conn().PgConn().Prepare(t.Context(), "", sql, nil)
	if err != nil {
		return "", err
	}
	named := func(oid uint32) string {
		if oid >= 16384 { // defined by the schema; the oid differs between databases
			return "dipwell"
		}
		return fmt.Sprint(oid)
	}
	for _, oid := range d.ParamOIDs {
		types += "$" + named(oid) + " "
	}
	for _, f := range d.Fields {
		types += f.Name + " " + named(f.DataTypeOID) + " "
	}
	return types, nil
}

// TestCallsDuringUpgrade checks that calls that wait while an upgrade replaces the functions
// are decided.
func TestCallsDuringUpgrade(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := connect(t, pgtest.Database(t, "dipwell_replaced", migrated))
	l, err := dipwell.New(newStore(t, pool, pgstore.Config{Poll: -1}),
		store.Limit{Name: "day", Rate: 10, Period: 24 * time.Hour, Algorithm: store.FixedWindow, Start: "00:00 Europe/Rome"},
		store.Limit{Name: "jobs", Algorithm: store.Concurrency, Burst: 10})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time over prepared statements
		tx, err := pool.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.Background()) }()
		must(t, tx, "lock table dipwell.buckets") // as a change of the table does
		errs := make(chan error, 2)
		go func() {
			_, err := l.Take(ctx, "day", "k", 1)
			errs <- err
		}()
		go func() {
			_, err := l.Hold(ctx, time.Minute, "", dipwell.Take{Limit: "jobs", Key: "k", Cost: 1})
			errs <- err
		}()
		eventually(t, "waiting", func() bool {
			return number(t, pool, "select count(*) from pg_locks where not granted and relation = 'dipwell.buckets'::regclass") == 2
		})
		must(t, tx, pgstore.Repeatable)
		if err = errors.Join(tx.Commit(ctx), <-errs, <-errs); err != nil {
			t.Error(err)
		}
	}
}

// TestSessionsDuringUpgrade checks the calls that the page for DBAs says go on in a session
// that stays connected.
func TestSessionsDuringUpgrade(t *testing.T) {
	t.Parallel()
	pool := connect(t, pgtest.Database(t, "dipwell_sessions", migrated))
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	must(t, conn, `select dipwell.define('a', 100, interval '1 day');
		create function guard() returns boolean language plpgsql as 'declare d record; begin select * into d from dipwell.take(''a''); return d.allowed; end';
		prepare t1 as select allowed from dipwell.take('a');
		prepare t2 as select (dipwell.take('a')).allowed;
		prepare t3 as select allowed from dipwell.take_all('{a}', '{k}');
		prepare t4 as select guard()`)
	for range 2 {
		for _, sql := range []string{"execute t1", "execute t2", "execute t3", "execute t4"} {
			var allowed bool
			if err := conn.QueryRow(t.Context(), sql, pgx.QueryExecModeSimpleProtocol).Scan(&allowed); err != nil || !allowed {
				t.Errorf("%s: %v, %v", sql, allowed, err)
			}
		}
		must(t, conn, pgstore.Repeatable)
	}
}

// TestUpgradeKeepsGrants checks that grants made by an operator are kept, also
// for a function that has moved.
func TestUpgradeKeepsGrants(t *testing.T) {
	t.Parallel()
	t.Run("from 5", func(t *testing.T) { keepsGrants(t, pgtest.Database(t, "version-5", versionFive)) })
	t.Run("from 6", func(t *testing.T) { keepsGrants(t, pgtest.Database(t, "version-6", versionSix)) })
	t.Run("from 7", func(t *testing.T) { keepsGrants(t, pgtest.Database(t, "version-7", versionSeven)) })
}

func keepsGrants(t *testing.T, dsn string) {
	t.Helper()
	pool := connect(t, dsn)
	if _, err := pgstore.Migrate(t.Context(), pool, pgstore.MigrateOptions{}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		inTx(t, pool, func(tx pgx.Tx) {
			must(t, tx, "set local role dipwell_app")
			must(t, tx, "select dipwell.refund('login', 'now'), dipwell_internal.now_us()")
		})
		must(t, pool, pgstore.Repeatable)
	}
}

func bucketRows(t *testing.T, pool *pgxpool.Pool) []string {
	t.Helper()
	rows, _ := pool.Query(t.Context(), "select concat_ws(' ', limit_id, key, version, used, ts) from dipwell.buckets order by 1")
	out, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(out) < 3 {
		t.Fatal(out, err)
	}
	return out
}

// dump returns the output of pg_dump as sorted lines, because grants are listed
// in the order in which they were made.
func dump(t *testing.T, pool *pgxpool.Pool) []string {
	t.Helper()
	cmd := pgtest.Shared(t).Command("pg_dump", "--schema-only", "--schema=dipwell*", "-d", pool.Config().ConnString())
	var out, failed bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &failed
	if err := cmd.Run(); err != nil {
		t.Fatalf("pg_dump: %v\n%s", err, failed.String())
	}
	lines := slices.DeleteFunc(strings.Split(out.String(), "\n"), func(s string) bool { return strings.HasPrefix(s, "\\") }) // \restrict, with a random token
	slices.Sort(lines)
	return lines
}

// missing returns the lines that b lacks.
func missing(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(s string) bool { _, ok := slices.BinarySearch(b, s); return ok })
}

// TestSchemaComments checks that everything in the schemas has a comment, and
// that schema dipwell has only what users need.
func TestSchemaComments(t *testing.T) {
	pool := newPool(t)
	list := func(sql string) string {
		t.Helper()
		rows, _ := pool.Query(context.Background(), sql)
		out, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(out, ", ")
	}
	if bare := list(`
		select n.nspname from pg_namespace n where n.nspname ~ '^dipwell' and obj_description(n.oid, 'pg_namespace') is null
		union all select p.oid::regprocedure::text from pg_proc p where p.pronamespace::regnamespace::text ~ '^dipwell' and obj_description(p.oid, 'pg_proc') is null
		union all select c.oid::regclass::text from pg_class c where c.relnamespace::regnamespace::text ~ '^dipwell' and c.relkind in ('r', 'v')
			and obj_description(c.oid, 'pg_class') is null
		union all select t.oid::regtype::text from pg_type t join pg_class c on c.oid = t.typrelid and c.relkind = 'c'
			where t.typnamespace::regnamespace::text ~ '^dipwell' and obj_description(t.oid, 'pg_type') is null
		union all select concat(c.oid::regclass, '.', a.attname) from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
			where c.relnamespace::regnamespace::text ~ '^dipwell' and c.relkind in ('r', 'v', 'c') and col_description(c.oid, a.attnum) is null`); bare != "" {
		t.Errorf("without a comment: %s", bare)
	}
	if got, want := list("select distinct proname::text from pg_proc where pronamespace = 'dipwell'::regnamespace order by 1"),
		"cancel, charge, check, define, define_plan, drop, drop_plan, end_override, extend, hold, hold_all, key, observe, override, refund, reserve, reset, settle, settle_all, sweep, take, take_all, take_up_to"; got != want {
		t.Errorf("functions of schema dipwell: %s; want %s", got, want)
	}
}

// TestPortableUpgrade checks that portable tables of version 5 get the new
// columns, and that their rows still work.
func TestPortableUpgrade(t *testing.T) {
	pool := portablePool(t)
	ask := func() verbFunc { return limiterVerb(t, newStore(t, pool, pgstore.Config{Poll: -1})) }
	definer(t, pool, 10)
	if n, err := ask()(t.Context(), store.VerbTake, 4); err != nil || n != 4 {
		t.Fatal(n, err)
	}
	must(t, pool, "alter table dipwell.buckets drop column lows")
	must(t, pool, "alter table dipwell.reservations drop column part_due, drop column number, drop column mark, drop column slack, drop column rest, drop column parts")
	for _, version := range []int{5, 6, 7} {
		must(t, pool, fmt.Sprint("update dipwell.migrations set version = ", version))
		if applied, err := pgstore.Migrate(t.Context(), pool, pgstore.MigrateOptions{}); err != nil || len(applied) != 1 {
			t.Fatal(version, applied, err)
		}
		must(t, pool, fmt.Sprint("delete from dipwell.migrations where version < ", pgstore.SchemaVersion))
	}
	for _, verb := range []store.Verb{store.VerbTake, store.VerbReserve, store.VerbTakeUpTo} {
		if n, err := ask()(t.Context(), verb, 2); err != nil || n != 2 {
			t.Error(verb, n, err)
		}
	}
}
