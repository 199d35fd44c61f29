package pgstore_test

import (
	"errors"
	"fmt"
	"strings"
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
		{"drop_plan('api', 'pro')", ""},
		{"take('api', 'r', 1, plan => 'pro')", `42704 plan: limit api has no plan "pro"`},
		{"take('api', 'o', 1, plan => 'pro')", `42704 plan: limit api has no plan "pro"`},
		{"take('api', 'r', 1)", "false 0"},
		{"refund('api', 'r', 40)", "true 5"}, // 45 were used
		{"take('api', 'o', 1)", "false 0"},
		{"refund('api', 'o', 39)", "true 4"},
		{"settle('h', 4)", "true 6"},
		{"settle('h', 4)", "true 6 again"},

		{"define('global', 40, '1 day', burst => 40)", ""},
		{"define('tenant', 30, '1 day', parent => 'global')", ""},
		{"define('user', 20, '1 day', parent => 'tenant')", ""},
		{"hold('user', 'acme/a', 4, ttl => '1 minute', id => 'first')", "true 16"},
		{"hold('user', 'acme/a', 5, ttl => '1 minute', id => 'second')", "true 11"},
		{"drop('tenant')", "22023 limit tenant: parent: it is the parent of limit user"},
		{"drop('global')", "22023 limit global: parent: it is the parent of limit tenant"},
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
		if step.want == "" && got != "" || !strings.HasPrefix(got, step.want) {
			t.Fatalf("%s: %q, want %q", step.sql, got, step.want)
		}
	}
}
