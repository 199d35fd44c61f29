package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/internal/redistest"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
)

// mapTable is a store.Table in memory, with which the store is compared.
type mapTable struct {
	rows      map[[2]string]store.State
	records   map[[2]string][]store.Record
	overrides map[[2]string]*store.Override
	pending   map[store.Reservation]store.Pending
	holds     map[string]store.Hold
}

func newMapTable() *mapTable {
	return &mapTable{map[[2]string]store.State{}, map[[2]string][]store.Record{}, map[[2]string]*store.Override{}, map[store.Reservation]store.Pending{}, map[string]store.Hold{}}
}

func (t *mapTable) Row(limit, key string) (store.State, error) {
	row := t.rows[[2]string{limit, key}]
	row.Override = t.overrides[[2]string{limit, key}]
	return row, nil
}

func (t *mapTable) SetRow(limit, key string, row store.State) error {
	t.rows[[2]string{limit, key}] = row
	return nil
}

func (t *mapTable) Record(limit, key string, id store.RecordID) (store.Record, error) {
	return store.FindRecord(t.records[[2]string{limit, key}], id), nil
}

func (t *mapTable) Records(limit, key string) ([]store.Record, error) {
	return t.records[[2]string{limit, key}], nil
}

func (t *mapTable) SetRecord(limit, key string, id store.RecordID, r store.Record) error {
	t.records[[2]string{limit, key}] = store.ReplaceRecord(t.records[[2]string{limit, key}], id, r)
	return nil
}

func (t *mapTable) Pending(id store.Reservation) (store.Pending, error) { return t.pending[id], nil }

func (t *mapTable) SetPending(id store.Reservation, h store.Pending) error {
	t.pending[id] = h
	return nil
}

func (t *mapTable) SetOverride(limit, key string, o *store.Override) error {
	t.overrides[[2]string{limit, key}] = o
	return nil
}

func (t *mapTable) Hold(id string) (store.Hold, error) { return t.holds[id], nil }

func (t *mapTable) SetHold(id string, h store.Hold) error {
	t.holds[id] = h
	return nil
}

func (t *mapTable) Live(limit, key string, now int64) (int, error) {
	return len(t.records[[2]string{limit, key}]) + store.CountFree(t.holds, limit, key, now), nil
}

// TestAgreesWithTable checks that random histories of calls with plans and floors, of
// overrides, and of changes of the limits have the same answers as on a Table in
// memory.
func TestAgreesWithTable(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	for name, c := range map[string]redisstore.Config{"plain": {}, "one slot": {HashTag: "all"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			agree(t, connect(t, server.URL()), c, false)
		})
	}
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		agree(t, connect(t, redistest.SharedCluster(t).URL()), redisstore.Config{}, true)
	})
}

func agree(t *testing.T, db redis.UniversalClient, c redisstore.Config, oneKey bool) {
	first := limittest.NewSeed(t)
	for i := range uint64(rounds(60)) {
		h := newHistory(t, db, c, false, first+i)
		h.oneKey = oneKey
		for range 60 {
			if h.step(); t.Failed() {
				t.Fatalf("seed %d:\n%s", first+i, strings.Join(h.log, "\n"))
			}
		}
	}
}

// A history is a random one of calls, made on a store and on a table.
type history struct {
	t      *testing.T
	r      *rand.Rand
	s      *redisstore.Store
	two    [2]*redisstore.Store // of two programs; s is one of them
	table  *mapTable
	now    int64
	limits []store.Limit
	ids    []store.Reservation
	keys   []string
	oneKey bool
	gone   func() int // keys that have expired; nil if none does
	log    []string

	lastHold *store.Group
	handles  map[string]string
}

