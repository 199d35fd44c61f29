package limittest

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dipwell/dipwell/store"
)

// limitsOfHistories have plans of all kinds, a limit whose expired holds keep their
// tokens, a concurrency limit, and one with a block. treesOfHistories are further limits.
var limitsOfHistories = []store.Limit{
	{Name: "api", Rate: 5, Period: time.Second, Burst: 20, Plans: store.NewPlans(
		store.Plan{Name: "pro", Rate: 50, Burst: 100}, store.Plan{Name: "slow", Rate: 1, Burst: 5}, store.Plan{Name: "staff", Mode: store.Unlimited},
		store.Plan{Name: "banned", Mode: store.Blocked}, store.Plan{Name: "quiet", Mode: store.Shadow})},
	{Name: "day", Algorithm: store.FixedWindow, Rate: 10, Period: 10 * time.Second, Start: "0s", KeepExpired: true,
		Plans: store.NewPlans(store.Plan{Name: "pro", Rate: 40})},
	{Name: "slots", Algorithm: store.Concurrency, Burst: 3, TTL: time.Minute, Plans: store.NewPlans(
		store.Plan{Name: "pro", Burst: 5}, store.Plan{Name: "staff", Mode: store.Unlimited}, store.Plan{Name: "banned", Mode: store.Blocked},
		store.Plan{Name: "quiet", Mode: store.Shadow})},
	{Name: "grid", Algorithm: store.Interval, Rate: 2, Period: 3 * time.Second, Start: "1s", Burst: 8, Plans: store.NewPlans(
		store.Plan{Name: "pro", Rate: 4}, store.Plan{Name: "staff", Mode: store.Unlimited}, store.Plan{Name: "banned", Mode: store.Blocked})},
	{Name: "slide", Algorithm: store.SlidingWindow, Rate: 12, Period: 4 * time.Second, Start: "0s", Plans: store.NewPlans(
		store.Plan{Name: "pro", Rate: 40}, store.Plan{Name: "slow", Rate: 3}, store.Plan{Name: "staff", Mode: store.Unlimited},
		store.Plan{Name: "banned", Mode: store.Blocked}, store.Plan{Name: "quiet", Mode: store.Shadow})},
	{Name: "login", Rate: 4, Period: 2 * time.Second, Burst: 6, Block: time.Second, Plans: store.NewPlans(
		store.Plan{Name: "pro", Rate: 8, OverrideOnly: true}, store.Plan{Name: "staff", Mode: store.Unlimited, OverrideOnly: true}, store.Plan{Name: "quiet", Mode: store.Shadow, OverrideOnly: true})},
	{Name: "seen", Rate: 2, Period: time.Second, Burst: 6, Mode: store.Shadow, Shared: true},
}

// treesOfHistories are a limit with a parent and a grandparent, and a concurrency limit
// with a parent; parents come first. keysOfTrees says how many parts their keys have.
var treesOfHistories = []store.Limit{
	{Name: "org", Rate: 6, Period: time.Second, Burst: 24, Parts: 1, Plans: store.NewPlans(
		store.Plan{Name: "pro", Rate: 30, Burst: 60, Children: true}, store.Plan{Name: "staff", Mode: store.Unlimited, Children: true}, store.Plan{Name: "banned", Mode: store.Blocked},
		store.Plan{Name: "quiet", Mode: store.Shadow})},
	{Name: "team", Algorithm: store.FixedWindow, Rate: 12, Period: 5 * time.Second, Start: "0s", Burst: 18, Parent: "org", Plans: store.NewPlans(
		store.Plan{Name: "pro", Rate: 20, Burst: 30, Children: true}, store.Plan{Name: "staff", Mode: store.Unlimited})},
	{Name: "user", Rate: 4, Period: time.Second, Burst: 12, Parent: "team", KeepExpired: true, Plans: store.NewPlans(
		store.Plan{Name: "pro", Rate: 40, Burst: 80}, store.Plan{Name: "slow", Rate: 1, Burst: 4}, store.Plan{Name: "staff", Mode: store.Unlimited},
		store.Plan{Name: "banned", Mode: store.Blocked}, store.Plan{Name: "quiet", Mode: store.Shadow})},
	{Name: "pool", Algorithm: store.Concurrency, Burst: 6, Parts: 1, Plans: store.NewPlans(store.Plan{Name: "pro", Burst: 9}, store.Plan{Name: "quiet", Mode: store.Shadow})},
	{Name: "desk", Algorithm: store.Concurrency, Burst: 4, Parent: "pool", Plans: store.NewPlans(
		store.Plan{Name: "pro", Burst: 7}, store.Plan{Name: "staff", Mode: store.Unlimited}, store.Plan{Name: "banned", Mode: store.Blocked})},
}

