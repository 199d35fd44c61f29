package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
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

// TestLanesOfSeveralLimits checks that batches of several limits, groups and holds
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
			apply := func(b *store.Batch) {
				err := s.Apply(ctx, b)
				for i := range b.Groups {
					g := &b.Groups[i]
					if unknown := g.Settles() && g.Hold.ID == "nobody"; unknown != errors.Is(g.Err, store.ErrUnknownHold) || err != nil || !unknown && (g.Err != nil || !g.Allowed) {
						t.Error(err, g.Err, g.Allowed)
					}
				}
			}
			for round := range 60 {
				var b, end store.Batch
				for range 10 {
					b.Groups = append(b.Groups, group(random.IntN(3)))
				}
				for range 4 {
					b.Groups = append(b.Groups, group(random.Perm(3)...))
				}
				b.Groups = append(b.Groups, group(0))
				b.Groups[len(b.Groups)-1].Ops[0].Verb = store.VerbTakeUpTo
				for i := range 6 {
					g := group(random.Perm(3)[:1+i/4]...)
					g.Hold = &store.HoldCall{Verb: store.MakeHold, ID: fmt.Sprint(caller, "-", round, "-", i), TTL: 3600e6}
					b.Groups = append(b.Groups, g)
					if i < 4 { // settled to less, to what was taken, and to more
						cost := int64(i % 3)
						asked[slices.Index(names, g.Ops[0].Def.Name)].Add(cost - 1)
						end.Groups = append(end.Groups, store.Group{Hold: &store.HoldCall{Verb: store.SettleHold, ID: g.Hold.ID, Costs: []int64{cost}}})
					} else {
						end.Groups = append(end.Groups, store.Group{Hold: &store.HoldCall{Verb: store.SettleHold, ID: g.Hold.ID}})
					}
				}
				if round%10 == 0 { // fails, and with it the transaction of the others
					end.Groups = append(end.Groups, store.Group{Hold: &store.HoldCall{Verb: store.SettleHold, ID: "nobody", Costs: []int64{1, 1}}})
				}
				apply(&b)
				apply(&end)
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

// TestHoldsTogether checks that the holds of a batch, and their settles, need few transactions.
func TestHoldsTogether(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	ctx := context.Background()
	s := newStore(t, pool, pgstore.Config{Poll: -1})
	def, err := s.Define(ctx, store.Limit{Name: "a", Rate: 1, Period: 24 * time.Hour, Burst: 100}, store.OwnerCode)
	if err != nil {
		t.Fatal(err)
	}
	var holds, settles store.Batch
	const n = 64
	for i := range n {
		id := fmt.Sprint("id", i)
		holds.Groups = append(holds.Groups, store.Group{Ops: []store.Op{{Def: def, Key: fmt.Sprint("k", i%40), Cost: 3}}, Hold: &store.HoldCall{Verb: store.MakeHold, ID: id, TTL: 3600e6}})
		settles.Groups = append(settles.Groups, store.Group{Hold: &store.HoldCall{Verb: store.SettleHold, ID: id, Costs: []int64{1}}})
	}
	settles.Groups = append(settles.Groups, store.Group{Hold: &store.HoldCall{Verb: store.SettleHold, ID: "unknown"}})
	holds.Groups = append(holds.Groups, store.Group{Ops: []store.Op{{Def: def, Key: "z", Cost: 3}}, Hold: &store.HoldCall{Verb: store.MakeHold, ID: "id0", TTL: 3600e6}})
	for _, b := range []*store.Batch{&holds, &settles} {
		if err := s.Apply(ctx, b); err != nil {
			t.Fatal(err)
		}
		for i := range b.Groups {
			if g := &b.Groups[i]; i == n && (errors.Is(g.Err, store.ErrUnknownHold) || b == &holds && errors.Is(g.Err, store.ErrHoldConflict)) {
				continue
			} else if g.Err != nil || !g.Allowed || g.Hold.Repeated || len(g.Ops) != 1 || g.Ops[0].Key != fmt.Sprint("k", i%40) {
				t.Errorf("%+v: %v", g, g.Err)
			}
		}
		var transactions, live int
		if err := pool.QueryRow(ctx, "select count(distinct xmin::text), count(*) filter (where live) from dipwell.hold_parts").Scan(&transactions, &live); err != nil || transactions > n/32 || live != cond(b == &holds, n, 0) {
			t.Errorf("%d transactions, %d live holds: %v", transactions, live, err)
		}
	}
	for i := range 41 {
		key, want := fmt.Sprint("k", i), 100-1-int64(cond(i < n-40, 1, 0))
		if i == 40 {
			key, want = "z", 100
		}
		b := store.Batch{}
		g, op := b.Single()
		op.Def, op.Key, op.Verb = def, key, store.VerbCheck
		if err := s.Apply(ctx, &b); err != nil || g.Err != nil || op.Remaining != want {
			t.Errorf("%s: %+v, %v %v", op.Key, op.Answer, err, g.Err)
		}
	}
}

// TestDroppedLimitInBatch decides a batch of which one group is of a limit that was just dropped:
// the groups that were decided in the same transaction must not be charged again.
func TestDroppedLimitInBatch(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	ctx := context.Background()
	s := newStore(t, pool, pgstore.Config{Poll: -1})
	defs := map[string]*store.Definition{}
	for _, name := range []string{"stays", "goes"} {
		d, err := s.Define(ctx, store.Limit{Name: name, Algorithm: store.LeakyBucket, Rate: 1, Period: 24 * time.Hour, MaxDebt: 100}, store.OwnerCode)
		if err != nil {
			t.Fatal(err)
		}
		defs[name] = d
	}
	must(t, pool, "select dipwell_internal.drop_limit('goes', 'code')")
	var b store.Batch
	for i, name := range []string{"stays", "goes", "stays", "stays"} { // costs that have to wait, so that the function decides
		b.Groups = append(b.Groups, store.Group{ID: store.Reservation{byte(i), 1}, Ops: []store.Op{{Def: defs[name], Key: fmt.Sprint("k", i), Verb: store.VerbTake, Cost: 5}}})
	}
	if err := s.Apply(ctx, &b); err != nil {
		t.Fatal(err)
	}
	for i := range b.Groups {
		if g := &b.Groups[i]; (g.Err == nil) != (g.Ops[0].Def.Name == "stays") || g.Err != nil && !errors.Is(g.Err, store.ErrUnknownLimit) {
			t.Errorf("group %d: %v", i, g.Err)
		}
	}
	var tokens []int64
	if err := pool.QueryRow(ctx, "select array_agg(round(b.used / l.unit::numeric)::bigint order by b.key) from dipwell.buckets b join dipwell.limits l on l.id = b.limit_id").Scan(&tokens); err != nil || !slices.Equal(tokens, []int64{5, 5, 5}) {
		t.Errorf("%d tokens are used, %v; want 5 of each key", tokens, err)
	}
}

// TestFunctionsInBatches checks that takes that only functions decide need few transactions in a
// batch: of limits with a block, of windows that begin with a call, and of keys with overrides
// that the store has not met.
func TestFunctionsInBatches(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	ctx := t.Context()
	s := newStore(t, pool, pgstore.Config{Poll: -1})
	const n = 32
	for _, l := range []store.Limit{
		{Name: "block", Rate: 1, Period: 24 * time.Hour, Burst: 2, Block: time.Hour},
		{Name: "first", Algorithm: store.FixedWindow, Rate: 2, Period: 24 * time.Hour, Start: "first_call"},
		{Name: "over", Rate: 1, Period: 24 * time.Hour, Burst: 1},
	} {
		if _, err := s.Define(ctx, l, store.OwnerCode); err != nil {
			t.Fatal(err)
		}
	}
	must(t, pool, fmt.Sprintf("select dipwell.override('over', 'k' || i, burst => 2) from generate_series(0, %d) i", n-1))
	for _, want := range []bool{true, true, false} {
		var b store.Batch
		for i := range 3 * n {
			limit := []string{"block", "first", "over"}[i%3]
			b.Groups = append(b.Groups, store.Group{Ops: []store.Op{{Def: s.Registry().Lookup(limit), Key: fmt.Sprint("k", i/3), Cost: 1}}})
		}
		if err := s.Apply(ctx, &b); err != nil {
			t.Fatal(err)
		}
		for i := range b.Groups {
			if g := &b.Groups[i]; g.Err != nil || g.Allowed != want {
				t.Errorf("%s: allowed %v, %v; want %v", g.Ops[0].Def.Name, g.Allowed, g.Err, want)
			}
		}
		var transactions int
		if err := pool.QueryRow(ctx, "select count(distinct xmin::text) from dipwell.buckets").Scan(&transactions); err != nil || want && transactions > 3*n/32+1 {
			t.Errorf("%d transactions: %v", transactions, err)
		}
	}
	var peeks store.Batch
	for i := range 2 * n { // calls that cost nothing, or more than the burst, make no row
		limit := []string{"block", "first"}[i%2]
		peeks.Groups = append(peeks.Groups, store.Group{Ops: []store.Op{{Def: s.Registry().Lookup(limit), Key: fmt.Sprint("new", i), Cost: int64(i / 2 % 2 * 9)}}})
	}
	var rows int
	if err := s.Apply(ctx, &peeks); err != nil {
		t.Fatal(err)
	}
	if err := pool.QueryRow(ctx, "select count(*) from dipwell.buckets where key like 'new%'").Scan(&rows); err != nil || rows != 0 {
		t.Errorf("%d rows of keys that nothing was taken from: %v", rows, err)
	}
	var blocks int
	if err := pool.QueryRow(ctx, "select count(*) from dipwell.blocks").Scan(&blocks); err != nil || blocks != n {
		t.Errorf("%d blocks: %v", blocks, err)
	}
}
