package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell/internal/catalog"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// The audit has every setting that define changes, also those from which no rule is
// compiled.
func TestAuditOfDefine(t *testing.T) {
	pool := newPool(t)
	s := newStore(t, pool, pgstore.Config{Poll: -1})
	const api = "select dipwell.define('api', rate => 5, per => interval '1 minute', "
	for _, change := range []struct{ sql, what string }{
		{"select dipwell.define('org', rate => 9, per => interval '1 minute', parts => 1)", `"parts": "1"`},
		{api + "parent => 'org')", `"parent": "org"`},
		{api + "mode => 'shadow')", `"mode": "shadow"`},
		{api + "on_change => 'reset')", `"on_change": "reset"`},
		{api + "ttl => interval '5 minutes')", `"ttl": "5m"`},
		{api + "on_expire => 'keep')", `"on_expire": "keep"`},
		{api + "burst => 7)", `"burst": "7"`},
	} {
		for range 2 { // the second time nothing changes
			if _, err := pool.Exec(t.Context(), change.sql); err != nil {
				t.Fatal(err)
			}
		}
		list, err := store.AbilitiesOf(s).Audit.Audit(t.Context(), "", 2)
		if err != nil {
			t.Fatal(err)
		}
		if len(list) == 0 || !strings.Contains(list[0].What, change.what) {
			t.Errorf("%s: the audit has %+v, want %s", change.sql, list, change.what)
		}
		if len(list) == 2 && list[0].What == list[1].What {
			t.Errorf("%s: is recorded twice", change.sql)
		}
	}
}

// A define while another transaction adds a plan waits for it, and keeps the plan.
func TestDefineKeepsPlans(t *testing.T) {
	pool := newPool(t)
	ctx := t.Context()
	const define = "select dipwell.define('api', rate => %d, per => interval '1 minute')"
	must(t, pool, fmt.Sprintf(define, 5))
	tx, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err = tx.Exec(ctx, "select dipwell.define_plan('api', 'pro', rate => 600)"); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		_, err := pool.Exec(ctx, fmt.Sprintf(define, 6))
		done <- err
	}()
	eventually(t, "waiting", func() bool {
		return number(t, pool, "select count(*) from pg_locks where not granted and locktype = 'advisory'") == 1
	})
	if err = errors.Join(tx.Commit(ctx), <-done); err != nil {
		t.Fatal(err)
	}
	var rate int
	var plans *string
	if err = pool.QueryRow(ctx, "select rate, plans from dipwell.limits").Scan(&rate, &plans); err != nil || rate != 6 || plans == nil || *plans != "pro:rate=600" {
		t.Errorf("a rate of %d and plans %v, %v", rate, plans, err)
	}
}

// The audit has what a limit or plan was before define, define_plan and drop_plan.
func TestAuditOfFormer(t *testing.T) {
	pool := newPool(t)
	for _, change := range []struct{ sql, what string }{
		{"define('api', rate => 5, per => interval '1 minute')", `{"per": "1m", "name": "api", "rate": "5", "algorithm": "token_bucket"}`},
		{"define('api', rate => 6, per => interval '1 minute')", `{"per": "1m", "name": "api", "rate": "6", "algorithm": "token_bucket"}; was {"per": "1m", "name": "api", "rate": "5", "algorithm": "token_bucket"}`},
		{"define_plan('api', 'pro', rate => 600)", "plan pro:rate=600"},
		{"define_plan('api', 'pro', rate => 700)", "plan pro:rate=700; was pro:rate=600"},
		{"define_plan('api', 'all')", "plan all"},
		{"define_plan('api', 'all', mode => 'unlimited')", "plan all:mode=unlimited; was all"},
		{"drop_plan('api', 'pro')", "without plan pro; was pro:rate=700"},
	} {
		must(t, pool, "select dipwell."+change.sql)
		if !strings.HasPrefix(change.sql, "drop") {
			must(t, pool, "select dipwell."+change.sql) // nothing changes
		}
		var last, before string
		err := pool.QueryRow(t.Context(), "select coalesce(max(what) filter (where i = 1), ''), coalesce(max(what) filter (where i = 2), '') from (select what, row_number() over (order by id desc) from dipwell.audit) x (what, i)").Scan(&last, &before)
		if err != nil || last != change.what || before == last {
			t.Errorf("%s: %q after %q, %v", change.sql, last, before, err)
		}
	}
}

