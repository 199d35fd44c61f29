package pgstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/coalesce"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
	"github.com/dipwell/dipwell/storetest"
)

// TestBatches runs the suite with each call in a batch of several.
func TestBatches(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t testing.TB, now func() int64) store.Store {
		s := open(t, now).(*pgstore.Store)
		d, err := s.Define(context.Background(), store.Limit{Name: "bystander", Rate: 1, Period: 10000 * 24 * time.Hour, Burst: 9}, store.OwnerCode)
		if err != nil {
			t.Fatal(err)
		}
		return &batching{Store: s, bystander: d}
	}, storetest.Options{Brief: true, Parallel: true})
}

// batching sends each group in a batch with a group before and after it.
type batching struct {
	*pgstore.Store
	bystander *store.Definition
}

func (c *batching) Apply(ctx context.Context, b *store.Batch) error {
	company := func(key string) store.Group {
		return store.Group{Ops: []store.Op{{Def: c.bystander, Key: key, Verb: store.VerbTake, Cost: 1}}}
	}
	all := store.Batch{Groups: []store.Group{company("a")}}
	all.Groups = append(append(all.Groups, b.Groups...), company("b"), company("a"))
	err := c.Store.Apply(ctx, &all)
	copy(b.Groups, all.Groups[1:])
	return err
}

// TestBatchAgreesWithGo checks that a batch of calls, many for the same key,
// gets the same answers as the calls one after the other, and leaves the same
// rows.
func TestBatchAgreesWithGo(t *testing.T) {
	ctx := context.Background()
	var clock atomic.Int64
	clock.Store(1_800_000_000_000_000)
	s := open(t, clock.Load).(*pgstore.Store)
	random := rand.New(rand.NewPCG(1, 2))
	var defs []*store.Definition
	for _, l := range []store.Limit{
		{Name: "bucket", Rate: 100, Period: time.Second, Burst: 30, MaxDebt: store.NoDebt},
		{Name: "slow", Rate: 7, Period: time.Hour, Burst: 9, MaxDebt: store.NoDebt},
		{Name: "window", Algorithm: store.FixedWindow, Rate: 10, Period: time.Second, Burst: 15, MaxDebt: store.NoDebt},
		{Name: "grid", Algorithm: store.Interval, Rate: 3, Period: time.Second, Burst: 15, Start: "0s", MaxDebt: store.NoDebt},
		{Name: "shadow", Rate: 5, Period: time.Second, Mode: store.Shadow, MaxDebt: store.NoDebt},
	} {
		d, err := s.Define(ctx, l, store.OwnerCode)
		if err != nil {
			t.Fatal(err)
		}
		defs = append(defs, d)
	}
	rows := map[string]store.State{}
	for round := range 60 {
		clock.Add(random.Int64N(500_000))
		got, want := store.Batch{}, store.Batch{}
		for range 2 + random.IntN(40) {
			op := store.Op{Def: defs[random.IntN(len(defs))], Key: fmt.Sprint("k", random.IntN(4)), Verb: store.VerbTake, Cost: 1}
			if round%2 == 0 && random.IntN(8) == 0 {
				op.Cost = random.Int64N(12)
			}
			if round%2 == 1 { // any verb that can be added up, any cost
				verbs := []store.Verb{store.VerbTake, store.VerbTake, store.VerbCheck, store.VerbTakeUpTo, store.VerbReserve, store.VerbCharge}
				op.Verb, op.Cost = verbs[random.IntN(len(verbs))], random.Int64N(6)
			}
			got.Groups = append(got.Groups, store.Group{Ops: []store.Op{op}})
			want.Groups = append(want.Groups, store.Group{Ops: []store.Op{op}})
		}
		if err := s.Apply(ctx, &got); err != nil {
			t.Fatal(err)
		}
		var m store.Rows
		m.Arrange(&want)
		for i := range m.Rows {
			name := m.Rows[i].Limit + "/" + m.Rows[i].Key
			if after, write := m.Rows[i].Decide(clock.Load(), rows[name]); write {
				rows[name] = after
			}
		}
		for i := range got.Groups {
			g, w := &got.Groups[i], &want.Groups[i]
			if g.Err != nil || g.Allowed != w.Allowed || g.Ops[0].Answer != w.Ops[0].Answer {
				t.Fatalf("round %d, group %d, %s %s %d: got %+v %v, want %+v", round, i, g.Ops[0].Def.Name, g.Ops[0].Key, g.Ops[0].Cost, g.Ops[0].Answer, g.Err, w.Ops[0].Answer)
			}
		}
	}
}