// keysOfTrees maps a limit of a tree to the number of parts of its keys.
var keysOfTrees = map[string]int{"org": 1, "team": 2, "user": 3, "pool": 1, "desk": 2}

// Differences are the ways in which a store may differ from a Model.
type Differences struct {
	Sweeps bool // the store gives back expired holds also between calls
	Forget bool // the store forgets what has ended, so the test's clock must not step back
	Whole  bool // the store cannot decide at a fraction of the rate

	// Answers, if not nil, may change both answers to a call before they are compared.
	Answers func(call *Call, got, want *store.Group)
}

// Agree makes n random calls to a store whose clock is *now, and compares the answers with
// those of a Model. The calls use plans, floors, fractions of the rate, overrides, parents,
// holds, reservations and changed limits. Some calls are sent in batches, and the clock steps
// back now and then. Histories with odd seeds have no overrides, because stores have separate
// statements for limits without them. In histories with seeds of 2 modulo 4 two limits have a
// single key each, and most calls begin or end holds and overrides, so that these overlap.
func Agree(t testing.TB, s store.Store, now *int64, seed uint64, n int, but Differences) {
	t.Helper()
	agree(&history{TB: t, s: s, now: now, but: but, plain: seed%2 == 1, few: seed%4 == 2}, seed, n)
}

// AgreeOnChanges is Agree for histories in which most calls change one of three limits, so
// that rows are of very old versions.
func AgreeOnChanges(t testing.TB, s store.Store, now *int64, seed uint64, n int, but Differences) {
	t.Helper()
	agree(&history{TB: t, s: s, now: now, but: but, plain: seed%2 == 1, few: seed%4 == 2, changes: true}, seed, n)
}

func agree(h *history, seed uint64, n int) {
	h.Helper()
	h.Rand, h.prices = rand.New(rand.NewPCG(seed, 13)), rand.New(rand.NewPCG(seed, 14))
	h.m, h.ab = NewModel(func() int64 { return *h.now }), store.AbilitiesOf(h.s)
	h.called, h.ids = map[at]int64{}, map[store.Reservation]store.Reservation{}
	h.starts = rand.New(rand.NewPCG(seed, 15))
	for _, l := range slices.Concat(limitsOfHistories, treesOfHistories) {
		h.define(h.begun(l))
	}
	for i := range n {
		if h.step(i); h.Failed() {
			h.Fatalf("in step %d of the history with seed %d", i, seed)
		}
	}
}

// A Call is a call of a history.
type Call struct {
	Step   int
	Group  store.Group // the group as it was before the decision
	Beside bool        // the call was in a batch with others
}

type history struct {
	testing.TB
	*rand.Rand
	prices       *rand.Rand // source of Fraction, separate so that the rest of a history does not depend on Whole
	starts       *rand.Rand // of Limit.Start
	s            store.Store
	ab           store.Abilities
	m            *Model
	now          *int64
	but          Differences
	plain        bool                                    // no overrides
	few          bool                                    // the history has holds and overrides of few keys
	changes      bool                                    // see AgreeOnChanges
	reservations []store.Reservation                     // ids of reservations in the model
	ids          map[store.Reservation]store.Reservation // the store's id for each of the model's, because the store may choose its own
	holds        []string
	made         []store.Group // calls that made holds
	last         []store.Op
	fixed        int64        // last time at which a limit was changed or a sweep was made, before which the clock does not step back
	called       map[at]int64 // last time at which a call or a sweep may have written a key
}

// define defines a limit. A change may be refused because of an override that does not fit.
func (h *history) define(l store.Limit) {
	h.Helper()
	_, err := h.ab.Limits.Define(context.Background(), l, store.OwnerCode)
	_, want := h.m.Define(context.Background(), l, store.OwnerCode)
	if fmt.Sprint(err) != fmt.Sprint(want) || err != nil && !strings.Contains(err.Error(), "the override of key") {
		h.Fatalf("define %s: %v, want %v", l.Name, err, want)
	}
}