func newHistory(t *testing.T, db redis.UniversalClient, c redisstore.Config, expiring bool, seed uint64) *history {
	h := &history{t: t, handles: map[string]string{}, r: rand.New(rand.NewPCG(seed, 1)), table: newMapTable(), now: 1_800_000_000_000_000, keys: []string{"", "a", "b"}}
	c.Clock, c.Poll = func() int64 { return h.now }, -1
	if c.Prefix = fmt.Sprint("test", prefixes.Add(1)); expiring {
		c.Clock, h.gone = redistest.Expiring(t, db, c.Prefix, c.Clock, 0)
	}
	for i := range h.two {
		h.two[i] = newStore(t, db, c)
	}
	h.s = h.two[0]
	plans := store.NewPlans(store.Plan{Name: "big", Rate: 50, Burst: 90}, store.Plan{Name: "slow", Rate: 1}, store.Plan{Name: "free", Mode: store.Unlimited},
		store.Plan{Name: "none", Mode: store.Blocked}, store.Plan{Name: "shadow", Mode: store.Shadow, Burst: 3})
	h.limits = []store.Limit{
		{Name: "bucket", Rate: 10, Period: time.Second, Burst: 20, Plans: plans},
		{Name: "window", Algorithm: store.FixedWindow, Rate: 10, Period: 10 * time.Second, Start: "0s", Plans: plans},
		{Name: "month", Algorithm: store.Interval, Rate: 10, Period: store.Month, Start: "00:00 Europe/Rome", Plans: plans},
		{Name: "leaky", Algorithm: store.LeakyBucket, Rate: 10, Period: time.Second, MaxDebt: 8},
		{Name: "plain", Rate: 3, Period: time.Second, Burst: 9},
		{Name: "kept", Rate: 3, Period: time.Second, Burst: 9, KeepExpired: true},
		{Name: "jobs", Algorithm: store.Concurrency, Burst: 6, Plans: store.NewPlans(store.Plan{Name: "many", Burst: 12}, store.Plan{Name: "free", Mode: store.Unlimited})},
	}
	if expiring { // rows live for two seconds at least
		h.limits = append(h.limits, store.Limit{Name: "slow", Rate: 2, Period: 10 * time.Second, Burst: 4, Plans: plans}, store.Limit{Name: "slower", Rate: 2, Period: 20 * time.Second, Burst: 3})
	}
	for _, l := range h.limits {
		h.define(l)
	}
	return h
}

func (h *history) define(l store.Limit) {
	if _, err := h.s.Define(context.Background(), l, "code"); err != nil {
		h.t.Fatal(err)
	}
	for _, s := range h.two {
		if err := s.Refresh(context.Background()); err != nil {
			h.t.Fatal(err)
		}
	}
}

func (h *history) say(format string, args ...any) {
	h.log = append(h.log, fmt.Sprintf("%d: ", h.now-1_800_000_000_000_000)+fmt.Sprintf(format, args...))
}

func (h *history) step() {
	h.s = h.two[h.r.IntN(2)]
	switch n := h.r.IntN(20); {
	case n < 4:
		longest := int64(40_000_000_000)
		if h.gone != nil && h.r.IntN(4) > 0 {
			longest = 20_000_000
		}
		h.now += h.r.Int64N([]int64{10, 100_000, 2_000_000, longest}[h.r.IntN(4)])
	case n < 6:
		h.override()
	case n == 6 && h.r.IntN(3) == 0:
		l := &h.limits[h.r.IntN(len(h.limits))]
		if l.Algorithm == store.Concurrency {
			l.Burst = 1 + h.r.Int64N(9)
		} else {
			l.Rate = 1 + h.r.Int64N(20)
			l.OnChange = store.ChangePolicy(h.r.IntN(3))
		}
		h.say("define %+v", *l)
		h.define(*l)
	case n == 6 && h.gone != nil && h.r.IntN(2) == 0:
		h.drop()
	case n == 7 && len(h.ids) > 0:
		h.both(store.Group{Cancel: true, ID: h.ids[h.r.IntN(len(h.ids))]})
	case n < 13:
		h.hold()
	default:
		h.call()
	}
}

