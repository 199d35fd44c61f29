package pgstore_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell"
)

// TestSQLRefusalsWriteNothing checks that a refusal by any function uses no
// transaction id and locks no row.
func TestSQLRefusalsWriteNothing(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	must(t, pool, `select dipwell.define('drained', 1, interval '1 day', burst => 2, max_debt => 0); select dipwell.define('full', 1, interval '1 day', burst => 5);
		select dipwell.define('day', 2, interval '1 day', algorithm => 'fixed_window', start => '0s')`)
	must(t, pool, "select dipwell.take(l, 'k', 2), dipwell.take('full', 'k') from unnest('{drained,day}'::text[]) l")
	for _, call := range []string{
		"take('drained', 'k')", "take('drained', 'k')", "take('day', 'k')", "take_up_to('drained', 'k', 2)", "reserve('drained', 'k')", "check('drained', 'k')",
		"take('drained', 'k', 3)", "take_all('{full,drained}', '{k,k}')", "take_all('{drained,full}', '{k,new}')", "take_all('{drained,drained}', '{k,k}')",
	} {
		inTx(t, pool, func(tx pgx.Tx) {
			var refused, wrote bool
			if err := tx.QueryRow(t.Context(), "select not bool_and(allowed) from dipwell."+call).Scan(&refused); err != nil {
				t.Fatal(err)
			}
			if err := tx.QueryRow(t.Context(), "select pg_current_xact_id_if_assigned() is not null").Scan(&wrote); err != nil {
				t.Fatal(err)
			}
			if !refused || wrote {
				t.Errorf("%s: refused %v, and wrote %v", call, refused, wrote)
			}
		})
	}
}

// TestSQLWritesOnce checks that a call, also a first one, writes the row of
// each key once.
func TestSQLWritesOnce(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	must(t, pool, "select dipwell.define(l, 1, interval '1 day', burst => 50) from unnest('{a,b}'::text[]) l; select dipwell.define('day', 2, interval '1 day', algorithm => 'fixed_window', start => '0s')")
	for i, call := range []string{"take('a', %s)", "take('a', %s)", "take('a', %s)", "take('day', %s)", "take_up_to('a', %s, 60)", "reserve('a', %s)", "charge('a', %s)", "take_all('{a,b}', array[%[1]s, %[1]s])"} {
		call = fmt.Sprintf(call, fmt.Sprintf("'k%d'", i))
		for _, first := range []bool{true, false} {
			inTx(t, pool, func(tx pgx.Tx) {
				if !first {
					must(t, tx, "insert into dipwell.buckets select l.unit, dipwell_internal.now_us(), l.id, l.version, 'k"+fmt.Sprint(i)+"' from dipwell.limits l")
				}
				writes := func() (inserted, written int) {
					if err := tx.QueryRow(t.Context(), "select n_tup_ins, n_tup_ins + n_tup_upd + n_tup_del from pg_stat_xact_user_tables where relid = 'dipwell.buckets'::regclass").Scan(&inserted, &written); err != nil {
						t.Fatal(err)
					}
					return inserted, written
				}
				inserted, written := writes()
				var keys int
				if err := tx.QueryRow(t.Context(), "select count(*) filter (where allowed) from dipwell."+call).Scan(&keys); err != nil {
					t.Fatal(err)
				}
				ins, all := writes()
				if all-written != keys || keys == 0 || first != (ins-inserted == keys) {
					t.Errorf("%s, first %v: %d writes and %d inserts for %d keys", call, first, all-written, ins-inserted, keys)
				}
			})
		}
	}
}