// begun returns a limit, in half of the cases with windows that begin with a call.
func (h *history) begun(l store.Limit) store.Limit {
	if l.Start != "" && l.Algorithm != store.SlidingWindow && h.starts.IntN(2) == 0 {
		l.Start = "first_call"
	}
	return l
}

func (h *history) pick(of ...string) string { return of[h.IntN(len(of))] }

// plan draws the name of a plan, or "". Under some plans the calls of a hold take
// nothing; a repeat of such a hold does not know whether the plan was staff or quiet.
func (h *history) plan() string {
	if h.few {
		return h.pick("", "", "pro", "banned", "slow")
	}
	return h.pick("", "", "pro", "staff", "banned", "slow", "quiet")
}

func (h *history) step(i int) {
	h.Helper()
	h.move()
	if h.changes && h.IntN(5) > 0 {
		h.change()
		return
	}
	n := h.IntN(24)
	if h.few && n > 4 && n < 10 {
		n = 1 + n%4 // do an override or a sweep, not a list or a batch
	}
	switch n {
	case 0:
		h.change()
	case 1, 2, 3:
		if !h.plain {
			h.override()
		}
	case 4:
		h.sweep()
	case 5:
		h.list()
	case 6, 7, 8, 9:
		if h.but.Forget {
			h.sweep() // sweep, because the answers to a batch do not show what either side still counts
		}
		h.batch()
	default:
		h.call(i)
	}
	for k, last := range h.called {
		if h.m.rows[k].Used == 0 { // a store may keep the full row, and with it a time ahead of the clock
			h.set(max(*h.now, last))
		}
	}
}

// set sets the clock. A store may read the clock in a goroutine of its own, then with
// package sync/atomic.
func (h *history) set(t int64) { atomic.StoreInt64(h.now, t) }

// move moves the clock, often to the time at which a hold expires or is forgotten, or to
// a µs before or after it.
func (h *history) move() {
	var ends []int64
	for _, id := range h.holds[max(0, len(h.holds)-8):] {
		for _, at := range []int64{h.m.holds[id].Expires, h.m.holds[id].Forget} {
			if at > *h.now+1 {
				ends = append(ends, at)
			}
		}
	}
	switch n := h.IntN(16); {
	case n < 3 && len(ends) > 0:
		at := slices.Min(ends)
		if h.IntN(6) == 0 {
			at = ends[h.IntN(len(ends))]
		}
		h.set(at - 1 + h.Int64N(3))
	case n == 3 || n == 4:
		if to := *h.now - h.Int64N([]int64{10, 1e4, 1e6, 3e6}[h.IntN(4)]); h.mayStepBack(to) {
			h.set(to)
		}
	default:
		by := h.IntN(10)
		if h.few { // by so little that held tokens do not come back by time
			by %= 7
		}
		h.set(*h.now + []int64{0, 0, 1, 1000, 1000, 50_000, 150_000, 700_000, 3e6, 20e6}[by])
	}
}

// mayStepBack reports whether the clock may step back to a given time. It may not where a
// store may or may not have deleted full rows or ended records, because answers would differ.
func (h *history) mayStepBack(to int64) bool {
	if h.but.Forget {
		return false
	}
	passed := func(at int64) bool { return to < at && at <= *h.now }
	if passed(h.fixed) {
		return false
	}
	for _, x := range h.m.holds {
		if passed(x.Forget) || h.but.Sweeps && passed(x.Expires) {
			return false
		}
	}
	for _, p := range h.m.pending {
		if passed(p.Due) {
			return false
		}
	}
	for _, o := range h.m.overrides {
		if o != nil && passed(o.Until) {
			return false
		}
	}
	for k, last := range h.called {
		row, d := h.m.rows[k], h.m.reg.Lookup(k.limit)
		// True if the row was full when the store was last called, which may or may
		// not have written the row.
		if row.Used == 0 && to < last || row.Used > 0 && d.Full(row, *h.now) && (to < last || !d.Full(row, to)) {
			return false
		}
	}
	return true
}

