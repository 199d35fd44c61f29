package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
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

// login connects as a new role, and drops it afterwards with what it owns.
func login(t *testing.T, pool *pgxpool.Pool, role, options string) *pgxpool.Pool {
	t.Helper()
	must(t, pool, fmt.Sprintf("drop role if exists %[1]s; create role %[1]s login %[2]s", role, options))
	as := connect(t, strings.Replace(pool.Config().ConnString(), "postgres@", role+"@", 1))
	t.Cleanup(func() {
		as.Close()
		must(t, pool, fmt.Sprintf("drop owned by %[1]s cascade; drop role %[1]s", role))
	})
	return as
}

// TestMigrateRefusesSchemasOfOthers checks that a superuser does not migrate into schemas in
// which another role could replace what then runs with its rights, by the program or by what
// it prints, and that Inspect names the role.
func TestMigrateRefusesSchemasOfOthers(t *testing.T) {
	for name, c := range map[string]struct{ before, after, says string }{
		"a schema":         {"grant create on database %s to mallory; set role mallory; create schema dipwell; reset role", "", "schema dipwell belongs to mallory"},
		"the internal one": {"grant create on database %s to mallory; set role mallory; create schema dipwell_internal; reset role", "", "belongs to mallory"},
		"a right to create": {"create schema dipwell_internal; grant create on schema dipwell_internal to public", "grant create on schema dipwell_internal to public",
			"everybody may create objects in schema dipwell_internal"},
		"a function": {"create schema dipwell_internal; create function dipwell_internal.now_us() returns bigint language sql as 'select 1'; alter function dipwell_internal.now_us owner to mallory",
			"create function dipwell_internal.now_us(int) returns bigint language sql as 'select 1'; alter function dipwell_internal.now_us(int) owner to mallory", "now_us"},
		"a table":   {"create schema dipwell; create table dipwell.migrations (version int, name text, applied_at timestamptz); alter table dipwell.migrations owner to mallory", "", "belongs to mallory"},
		"a trigger": {"", "grant trigger on dipwell.buckets to mallory", "mallory may add triggers to dipwell.buckets"},
	} {
		t.Run(name, func(t *testing.T) {
			pool := connect(t, pgtest.Database(t, "empty", func(string) error { return nil }))
			login(t, pool, "mallory", "")
			refused := func(err error) {
				t.Helper()
				if err == nil || !strings.Contains(err.Error(), "refusing to migrate") || !strings.Contains(err.Error(), c.says) {
					t.Errorf("%v; want %s", err, c.says)
				}
			}
			if before := c.before; before != "" {
				if strings.Contains(before, "%s") {
					before = fmt.Sprintf(before, pgx.Identifier{pool.Config().ConnConfig.Database}.Sanitize())
				}
				must(t, pool, before)
				_, err := pgstore.Migrate(t.Context(), pool, pgstore.MigrateOptions{})
				refused(err)
				_, err = pool.Exec(t.Context(), pgstore.MigrationSQL(pgstore.MigrateOptions{}))
				refused(err)
				must(t, pool, "drop schema if exists dipwell cascade; drop schema if exists dipwell_internal cascade")
			}
			if _, err := pgstore.Migrate(t.Context(), pool, pgstore.MigrateOptions{}); err != nil {
				t.Fatal(err)
			}
			if found, err := pgstore.Inspect(t.Context(), pool); err != nil || len(found.Untrusted) > 0 || found.Owner != "postgres" {
				t.Errorf("%+v, %v", found, err)
			}
			if c.after == "" {
				return
			}
			must(t, pool, c.after)
			_, err := madeUp.Migrate(t.Context(), pool, pgstore.MigrateOptions{})
			refused(err)
			if found, err := pgstore.Inspect(t.Context(), pool); err != nil || len(found.Untrusted) != 1 || !strings.Contains(found.Untrusted[0], c.says) {
				t.Errorf("%+v, %v", found, err)
			}
		})
	}
}

