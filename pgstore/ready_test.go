package pgstore_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// TestReady: dipwell.ready has the keys in the order given, for limits of all kinds, and
// takes nothing; dipwell_app may call it.
func TestReady(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	must(t, pool, `select dipwell.define('jobs', 1, interval '1 hour', burst => 2, plans => '{"pro": {"burst": 5}, "staff": {"mode": "unlimited", "callable": false}}');
		select dipwell.define('org', 1, interval '1 hour', burst => 3, parts => 1), dipwell.define('member', 1, interval '1 hour', burst => 2, parent => 'org');
		select dipwell.define('rows', 4, interval '1 hour', shards => 2), dipwell.define('all', 1, interval '1 hour', burst => 1, shared => true), dipwell.define('all rows', 4, interval '1 hour', shards => 2, shared => true);
		select dipwell.define('slots', burst => 1, algorithm => 'concurrency');
		select dipwell.take('jobs', 'a', 2), dipwell.take('jobs', 'b', 1), dipwell.override('jobs', 'o', plan => 'staff');
		select dipwell.take('member', 'acme/u', 2), dipwell.take('member', 'acme/v', 1), dipwell.hold('slots', 'x', 1, interval '1 minute')`)
	for call, want := range map[string]string{
		"'jobs', '{a,b,c}'":                          "b c",
		"'jobs', '{c,b,a,b}'":                        "c b b",
		"'jobs', '{a,b,c,o}', 2":                     "c o",
		"'jobs', '{a,b,c}', 3":                       "",
		"'jobs', '{a,b,c}', 3, plan => 'pro'":        "a b c",
		"'jobs', '{a,b,c}', 4, plan => 'pro'":        "b c",
		"'jobs', '{}'":                               "",
		"'member', '{acme/u,acme/v,acme/w,other/u}'": "other/u",
		"'rows', '{k}', 2":                           "k",
		"'rows', '{k}', 3":                           "",
		"'all', '{null}'":                            "(all)",
		"'all rows', '{null}'":                       "(all)",
		"'slots', '{x,y}'":                           "y",
	} {
		inTx(t, pool, func(tx pgx.Tx) {
			must(t, tx, "set local role dipwell_app")
			for range 2 {
				rows, _ := tx.Query(t.Context(), "select coalesce(key, '(all)') from dipwell.ready("+call+")")
				keys, err := pgx.CollectRows(rows, pgx.RowTo[string])
				if got := strings.Join(keys, " "); err != nil || got != want {
					t.Errorf("ready(%s): %s, %v; want %s", call, got, err, want)
				}
			}
		})
	}
	for call, want := range map[string]string{
		"'jobs', null":                            "keys: is null",
		"'jobs', '{a,null}'":                      "keys[2]: is null; limit jobs has a bucket for each key",
		"'jobs', array['a','']":                   "keys[2]: is empty",
		"'jobs', array_fill('k'::text, '{1001}')": "keys: has 1001 entries; at most 1000",
		"'jobs', '{a}', -1":                       "cost: -1 is not between",
		"'jobs', '{a}', plan => 'staff'":          "plan: callers may not name plan staff",
		"'member', '{acme}'":                      "keys[1]: has 1 part",
		"'nosuch', '{a}'":                         `limit_name: unknown limit "nosuch"`,
	} {
		_, err := pool.Exec(t.Context(), "select dipwell.ready("+call+")")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ready(%s): %v; want %s", call, err, want)
		}
	}
}
