package pgstore_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/pgstore"
)

// TestPlansSQL: a transaction that starts on an empty table touches as many
// pages for its last keys as for its first: no plan reads the table from end
// to end. Pages are counted, so that a slow machine makes no difference.
func TestPlansSQL(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	must(t, pool, "vacuum full analyze dipwell.buckets")                                 // without a page the planner prefers to read all of it
	must(t, pool, "select dipwell.define('login', 1, interval '1 hour', burst => 1000)") // nothing comes back meanwhile
	inTx(t, pool, func(tx pgx.Tx) {
		for _, call := range []string{
			"dipwell.take('login', 'take' || i)",
			"dipwell.take_up_to('login', 'take_up_to' || i)",
			"dipwell.check('login', 'take' || i)",
			"dipwell.reserve('login', 'reserve' || i)",
			"dipwell.charge('login', 'charge' || i)",
			"dipwell.refund('login', 'take' || i)",
			"dipwell.reset('login', 'take' || i)",
			"dipwell.take_all('{login,login}', array['a' || i, 'b' || i])",
		} {
			first, last := touches(t, tx, call, 1, 200), 0.0
			for from := 201; from < 2000; from += 600 {
				last = touches(t, tx, call, from, from+599)
			}
			if t.Logf("%s: %.0f pages a call, then %.0f", call, first, last); last > 2*first {
				t.Errorf("%s touches %.0f pages after 2000 calls, and %.0f at first", call, last, first)
			}
		}
	})
}

// touches is the number of pages that a call touches on average, for i in a range.
func touches(t *testing.T, tx pgx.Tx, call string, from, to int) float64 {
	t.Helper()
	var out []byte
	err := tx.QueryRow(context.Background(), fmt.Sprintf("explain (analyze, buffers, timing off, format json) select a.allowed from generate_series(%d, %d) i, lateral %s a",
		from, to, call)).Scan(&out)
	if err != nil {
		t.Fatal(err)
	}
	var plans []struct {
		Plan struct {
			Hit  float64 `json:"Shared Hit Blocks"`
			Read float64 `json:"Shared Read Blocks"`
		}
	}
	if err = json.Unmarshal(out, &plans); err != nil || len(plans) != 1 || plans[0].Plan.Hit == 0 {
		t.Fatalf("%v\n%s", err, out)
	}
	return (plans[0].Plan.Hit + plans[0].Plan.Read) / float64(to-from+1)
}

// TestPlansGo: the statements of a store find rows by the index, on a table
// that was new and then vacuumed, and on one that was rewritten and swept.
func TestPlansGo(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, before := range map[string][]string{
		"new":       {"vacuum analyze dipwell.buckets"},
		"rewritten": {"vacuum full analyze dipwell.buckets", "select dipwell.sweep()"},
	} {
		t.Run(name, func(t *testing.T) {
			pool := newPool(t)
			for _, sql := range before {
				must(t, pool, sql)
			}
			store := newStore(t, pool, pgstore.Config{Poll: -1})
			l, err := dipwell.New(store, dipwell.Limit{Name: "login", Rate: 3, Period: time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			inTx(t, pool, func(tx pgx.Tx) {
				in := l.With(store.With(tx))
				before, _ := scans(t, tx) // what this connection did earlier counts as well
				for i := range 600 {
					key := fmt.Sprint("k", i%500)
					for range 2 {
						if _, err := in.Take(ctx, "login", key, 2); err != nil { // one in two is refused
							t.Fatal(err)
						}
					}
					if _, err := in.Refund(ctx, "login", key, 1); err != nil {
						t.Fatal(err)
					}
				}
				var b dipwell.Batch
				for round := range 20 {
					b.Groups = b.Groups[:0]
					for i := range 100 {
						b.Groups = append(b.Groups, dipwell.Group{Ops: []dipwell.Op{{Def: l.Limit("login"), Key: fmt.Sprint("k", 10*round+i), Cost: 1}}})
					}
					if err := store.With(tx).Apply(ctx, &b); err != nil || b.Groups[0].Err != nil {
						t.Fatal(err, b.Groups[0].Err)
					}
				}
				if n, found := scans(t, tx); n != before || found < 1800 {
					t.Errorf("%d scans from end to end, and %d by the index", n-before, found)
				}
			})
		})
	}
}

// scans is how often this transaction has read all buckets, and looked one up.
func scans(t *testing.T, tx pgx.Tx) (all, one int64) {
	t.Helper()
	err := tx.QueryRow(context.Background(), "select seq_scan, idx_scan from pg_stat_xact_user_tables where relid = 'dipwell.buckets'::regclass").Scan(&all, &one)
	if err != nil {
		t.Fatal(err)
	}
	return all, one
}

// inTx runs f in a transaction that is rolled back.
func inTx(t *testing.T, db pgstore.Beginner, f func(pgx.Tx)) {
	t.Helper()
	tx, err := db.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	f(tx)
}