// TestMigrateAsOwner checks that a role that owns the schemas and nothing else can migrate,
// and that others are told to become it.
func TestMigrateAsOwner(t *testing.T) {
	pool := connect(t, pgtest.Database(t, "empty", func(string) error { return nil }))
	owner := login(t, pool, "wells", "")
	must(t, pool, "create schema dipwell authorization wells; create schema dipwell_internal authorization wells")
	if _, err := pgstore.Migrate(t.Context(), owner, pgstore.MigrateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := pgstore.Migrate(t.Context(), pool, pgstore.MigrateOptions{}); err != nil {
		t.Errorf("a migration with nothing to do: %v", err)
	}
	if _, err := madeUp.Migrate(t.Context(), pool, pgstore.MigrateOptions{}); err == nil || !strings.Contains(err.Error(), "schema dipwell belongs to wells, and not to postgres") {
		t.Error(err)
	}
	if _, err := madeUp.Migrate(t.Context(), owner, pgstore.MigrateOptions{}); err != nil {
		t.Error(err)
	}
	if found, err := pgstore.Inspect(t.Context(), owner); err != nil || found.Owner != "wells" || len(found.Untrusted) > 0 {
		t.Errorf("%+v, %v", found, err)
	}
}

// TestServiceCannotForge checks that a login with the rights of a service can neither delete
// or antedate entries of the audit, nor end an override, by any function or table.
func TestServiceCannotForge(t *testing.T) {
	pool := newPool(t)
	must(t, pool, `select dipwell.define('api', 5, interval '1 minute'), dipwell.define_plan('api', 'banned', mode => 'blocked');
		select dipwell.override('api', 'standing', plan => 'banned'), dipwell.override('api', 'hour', plan => 'banned', until => now() + interval '1 hour')`)
	limiter := login(t, pool, "limiter", "in role dipwell_service")
	const future = "dipwell_internal.now_us() + 40000000000000"
	for _, sql := range []string{
		"delete from dipwell.audit", "truncate dipwell.audit",
		"update dipwell.audit set at = 'epoch'",
		"delete from dipwell.key_overrides",
		"update dipwell.key_overrides set until = 0, plan = null, rate = 1000000",
		"select dipwell.end_override('api', 'hour')",
		"select dipwell_internal.end_override(1, 'hour')",
		"select dipwell_internal.record_change('root', 'reset', 'api', '', '', '', " + future + ")",
		"select dipwell_internal.record_change('root', 'reset', 'api', '', '', '') from generate_series(1, 11000)", // allowed, at the present time
		"select dipwell_internal.sweep_at(1000, " + future + ", null)",
		"select dipwell_internal.sweep_overrides(1000, " + future + ")",
		"select dipwell_internal.sweep_records(1000, " + future + ")",
		"select dipwell_internal.keep_override(1, 'hour', null, " + future + ")",
		"select dipwell_internal.keep_override(1, 'standing', null, " + future + ")",
		"select dipwell_internal.retire(" + future + ")",
		"select dipwell.sweep()",
	} {
		_, _ = limiter.Exec(t.Context(), sql) // some are refused, the others must change nothing
	}
	if n := number(t, pool, "select count(*) from dipwell.audit where action <> 'reset' and at > now() - interval '1 hour'"); n != 4 {
		t.Errorf("%d of 4 entries are left", n)
	}
	if n := number(t, pool, "select count(*) from dipwell.audit where abs(extract(epoch from clock_timestamp() - at)) > 600"); n != 0 {
		t.Errorf("%d entries have another time than the database", n)
	}
	if n := number(t, pool, "select count(*) from dipwell.audit where role <> case who when 'root' then 'limiter' else who end"); n != 0 {
		t.Errorf("%d entries hide the role that added them", n)
	}
	if list, err := store.AbilitiesOf(newStore(t, limiter, pgstore.Config{Poll: -1})).Audit.Audit(t.Context(), "", 1); err != nil || len(list) != 1 || list[0].Role != "limiter" {
		t.Errorf("%+v, %v", list, err)
	}
	if n := number(t, pool, "select count(*) from dipwell.overrides where plan = 'banned' and (until is null) = (key = 'standing')"); n != 2 {
		t.Errorf("%d of 2 overrides are left", n)
	}
	for _, key := range []string{"standing", "hour"} {
		if n := number(t, pool, "select count(*) from dipwell.take('api', '"+key+"') where not allowed"); n != 1 {
			t.Errorf("%s is not blocked", key)
		}
	}
	page, err := os.ReadFile("../docs/reference/postgres.md")
	query := regexp.MustCompile("`(select l.name, o.key [^`]*)`").FindSubmatch(page)
	if err != nil || query == nil {
		t.Fatal("the page for DBAs has no query for keys that do not keep to their override")
	}
	around := fmt.Sprintf("select count(*) from (%s) x", query[1])
	if n := number(t, pool, around); n != 0 {
		t.Errorf("%d keys do not keep to their override", n)
	}
	must(t, limiter, `insert into dipwell.buckets (used, ts, limit_id, version, key) select 0, 0, l.id, l.version, 'hour' from dipwell.limits l
		on conflict (limit_id, key) do update set version = excluded.version`)
	if n := number(t, pool, around); n != 1 {
		t.Errorf("%d of 1 key that does not keep to its override is found", n)
	}
	must(t, pool, "select dipwell.override('api', 'hour', plan => 'banned', until => now() + interval '1 hour')")
	if n := number(t, pool, around+" union all select count(*) from dipwell.take('api', 'hour') where allowed order by 1 desc limit 1"); n != 0 {
		t.Errorf("%d keys do not keep to their override when it is set again", n)
	}
}

// TestServiceUnderOverrides checks that a login with the rights of a service decides under
// overrides that end, or whose limit has changed since, and sweeps them.
func TestServiceUnderOverrides(t *testing.T) {
	pool := newPool(t)
	must(t, pool, `select dipwell.define('api', 5, interval '1 hour', burst => 10);
		select dipwell.override('api', k, burst => 20, until => case k when 'ends' then clock_timestamp() + interval '1 second' end) from unnest('{ends,stays,swept}'::text[]) k;
		select dipwell.define('api', 6, interval '1 hour', burst => 10);
		update dipwell.key_overrides set until = dipwell_internal.now_us() - 60000000 where key = 'swept'`)
	l, err := dipwell.New(newStore(t, login(t, pool, "limiter", "in role dipwell_service"), pgstore.Config{Poll: -1}))
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "ended", func() bool {
		d, err := l.Take(t.Context(), "api", "ends", 1)
		return err == nil && d.Capacity == 10
	})
	if d, err := l.Take(t.Context(), "api", "stays", 1); err != nil || d.Capacity != 20 {
		t.Errorf("%+v, %v", d, err)
	}
	eventually(t, "swept", func() bool {
		if _, err := store.AbilitiesOf(l.Store()).Sweep(t.Context(), 100); err != nil {
			t.Fatal(err)
		}
		return number(t, pool, "select count(*) from dipwell.key_overrides") == 1
	})
	if n := number(t, pool, "select count(*) from dipwell.key_overrides o join dipwell.limits l on o.limit_id = l.id where o.key = 'stays' and o.version = l.version"); n != 1 {
		t.Errorf("%d overrides are of the present version", n)
	}
}