// TestLanes checks that callers of the same keys, and of overlapping groups,
// coalesced over several connections, get exactly the tokens there are, without
// deadlocks or errors.
func TestLanes(t *testing.T) {
	pool := newPool(t)
	ctx := context.Background()
	s := newStore(t, pool, pgstore.Config{Poll: -1})
	var lanes []store.Store
	for range 4 {
		conn, err := pool.Acquire(ctx)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Release)
		lanes = append(lanes, s.With(conn.Conn()))
	}
	c, err := coalesce.New(store.Lanes{Stores: lanes}, coalesce.Config{Timeout: testTimeout})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	l, err := dipwell.New(c, store.Limit{Name: "a", Rate: 1, Period: 24 * time.Hour, Burst: 200}, store.Limit{Name: "b", Rate: 1, Period: 24 * time.Hour, Burst: 1000})
	if err != nil {
		t.Fatal(err)
	}
	var granted atomic.Int64
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			for j := range 20 {
				key := fmt.Sprint("k", (i+j)%3)
				var d dipwell.Decision
				var err error
				if j%4 == 0 {
					d, err = l.TakeAll(ctx, dipwell.Take{Limit: "b", Key: key, Cost: 1}, dipwell.Take{Limit: "a", Key: key, Cost: 1})
				} else {
					d, err = l.Take(ctx, "a", key, 1)
				}
				if err != nil {
					t.Error(err)
				}
				if d.Allowed {
					granted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if n := granted.Load(); n != 600 {
		t.Errorf("%d granted, not 600", n)
	}
}

// TestLanesOfSeveralLimits checks that batches of several limits and groups
// cannot deadlock and lose nothing. A batch locks the rows of all its limits
// until it ends, and a group locks one row after the other. Both use the order
// of ids, which is not the order of names.
func TestLanesOfSeveralLimits(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	ctx := context.Background()
	s := newStore(t, pool, pgstore.Config{Poll: -1})
	names := []string{"z", "m", "a"} // in the order of ids
	for _, name := range names {
		if _, err := s.Define(ctx, store.Limit{Name: name, Rate: 1, Period: 24 * time.Hour, Burst: 10000}, store.OwnerCode); err != nil {
			t.Fatal(err)
		}
	}
	var asked [3]atomic.Int64 // by limit
	var wg sync.WaitGroup
	for caller := range 8 {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(caller)))
			group := func(limits ...int) (g store.Group) {
				for _, i := range limits {
					asked[i].Add(1)
					g.Ops = append(g.Ops, store.Op{Def: s.Registry().Lookup(names[i]), Key: fmt.Sprint("k", random.IntN(4)), Verb: store.VerbTake, Cost: 1})
				}
				return g
			}
			for range 60 {
				var b store.Batch
				for range 10 {
					b.Groups = append(b.Groups, group(random.IntN(3)))
				}
				for range 4 {
					b.Groups = append(b.Groups, group(random.Perm(3)...))
				}
				b.Groups = append(b.Groups, group(0))
				b.Groups[len(b.Groups)-1].Ops[0].Verb = store.VerbTakeUpTo
				err := s.Apply(ctx, &b)
				for i := range b.Groups {
					if g := &b.Groups[i]; err != nil || g.Err != nil || !g.Allowed {
						t.Error(err, g.Err, g.Allowed)
					}
				}
			}
		})
	}
	wg.Wait()
	for i, name := range names {
		var left int64
		for k := range 4 {
			b := store.Batch{}
			g, op := b.Single()
			op.Def, op.Key, op.Verb = s.Registry().Lookup(name), fmt.Sprint("k", k), store.VerbCheck
			if err := s.Apply(ctx, &b); err != nil || g.Err != nil {
				t.Fatal(err, g.Err)
			}
			left += op.Remaining
		}
		if taken := 40000 - left; taken != asked[i].Load() {
			t.Errorf("limit %s: %d asked and allowed, %d taken", name, asked[i].Load(), taken)
		}
	}
	var deadlocks int64
	must(t, pool, "select pg_stat_clear_snapshot()")
	if err := pool.QueryRow(ctx, "select deadlocks from pg_stat_database where datname = current_database()").Scan(&deadlocks); err != nil || deadlocks > 0 {
		t.Errorf("%d deadlocks, %v", deadlocks, err)
	}
}
