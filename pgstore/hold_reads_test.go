package pgstore_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
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

// TestCheckOfSeveralKeysAtOneInstant checks two keys, of which one has an expired hold, so that
// its row is read again, while another transaction changes both: the check must see all of the
// change, or nothing of it.
func TestCheckOfSeveralKeysAtOneInstant(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	must(t, pool, "select dipwell.define('a', 1, interval '100 days', burst => 100), dipwell.hold('a', 'k0', 5, interval '1 hour'), dipwell.take('a', 'k0', 10), dipwell.take('a', 'k1', 20)")
	ctx := t.Context()
	tx, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(ctx) }()
	// The check reads this table after the rows.
	must(t, tx, "lock table dipwell.versions in access exclusive mode")
	remaining := make(chan []int64, 1)
	go func() {
		rows, err := pool.Query(ctx, "select d.remaining from dipwell_internal.decide(array_fill((select l.id from dipwell.limits l), '{2}'), '{k0,k1}', '{1,1}', '{0,0}', '{null,null}', null, dipwell_internal.now_us() + 7200000000) d")
		if err != nil {
			t.Error(err)
		}
		r, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil {
			t.Error(err)
		}
		remaining <- r
	}()
	eventually(t, "the check waits", func() bool {
		var waits bool
		err := pool.QueryRow(ctx, "select exists (select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database())").Scan(&waits)
		return err == nil && waits
	})
	must(t, tx, "update dipwell.buckets b set used = b.used + 30 * l.unit from dipwell.limits l where l.id = b.limit_id")
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if r := <-remaining; fmt.Sprint(r) != "[90 80]" && fmt.Sprint(r) != "[60 50]" {
		t.Errorf("%v are left; want 90 and 80, or 60 and 50", r)
	}
}