// TestPublication checks that all that writes to the tables goes on beside a publication of
// all tables.
func TestPublication(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t, "fsync=off", "wal_level=logical")
	if err := migrated(server.DSN("postgres")); err != nil {
		t.Fatal(err)
	}
	pool := connect(t, server.DSN("postgres"))
	must(t, pool, "create publication everything for all tables")
	l, err := dipwell.New(newStore(t, pool, pgstore.Config{Poll: -1}), store.Limit{Name: "api", Rate: 5, Period: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		for _, sql := range []string{
			"define('sql', 5, interval '1 minute')", "define('sql', 6, interval '1 minute')", "define_plan('sql', 'pro', rate => 60)",
			"override('sql', 'k', plan => 'pro')", "end_override('sql', 'k')", "take('sql', 'k')", "charge('sql', 'k', 7)", "hold('sql', 'h', ttl => interval '1 second')",
			"reset('sql', 'k')", "sweep()", "drop_plan('sql', 'pro')", "drop('sql')",
		} {
			if _, err := pool.Exec(t.Context(), "select dipwell."+sql); err != nil && !strings.Contains(err.Error(), "42883") {
				t.Errorf("%s: %v", sql, err)
			}
		}
	}
	ab := store.AbilitiesOf(l.Store())
	_, err1 := l.Take(t.Context(), "api", "k", 1)
	_, err2 := ab.Sweep(t.Context(), 100)
	_, err3 := l.Define(t.Context(), store.Limit{Name: "api", Rate: 6, Period: time.Minute}, store.OwnerCode)
	err4 := errors.Join(ab.Audit.Record(t.Context(), store.AuditEntry{Action: "reset", Limit: "api"}), ab.TopKeys.Record(t.Context(), store.AuditEntry{What: "{}"}))
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		t.Error(err)
	}
	must(t, pool, "select dipwell_internal.retire(dipwell_internal.now_us() + 3600000000)")
	if n := number(t, pool, "select count(*) from pg_publication_tables where schemaname = 'dipwell'"); n < 10 {
		t.Errorf("only %d tables are published", n)
	}
}

// TestPrimaryKeys checks that every table can be published, also those that are unlogged.
func TestPrimaryKeys(t *testing.T) {
	for kind, pool := range map[string]*pgxpool.Pool{"functions": newPool(t), "portable": portablePool(t)} {
		if n := number(t, pool, `select count(*) from pg_class c where c.relnamespace = 'dipwell'::regnamespace and c.relkind = 'r' and c.relreplident <> 'f'
			and not exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary)`); n != 0 {
			t.Errorf("%s: %d tables", kind, n)
		}
	}
}

