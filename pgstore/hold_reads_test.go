package pgstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell/pgstore"
)

// TestHoldReadsFewRows checks that calls about a hold read few rows of hold_parts, in
// a session that planned its statements while the table was new, although there are
// thousands of holds of the key and of others.
func TestHoldReadsFewRows(t *testing.T) {
	t.Parallel()
	const others, most = 1000, 20
	pool := newPool(t)
	must(t, pool, "select dipwell.define('bucket', 10, interval '1 minute', burst => 10000), dipwell.define('other', 10, interval '1 minute', burst => 10000), dipwell.define('slots', burst => 1000000, algorithm => 'concurrency')")
	conn, err := pgx.Connect(t.Context(), pool.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	calls := []struct{ name, before, sql string }{
		{"hold", "", "select dipwell.hold('%s', 'k', 4, interval '1 minute', $1)"},
		{"settle", "select dipwell.hold('%s', 'k', 4, interval '1 minute', $1)", "select dipwell.settle($1, 2)"},
		{"settle to more", "select dipwell.hold('%s', 'k', 4, interval '1 minute', $1)", "select dipwell.settle($1, 6)"},
		{"settle again", "select dipwell.settle(d.hold, 2) from dipwell.hold('%s', 'k', 4, interval '1 minute', $1) d", "select dipwell.settle($1, 2)"},
		{"hold again", "select dipwell.hold('%s', 'k', 4, interval '1 minute', $1)", "select dipwell.hold('%s', 'k', 4, interval '1 minute', $1)"},
		{"extend", "select dipwell.hold('%s', 'k', 4, interval '1 minute', $1)", "select dipwell.extend($1, interval '1 minute')"},
		{"hold_all", "", "select * from dipwell.hold_all('{%s,other}', '{k,k}', '{4,4}', interval '1 minute', $1)"},
		{"settle_all", "select * from dipwell.hold_all('{%s,other}', '{k,k}', '{4,4}', interval '1 minute', $1)", "select * from dipwell.settle_all($1, '{2,2}')"},
	}
	n := 0
	// call makes a call in a transaction of its own, which is rolled back, and returns
	// the rows of hold_parts that it read.
	call := func(limit, before, sql string) (rows int) {
		n++
		inTx(t, conn, func(tx pgx.Tx) {
			read := func() (rows int) {
				err := tx.QueryRow(t.Context(), "select seq_tup_read + coalesce(idx_tup_fetch, 0) from pg_stat_xact_user_tables where relid = 'dipwell.hold_parts'::regclass").Scan(&rows)
				if err != nil {
					t.Fatal(err)
				}
				return rows
			}
			for i, s := range []string{before, sql} {
				if s == "" {
					continue
				} else if strings.Contains(s, "%s") {
					s = fmt.Sprintf(s, limit)
				}
				start := read()
				if _, err := tx.Exec(t.Context(), s, fmt.Sprint("id", n)); err != nil {
					t.Fatalf("%s: %v", s, err)
				}
				if rows = read() - start; i == 0 {
					rows = 0
				}
			}
		})
		return rows
	}
	for range 8 { // from the sixth on, a plan of a function may be generic
		for _, c := range calls {
			call("bucket", c.before, c.sql)
			call("slots", c.before, c.sql)
		}
	}
	must(t, pool, fmt.Sprintf("select count(dipwell.hold(l, k, 1, interval '1 hour')) from unnest('{bucket,slots,other}'::text[]) l, unnest('{k,another}'::text[]) k, generate_series(1, %d)", others))
	for _, c := range calls {
		for _, limit := range []string{"bucket", "slots"} {
			if rows := call(limit, c.before, c.sql); rows > most {
				t.Errorf("%s of %s reads %d rows of hold_parts", c.name, limit, rows)
			}
		}
	}
}

// TestHoldStatementsUseKeys checks how the statements of plain holds find rows of
// hold_parts, if they were planned while the table was new.
func TestHoldStatementsUseKeys(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	conn, err := pgx.Connect(t.Context(), pool.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	must(t, conn, "set plan_cache_mode = force_generic_plan")
	for name, sql := range pgstore.HoldStatements() {
		d, err := conn.Prepare(t.Context(), "q", sql)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		args := strings.Repeat(", null", len(d.ParamOIDs))[2:]
		rows, _ := conn.Query(t.Context(), "explain execute q("+args+")", pgx.QueryExecModeSimpleProtocol)
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for i, line := range lines {
			if strings.Contains(line, "on hold_parts") && strings.Contains(line, "Scan") && !strings.Contains(lines[i+1], "Index Cond: ((id =") && !strings.Contains(lines[i+1], "Index Cond: ((limit_id =") {
				t.Errorf("%s reads many rows of hold_parts:\n%s", name, strings.Join(lines, "\n"))
			}
		}
		must(t, conn, "deallocate q")
	}
}

// TestLowsExpressions compares the expressions for lists of lows with the functions
// that they replace.
func TestLowsExpressions(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	r := rand.New(rand.NewPCG(1, 2))
	var rows []string
	for range 3000 {
		list, low := []int64{7, 0}, int64(0)
		number, most := int64(1), []int64{1, 3, 9}[r.IntN(3)] // lows far from another, or close
		for range 1 + r.IntN(int(cond(r.IntN(3) == 0, 32, 5))) {
			low += 1 + r.Int64N(most)
			list = append(list, number, low)
			number += 1 + r.Int64N(3)
		}
		list[1] = number
		used := max(0, low+r.Int64N(2*most+3)-most-1)
		rows = append(rows, fmt.Sprintf("('{%s}'::bigint[], %d::bigint, %d::bigint, %d::bigint)",
			strings.Trim(strings.Join(strings.Fields(fmt.Sprint(list)), ","), "[]"), used, max(0, number-1-r.Int64N(4)), r.Int64N(2*most+2)))
	}
	from := " from (values " + strings.Join(rows, ",") + ") b (lows, used, number, units)"
	for _, c := range []struct{ name, expression, function, where string }{
		{"hold", pgstore.LowsHoldSQL(), "dipwell_internal.lows_hold(b.lows, b.used, b.used + b.units)", "used > 0"},
		{"settle", pgstore.LowsSettleSQL(), "case when b.used = 0 or b.units = 0 then b.used || b.lows else dipwell_internal.lows_settle(b.lows, b.used, b.number, b.units) end", "true"},
	} {
		rows, _ := pool.Query(t.Context(), "select array_to_string(x.lows, ' ') || ': ' || concat_ws(', ', x.used, x.number, x.units, x.got, x.want) from (select b.*, "+
			c.expression+" as got, "+c.function+" as want"+from+" where "+c.where+") x where x.got is distinct from x.want", pgx.QueryExecModeSimpleProtocol)
		differ, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		for i, d := range differ[:min(len(differ), 5)] {
			t.Errorf("%s, %d of %d that differ: %s", c.name, i+1, len(differ), d)
		}
	}
}