// drop drops a limit and defines it again.
func (h *history) drop() {
	l := h.limits[h.r.IntN(len(h.limits))]
	h.say("drop %s", l.Name)
	if err := h.s.Drop(context.Background(), l.Name, "code"); err != nil {
		h.t.Error(err)
	}
	for k := range h.table.records {
		if k[0] == l.Name {
			if _, err := store.SweepRow(h.table, new(store.Registry), k[0], k[1], h.now); err != nil {
				h.t.Error(err)
			}
		}
	}
	of := func(k [2]string) bool { return k[0] == l.Name }
	maps.DeleteFunc(h.table.rows, func(k [2]string, _ store.State) bool { return of(k) })
	maps.DeleteFunc(h.table.records, func(k [2]string, _ []store.Record) bool { return of(k) })
	maps.DeleteFunc(h.table.overrides, func(k [2]string, _ *store.Override) bool { return of(k) })
	h.define(l)
}

// hold makes, settles or extends a hold.
func (h *history) hold() {
	g := store.Group{Hold: &store.HoldCall{Verb: store.MakeHold, ID: fmt.Sprint("hold", h.r.IntN(8), h.keys[h.r.IntN(len(h.keys))]), TTL: 1000 + h.r.Int64N(3_000_000)}}
	switch n := h.r.IntN(5); {
	case n < 2:
		g.Hold.Verb = store.SettleHold
		if had := h.table.holds[g.Hold.ID]; h.r.IntN(3) > 0 {
			for range had.Parts {
				g.Hold.Costs = append(g.Hold.Costs, h.r.Int64N(12))
			}
		}
	case n == 2:
		g.Hold.Verb = store.ExtendHold
	default:
		if last := h.lastHold; h.r.IntN(4) == 0 && last != nil {
			g = *last
			c := *last.Hold
			g.Hold, g.Ops = &c, append([]store.Op(nil), last.Ops...)
			break
		}
		g.Ops = h.ops(store.VerbTake)
		if h.oneKey { // an id belongs to a slot
			g.Hold.ID = fmt.Sprint("hold", h.r.IntN(8), g.Ops[0].Key)
		}
		last := g
		last.Ops = append([]store.Op(nil), g.Ops...)
		c := *g.Hold
		last.Hold = &c
		h.lastHold = &last
	}
	h.both(g)
}

// def returns a definition that a caller may name.
func (h *history) def() *store.Definition {
	d := h.s.Registry().Lookup(h.limits[h.r.IntN(len(h.limits))].Name)
	if plans := d.Plans.All(); len(plans) > 0 && h.r.IntN(2) == 0 {
		return d.WithPlan(plans[h.r.IntN(len(plans))].Name)
	}
	return d
}

func (h *history) op() store.Op {
	op := store.Op{Def: h.def(), Key: h.keys[h.r.IntN(len(h.keys))], Cost: h.r.Int64N(8), Verb: store.Verb(h.r.IntN(int(store.VerbReset) + 1))}
	if op.Verb == store.VerbReset && h.r.IntN(4) > 0 {
		op.Verb = store.VerbTake
	}
	if (op.Verb == store.VerbTake || op.Verb == store.VerbCheck) && h.r.IntN(3) == 0 {
		op.Floor = h.r.Int64N(12)
	}
	if op.Verb == store.VerbReset {
		op.Cost = 0
	}
	return op
}

func (h *history) call() {
	g := store.Group{ID: store.Reservation{1, byte(len(h.ids)), 2: byte(len(h.ids) >> 8), 8: 1, 15: byte(len(h.ids) + 1)}}
	h.ids = append(h.ids, g.ID)
	g.Ops = h.ops(h.op().Verb)
	h.both(g)
}

// ops returns the ops of a call of a verb.
func (h *history) ops(verb store.Verb) (ops []store.Op) {
	seen := map[[2]string]bool{}
	for range 1 + h.r.IntN(2)*h.r.IntN(3) {
		op := h.op()
		if h.oneKey && len(ops) > 0 {
			op.Key = ops[0].Key
		}
		if op.Verb = verb; verb != store.VerbTake && verb != store.VerbCheck {
			op.Floor = 0
		}
		if len(ops) > 0 && (verb == store.VerbTakeUpTo || verb == store.VerbReset) {
			op.Cost = ops[0].Cost
		}
		if name := [2]string{op.Def.Name, op.Key}; !seen[name] {
			seen[name] = true
			ops = append(ops, op)
		}
	}
	return ops
}

