package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// lockedRow returns a store on a database in which the row of limit "one" and
// key "bad" is locked, and a count of the statements that timed out on it.
func lockedRow(t *testing.T, migrate func(string) error) (*pgstore.Store, *pgxpool.Pool, *atomic.Int64) {
	t.Helper()
	dsn := pgtest.Database(t, fmt.Sprintf("locked%p", migrate), migrate)
	config, err := pgxpool.ParseConfig(dsn + "&lock_timeout=20")
	if err != nil {
		t.Fatal(err)
	}
	var waits atomic.Int64
	heard := config.ConnConfig.OnPgError
	config.ConnConfig.OnPgError = func(c *pgconn.PgConn, err *pgconn.PgError) bool {
		if err.Code == "55P03" {
			waits.Add(1)
		}
		return heard(c, err)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s := newStore(t, pool, pgstore.Config{Poll: -1})
	l, err := dipwell.New(s, drained("one", 100_000), drained("two", 100_000))
	if err != nil {
		t.Fatal(err)
	}
	if _, err = l.Take(context.Background(), "one", "bad", 1); err != nil {
		t.Fatal(err)
	}
	otherTx(t, dsn, "select 1 from dipwell.buckets where key = 'bad' for update")
	return s, pool, &waits
}

// TestLaneWaitsOnce checks that a lane's batch waits once for a locked row, and that only
// the calls of this row get ErrLocked. A row that a transaction has inserted, and not
// committed, costs two more waits.
func TestLaneWaitsOnce(t *testing.T) {
	t.Parallel()
	for _, verbs := range [][2]store.Verb{{store.VerbTake, store.VerbTake}, {store.VerbCharge, store.VerbReserve}, {store.VerbTake, store.VerbTakeUpTo}} {
		for bad, most := range map[string]int64{"bad": 1, "inserted": 3} {
			t.Run(fmt.Sprint(verbs, bad), func(t *testing.T) {
				t.Parallel()
				s, pool, waits := lockedRow(t, migrated)
				otherTx(t, pool.Config().ConnString(), "select dipwell.take('one', 'inserted')")
				var b store.Batch
				for i := range 100 {
					limit, key := "one", fmt.Sprint("k", i)
					switch {
					case i%2 == 1:
						limit = "two"
					case i == 50, i == 60:
						key = bad
					}
					b.Groups = append(b.Groups, store.Group{ID: store.Reservation{byte(i), 1}, Ops: []store.Op{{Def: s.Registry().Lookup(limit), Key: key, Verb: verbs[i/2%2], Cost: 1}}})
				}
				if err := pgstore.Lane(s, pool).Apply(t.Context(), &b); err != nil {
					t.Fatal(err)
				}
				for i := range b.Groups {
					g := &b.Groups[i]
					if locked := g.Ops[0].Key == bad; errors.Is(g.Err, store.ErrLocked) != locked || !locked && (g.Err != nil || !g.Allowed) {
						t.Errorf("%s %s: %v, %v", g.Ops[0].Def.Name, g.Ops[0].Key, g.Allowed, g.Err)
					}
				}
				if n := waits.Load(); n > most {
					t.Errorf("%d statements waited", n)
				}
			})
		}
	}
}

// TestLaneDecidesNewKeysTogether checks that a lane decides the keys beside a locked row that
// have no row yet in one transaction: one for each of them takes a busy server longer than
// their callers wait.
func TestLaneDecidesNewKeysTogether(t *testing.T) {
	t.Parallel()
	s, pool, _ := lockedRow(t, migrated)
	var b store.Batch
	for i := range 40 {
		key := fmt.Sprint("k", i)
		if i == 20 {
			key = "bad"
		}
		b.Groups = append(b.Groups, store.Group{Ops: []store.Op{{Def: s.Registry().Lookup("one"), Key: key, Verb: store.VerbTake, Cost: 1}}})
	}
	if err := pgstore.Lane(s, pool).Apply(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	for i := range b.Groups {
		if err := b.Groups[i].Err; errors.Is(err, store.ErrLocked) != (i == 20) || i != 20 && err != nil {
			t.Errorf("%s: %v", b.Groups[i].Ops[0].Key, err)
		}
	}
	var keys, transactions int
	if err := pool.QueryRow(t.Context(), "select count(*), count(distinct xmin::text) from dipwell.buckets where key <> 'bad'").Scan(&keys, &transactions); err != nil {
		t.Fatal(err)
	}
	if keys != 39 || transactions != 1 {
		t.Errorf("%d keys were charged in %d transactions", keys, transactions)
	}
}

// TestBatchWithLockedRow checks that calls of several verbs do not each wait
// for the same lock, for both kinds of tables.
func TestBatchWithLockedRow(t *testing.T) {
	t.Parallel()
	portable := func(dsn string) error { return migratedFor(dsn, "Portable") }
	for name, c := range map[string]struct {
		migrate func(string) error
		verbs   [2]store.Verb
		waits   int64
	}{
		"charged together": {migrated, [2]store.Verb{store.VerbCharge, store.VerbReserve}, 1},
		"in one set":       {migrated, [2]store.Verb{store.VerbCharge, store.VerbRefund}, 1},
		"portable":         {portable, [2]store.Verb{store.VerbCharge, store.VerbReserve}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _, waits := lockedRow(t, c.migrate)
			var b store.Batch
			for i := range 60 {
				key := fmt.Sprint("k", i)
				if i%3 > 0 {
					key = "bad"
				}
				b.Groups = append(b.Groups, store.Group{ID: store.Reservation{byte(i), 1},
					Ops: []store.Op{{Def: s.Registry().Lookup("one"), Key: key, Verb: c.verbs[i%2], Cost: 1}}})
			}
			if err := s.Apply(context.Background(), &b); err != nil {
				t.Fatal(err)
			}
			for i := range b.Groups {
				g := &b.Groups[i]
				if locked := g.Ops[0].Key == "bad"; errors.Is(g.Err, store.ErrLocked) != locked || !locked && g.Err != nil {
					t.Errorf("%s: %v", g.Ops[0].Key, g.Err)
				}
			}
			if n := waits.Load(); n != c.waits {
				t.Errorf("%d statements waited, not %d", n, c.waits)
			}
		})
	}
}

// TestReservationsWithLockedRow checks that a locked row does not affect the
// other reservations in the same statement.
func TestReservationsWithLockedRow(t *testing.T) {
	t.Parallel()
	s, _, waits := lockedRow(t, migrated)
	l, err := dipwell.New(s)
	if err != nil {
		t.Fatal(err)
	}
	var b store.Batch
	for i, key := range []string{"k", "l", "bad", "m", "n"} {
		if key != "bad" {
			if _, err := l.Take(t.Context(), "one", key, 1); err != nil {
				t.Fatal(err)
			}
		}
		b.Groups = append(b.Groups, store.Group{ID: store.Reservation{byte(i), 1},
			Ops: []store.Op{{Def: l.Limit("one"), Key: key, Verb: store.VerbReserve, Cost: 100_001}}})
	}
	if err := s.Apply(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	for i := range b.Groups {
		g := &b.Groups[i]
		if locked := g.Ops[0].Key == "bad"; errors.Is(g.Err, store.ErrLocked) != locked || !locked && (g.Err != nil || !g.Reserved) {
			t.Errorf("%s: %v, %v", g.Ops[0].Key, g.Reserved, g.Err)
		}
	}
	if n := waits.Load(); n != 1 {
		t.Errorf("%d statements waited", n)
	}
}

// TestReservationsRetry checks that, at a higher isolation level, calls are
// decided again if a row changes while the statement waits for it.
func TestReservationsRetry(t *testing.T) {
	t.Parallel()
	pool := connect(t, pgtest.Database(t, "dipwell", migrated)+"&default_transaction_isolation=repeatable%20read")
	s := newStore(t, pool, pgstore.Config{Poll: -1})
	l, err := dipwell.New(s, drained("one", 10))
	if err != nil {
		t.Fatal(err)
	}
	var b store.Batch
	for i, key := range []string{"k", "l", "m", "n"} {
		if _, err := l.Take(t.Context(), "one", key, 1); err != nil {
			t.Fatal(err)
		}
		b.Groups = append(b.Groups, store.Group{ID: store.Reservation{byte(i), 1},
			Ops: []store.Op{{Def: l.Limit("one"), Key: key, Verb: store.VerbReserve, Cost: 11}}})
	}
	if _, err := whileTxOpen(t, pool, "update dipwell.buckets set used = used + 1 where key = 'l'", func() (d dipwell.Decision, err error) {
		return d, s.Apply(t.Context(), &b)
	}); err != nil {
		t.Fatal(err)
	}
	for i := range b.Groups {
		if g := &b.Groups[i]; g.Err != nil || !g.Reserved {
			t.Errorf("%s: %v, %v", g.Ops[0].Key, g.Reserved, g.Err)
		}
	}
}
