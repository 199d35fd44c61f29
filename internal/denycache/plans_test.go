package denycache_test

import (
	"context"
	"testing"
	"time"

	"github.com/dipwell/dipwell/internal/denycache"
	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/store"
)

// rows is a store of single ops, with one override.
type rows struct {
	now      func() int64
	calls    int
	rows     map[string]store.State
	key      string // of the override
	override *store.Override
	bound    bool // refusals are beside live holds
}

func (s *rows) Apply(_ context.Context, b *store.Batch) error {
	s.calls++
	for i := range b.Groups {
		g := &b.Groups[i]
		if g.Settles() {
			g.Ops, g.Allowed = []store.Op{{Def: api, Key: "k"}}, true
			s.rows = map[string]store.State{}
			continue
		}
		op := &g.Ops[0]
		row := s.rows[op.Key]
		if op.Key == s.key {
			row.Override = s.override
		}
		var write [1]bool
		next := []store.State{row}
		if g.Err = g.Decide(s.now(), next, write[:]); write[0] && g.Err == nil {
			s.rows[op.Key] = next[0]
		}
		op.Bound = op.Bound || s.bound && !op.Allowed
	}
	return nil
}

func (s *rows) Abilities() store.Abilities { return store.Abilities{Store: s, Overrides: s} }

func (s *rows) SetOverride(_ context.Context, d *store.Definition, o store.Override) (store.Override, error) {
	o.ID, o.Version, s.key, s.override = 1, d.Number, o.Key, &o
	return o, nil
}

func (s *rows) EndOverride(context.Context, *store.Definition, string, store.OverrideKind) (ended *store.Override, err error) {
	ended, s.override = s.override, nil
	return ended, nil
}

func (s *rows) Overrides(context.Context, *store.Definition, string, string, int) ([]store.Override, error) {
	return nil, nil
}

// api gives back 1 token a second, and pro 10.
var api = limittest.Definition(store.Limit{Name: "api", Rate: 1, Period: time.Second, Burst: 20, Plans: store.NewPlans(
	store.Plan{Name: "pro", Rate: 10}, store.Plan{Name: "banned", Mode: store.Blocked}, store.Plan{Name: "staff", Mode: store.Unlimited})})

type planned struct {
	*testing.T
	rows
	clock int64
	s     *denycache.Store
}

func setupPlans(t *testing.T, maxAge time.Duration) *planned {
	p := &planned{T: t, clock: start}
	p.now, p.rows.rows = func() int64 { return p.clock }, map[string]store.State{}
	p.s = open(t, &p.rows, denycache.Config{MaxAge: maxAge, Clock: func() int64 { return p.clock - start }})
	return p
}

// take asks for n tokens under a plan, so that floor stay free.
func (p *planned) take(plan string, n, floor int64) *store.Op {
	return p.do(api.WithPlan(plan), n, floor)
}

func (p *planned) do(d *store.Definition, n, floor int64) *store.Op {
	p.Helper()
	b := store.Batch{Groups: []store.Group{{Ops: []store.Op{{Def: d, Key: "k", Cost: n, Floor: floor}}}}}
	if err := p.s.Apply(p.Context(), &b); err != nil || b.Groups[0].Err != nil {
		p.Fatal(err, b.Groups[0].Err)
	}
	return &b.Groups[0].Ops[0]
}

// want checks what an answer says, and where it comes from.
func (p *planned) want(op *store.Op, allowed bool, source store.Source) {
	p.Helper()
	if op.Allowed != allowed || op.Source != source {
		p.Errorf("allowed %v from %v, want %v from %v", op.Allowed, op.Source, allowed, source)
	}
}

func TestOnlyTheSameDefinitionIsRefused(t *testing.T) {
	p := setupPlans(t, 0)
	p.take("", 20, 0)
	p.want(p.take("", 3, 0), false, fromStore)
	p.want(p.take("", 3, 0), false, fromCache)
	p.want(p.take("", 1, 2), false, fromCache)
	p.want(p.take("", 4, 0), false, fromCache)
	p.want(p.take("", 2, 0), false, fromStore)
	p.want(p.take("pro", 3, 0), false, fromStore)
	for range 2 {
		p.want(p.take("banned", 1, 0), false, fromStore)
		p.want(p.take("staff", 1, 0), true, fromStore)
	}
}

// A row under the faster plan of another caller allows a call earlier than a row
// under the definition that refused it.
func TestARowOfAnotherPlanIsNotKept(t *testing.T) {
	p := setupPlans(t, 0)
	p.take("pro", 20, 0)
	p.want(p.take("", 5, 0), false, fromStore)
	p.clock += 500_000 - 1
	p.want(p.take("", 5, 0), false, fromStore)
	p.clock++
	p.want(p.take("", 5, 0), true, fromStore)
}

// A refusal by a faster plan moves the row there, so that it may be kept. One by a slower
// plan leaves the row, whose tokens may come back sooner.
func TestTheRetryOfALargerCostIsOfTheRow(t *testing.T) {
	d := limittest.Definition(store.Limit{Name: "window", Algorithm: store.Interval, Rate: 3, Period: time.Hour, Burst: 10, Start: "0s",
		Plans: store.NewPlans(store.Plan{Name: "pro", Rate: 20})})
	for _, c := range []struct {
		of, asked string
		source    store.Source
		periods   int64 // that pass between the retry times of costs 1 and 5
	}{{"", "pro", fromCache, 0}, {"pro", "", fromStore, 1}} {
		p := setupPlans(t, 0)
		p.do(d.WithPlan(c.of), 10, 0)
		first := p.do(d.WithPlan(c.asked), 1, 0)
		p.want(first, false, fromStore)
		p.want(p.do(d.WithPlan(c.asked), 1, 0), false, c.source)
		more := p.do(d.WithPlan(c.asked), 2, 3)
		p.want(more, false, c.source)
		if want := first.Retry + c.periods*time.Hour.Microseconds(); more.Retry != want {
			t.Errorf("row under %q, call under %q: retry %d µs after the larger call, want %d", c.of, c.asked, more.Retry, want)
		}
	}
}