// both decides a group on the store and on the table, and compares the answers.
func (h *history) both(g store.Group) {
	want := g
	want.Ops = append([]store.Op(nil), g.Ops...)
	if g.Hold != nil {
		c := *g.Hold
		want.Hold = &c
		if had := h.table.holds[c.ID]; h.oneKey && c.Verb != store.MakeHold { // the store's ids have a slot
			if had.Parts == nil {
				return
			}
			g.Hold.ID = h.handles[c.ID]
		}
	}
	h.say("%s", groupText(&g))
	want.Err = want.DecideIn(h.table, h.s.Registry(), h.now)
	groups, at := []store.Group{g}, h.r.IntN(2)
	if h.r.IntN(2) == 0 {
		beside := store.Group{Ops: []store.Op{{Def: h.s.Registry().Lookup("plain"), Key: "beside", Verb: store.VerbCheck}}}
		groups, at = []store.Group{beside, beside, beside}, at+1
		groups[at] = g
	} else {
		at = 0
	}
	got := apply(h.t, h.s, groups...)[at]
	switch {
	case (got.Err == nil) != (want.Err == nil) || want.Err != nil && !errors.Is(got.Err, want.Err) && got.Err.Error() != want.Err.Error():
		h.t.Errorf("the error is %v, not %v", got.Err, want.Err)
	case got.Err != nil:
	case !g.Cancel && got.Allowed != want.Allowed || got.Reserved != want.Reserved:
		h.t.Errorf("allowed %v, reserved %v; want %v, %v", got.Allowed, got.Reserved, want.Allowed, want.Reserved)
	}
	if h.oneKey && g.Hold != nil && got.Err == nil {
		h.handles[want.Hold.ID] = g.Hold.ID
	}
	switch {
	case got.Err != nil || g.Hold == nil:
	case len(got.Ops) != len(want.Ops):
		h.t.Errorf("%d ops, not %d", len(got.Ops), len(want.Ops))
	case g.Hold.Expires != want.Hold.Expires || g.Hold.Repeated != want.Hold.Repeated:
		h.t.Errorf("%+v, not %+v", *g.Hold, *want.Hold)
	}
	for i := range got.Ops {
		a, b := &got.Ops[i], &want.Ops[i]
		if h.gone != nil { // the table may still count expired holds, and knows overrides that have ended
			a.Remaining, a.Used, a.Reset, a.Def = b.Remaining, b.Used, b.Reset, b.Def
		}
		if got.Err == nil && (a.Answer != b.Answer || a.Def.Number != b.Def.Number || a.Cost != b.Cost) {
			h.t.Errorf("op %d under %x:\n%+v, not under %x:\n%+v", i, a.Def.Number, a.Answer, b.Def.Number, b.Answer)
		}
	}
}

func groupText(g *store.Group) string {
	text := fmt.Sprintf("cancel %v %v", g.Cancel, g.ID)
	if g.Hold != nil {
		text = fmt.Sprintf("hold %+v", *g.Hold)
	}
	for i := range g.Ops {
		op := &g.Ops[i]
		text += fmt.Sprintf("; %v %d of %s:%s %q floor %d", op.Verb, op.Cost, op.Def.Name, op.Def.Plan, op.Key, op.Floor)
	}
	return text
}

