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

// lockedRow is a store on a database in which the row of "one", "bad" is locked,
// and how many statements of its pool gave up waiting for it.
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
	stranger(t, dsn, "select 1 from dipwell.buckets where key = 'bad' for update")
	return s, pool, &waits
}

// TestALaneWaitsOnce: on a lane, one row that is locked costs a batch one wait,
// and the limit of that row gets ErrLocked; other limits are answered.
func TestALaneWaitsOnce(t *testing.T) {
	t.Parallel()
	s, pool, waits := lockedRow(t, migrated)
	lane := s.Lane(pool)
	var b store.Batch
	for i := range 100 {
		limit, key := "one", fmt.Sprint("k", i)
		switch {
		case i%2 == 1:
			limit = "two"
		case i == 50:
			key = "bad"
		}
		b.Groups = append(b.Groups, store.Group{Ops: []store.Op{{Def: s.Registry().Lookup(limit), Key: key, Verb: store.VerbTake, Cost: 1}}})
	}
	if err := lane.Apply(context.Background(), &b); err != nil {
		t.Fatal(err)
	}
	for i := range b.Groups {
		g := &b.Groups[i]
		if locked := g.Ops[0].Def.Name == "one"; errors.Is(g.Err, store.ErrLocked) != locked || !locked && (g.Err != nil || !g.Allowed) {
			t.Errorf("%s %s: %v, %v", g.Ops[0].Def.Name, g.Ops[0].Key, g.Allowed, g.Err)
		}
	}
	if n := waits.Load(); n != 1 {
		t.Errorf("%d statements waited", n)
	}
	d, err := dipwell.New(s)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < 100; i += 2 {
		if d, err := d.Check(context.Background(), "one", fmt.Sprint("k", i), 1); err != nil || d.Remaining != 100_000 {
			t.Errorf("k%d: %d remaining, %v", i, d.Remaining, err)
		}
	}
}

// TestManyCallsOfALockedRow: calls of several verbs do not all wait for the same
// lock, over each kind of tables. Those that are charged together wait once, and
// once more in the part of the rows that has the locked one.
func TestManyCallsOfALockedRow(t *testing.T) {
	t.Parallel()
	portable := func(dsn string) error { return migratedFor(dsn, pgstore.Portable) }
	for name, c := range map[string]struct {
		migrate func(string) error
		verbs   [2]store.Verb
		waits   int64
	}{
		"charged together": {migrated, [2]store.Verb{store.VerbCharge, store.VerbReserve}, 2},
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