func TestOverridesAreHeardOf(t *testing.T) {
	p := setupPlans(t, time.Hour)
	p.take("", 20, 0)
	p.want(p.take("", 9, 0), false, fromStore)
	p.want(p.take("", 9, 0), false, fromCache)
	ab := store.AbilitiesOf(p.s)
	if _, err := ab.Overrides.SetOverride(t.Context(), api, store.Override{Key: "k", Burst: 40}); err != nil {
		t.Fatal(err)
	}
	p.want(p.take("", 9, 0), true, fromStore)
	for range 2 { // the override decides, not the definition that the caller names
		p.want(p.take("", 30, 0), false, fromStore)
	}
	if _, err := ab.Overrides.EndOverride(t.Context(), api, "k", store.AnyOverride); err != nil {
		t.Fatal(err)
	}
	p.take("", 20, 0)
	p.want(p.take("", 9, 0), false, fromStore)
	p.want(p.take("", 9, 0), false, fromCache)
	if _, err := p.SetOverride(t.Context(), api, store.Override{Key: "k", Burst: 40}); err != nil { // by another process
		t.Fatal(err)
	}
	p.clock += 999_999
	p.want(p.take("", 9, 0), false, fromCache)
	p.clock++
	p.want(p.take("", 9, 0), true, fromStore)
}

// A limit without plans or overrides keeps refusals for MaxAge. It hears that it has
// overrides with its definition.
func TestALimitGetsItsFirstOverride(t *testing.T) {
	p := setupPlans(t, time.Hour)
	plain := limittest.Definition(store.Limit{Name: "plain", Rate: 1, Period: time.Hour, Burst: 20})
	p.do(plain, 20, 0)
	p.want(p.do(plain, 1, 0), false, fromStore)
	p.clock += 2e6
	p.want(p.do(plain, 1, 0), false, fromCache)
	flagged := *plain
	flagged.Overridden = true
	p.want(p.do(&flagged, 1, 0), false, fromStore)
}

func TestHolds(t *testing.T) {
	p := setupPlans(t, 0)
	p.take("", 20, 0)
	p.bound = true
	for range 2 { // a hold may expire
		p.want(p.take("", 1, 0), false, fromStore)
	}
	p.bound = false
	p.want(p.take("", 1, 0), false, fromStore)
	p.want(p.take("", 1, 0), false, fromCache)
	calls := p.calls
	for range 2 { // it may be a repeated call
		b := store.Batch{Groups: []store.Group{{Hold: &store.HoldCall{ID: "h", TTL: 1e6}, Ops: []store.Op{{Def: api, Key: "k", Cost: 1}}}}}
		if err := p.s.Apply(t.Context(), &b); err != nil || b.Groups[0].Allowed {
			t.Fatal(err, b.Groups[0])
		}
	}
	if p.calls != calls+2 {
		t.Errorf("%d of 2 holds reached the store", p.calls-calls)
	}
	p.want(p.take("", 1, 0), false, fromStore)
	b := store.Batch{Groups: []store.Group{
		{Ops: []store.Op{{Def: api, Key: "other"}}},
		{Hold: &store.HoldCall{ID: "h", Verb: store.SettleHold}},
		{Ops: []store.Op{{Def: api, Key: "third"}}}}}
	if err := p.s.Apply(t.Context(), &b); err != nil || len(b.Groups[1].Ops) != 1 {
		t.Fatal(err)
	}
	p.want(p.take("", 1, 0), true, fromStore)
}

// TestNeverUnderAnotherPlan checks what a call that can never be allowed is told is left,
// if the row is under a plan that gives back faster.
func TestNeverUnderAnotherPlan(t *testing.T) {
	p := setupPlans(t, time.Second)
	p.take("pro", 20, 0)
	for range 3 {
		p.clock += 200_000
		op := p.take("", 30, 0)
		if want := 2 * (p.clock - start) / 200_000; op.Allowed || !op.Never || op.Remaining != want {
			t.Errorf("after %d µs: %+v, want %d left", p.clock-start, op.Answer, want)
		}
	}
}

// TestRetryUnderAnotherPlan checks the retry time of a call that needs more than a refused
// one. With long ticks, the refused one may have to wait for the same tick under two plans.
func TestRetryUnderAnotherPlan(t *testing.T) {
	grid := limittest.Definition(store.Limit{Name: "grid", Algorithm: store.Interval, Rate: 2, Period: 100 * time.Millisecond, Start: "0s", Burst: 8, Plans: store.NewPlans(store.Plan{Name: "pro", Rate: 4})})
	for _, c := range []struct {
		row, asks string
		retry     int64
	}{{"", "pro", 200_000}, {"pro", "", 300_000}} {
		p := setupPlans(t, time.Second)
		p.do(grid.WithPlan(c.row), 8, 0)
		for _, n := range []int64{2, 6} {
			if op := p.do(grid.WithPlan(c.asks), n, 0); op.Allowed || n == 6 && op.Retry != c.retry-p.clock%100_000 {
				t.Errorf("under %q, asked for %d by %q: %+v", c.row, n, c.asks, op.Answer)
			}
		}
	}
}