// override sets or ends an override.
func (h *history) override() {
	h.now++ // the ID of an override is its time, and programs remember overrides by that
	d, key := h.s.Registry().Lookup(h.limits[h.r.IntN(len(h.limits))].Name), h.keys[h.r.IntN(len(h.keys))]
	o := &store.Override{Key: key, Rate: 1 + h.r.Int64N(30), Burst: h.r.Int64N(40)}
	switch n := h.r.IntN(5); {
	case n == 0:
		o = nil
	case n < 3 && d.Plans != (store.Plans{}):
		plans := d.Plans.All()
		o = &store.Override{Key: key, Plan: plans[h.r.IntN(len(plans))].Name}
	}
	if o != nil && h.r.IntN(2) == 0 {
		o.Until = h.now + 1 + h.r.Int64N(5_000_000)
	}
	h.say("override %s %q %+v", d.Name, key, o)
	if o == nil {
		kind := store.OverrideKind(h.r.IntN(3))
		ended, err := h.s.Abilities().Overrides.EndOverride(context.Background(), d, key, kind)
		want, err2 := d.EndOverrideIn(h.table, key, kind, h.now)
		if err != nil || err2 != nil || (ended == nil) != (want == nil) {
			h.t.Errorf("ended %v %+v: %v; want %+v: %v", kind, ended, err, want, err2)
		}
		return
	}
	got, err := h.s.Abilities().Overrides.SetOverride(context.Background(), d, *o)
	want, err2 := h.s.Registry().Lookup(d.Name).SetOverrideIn(h.table, key, *o, h.now)
	for _, s := range h.two { // the first override of a limit is told to all programs
		if err := s.Refresh(context.Background()); err != nil {
			h.t.Error(err)
		}
	}
	if (err == nil) != (err2 == nil) {
		h.t.Errorf("the error is %v, not %v", err, err2)
	}
	if err == nil && (got.ID != want.ID || got.Version != want.Version) {
		h.t.Errorf("%+v, not %+v", got, want)
	}
}

// TestOverrideUnderLoad checks that overrides of a hot key are set without an error,
// and that calls have none either, whichever scripts decide them.
func TestOverrideUnderLoad(t *testing.T) {
	t.Parallel()
	s := newStore(t, client(t), redisstore.Config{})
	l := limiter(t, s, drained("hot", 1_000_000))
	over := s.Abilities().Overrides
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := l.Take(context.Background(), "hot", "k", 1); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for i := range 50 {
		if _, err := over.SetOverride(context.Background(), l.Limit("hot"), store.Override{Key: "k", Burst: int64(2_000_000 + i)}); err != nil {
			t.Error(err)
		}
		if i%2 == 0 {
			if _, err := over.EndOverride(context.Background(), l.Limit("hot"), "k", store.AnyOverride); err != nil {
				t.Error(err)
			}
		}
	}
	close(stop)
	wg.Wait()
	if d, err := l.Check(context.Background(), "hot", "k", 0); err != nil || d.Capacity != 2_000_049 {
		t.Errorf("%+v, %v", d, err)
	}
	list, err := over.Overrides(context.Background(), l.Limit("hot"), "", "", 10)
	if err != nil || len(list) != 1 || list[0].Key != "k" || list[0].Burst != 2_000_049 {
		t.Errorf("%+v, %v", list, err)
	}
}