// TestAuditOfLayers checks that the audit of SQL says what an override has replaced and what
// lies below, as that of the service does.
func TestAuditOfLayers(t *testing.T) {
	pool := newPool(t)
	must(t, pool, "select dipwell.define('api', 5, interval '1 minute')")
	for _, c := range [][2]string{
		{"rate => 7", "rate 7"},
		{"burst => 70, until => '2101-01-01Z'", "burst 70 until 2101-01-01T00:00:00Z, over rate 7"},
		{"burst => 80, until => '2101-01-01Z'", "burst 80 until 2101-01-01T00:00:00Z, in place of burst 70 until 2101-01-01T00:00:00Z, over rate 7"},
		{"rate => 9", "rate 9, in place of rate 7"},
		{"start => '17 00:00 UTC'", "start 17 00:00 UTC, in place of rate 9"},
	} {
		if strings.HasPrefix(c[0], "start") {
			must(t, pool, "select dipwell.define('api', 5, interval '1 month', algorithm => 'fixed_window')")
		}
		must(t, pool, "select dipwell.override('api', 'k', "+c[0]+")")
		var what string
		if err := pool.QueryRow(t.Context(), "select what from dipwell.audit order by id desc limit 1").Scan(&what); err != nil || what != c[1] {
			t.Errorf("%s: %q, %v; want %q", c[0], what, err, c[1])
		}
	}
}

// The end of an override is in the audit in UTC, as the service writes it, whatever the
// settings of the session are.
func TestAuditOfUntil(t *testing.T) {
	pool := newPool(t)
	must(t, pool, "select dipwell.define('api', rate => 5, per => interval '1 minute')")
	must(t, pool, `set datestyle = 'German'; set timezone = 'Asia/Kathmandu'; select dipwell.override('api', 'k', burst => 9, until => '2101-02-03 10:30:15.5+05:45')`)
	var what string
	if err := pool.QueryRow(t.Context(), "select what from dipwell.audit order by id desc limit 1").Scan(&what); err != nil || what != "burst 9 until 2101-02-03T04:45:15.5Z" {
		t.Errorf("%q, %v", what, err)
	}
}