// TestRightsTaken checks that the store is not ready, and that Inspect says why, if row
// security is on for its tables or rights were taken from its login.
func TestRightsTaken(t *testing.T) {
	pool := newPool(t)
	limiter := login(t, pool, "limiter", "in role dipwell_service")
	must(t, pool, "select dipwell.define('api', 5, interval '1 minute')")
	l, err := dipwell.New(newStore(t, limiter, pgstore.Config{Poll: -1}))
	if err != nil {
		t.Fatal(err)
	}
	ready := store.AbilitiesOf(l.Store()).Ready
	check := func(says string) {
		t.Helper()
		_, err := l.Take(t.Context(), "api", fmt.Sprint("k", time.Now().UnixNano()), 1)
		if (err == nil) != (says == "") {
			t.Errorf("%q: a take: %v", says, err)
		}
		if err = ready(t.Context()); (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("ready: %v; want %q", err, says)
		}
		for _, as := range []*pgxpool.Pool{limiter, pool} { // the service's own login, and a superuser
			found, err := pgstore.Inspect(t.Context(), as)
			if err != nil {
				t.Fatal(err)
			}
			if all := strings.Join(append(found.Lacks, found.RoleLacks...), "; "); (all == "") != (says == "") || !strings.Contains(all, says) {
				t.Errorf("Inspect found %q; want %q", all, says)
			}
		}
	}
	check("")
	for _, c := range []struct{ take, give, says string }{
		{"alter table dipwell.buckets enable row level security", "alter table dipwell.buckets disable row level security", "row security of dipwell.buckets is on"},
		{"revoke insert on dipwell.buckets from dipwell_service", "grant insert on dipwell.buckets to dipwell_service", "insert on dipwell.buckets"},
	} {
		must(t, pool, c.take)
		check(c.says)
		must(t, pool, c.give)
		check("")
	}
	for _, taken := range []string{"update on dipwell.hold_parts", "select on dipwell.limits", "execute on function dipwell_internal.decide", "usage on schema dipwell_internal"} {
		must(t, pool, "revoke "+taken+" from dipwell_service")
		if err := ready(t.Context()); err == nil {
			t.Errorf("ready without %s", taken)
		}
		must(t, pool, "grant "+taken+" to dipwell_service")
	}
	check("")
}

// TestMigrateBesideOpenTransaction checks that calls go on while an upgrade waits for a
// transaction that uses the tables, that it says for which, and that it goes on afterwards.
func TestMigrateBesideOpenTransaction(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(ctx context.Context, pool *pgxpool.Pool, o pgstore.MigrateOptions) error{
		"an upgrade": func(ctx context.Context, pool *pgxpool.Pool, o pgstore.MigrateOptions) error {
			_, err := madeUp.Migrate(ctx, pool, o)
			return err
		},
		"a change of durability": func(ctx context.Context, pool *pgxpool.Pool, o pgstore.MigrateOptions) error {
			o.Tables = "unlogged"
			_, err := pgstore.Migrate(ctx, pool, o)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := connect(t, pgtest.Database(t, "dipwell_beside", migrated))
			l, err := dipwell.New(newStore(t, pool, pgstore.Config{Poll: -1}), store.Limit{Name: "api", Rate: 1, Period: 24 * time.Hour, Burst: 1000})
			if err != nil {
				t.Fatal(err)
			}
			tx, err := pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback(context.Background()) }()
			must(t, tx, "set local application_name = 'somebody'; select dipwell.take('api', 'theirs')")
			waits := make(chan string)
			done := make(chan error, 1)
			ended := make(chan struct{})
			go func() {
				done <- change(t.Context(), pool, pgstore.MigrateOptions{Waiting: func(why string) {
					select {
					case waits <- why:
					case <-ended:
					}
				}})
			}()
			for range 3 {
				select {
				case why := <-waits:
					if !strings.Contains(why, "somebody") || !strings.Contains(why, "idle in transaction") {
						t.Errorf("waits for %s", why)
					}
				case err := <-done:
					t.Fatalf("did not wait: %v", err)
				}
				if d, err := l.Take(t.Context(), "api", "ours", 1); err != nil || !d.Allowed {
					t.Errorf("%+v, %v", d, err)
				}
			}
			close(ended)
			if err := errors.Join(tx.Rollback(t.Context()), <-done); err != nil {
				t.Error(err)
			}
		})
	}
}