// change gives a limit another version.
func (h *history) change() {
	h.Helper()
	l := limitsOfHistories[h.IntN(6)]
	switch {
	case h.changes:
		l = []store.Limit{limitsOfHistories[0], limitsOfHistories[1], treesOfHistories[2]}[h.IntN(3)]
		l.Burst, l.Period = h.Int64N(2)*(l.Rate+h.Int64N(40)), 20*time.Minute
	case h.IntN(3) == 0:
		l = treesOfHistories[h.IntN(len(treesOfHistories))]
	}
	if l.Algorithm == store.Concurrency {
		l.Burst += h.Int64N(3)
	} else {
		l.Rate += h.Int64N(3)
		l.OnChange = store.ChangePolicy(h.IntN(2))
	}
	if l.Block != 0 {
		l.Block = time.Duration(h.Int64N(3)) * time.Second
	} else if h.IntN(2) == 0 && l.Algorithm != store.Concurrency {
		l.Plans = store.NewPlans(store.Plan{Name: "pro", Rate: 30 + h.Int64N(3)}, store.Plan{Name: "staff", Mode: store.Unlimited})
	}
	h.set(*h.now + 1)
	h.fixed = *h.now
	h.define(h.begun(l))
	h.set(*h.now + 1)
}

func (h *history) override() {
	h.Helper()
	ctx := context.Background()
	name := h.pick("api", "api", "day", "slots", "grid", "slide", "login", "user", "user", "team", "org", "desk", "pool")
	if h.few {
		name = h.pick("api", "grid", "login", "user", "org")
	}
	key := h.key(name)
	d, m := h.ab.Limits.Registry().Lookup(name), h.m.reg.Lookup(name)
	h.called[at{name, key}] = max(h.called[at{name, key}], *h.now)
	if h.IntN(3) == 0 {
		kind := store.OverrideKind(h.IntN(4))
		got, err := h.ab.Overrides.EndOverride(ctx, d, key, kind)
		want, wrong := h.m.EndOverride(ctx, m, key, kind)
		if same(got) != same(want) || err != nil || wrong != nil {
			h.Errorf("end override of %s %q: %v %v, want %v %v", name, key, got, err, want, wrong)
		}
		return
	}
	o := store.Override{Key: key, Plan: h.plan(), Note: "n"}
	switch {
	case o.Plan != "":
	case m.Algorithm == store.Concurrency:
		o.Burst = 1 + h.Int64N(5)
	case m.Algorithm == store.SlidingWindow:
		o.Rate = 1 + h.Int64N(60)
	default:
		o.Rate, o.Burst = 1+h.Int64N(60), 1+h.Int64N(60)
	}
	if h.IntN(2) == 0 {
		o.Until = *h.now + 1 + h.Int64N(3e6)
	} else if h.starts.IntN(3) == 0 {
		o.Start = []string{"500ms", "700ms", "first_call", "06:00 UTC"}[h.starts.IntN(4)] // the last start is an error
	}
	got, err := h.ab.Overrides.SetOverride(ctx, d, o)
	want, wrong := h.m.SetOverride(ctx, m, o)
	if wrong != nil {
		got, want = store.Override{}, store.Override{}
	}
	if same(&got) != same(&want) || fmt.Sprint(err) != fmt.Sprint(wrong) {
		h.Errorf("set override %+v: %+v %v, want %+v %v", o, got, err, want, wrong)
	}
}

// same returns an override without the fields that may differ in equal overrides. The ID
// may differ, because it depends on when the override was renewed for a new version.
func same(o *store.Override) string {
	if o == nil {
		return "none"
	}
	return fmt.Sprintf("%q %q %d %v %d %q %d %q %d under %s, replaced %s", o.Key, o.Plan, o.Rate, o.Period, o.Burst, o.Start, o.Until, o.Note, o.Version, same(o.Under), same(o.Replaced))
}

// sweep sweeps the store and the model.
func (h *history) sweep() {
	h.Helper()
	h.m.Sweep()
	h.fixed = max(h.fixed, *h.now) // a store may or may not have deleted what has ended by now, and stepped rows
	for k := range h.called {
		h.called[k] = max(h.called[k], *h.now)
	}
	if h.ab.Sweep != nil {
		if _, err := h.ab.Sweep(context.Background(), 1000); err != nil {
			h.Error(err)
		}
	}
}