// TestHotHeldKey checks that 64 callers who take, hold and settle on one key have no
// error, and that never more is held than may be.
func TestHotHeldKey(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]string{"server": redistest.Shared(t).URL(), "cluster": redistest.SharedCluster(t).URL()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t, connect(t, url+"?timeout=1m"), redisstore.Config{})
			tokens := drained("tokens", 1_000_000)
			l := limiter(t, s, tokens, store.Limit{Name: "jobs", Algorithm: store.Concurrency, Burst: 10})
			var inFlight, held, taken atomic.Int64
			var wg sync.WaitGroup
			ctx, stop := context.WithTimeout(context.Background(), 5*testTimeout)
			defer stop()
			const workers, jobs = 64, 4
			freed := make(chan struct{}, workers*jobs) // once for each job that has ended
			for worker := range workers {
				wg.Go(func() {
					for i := 0; i < jobs; {
						d, err := l.Hold(ctx, time.Minute, "", dipwell.Take{Limit: "tokens", Key: "k", Cost: 10}, dipwell.Take{Limit: "jobs", Key: "k", Cost: 1})
						if err != nil {
							t.Errorf("worker %d: hold: %v", worker, err)
							return
						}
						if !d.Allowed {
							select { // others share the server
							case <-freed:
							case <-ctx.Done():
							}
							continue
						}
						i++
						if n := inFlight.Add(1); n > 10 {
							t.Errorf("%d jobs at a time", n)
						}
						if _, err = l.Take(ctx, "tokens", "k", 1); err != nil {
							t.Errorf("worker %d: take: %v", worker, err)
						}
						taken.Add(1)
						inFlight.Add(-1)
						if d, err = l.Settle(ctx, d.Hold, 3, 0); err != nil || !d.Allowed {
							t.Errorf("worker %d: settle: %+v, %v", worker, d, err)
						}
						held.Add(3)
						freed <- struct{}{}
					}
				})
			}
			wg.Wait()
			if n := left(t, l, "tokens", "k"); n != 1_000_000-held.Load()-taken.Load() {
				t.Errorf("%d left after %d and %d", n, held.Load(), taken.Load())
			}
			if holds, err := l.Holds(ctx, "jobs", "k"); err != nil || len(holds) > 0 {
				t.Errorf("%+v, %v", holds, err)
			}
		})
	}
}

// TestHoldersDie checks that what holders held who never settle is free again as soon
// as their holds have expired, at the first call.
func TestHoldersDie(t *testing.T) {
	t.Parallel()
	s := newStore(t, client(t), redisstore.Config{})
	l := limiter(t, s, drained("tokens", 100), store.Limit{Name: "jobs", Algorithm: store.Concurrency, Burst: 20})
	for range 20 {
		if d, err := l.Hold(t.Context(), 300*time.Millisecond, "", dipwell.Take{Limit: "tokens", Key: "k", Cost: 5}, dipwell.Take{Limit: "jobs", Key: "k", Cost: 1}); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
	}
	var id string
	eventually(t, "free", func() bool {
		d, err := l.Hold(t.Context(), time.Minute, "", dipwell.Take{Limit: "tokens", Key: "k", Cost: 100}, dipwell.Take{Limit: "jobs", Key: "k", Cost: 20})
		if err != nil {
			t.Fatal(err)
		}
		id = d.Hold
		return d.Allowed
	})
	if holds, err := l.Holds(t.Context(), "jobs", "k"); err != nil || len(holds) != 1 || holds[0].ID != id || holds[0].Tokens != 20 {
		t.Errorf("%+v, %v", holds, err)
	}
}

