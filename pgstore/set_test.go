package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/pgstore"
)

// TestSetUnderWriters: batches of groups of up to three buckets, of every verb
// that takes, from eight callers at once over new buckets. What was granted is
// what the rows hold, no bucket gives more than it has, and nobody gets an error.
func TestSetUnderWriters(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	ctx := context.Background()
	s := newStore(t, pool, pgstore.Config{Poll: -1})
	var defs []*dipwell.Definition
	for i := range 3 {
		d, err := s.Define(ctx, dipwell.Limit{Name: fmt.Sprint("l", i), Rate: 1, Period: 100 * 24 * time.Hour, Burst: 40, MaxDebt: dipwell.NoDebt, MaxCharge: 5}, dipwell.OwnerCode)
		if err != nil {
			t.Fatal(err)
		}
		defs = append(defs, d)
	}
	const keys, callers, batches = 6, 8, 12
	var granted [3][keys]atomic.Int64
	verbs := []dipwell.Verb{dipwell.VerbTake, dipwell.VerbTakeUpTo, dipwell.VerbReserve, dipwell.VerbCharge}
	start := make(chan struct{})
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(c), 7))
			<-start
			for range batches {
				var b dipwell.Batch
				for range 1 + random.IntN(24) {
					b.Groups = append(b.Groups, groupOf(random, defs, keys, verbs))
				}
				if err := s.Apply(ctx, &b); err != nil {
					t.Error(err)
				}
				for i := range b.Groups {
					g := &b.Groups[i]
					if g.Err != nil {
						t.Error(g.Err)
					}
					for j := range g.Ops {
						if op := &g.Ops[j]; g.Err == nil && g.Allowed {
							var l, k int
							fmt.Sscanf(op.Def.Name+" "+op.Key, "l%d k%d", &l, &k)
							granted[l][k].Add(op.Granted)
						}
					}
				}
			}
		})
	}
	close(start)
	wg.Wait()
	for l := range granted {
		for k := range granted[l] {
			want := granted[l][k].Load()
			var used int64
			if err := pool.QueryRow(ctx, "select b.used / l.unit from dipwell.buckets b join dipwell.limits l on l.id = b.limit_id where l.name = $1 and b.key = $2",
				fmt.Sprint("l", l), fmt.Sprint("k", k)).Scan(&used); err != nil {
				t.Fatal(err)
			}
			// What came back meanwhile is less than a token.
			if used != want && used != want-1 {
				t.Errorf("l%d k%d: %d tokens granted, %d used", l, k, want, used)
			}
		}
	}
	var deadlocks int
	if err := pool.QueryRow(ctx, "select deadlocks from pg_stat_database where datname = current_database()").Scan(&deadlocks); err != nil || deadlocks > 0 {
		t.Errorf("%d deadlocks, %v", deadlocks, err)
	}
}

// groupOf draws a group: one verb over one to three buckets of different limits.
func groupOf(random *rand.Rand, defs []*dipwell.Definition, keys int, verbs []dipwell.Verb) dipwell.Group {
	var g dipwell.Group
	verb := verbs[random.IntN(len(verbs))]
	limits := random.Perm(len(defs))[:1+random.IntN(len(defs))]
	if verb == dipwell.VerbCharge || verb == dipwell.VerbTakeUpTo {
		limits = limits[:1]
	}
	for _, l := range limits {
		g.Ops = append(g.Ops, dipwell.Op{Def: defs[l], Key: fmt.Sprint("k", random.IntN(keys)), Verb: verb, Cost: 1 + random.Int64N(4)})
	}
	return g
}