func (h *history) list() {
	h.Helper()
	ctx := context.Background()
	name := h.pick("api", "day", "slots", "grid", "user", "org", "desk")
	key := h.key(name)
	d, m := h.ab.Limits.Registry().Lookup(name), h.m.reg.Lookup(name)
	holds, err := h.ab.Holds(ctx, d, key)
	want, _ := h.m.holdsOf(ctx, m, key)
	if err != nil || !slices.Equal(holds, want) {
		h.Errorf("holds of %s %q: %v %v, want %v", name, key, holds, err, want)
	}
	all, err := h.ab.Overrides.Overrides(ctx, d, "", h.pick("", "a", store.Shared), 2)
	if err != nil || len(all) > 2 {
		h.Errorf("overrides of %s: %v %v", name, all, err)
	}
}

// call makes a call of the store and the model.
func (h *history) call(i int) {
	h.Helper()
	g := h.group()
	c := &Call{Step: i, Group: clone(g)}
	// A store may give back the tokens of an expired hold before it makes another hold
	// with its id.
	again := g.Hold != nil && g.Hold.Verb == store.MakeHold && slices.Contains(h.holds, g.Hold.ID)
	got, want := h.ask(h.s, h.ab.Limits.Registry(), g)[0], h.ask(h.m, &h.m.reg, g)[0]
	h.answered([]store.Group{g}, []store.Group{got}, []store.Group{want})
	for i := range min(len(got.Ops), len(want.Ops)) {
		if a, b := &got.Ops[i].Answer, &want.Ops[i].Answer; a.TS == 0 { // the store does not return the row
			a.Used, b.Used, b.TS = 0, 0, 0
		}
	}
	if h.but.Answers != nil {
		h.but.Answers(c, &got, &want)
	}
	if h.but.Sweeps || h.but.Forget || again {
		h.sameOnceSwept(&got, &want)
	}
	if again {
		h.sweep()
	}
	if a, b := text(&got), text(&want); a != b {
		h.Errorf("%s\nat %d: got\n%s\nwant\n%s", text(&c.Group), *h.now, a, b)
	}
}

// sameOnceSwept makes two answers equal if they differ only in what is left, and a sweep
// makes that equal. An allowed call may count expired holds, some of which one side may
// have given back while the other one still counts them.
func (h *history) sameOnceSwept(got, want *store.Group) {
	h.Helper()
	differs := false
	for i := range min(len(got.Ops), len(want.Ops)) {
		a, b := got.Ops[i].Answer, &want.Ops[i].Answer
		a.Remaining, a.Reset, a.Used, a.TS = b.Remaining, b.Reset, b.Used, b.TS
		if a == *b && got.Ops[i].Answer != a {
			got.Ops[i].Answer, differs = a, true
		}
	}
	if !differs {
		return
	}
	h.sweep()
	look := store.Group{Ops: slices.Clone(want.Ops)}
	for i := range look.Ops {
		op := &look.Ops[i]
		look.Ops[i] = store.Op{Def: op.Def.Base(), Key: op.Key, Verb: store.VerbCheck}
	}
	a, b := h.ask(h.s, h.ab.Limits.Registry(), look)[0], h.ask(h.m, &h.m.reg, look)[0]
	for i := range min(len(a.Ops), len(b.Ops)) {
		if a, b := &a.Ops[i].Answer, &b.Ops[i].Answer; a.TS == 0 { // the store does not return the row
			b.Used, b.TS = 0, 0
		}
	}
	if a, b := text(&a), text(&b); a != b {
		h.Errorf("after a sweep at %d: got\n%s\nwant\n%s", *h.now, a, b)
	}
}

func clone(g store.Group) store.Group {
	g.Ops = slices.Clone(g.Ops)
	if g.Hold != nil {
		c := *g.Hold
		g.Hold = &c
	}
	return g
}

// quick decides half of the groups of one op as a Limiter does, by the store's ability
// Quick, if it has one.
func (h *history) quick(g *store.Group) bool {
	if h.ab.Quick == nil || len(g.Ops) != 1 || g.Hold != nil || g.Cancel || g.Ops[0].Floor > 0 || g.Ops[0].Fraction > 0 || h.IntN(2) == 0 {
		return false
	}
	op := &g.Ops[0]
	a, held, ok := h.ab.Quick(op.Def, op.Key, op.Verb, op.Cost, true)
	if held != nil {
		held.Unlock()
	}
	if ok {
		g.Allowed = a.Retry == 0
		op.Answer = store.Answer{Allowed: g.Allowed, Granted: a.Granted, Remaining: a.Remaining, Retry: a.Retry, Reset: a.Reset, Source: h.ab.QuickSource}
	}
	return ok
}