// TestHoldAcrossSlots checks that a hold of several keys of a cluster needs one slot,
// and that a long id is refused there, which would not leave room for the slot.
func TestHoldAcrossSlots(t *testing.T) {
	t.Parallel()
	s := newStore(t, connect(t, redistest.SharedCluster(t).URL()), redisstore.Config{})
	l := limiter(t, s, drained("tokens", 100))
	for field, c := range map[string]struct {
		id   string
		keys []string
	}{"takes": {"", []string{"a", "b"}}, "id": {strings.Repeat("x", 59), []string{"a"}}} {
		var takes []dipwell.Take
		for _, key := range c.keys {
			takes = append(takes, dipwell.Take{Limit: "tokens", Key: key, Cost: 2})
		}
		var bad *store.FieldError
		if _, err := l.Hold(t.Context(), time.Minute, c.id, takes...); !errors.As(err, &bad) || bad.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	if d, err := l.Hold(t.Context(), time.Minute, "id", dipwell.Take{Limit: "tokens", Key: "a", Cost: 2}); err != nil || d.Hold != fmt.Sprint("id@", redisstore.Slot("a")) {
		t.Errorf("%+v, %v", d, err)
	}
	if d, err := l.Hold(t.Context(), time.Minute, "id", dipwell.Take{Limit: "tokens", Key: "b", Cost: 2}); err != nil || d.Hold != fmt.Sprint("id@", redisstore.Slot("b")) {
		t.Errorf("%+v, %v", d, err)
	}
	if _, err := l.Settle(t.Context(), "id"); !errors.Is(err, store.ErrUnknownHold) { // there are two
		t.Error(err)
	}
	if d, err := l.Hold(t.Context(), time.Minute, fmt.Sprint("id@", redisstore.Slot("a")), dipwell.Take{Limit: "tokens", Key: "a", Cost: 2}); err != nil || !d.Repeated {
		t.Errorf("%+v, %v", d, err)
	}
}

// TestParentsInCluster checks that limits with parents are decided together in a cluster,
// that their keys are listed as they are, and that giving a limit a parent is said.
func TestParentsInCluster(t *testing.T) {
	t.Parallel()
	var warnings atomic.Pointer[error]
	db, prefix := connect(t, redistest.SharedCluster(t).URL()), "parents"
	s := newStore(t, db, redisstore.Config{Prefix: prefix, OnError: func(err error) { warnings.Store(&err) }})
	tenant, region := drained("tenant", 10), drained("region", 10)
	tenant.Parts, region.Parts = 1, 2
	user, call, site := drained("user", 8), drained("call", 6), drained("site", 8)
	user.Parent, call.Parent, site.Parent = "tenant", "user", "region"
	globe, shop := drained("globe", 10), drained("shop", 8)
	globe.Shared = true
	shop.Parent = "globe"
	l := limiter(t, s, tenant, user, call, region, site, globe, shop)
	for _, c := range []struct {
		limit, key, parent, above string
	}{
		{"user", "acme/u7", "tenant", "acme"}, {"call", "acme/u8/list", "user", "acme/u8"}, {"call", "a}b/u8/l.", "user", "a}b/u8"}, {"call", "}b/u8/l}", "user", "}b/u8"},
		{"site", "eu/it/rome", "region", "eu/it"}, {"shop", "x/", "", ""}, {"shop", "x", "globe", dipwell.Shared}, {"user", "{acme}/u7.", "tenant", "{acme}"},
	} {
		if c.parent == "" {
			if _, err := l.Take(t.Context(), c.limit, c.key, 1); err == nil {
				t.Errorf("%s %q was taken", c.limit, c.key)
			}
			continue
		}
		before := left(t, l, c.parent, c.above)
		if d, err := l.Take(t.Context(), c.limit, c.key, 3); err != nil || !d.Allowed {
			t.Errorf("%s %q: %+v, %v", c.limit, c.key, d, err)
			continue
		}
		if n := left(t, l, c.parent, c.above); n != before-3 {
			t.Errorf("%s %q: %d left of the parent, of %d", c.limit, c.key, n, before)
		}
		for _, prefix := range []string{"", c.key[:1], c.key[:strings.LastIndexByte(c.key, '/')+1], c.key} {
			rows, err := s.Abilities().Keys(t.Context(), l.Limit(c.limit), prefix, "", 10)
			if err != nil || !slices.ContainsFunc(rows, func(r store.KeyState) bool { return r.Key == c.key }) {
				t.Errorf("%s %q is not listed under %q: %+v, %v", c.limit, c.key, prefix, rows, err)
			}
		}
		d, err := l.Hold(t.Context(), time.Minute, "", dipwell.Take{Limit: c.limit, Key: c.key, Cost: 1})
		if err != nil || !d.Allowed {
			t.Errorf("%s %q: hold %+v, %v", c.limit, c.key, d, err)
			continue
		}
		if d, err = l.Settle(t.Context(), d.Hold, 0); err != nil || !d.Allowed {
			t.Errorf("%s %q: settle %+v, %v", c.limit, c.key, d, err)
		}
	}
	plain := drained("plain", 5)
	if _, err := l.Define(t.Context(), plain, store.OwnerCode); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Take(t.Context(), "plain", "fresh/u7", 5); err != nil {
		t.Fatal(err)
	}
	plain.Parent = "tenant"
	if _, err := l.Define(t.Context(), plain, store.OwnerCode); err != nil {
		t.Fatal(err)
	}
	if n := left(t, l, "plain", "fresh/u7"); n != 5 {
		t.Errorf("%d left after the limit got a parent", n)
	}
	if w := warnings.Load(); w == nil || !strings.Contains((*w).Error(), "plain") {
		t.Errorf("no warning: %v", w)
	}
}

// TestExpiryOfPlans checks that a bucket lives until it is full: under its plan, under
// the base once its override has ended, and under a plan that has become slower.
func TestExpiryOfPlans(t *testing.T) {
	t.Parallel()
	db := client(t)
	prefix := fmt.Sprint("plans", prefixes.Add(1))
	s := newStore(t, db, redisstore.Config{Prefix: prefix})
	limit := drained("a", 10)
	limit.Plans = store.NewPlans(store.Plan{Name: "fast", Rate: 60}, store.Plan{Name: "slower", Rate: 2})
	l := limiter(t, s, limit)
	lives := func(what, key string, least, most time.Duration) {
		t.Helper()
		if ttl := db.PTTL(t.Context(), prefix+":a:{"+key+"}").Val(); ttl < least || ttl > most {
			t.Errorf("%s: the bucket lives for %v; want %v to %v", what, ttl, least, most)
		}
	}
	for _, plan := range []string{"fast", "slower"} {
		if d, err := l.TakeAll(t.Context(), dipwell.Take{Limit: "a", Key: plan, Plan: plan, Cost: 10}); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
	}
	lives("a fast plan", "fast", 8*time.Minute, 10*time.Minute+time.Second)
	lives("a slow plan", "slower", 5*time.Hour-time.Minute, 5*time.Hour+time.Minute)
	now, err := s.Abilities().Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err = l.SetOverride(t.Context(), "a", dipwell.Override{Key: "o", Rate: 60, Until: now + 120_000_000}); err != nil {
		t.Fatal(err)
	}
	if d, err := l.Take(t.Context(), "a", "o", 10); err != nil || !d.Allowed {
		t.Fatal(d, err)
	}
	lives("an override that ends", "o", 7*time.Hour, 21*time.Hour) // of all that may be used
	if ttl := db.PTTL(t.Context(), prefix+".override:a:{o}").Val(); ttl < 7*time.Hour {
		t.Errorf("the override lives for %v, shorter than its bucket", ttl)
	}
	limit.Plans = store.NewPlans(store.Plan{Name: "fast", Rate: 60}, store.Plan{Name: "slower", Rate: 1})
	if _, err = l.Define(t.Context(), limit, store.OwnerCode); err != nil {
		t.Fatal(err)
	}
	lives("a plan that became slower", "slower", 9*time.Hour, 11*time.Hour)
}

// TestHoldRefusedAgain checks that a hold that is refused when it is decided again, because
// its key was changed before the write, has no time of expiry.
func TestHoldRefusedAgain(t *testing.T) {
	t.Parallel()
	db, prefix := connect(t, redistest.Shared(t).URL()), fmt.Sprint("again", prefixes.Add(1))
	limit := store.Limit{Name: "w", Algorithm: store.FixedWindow, Rate: 1, Period: 100 * 24 * time.Hour, Start: "0s"} // no script makes holds of it
	other := limiter(t, newStore(t, client(t), redisstore.Config{Poll: -1, Prefix: prefix}), limit)
	db.AddHook(&beforeWrite{do: func() {
		if d, err := other.Take(t.Context(), "w", "k", 1); err != nil || !d.Allowed {
			t.Errorf("in between: %+v, %v", d, err)
		}
	}})
	s := newStore(t, db, redisstore.Config{Poll: -1, Prefix: prefix})
	g := store.Group{Hold: &store.HoldCall{ID: "h", TTL: 1e6}, Ops: []store.Op{{Def: limiter(t, s, limit).Limit("w"), Key: "k", Verb: store.VerbTake, Cost: 1}}}
	got := apply(t, s, g)[0]
	if got.Err != nil || got.Allowed || got.Hold.Expires != 0 {
		t.Errorf("allowed %v, expires at %d; %v", got.Allowed, got.Hold.Expires, got.Err)
	}
}
