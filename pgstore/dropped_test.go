package pgstore_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// TestDroppedNames drops plans and parents that rows, holds and overrides name, by the SQL
// functions. A parent that another limit names is not dropped.
func TestDroppedNames(t *testing.T) {
	pool := newPool(t)
	for _, step := range []struct{ sql, want string }{
		// A rate of 1 an hour: no token comes back during the test.
		{"define('api', 1, '1 hour', burst => 10, max_debt => 20)", ""},
		{"define_plan('api', 'pro', burst => 50)", ""},
		{"override('api', 'o', plan => 'pro')", ""},
		{"hold('api', 'h', 30, ttl => '1 minute', id => 'h', plan => 'pro')", "true 20"},
		{"take('api', 'o', 45)", "true 5"},
		{"take('api', 'r', 45, plan => 'pro')", "true 5"},
		{"drop_plan('api', 'pro')", `22023 limit api: plans: plan pro is missing, and an override gives it (the override of key "o", which must be changed or ended before)`},
		{"end_override('api', 'o')", ""},
		{"drop_plan('api', 'pro')", ""},
		{"take('api', 'r', 1, plan => 'pro')", `42704 plan: limit api has no plan "pro"`},
		{"take('api', 'o', 1, plan => 'pro')", `42704 plan: limit api has no plan "pro"`},
		{"take('api', 'r', 1)", "false 0"},
		{"refund('api', 'r', 40)", "true 5"}, // 45 were used
		{"take('api', 'o', 1)", "false 0"},
		{"refund('api', 'o', 39)", "true 4"},
		{"settle('h', 4)", "true 6"},
		{"settle('h', 4)", "true 6 again"},

		{"define('global', 40, '1 day', burst => 40, shared => true)", ""},
		{"define('tenant', 30, '1 day', parent => 'global')", ""},
		{"define('user', 20, '1 day', parent => 'tenant')", ""},
		{"hold('user', 'acme/a', 4, ttl => '1 minute', id => 'first')", "true 16"},
		{"hold('user', 'acme/a', 5, ttl => '1 minute', id => 'second')", "true 11"},
		{"drop('tenant')", "22023 limit tenant: parent: it is the parent of limit user, which must be dropped or changed first"},
		{"drop('global')", "22023 limit global: parent: it is the parent of limit tenant, which must be dropped or changed first"},
		{"define('user', 20, '1 day', parent => 'global')", ""},
		{"drop('tenant')", ""},
		{"take('tenant', 'acme')", `42704 limit_name: unknown limit "tenant"`},
		{"settle('first', 1)", "true 14"},
		{"define('tenant', 30, '1 day', parent => 'global')", ""},
		{"check('tenant', 'acme')", "true 30"}, // nothing of the holds comes back to it
		{"drop('tenant')", ""},
		{"drop('user')", ""},
		{"drop('global')", ""},
		{"take('user', 'acme/a')", `42704 limit_name: unknown limit "user"`},
		{"settle('second', 1)", "true"},
		{"settle('second', 1)", "true again"},
		{"settle('second', 2)", "55000 hold: was settled to another cost"},
	} {
		got, sql := "", "select to_jsonb(x) from dipwell."+step.sql+" x"
		var row map[string]any
		var bad *pgconn.PgError
		switch err := pool.QueryRow(t.Context(), sql).Scan(&row); {
		case errors.As(err, &bad):
			got = bad.Code + " " + bad.Message
		case err == nil && row["allowed"] != nil:
			got = fmt.Sprint(row["allowed"])
			if row["remaining"] != nil {
				got += fmt.Sprint(" ", row["remaining"])
			}
			if row["repeated"] == true {
				got += " again"
			}
		}
		if got != step.want {
			t.Fatalf("%s: %q, want %q", step.sql, got, step.want)
		}
	}
}

// TestSettleOfDroppedAtOnce checks that of two settles at once of a hold whose limit was
// dropped, the one that waits for the other is repeated. The other one has settled the hold,
// or has only locked a bucket of it.
func TestSettleOfDroppedAtOnce(t *testing.T) {
	one, all := "select repeated from dipwell.settle('h', 1)", "select repeated from dipwell.settle_all('h', '{1,1}') where limit_name = 'org'"
	hold := "select dipwell.hold_all('{api,org}', '{k,k}', '{3,3}', ttl => '1 minute', id => 'h')"
	define, drop := "select dipwell.define('api', 1, '1 hour', burst => 10)", "select dipwell.drop('api')"
	for name, c := range map[string]struct{ setup, before, after, second string }{
		"dropped":       {"select dipwell.hold('api', 'k', 3, ttl => '1 minute', id => 'h'); " + drop, one, "", one},
		"defined again": {hold + "; " + drop + "; " + define, "select dipwell.take('org', 'k')", all, all},
	} {
		t.Run(name, func(t *testing.T) {
			pool := newPool(t)
			must(t, pool, define+"; select dipwell.define('org', 1, '1 hour', burst => 10); "+c.setup)
			tx, err := pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback(t.Context()) //nolint:errcheck // it has ended
			must(t, tx, c.before)
			second := make(chan error, 1)
			var again bool
			go func() { second <- pool.QueryRow(t.Context(), c.second).Scan(&again) }()
			eventually(t, "waiting for the first", func() bool {
				return number(t, pool, "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()") == 1
			})
			must(t, tx, c.after)
			if err = tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err = <-second; err != nil || !again {
				t.Errorf("the second settle: repeated %v, %v", again, err)
			}
		})
	}
}

// TestSettleWhileDropped settles an expired hold while its limit is dropped, which charges
// nothing, and again once there is a limit of that name.
func TestSettleWhileDropped(t *testing.T) {
	pool := newPool(t)
	for _, sql := range []string{"define('a', 1, '1 hour', burst => 10)", "hold('a', 'k', 4, ttl => '1 millisecond', id => 'h')", "drop('a')"} {
		if _, err := pool.Exec(t.Context(), "select dipwell."+sql+", pg_sleep(0.01)"); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	for _, define := range []string{"", "define('a', 1, '1 hour', burst => 10)"} {
		var granted int64
		if define != "" {
			if _, err := pool.Exec(t.Context(), "select dipwell."+define); err != nil {
				t.Fatal(err)
			}
		}
		if err := pool.QueryRow(t.Context(), "select coalesce(sum(granted), 0) from dipwell.settle('h', 3)").Scan(&granted); err != nil || granted != 0 {
			t.Errorf("%q: granted %d, error %v", define, granted, err)
		}
	}
	var free int64
	if err := pool.QueryRow(t.Context(), "select remaining from dipwell.check('a', 'k')").Scan(&free); err != nil || free != 10 {
		t.Errorf("%d free, error %v", free, err)
	}
}