// text returns an answer as text, without the parts that may differ in equal answers.
func text(g *store.Group) string {
	for _, class := range []error{store.ErrReservation, store.ErrUnknownHold, store.ErrHoldConflict} {
		if errors.Is(g.Err, class) {
			return class.Error()
		}
	}
	var field *store.FieldError
	if errors.As(g.Err, &field) {
		return field.Field
	}
	if g.Err != nil {
		return g.Err.Error()
	}
	s := fmt.Sprintf("allowed %v reserved %v cancel %v", g.Allowed || g.Cancel, g.Reserved, g.Cancel) // for a cancellation only Err says whether it succeeded
	if g.Hold != nil {
		s += fmt.Sprintf(" hold %+v", *g.Hold)
	}
	for i := range g.Ops {
		op := &g.Ops[i]
		s += fmt.Sprintf("\n%s %s %q cost %d floor %d fraction %d takes %b plan %q version %d override %v: %+v", op.Verb, op.Def.Name, op.Key, op.Cost, op.Floor, op.Fraction, op.Takes, op.Def.Plan, op.Def.Base().Number, op.Def.Override != nil, op.Answer)
	}
	return s
}

// group draws a random call.
func (h *history) group() (g store.Group) {
	n, ids := h.IntN(20), h.holds
	if h.few {
		n, ids = n%14, h.holds[max(0, len(h.holds)-4):]
	}
	switch {
	case n < 4 && len(ids) > 0:
		g.Hold = &store.HoldCall{ID: ids[h.IntN(len(ids))], Verb: store.SettleHold}
		if n == 0 {
			g.Hold.Verb, g.Hold.TTL = store.ExtendHold, 1e6+h.Int64N(4e6)
		} else if made := h.made[slices.Index(h.holds, g.Hold.ID)]; n > 1 {
			for range takesOf(made.Ops) {
				g.Hold.Costs = append(g.Hold.Costs, h.Int64N(6))
			}
		}
		return g
	case n == 4 && len(h.reservations) > 0:
		g.Cancel, g.ID = true, h.reservations[h.IntN(len(h.reservations))]
		return g
	case n == 5 && len(h.made) > 0:
		return clone(h.made[h.IntN(len(h.made))]) // a repeated call
	case n < 11:
		g.Hold = &store.HoldCall{ID: fmt.Sprint("hold", h.IntN(1000)), TTL: 1e6 + h.Int64N(5e6)}
		g.Ops = h.ops(1+h.IntN(3), []string{"api", "day", "slots", "grid", "login", "seen", "user", "team", "desk"}, store.VerbTake)
		for i := range g.Ops { // an adaptive limit, whose calls have a price, has no holds, and no wait makes one
			g.Ops[i].Fraction, g.Ops[i].Bounded = 0, false
		}
		return g
	}
	if h.IntN(2) == 0 && len(h.last) > 0 { // repeat the last call, which may be refused
		g.Ops = slices.Clone(h.last)
		more := h.Int64N(3)
		for i := range g.Ops {
			if i == 0 || g.Ops[i].Takes&1 != 0 {
				g.Ops[i].Cost += more
			}
		}
		return g
	}
	g.ID[0] = 1
	for i := range 8 {
		g.ID[i+1] = byte(h.IntN(256))
	}
	verb := store.Verb(h.IntN(int(store.VerbReset) + 1))
	many := 1
	if h.IntN(3) == 0 && (verb < store.VerbTakeUpTo || verb == store.VerbReserve) {
		many = 2
	}
	limits := []string{"api", "api", "day", "grid", "slide", "slide", "login", "login", "seen", "user", "user", "team", "org"}
	if verb == store.VerbCheck || verb == store.VerbReset {
		limits = append(limits, "slots", "desk")
	}
	g.Ops = h.ops(many, limits, verb)
	if verb < store.VerbCharge && verb != store.VerbReserve {
		h.last = slices.Clone(g.Ops)
	}
	return g
}

