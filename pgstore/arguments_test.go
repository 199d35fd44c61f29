package pgstore_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// callsOfFunctions are valid calls: for each public function the arguments that it needs,
// as SQL. A hold h, a reservation and a plan are there.
var callsOfFunctions = map[string]map[string]string{
	"take": {"limit_name": "'login'", "key": "'k'"}, "check": {"limit_name": "'login'", "key": "'k'"}, "take_up_to": {"limit_name": "'login'", "key": "'k'"},
	"reserve": {"limit_name": "'login'", "key": "'k'"}, "charge": {"limit_name": "'login'", "key": "'k'"}, "refund": {"limit_name": "'login'", "key": "'k'"}, "reset": {"limit_name": "'login'", "key": "'k'"},
	"count_usage": {"limit_name": "'used'", "key": "'k'", "tokens": "1"},
	"ready":       {"limit_name": "'login'", "keys": "'{k}'::text[]"},
	"take_all":    {"limit_names": "'{login}'::text[]", "keys": "'{k}'::text[]"},
	"hold":        {"limit_name": "'login'", "key": "'k'", "cost": "1", "ttl": "interval '1 minute'"},
	"hold_all":    {"limit_names": "'{login}'::text[]", "keys": "'{k}'::text[]", "costs": "'{1}'::bigint[]", "ttl": "interval '1 minute'"},
	"settle":      {"hold": "'h'"}, "settle_all": {"hold": "'h'"}, "extend": {"hold": "'h'", "ttl": "interval '1 minute'"},
	"cancel": {"reservation": "(select reservation from made)"},
	"define": {"name": "'other'", "rate": "5", "per": "interval '1 minute'"}, "drop": {"name": "'login'"},
	"define_plan": {"limit_name": "'login'", "plan": "'pro'", "rate": "9"}, "drop_plan": {"limit_name": "'login'", "plan": "'free'"},
	"override": {"limit_name": "'login'", "key": "'k'", "plan": "'free'"}, "end_override": {"limit_name": "'login'", "key": "'k'"},
	"sweep": {}, "key": {"parts": "array['a','b']"},
}

// TestArguments gives each public function null, and what is empty, for each of its
// arguments in turn. What it does not take must be an error that names the argument.
func TestArguments(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	ctx := context.Background()
	must(t, pool, `select dipwell.define('login', 5, interval '1 minute', plans => '{"free": "unlimited"}');
		select dipwell.define('used', 5, interval '1 minute', usage => true);
		select dipwell.hold('login', 'held', 1, interval '1 hour', 'h');
		select dipwell.take('login', 'r', 5);
		create table made as select reservation from dipwell.reserve('login', 'r', 1)`)
	rows, _ := pool.Query(ctx, `select p.proname, a.name, format_type(a.type, null)
		from pg_proc p, unnest(p.proargnames[:p.pronargs], p.proargtypes::oid[]) a(name, type)
		where p.pronamespace = 'dipwell'::regnamespace and p.prokind = 'f' and p.prorettype <> 'trigger'::regtype
			and 'anynonarray'::regtype <> all (p.proargtypes) order by 1, 2`)
	arguments, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (a [3]string, err error) {
		return a, row.Scan(&a[0], &a[1], &a[2])
	})
	if err != nil || len(arguments) < 90 {
		t.Fatalf("%d arguments, %v", len(arguments), err)
	}
	for _, a := range arguments {
		call := maps.Clone(callsOfFunctions[a[0]])
		if call == nil {
			t.Errorf("callsOfFunctions has no dipwell.%s", a[0])
			continue
		}
		values := []string{"null"}
		switch {
		case strings.HasSuffix(a[2], "[]"):
			values = append(values, "'{}'", "'{null}'")
		case a[2] == "text":
			values = append(values, "''")
		case a[2] == "jsonb":
			values = append(values, "'{}'", "'[]'", "'3'", "'null'")
		}
		for _, v := range values {
			call[a[1]] = v + "::" + a[2]
			var named []string
			for _, name := range slices.Sorted(maps.Keys(call)) {
				named = append(named, name+" => "+call[name])
			}
			text := "select dipwell." + a[0] + "(" + strings.Join(named, ", ") + ")"
			if a[0] == "key" {
				text = "select dipwell.key(variadic " + call["parts"] + ")"
			}
			tx, err := pool.Begin(ctx)
			if err != nil {
				t.Fatal(err)
			}
			_, err = tx.Exec(ctx, text)
			if back := tx.Rollback(ctx); back != nil {
				t.Fatal(back)
			}
			if pg := (*pgconn.PgError)(nil); err != nil && (!errors.As(err, &pg) || !slices.Contains([]string{"22023", "42704", "P0002", "0A000"}, pg.Code) || !strings.Contains(pg.Message, a[1])) {
				t.Errorf("%s: %v", text, err)
			} else if err != nil && strings.Count(pg.Where, "\n") > 12 { // psql prints it below the message
				t.Errorf("%s: %v, with a context of\n%s", text, err, pg.Where)
			}
		}
	}
}

// settle and settle_all say how many costs they take of a hold, and change nothing.
func TestSettleCountsCosts(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	must(t, pool, `select dipwell.define('login', 5, interval '1 minute');
		select dipwell.hold('login', 'a', 2, interval '1 hour', 'one');
		select dipwell.hold_all('{login,login}', '{a,b}', '{1,1}', interval '1 hour', 'two')`)
	for sql, want := range map[string]string{
		"settle('two', 1)":           "cost: the hold is of 2 takes; use settle_all",
		"settle_all('two', '{1}')":   "costs: 1 entry, but the hold is of 2 takes",
		"settle_all('two', '{}')":    "costs: 0 entries, but the hold is of 2 takes",
		"settle_all('one', '{1,1}')": "costs: 2 entries, but the hold is of 1 take",
	} {
		_, err := pool.Exec(t.Context(), "select dipwell."+sql)
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != "22023" || pg.Message != want {
			t.Errorf("%s: %v; want %s", sql, err, want)
		} else if !strings.HasPrefix(want, pg.ConstraintName+": ") {
			t.Errorf("%s: the error has %q as its field", sql, pg.ConstraintName)
		}
	}
	must(t, pool, "select dipwell.settle_all('two', null); select dipwell.settle('one', null)")
	for call, want := range map[string]string{ // the argument of hold is id, that of settle hold
		"hold('login', 'a', 2, interval '1 hour', 'one')": "id: is of a hold that has ended",
		"hold('login', 'a', 3, interval '1 hour', 'one')": "id: is of another call",
		"settle('one', 1)": "hold: was settled to another cost",
	} {
		var pg *pgconn.PgError
		if _, err := pool.Exec(t.Context(), "select dipwell."+call); !errors.As(err, &pg) || pg.Code != "55000" || pg.Message != want || !strings.HasPrefix(want, pg.ConstraintName+": ") {
			t.Errorf("%s: %v; want %s", call, err, want)
		}
	}
	var left int
	if err := pool.QueryRow(t.Context(), "select remaining from dipwell.check('login', 'a')").Scan(&left); err != nil || left != 2 {
		t.Errorf("%d left, %v; want 2", left, err)
	}
}