// TestSQLTakeAllRace has callers take from pairs of a few keys, including new
// ones, in any order. No call may deadlock, and every token is granted once.
func TestSQLTakeAllRace(t *testing.T) {
	t.Parallel()
	const callers, calls, burst, keys = 8, 150, 40, 12
	pool := newPool(t)
	must(t, pool, "select dipwell.define(l, 1, interval '100 days', burst => 40) from unnest('{a,b}'::text[]) l")
	var granted [2][keys]atomic.Int64
	var done sync.WaitGroup
	for c := range callers {
		done.Go(func() {
			for i := range calls {
				x, y := (i*7+c*5)%keys, (i*11+c*3)%keys
				first, second := "a", "b"
				if (i+c)%2 == 0 {
					first, second = "b", "a"
					x, y = y, x
				}
				rows, _ := pool.Query(t.Context(), "select limit_name, key, granted from dipwell.take_all(array[$1, $2], array[$3, $4])", first, second, fmt.Sprint(x), fmt.Sprint(y))
				var limit, key string
				var n int64
				if _, err := pgx.ForEachRow(rows, []any{&limit, &key, &n}, func() error {
					var k int
					_, err := fmt.Sscan(key, &k)
					granted[limit[0]-'a'][k].Add(n)
					return err
				}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done.Wait()
	total := int64(0)
	for l, name := range []string{"a", "b"} {
		for k := range keys {
			var left int64
			if err := pool.QueryRow(t.Context(), "select remaining from dipwell.check($1, $2)", name, fmt.Sprint(k)).Scan(&left); err != nil {
				t.Fatal(err)
			}
			n := granted[l][k].Load()
			if total += n; n+left != burst {
				t.Errorf("%s %d: %d granted and %d left of %d", name, k, n, left, burst)
			}
		}
	}
	if total == 0 || total%2 != 0 {
		t.Errorf("%d granted in pairs", total)
	}
}

// TestSQLTakeAllUndone refuses a group, and the take of a limit with a parent, after its first row
// was charged, and changes the limit of that row meanwhile.
func TestSQLTakeAllUndone(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ parent, first, call string }{
		{"", "take_all('{a,b}', '{k,k2}')", "take_all('{a,b}', '{k,k2}', '{2,2}')"},
		{", parent => 'a'", "take('b', 'k/2')", "take('b', 'k/2', 2)"},
	} {
		pool := newPool(t)
		must(t, pool, "select dipwell.define('a', 1, interval '100 days', burst => 5); select dipwell.define('b', 1, interval '100 days', burst => 5"+c.parent+"); select dipwell."+c.first)
		allowed := true
		_, err := whileTxOpen(t, pool, "update dipwell.buckets set used = used * 4 where key <> 'k'; select dipwell.define('a', 10, interval '100 days', burst => 9)", func() (d dipwell.Decision, err error) {
			return d, pool.QueryRow(t.Context(), "select bool_and(allowed) from dipwell."+c.call).Scan(&allowed)
		})
		var left int64
		if err == nil {
			err = pool.QueryRow(t.Context(), "select remaining from dipwell.status where limit_name = 'a'").Scan(&left)
		}
		if err != nil || allowed || left != 8 {
			t.Errorf("%s: allowed %v, %d of 9 left, error %v; want a refusal and 8", c.call, allowed, left, err)
		}
	}
}

// TestSQLTakeAllOfChangedLimit makes the second limit of a group, or a parent, one with windows by a
// calendar while the group waits for its first row.
func TestSQLTakeAllOfChangedLimit(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	must(t, pool, "select dipwell.define('a', 1, interval '100 days', burst => 5); select dipwell.define('b', 5, interval '1 day', algorithm => 'fixed_window')")
	const call = "select bool_and(allowed) from dipwell.take_all('{a,b}', '{k,k2}')"
	must(t, pool, call)
	var allowed bool
	_, err := whileTxOpen(t, pool, `update dipwell.buckets set used = used where key = 'k';
		select dipwell.define('b', 5, interval '1 day', algorithm => 'fixed_window', start => '00:00 UTC'); select dipwell.take('b', 'k2')`, func() (d dipwell.Decision, err error) {
		return d, pool.QueryRow(t.Context(), call).Scan(&allowed)
	})
	var left string
	if err == nil {
		err = pool.QueryRow(t.Context(), "select string_agg(remaining::text, ' ' order by limit_name) from dipwell.status").Scan(&left)
	}
	if err != nil || !allowed || left != "3 2" {
		t.Errorf("allowed %v, left %q, error %v; want 3 and 2", allowed, left, err)
	}
}
