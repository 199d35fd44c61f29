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
	"github.com/dipwell/dipwell/store"
)

// TestPlansSQL checks that a transaction that starts on an empty table reads as
// many pages for its last keys as for its first, so no plan scans the table. It
// counts pages, so the speed of the machine does not matter.
func TestPlansSQL(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	must(t, pool, "vacuum full analyze dipwell.buckets")                                 // with no pages the planner prefers a sequential scan
	must(t, pool, "select dipwell.define('login', 1, interval '1 hour', burst => 1000)") // no refill during the test
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
			first, last := pagesPerSQLCall(t, tx, call, 1, 200), 0.0
			for from := 201; from < 2000; from += 600 {
				last = pagesPerSQLCall(t, tx, call, from, from+599)
			}
			if t.Logf("%s: %.0f pages a call, then %.0f", call, first, last); last > 2*first {
				t.Errorf("%s touches %.0f pages after 2000 calls, and %.0f at first", call, last, first)
			}
		}
	})
}

// pagesPerSQLCall returns the average number of pages that a call reads, for i
// in a range.
func pagesPerSQLCall(t *testing.T, tx pgx.Tx, call string, from, to int) float64 {
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

// TestPlansGo checks that the statements of a store use the index, on a new
// table that was then vacuumed, and on one that was rewritten and swept.
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
			st := newStore(t, pool, pgstore.Config{Poll: -1})
			l, err := dipwell.New(st, store.Limit{Name: "login", Rate: 3, Period: time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			inTx(t, pool, func(tx pgx.Tx) {
				in := l.With(st.With(tx))
				before, _ := scans(t, tx) // exclude earlier scans of this connection
				for i := range 600 {
					key := fmt.Sprint("k", i%500)
					for range 2 {
						if _, err := in.Take(ctx, "login", key, 2); err != nil { // every second one is refused
							t.Fatal(err)
						}
					}
					if _, err := in.Refund(ctx, "login", key, 1); err != nil {
						t.Fatal(err)
					}
				}
				var b store.Batch
				for round := range 20 {
					b.Groups = b.Groups[:0]
					for i := range 100 {
						b.Groups = append(b.Groups, store.Group{Ops: []store.Op{{Def: l.Limit("login"), Key: fmt.Sprint("k", 10*round+i), Cost: 1}}})
					}
					if err := st.With(tx).Apply(ctx, &b); err != nil || b.Groups[0].Err != nil {
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

// TestPlansNeverAnalyzed checks that batches of a store use the index on a
// large table that was never analyzed.
func TestPlansNeverAnalyzed(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t)
	conn, err := pgx.ConnectConfig(ctx, pool.Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	st := newStore(t, conn, pgstore.Config{Poll: -1})
	l, err := dipwell.New(st, store.Limit{Name: "user", Rate: 1, Period: time.Hour, Burst: 9}, store.Limit{Name: "tenant", Rate: 1, Period: time.Hour, Burst: 900})
	if err != nil {
		t.Fatal(err)
	}
	must(t, pool, "alter table dipwell.buckets set (autovacuum_enabled = off)")
	must(t, pool, "insert into dipwell.buckets (used, ts, limit_id, version, key) select l.unit * 9, dipwell_internal.now_us(), l.id, l.version, 'k' || i from dipwell.limits l, generate_series(1, 20000) i")
	read := func() (all, one, rows int64) {
		if err := pool.QueryRow(ctx, "select seq_scan, idx_scan, idx_tup_fetch from pg_stat_user_tables where relid = 'dipwell.buckets'::regclass").Scan(&all, &one, &rows); err != nil {
			t.Fatal(err)
		}
		return all, one, rows
	}
	before, _, _ := read()
	for round := range 20 { // from the sixth execution the server may use a generic plan
		var b store.Batch
		op := func(limit string, key int, verb store.Verb) store.Op {
			return store.Op{Def: l.Limit(limit), Key: fmt.Sprint("k", key), Verb: verb, Cost: 1}
		}
		for i := range 5 {
			key := 1 + 10*round + i
			b.Groups = append(b.Groups, // refused takes, groups that are refused and granted, other verbs
				store.Group{Ops: []store.Op{op("user", key, store.VerbTake)}},
				store.Group{Ops: []store.Op{op("user", 500+key, store.VerbTake), op("tenant", key, store.VerbTake)}},
				store.Group{Ops: []store.Op{op("tenant", 500+key, store.VerbTake), op("tenant", 900+key, store.VerbTake)}},
				store.Group{Ops: []store.Op{op("tenant", 1500+key, store.VerbTakeUpTo)}},
				store.Group{Ops: []store.Op{op("tenant", 2500+key, store.VerbReset)}},
				store.Group{ID: store.Reservation{byte(round), byte(i), 15: 1}, Ops: []store.Op{op("user", 3500+key, store.VerbReserve)}})
		}
		if err := st.Apply(ctx, &b); err != nil {
			t.Fatal(err)
		}
		if d, err := l.Charge(ctx, "tenant", fmt.Sprint("k", 19000+round), 1); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		for i := range b.Groups {
			if g := &b.Groups[i]; g.Err != nil || g.Allowed != (i%6 > 1) {
				t.Fatalf("group %d: %v, %v", i, g.Allowed, g.Err)
			}
		}
	}
	_ = conn.Close(ctx) // a session reports its statistics when it ends
	var all, one, rows int64
	eventually(t, "counted", func() bool {
		all, one, rows = read()
		return one >= 20*5*4
	})
	if all != before || rows > 2*one {
		t.Errorf("%d scans from end to end, and %d rows for %d look-ups", all-before, rows, one)
	}
}

// scans returns how many sequential scans and index lookups of buckets this
// transaction has done.
func scans(t *testing.T, tx pgx.Tx) (all, one int64) {
	t.Helper()
	err := tx.QueryRow(context.Background(), "select seq_scan, idx_scan from pg_stat_xact_user_tables where relid = 'dipwell.buckets'::regclass").Scan(&all, &one)
	if err != nil {
		t.Fatal(err)
	}
	return all, one
}

// inTx runs f in a transaction that is rolled back.
func inTx(t *testing.T, db pgstore.DB, f func(pgx.Tx)) {
	t.Helper()
	tx, err := db.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	f(tx)
}