// ops draws the ops of at most n takes of limits, and of these limits' parents, as a
// Limiter makes them.
func (h *history) ops(n int, limits []string, verb store.Verb) (ops []store.Op) {
	if h.few {
		limits = []string{"api", "grid", "login"}
		if h.IntN(3) == 0 {
			limits = []string{"api", "user", "team"}
		}
	}
	h.Shuffle(len(limits), func(i, j int) { limits[i], limits[j] = limits[j], limits[i] })
	for _, name := range limits {
		if slices.ContainsFunc(ops, func(op store.Op) bool { return op.Def.Name == name }) || len(ops) == n || name == "slide" && verb == store.VerbReserve {
			continue
		}
		op := store.Op{Def: h.named(name), Key: h.key(name), Verb: verb, Cost: h.Int64N(8)}
		if slices.ContainsFunc(ops, func(o store.Op) bool { return h.above(o, op) || h.above(op, o) }) {
			continue // no call can have both limits
		}
		if op.Cost == 7 {
			op.Cost = 30
		}
		if verb <= store.VerbCheck && name != "slide" && h.IntN(3) == 0 {
			op.Floor = h.Int64N(4)
		}
		if verb <= store.VerbCheck && !h.but.Whole && h.prices.IntN(3) == 0 {
			op.Fraction = 1 + h.prices.Int64N(1023)
		}
		if verb == store.VerbReserve && h.IntN(2) == 0 {
			op.Bounded, op.MaxDelay = true, h.Int64N(4e6)
		} else if name == "login" { // this op is the attempt of a wait
			op.Bounded = h.IntN(4) == 0 && verb == store.VerbTake
		}
		ops = append(ops, op)
	}
	if h.IntN(2) == 0 && !slices.ContainsFunc(ops, func(op store.Op) bool { return op.Def.Parent != "" }) {
		return ops // a zero Takes means the same
	}
	for i := range ops {
		ops[i].Takes = 1 << i
	}
	if verb == store.VerbReset {
		return ops
	}
	return h.withParents(ops)
}

// named returns the definition of a limit, or of a plan that callers may name.
func (h *history) named(name string) *store.Definition {
	d := h.m.reg.Lookup(name)
	if p := d.WithPlan(h.plan()); p != nil && !p.Children && !p.OverrideOnly {
		return p
	}
	return d
}

// key draws a key of a limit. In a tree the key is a path; a shared limit has none.
func (h *history) key(limit string) string {
	if limit == "seen" {
		return ""
	}
	path := strings.Join([]string{h.pick("a", "a", "b"), h.pick("x", "x", "y"), h.pick("u", "u", "v")}[:keysOfTrees[limit]], "/")
	switch {
	case path != "" && h.few:
		return "a/x/u"[:len(path)]
	case path != "":
		return path
	case h.few:
		return "a"
	}
	return h.pick("a", "a", "b", "c")
}

// withParents adds the ops for the parents of the taken limits. Ops of the same limit and key
// are one. If takes would choose different plans of a parent, which no call can do, they have
// no plan.
func (h *history) withParents(ops []store.Op) []store.Op {
	all, agree := h.parentsOf(ops)
	if !agree {
		for i := range ops {
			ops[i].Def = ops[i].Def.Base()
		}
		all, _ = h.parentsOf(ops)
	}
	return all
}

func (h *history) parentsOf(ops []store.Op) (all []store.Op, agree bool) {
	all, agree = slices.Clone(ops), true
	for _, op := range ops {
		for d, key := op.Def, op.Key; d.Parent != ""; {
			d, key = h.m.reg.Lookup(d.Parent).ForChild(op.Def.Plan), key[:strings.LastIndexByte(key, '/')]
			at := slices.IndexFunc(all, func(o store.Op) bool { return o.Def.Name == d.Name && o.Key == key })
			if at < 0 {
				at, all = len(all), append(all, store.Op{Def: d, Key: key, Verb: op.Verb})
			}
			all[at].Cost, all[at].Takes = all[at].Cost+op.Cost, all[at].Takes|op.Takes
			agree = agree && all[at].Def.Plan == d.Plan
		}
	}
	return all, agree
}

// above reports whether op b also takes from the bucket of op a.
func (h *history) above(a, b store.Op) bool {
	all, _ := h.parentsOf([]store.Op{b})
	return slices.ContainsFunc(all[1:], func(o store.Op) bool { return o.Def.Name == a.Def.Name && o.Key == a.Key })
}

// takesOf returns how many takes some ops belong to.
func takesOf(ops []store.Op) int {
	var all uint16
	for i := range ops {
		all |= ops[i].Takes
	}
	if all == 0 {
		return len(ops)
	}
	return bits.Len16(all)
}