// TestRefusedGroupWritesNothing: groups that are refused lock nothing and use no
// transaction id, alone and in a batch.
func TestRefusedGroupWritesNothing(t *testing.T) {
	pool := newPool(t)
	ctx := context.Background()
	s := newStore(t, pool, pgstore.Config{Poll: -1})
	l, err := dipwell.New(s, dipwell.Limit{Name: "full", Rate: 1, Period: time.Hour, Burst: 100}, dipwell.Limit{Name: "empty", Rate: 1, Period: time.Hour, Burst: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, limit := range []string{"full", "empty"} {
		if d, err := l.Take(ctx, limit, "k", 1); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
	}
	before := ownXID(t, pool)
	for range 10 {
		d, err := l.TakeAll(ctx, dipwell.Take{Limit: "full", Key: "k", Cost: 1}, dipwell.Take{Limit: "empty", Key: "k", Cost: 1})
		if err != nil || d.Allowed || d.Limit != "empty" {
			t.Fatal(d, err)
		}
		var b dipwell.Batch
		for range 5 {
			b.Groups = append(b.Groups, dipwell.Group{Ops: []dipwell.Op{
				{Def: l.Limit("full"), Key: "k", Verb: dipwell.VerbTake, Cost: 1}, {Def: l.Limit("empty"), Key: "k", Verb: dipwell.VerbTake, Cost: 1}}})
		}
		if err := s.Apply(ctx, &b); err != nil {
			t.Fatal(err)
		}
		for i := range b.Groups {
			if g := &b.Groups[i]; g.Err != nil || g.Allowed {
				t.Fatalf("%+v", g)
			}
		}
	}
	if used := ownXID(t, pool) - before; used != 1 { // ownXID's own
		t.Errorf("refusals used %d transaction ids", used-1)
	}
}

// TestSetBesideALockedRow: a batch that gives up a lock gets an error for the
// locked row only. Rows that set.sql cannot decide are decided all the same.
func TestSetBesideALockedRow(t *testing.T) {
	ctx := context.Background()
	dsn := pgtest.Database(t, "dipwell", migrated)
	pool := connect(t, dsn)
	s := newStore(t, connect(t, dsn+"&lock_timeout=50"), pgstore.Config{Poll: -1})
	l, err := dipwell.New(s, dipwell.Limit{Name: "x", Rate: 1, Period: time.Hour, Burst: 10})
	if err != nil {
		t.Fatal(err)
	}
	if d, err := l.Reserve(ctx, "x", "lows", 12); err != nil || d.Delay == 0 {
		t.Fatal(d, err)
	}
	must(t, pool, "select dipwell.take('x', 'locked')")
	tx, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(ctx) }()
	must(t, tx, "select dipwell.take('x', 'locked')")
	var b dipwell.Batch
	for _, key := range []string{"locked", "lows"} {
		b.Groups = append(b.Groups, dipwell.Group{Ops: []dipwell.Op{{Def: l.Limit("x"), Key: key, Verb: dipwell.VerbCharge, Cost: 1}}})
	}
	if err := s.Apply(ctx, &b); err != nil {
		t.Fatal(err)
	}
	if err := b.Groups[0].Err; !errors.Is(err, dipwell.ErrLocked) {
		t.Error("the locked row:", err)
	}
	if g := &b.Groups[1]; g.Err != nil || g.Ops[0].Granted != 1 {
		t.Error("the row beside it:", g.Ops[0].Granted, g.Err)
	}
}

// TestCostBeyondWhatCanBeCounted: a cost of more units than fit is refused in a
// group, also where the largest number of units is just what the bucket holds.
func TestCostBeyondWhatCanBeCounted(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	const most = (dipwell.MaxInt - 1) / 2
	l, err := dipwell.New(newStore(t, newPool(t), pgstore.Config{Poll: -1}),
		dipwell.Limit{Name: "big", Rate: 1, Period: 2 * time.Microsecond, Burst: most, MaxDebt: dipwell.NoDebt}, dipwell.Limit{Name: "other", Rate: 1, Period: time.Hour, Burst: 5})
	if err != nil {
		t.Fatal(err)
	}
	for _, limit := range []string{"big", "other"} { // so that both have a row
		if d, err := l.Take(ctx, limit, "k", 1); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
	}
	d, err := l.TakeAll(ctx, dipwell.Take{Limit: "big", Key: "k", Cost: most + 1}, dipwell.Take{Limit: "other", Key: "k", Cost: 1})
	if err != nil || d.Allowed || !d.Never {
		t.Errorf("%+v, %v", d, err)
	}
	if d, err := l.Check(ctx, "other", "k", 4); err != nil || !d.Allowed {
		t.Errorf("the limit beside it: %+v, %v", d, err)
	}
}
