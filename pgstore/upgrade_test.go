package pgstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// madeUp is the schema of a program of the next version.
const madeUp = pgstore.NextSchema(`
	alter table dipwell.buckets add column made_up int;
	create index made_up on dipwell.top_hours (at);
	comment on column dipwell.buckets.made_up is 'For a test.';
`)

// TestUpgrade upgrades the schema while programs of the version before take and hold, by
// the program and by psql. No call may fail, each must be charged once, and the schema must
// be that of a new database of the next version.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	fresh := connect(t, pgtest.Database(t, "empty", func(string) error { return nil }))
	if _, err := madeUp.Migrate(t.Context(), fresh, pgstore.MigrateOptions{}); err != nil {
		t.Fatal(err)
	}
	want := dump(t, fresh)
	ways := map[string]func(t *testing.T, pool *pgxpool.Pool){
		"Migrate": func(t *testing.T, pool *pgxpool.Pool) {
			applied, err := madeUp.Migrate(t.Context(), pool, pgstore.MigrateOptions{})
			if err != nil || len(applied) != 1 || applied[0].Version != pgstore.SchemaVersion+1 {
				t.Fatal(applied, err)
			}
		},
		"psql": func(t *testing.T, pool *pgxpool.Pool) {
			if out := psql(t, pool.Config().ConnString(), "begin;"+madeUp.SQL(pgstore.SchemaVersion)+"commit;"); strings.Contains(out, "ERROR") {
				t.Fatal(out)
			}
		},
	}
	for name, upgrade := range ways {
		t.Run(name, func(t *testing.T) {
			pool := connect(t, pgtest.Database(t, "dipwell_upgraded", migrated))
			l, err := dipwell.New(newStore(t, pool, pgstore.Config{Poll: -1}), store.Limit{Name: "api", Rate: 1, Period: 24 * time.Hour, Burst: burstOfUpgrade})
			if err != nil {
				t.Fatal(err)
			}
			finish := callsDuringUpgrade(t, pool, l)
			upgrade(t, pool)
			granted := finish()
			if d, err := l.Check(t.Context(), "api", "k", 0); err != nil || d.Remaining != burstOfUpgrade-granted {
				t.Errorf("%d remain after %d were granted: %v", d.Remaining, granted, err)
			}
			upgraded := dump(t, pool)
			if gone, more := missing(want, upgraded), missing(upgraded, want); len(gone)+len(more) > 0 {
				t.Errorf("the upgraded schema lacks\n%s\nand has\n%s", strings.Join(gone, "\n"), strings.Join(more, "\n"))
			}
			_, err = pgstore.New(t.Context(), pool, pgstore.Config{})
			var schema *pgstore.SchemaError
			if !errors.As(err, &schema) || schema.Have != pgstore.SchemaVersion+1 {
				t.Errorf("a program of the version before that starts now: %v", err)
			}
		})
	}
}

const burstOfUpgrade = 100_000 // of which nothing worth a token comes back during the test

// callsDuringUpgrade starts callers in Go and in SQL. finish waits until each has made some
// more calls, ends them, and returns how many tokens were granted.
func callsDuringUpgrade(t *testing.T, pool *pgxpool.Pool, l *dipwell.Limiter) (finish func() int64) {
	t.Helper()
	const calls = 20 // of each caller, before the upgrade and after it
	ctx := t.Context()
	var granted, failed atomic.Int64
	var wg, warm sync.WaitGroup
	last := make(chan struct{})
	caller := func(call func() error) {
		warm.Add(1)
		wg.Go(func() {
			more := calls
			for n := 0; more > 0; n++ {
				if n == calls {
					warm.Done()
				}
				select {
				case <-last:
					more--
				default:
				}
				if err := call(); err != nil && failed.Add(1) < 5 {
					t.Error(err)
				}
				granted.Add(1)
			}
		})
	}
	allowed := func(d dipwell.Decision, err error) error {
		if err == nil && !d.Allowed {
			err = fmt.Errorf("refused: %+v", d)
		}
		return err
	}
	caller(func() error { return allowed(l.Take(ctx, "api", "k", 1)) })
	caller(func() error { return allowed(l.TakeAll(ctx, dipwell.Take{Limit: "api", Key: "k", Cost: 1})) })
	caller(func() error {
		d, err := l.Hold(ctx, time.Minute, "", dipwell.Take{Limit: "api", Key: "k", Cost: 2})
		if err = allowed(d, err); err == nil {
			_, err = l.Settle(ctx, d.Hold, 1)
		}
		return err
	})
	once := true
	caller(func() error {
		take := func() error { _, err := pool.Exec(ctx, "select allowed from dipwell.take('api', 'k')"); return err }
		err := take()
		var pg *pgconn.PgError
		if errors.As(err, &pg) && pg.Code == "XX000" && once { // as the page for DBAs says of a call that waits
			once = false
			err = take()
		}
		return err
	})
	warm.Wait()
	return func() int64 {
		close(last)
		wg.Wait()
		return granted.Load()
	}
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
		create function guard() returns boolean language plpgsql as 'declare d record; begin select * into d from dipwell.take(''a'', ''k''); return d.allowed; end';
		prepare t1 as select allowed from dipwell.take('a', 'k');
		prepare t2 as select (dipwell.take('a', 'k')).allowed;
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

// TestUpgradeKeepsGrants checks that grants made by an operator are kept.
func TestUpgradeKeepsGrants(t *testing.T) {
	t.Parallel()
	pool := connect(t, pgtest.Database(t, "dipwell_grants", migrated))
	must(t, pool, `select dipwell.define('login', 5, interval '1 hour');
		grant usage on schema dipwell_internal to dipwell_app; grant execute on function dipwell.refund, dipwell_internal.now_us to dipwell_app`)
	for range 2 {
		must(t, pool, pgstore.Repeatable)
		inTx(t, pool, func(tx pgx.Tx) {
			must(t, tx, "set local role dipwell_app")
			must(t, tx, "select dipwell.refund('login', 'now'), dipwell_internal.now_us()")
		})
	}
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

// TestSchemaComments checks that both schemas and everything in schema dipwell have a
// comment, and that it has only what users need.
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
		union all select p.oid::regprocedure::text from pg_proc p where p.pronamespace = 'dipwell'::regnamespace and obj_description(p.oid, 'pg_proc') is null
		union all select c.oid::regclass::text from pg_class c where c.relnamespace = 'dipwell'::regnamespace and c.relkind in ('r', 'v')
			and obj_description(c.oid, 'pg_class') is null
		union all select t.oid::regtype::text from pg_type t join pg_class c on c.oid = t.typrelid and c.relkind = 'c'
			where t.typnamespace = 'dipwell'::regnamespace and obj_description(t.oid, 'pg_type') is null
		union all select concat(c.oid::regclass, '.', a.attname) from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
			where c.relnamespace = 'dipwell'::regnamespace and c.relkind in ('r', 'v', 'c') and col_description(c.oid, a.attnum) is null`); bare != "" {
		t.Errorf("without a comment: %s", bare)
	}
	if got, want := list("select distinct proname::text from pg_proc where pronamespace = 'dipwell'::regnamespace order by 1"),
		"cancel, charge, check, count_usage, define, define_plan, drop, drop_plan, end_override, extend, hold, hold_all, key, override, ready, refund, reserve, reset, settle, settle_all, sweep, take, take_all, take_up_to"; got != want {
		t.Errorf("functions of schema dipwell: %s; want %s", got, want)
	}
}