// What is changed in SQL is in the audit, once, and the audit has the last entries.
func TestAuditOfSQL(t *testing.T) {
	pool := newPool(t)
	s := newStore(t, pool, pgstore.Config{Poll: -1})
	for _, sql := range []string{
		"select dipwell.define('api', rate => 5, per => interval '1 minute')",
		"select dipwell.define('api', rate => 5, per => interval '1 minute')",
		"select dipwell.define_plan('api', 'pro', rate => 600)",
		"select dipwell.override('api', 'k', plan => 'pro', note => 'ticket 81')",
		"select dipwell.end_override('api', 'k')",
		"select dipwell.end_override('api', 'k')",
		"select dipwell.drop_plan('api', 'pro')",
		"select dipwell.reset('api', 'k')",
		"select dipwell.drop('api')",
	} {
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	a := store.AbilitiesOf(s).Audit
	list, err := a.Audit(t.Context(), "", 100)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range list {
		got = append(got, e.Action+" "+e.Key)
		if e.Action == "override" && e.What != "plan pro" {
			t.Errorf("an override without an end: %q", e.What)
		}
		if e.Who == "" || e.Limit != "api" || e.At == 0 {
			t.Errorf("%+v", e)
		}
	}
	if want := "drop ,define ,end-override k,override k,define ,define "; strings.Join(got, ",") != want {
		t.Errorf("%q, want %q", got, want)
	}
	if _, err = pool.Exec(t.Context(), "insert into dipwell.audit select dipwell_internal.audit_id(1, i), timestamptz 'epoch', '', 'reset', 'api', '', '', '' from generate_series(1, 10005) i"); err != nil {
		t.Fatal(err)
	}
	if err = a.Record(t.Context(), store.AuditEntry{Action: "reset", Limit: "api"}); err != nil {
		t.Fatal(err)
	}
	if left := number(t, pool, "select count(*) from dipwell.audit"); left != 7 { // the others are too old
		t.Errorf("%d entries are left", left)
	}
}

// Over portable tables too, an entry removes those beyond the last 10,000, and those older
// than 400 days.
func TestPortableAudit(t *testing.T) {
	pool := portablePool(t)
	s := newStore(t, pool, pgstore.Config{Poll: -1})
	a := store.AbilitiesOf(s).Audit
	now, err := store.AbilitiesOf(s).Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		at   int64 // of the entries that are there
		left int
	}{{now - catalog.Changes.Age - 1, 1}, {now - 1, catalog.Changes.Entries}} {
		if _, err := pool.Exec(t.Context(), `insert into dipwell.audit (id, at, who, action, limit_name, key, what, note)
			select $1::text || lpad(to_hex(i), 8, '0'), now(), '', 'reset', 'api', '', '', '' from generate_series(1, 10005) i`, catalog.FirstEntry(tc.at)[:14]); err != nil {
			t.Fatal(err)
		}
		if err := a.Record(t.Context(), store.AuditEntry{Action: "reset", Limit: "api"}); err != nil {
			t.Fatal(err)
		}
		if left := number(t, pool, "select count(*) from dipwell.audit"); left != tc.left {
			t.Errorf("%d entries are left, want %d", left, tc.left)
		}
	}
}

// The top keys of an hour are rows of a view, a sweep deletes those older than a week, and
// an entry removes those beyond the bound.
func TestTopKeysInSQL(t *testing.T) {
	for kind, pool := range map[string]*pgxpool.Pool{"functions": newPool(t), "portable": portablePool(t)} {
		t.Run(kind, func(t *testing.T) {
			s := newStore(t, pool, pgstore.Config{Poll: -1})
			a := store.AbilitiesOf(s).TopKeys
			record := func() {
				t.Helper()
				if err := a.Record(t.Context(), store.AuditEntry{Who: "host:1", What: `{"hour":"2030-01-31T18:00:00Z","busiest":{"counted":9,"unlisted_at_most":1,
					"keys":[{"limit":"api","key":"k","count":5,"error":2},{"limit":"api","key":"","count":3,"error":0}]},"refused":{"counted":0,"unlisted_at_most":0,"keys":[]}}`}); err != nil {
					t.Fatal(err)
				}
			}
			record()
			if kind == "functions" && number(t, pool, `select count(*) from dipwell.top_keys where hour = '2030-01-31 18:00Z' and process = 'host:1' and list = 'busiest' and limit_name = 'api'
				and (key, count, error) in (('k', 5, 2), ('', 3, 0))`) != 2 {
				t.Error("the view has not the two keys")
			}
			for _, tc := range []struct {
				age  string
				left int
			}{{"8 days", 1}, {"1 hour", catalog.TopHours.Entries}} {
				if _, err := pool.Exec(t.Context(), `insert into dipwell.top_hours (id, at, process, of_minute, report)
					select lpad(to_hex((extract(epoch from now() - $1::text::interval) * 1000000)::bigint), 14, '0') || lpad(to_hex(i), 8, '0'), now(), '', false, '{}' from generate_series(1, 5380) i`, tc.age); err != nil {
					t.Fatal(err)
				}
				if tc.left == 1 {
					if _, err := store.AbilitiesOf(s).Sweep(t.Context(), 10); err != nil {
						t.Fatal(err)
					}
				} else {
					record()
				}
				if left := number(t, pool, "select count(*) from dipwell.top_hours"); left != tc.left {
					t.Errorf("%s old: %d entries are left, want %d", tc.age, left, tc.left)
				}
			}
		})
	}
}
