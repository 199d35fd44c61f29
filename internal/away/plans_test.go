package away

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/store"
)

// awayStore is a model that fails when told to.
type awayStore struct {
	*limittest.Model
	fail error
}

func (s *awayStore) Abilities() store.Abilities {
	ab := s.Model.Abilities()
	ab.Store = s
	return ab
}

func (s *awayStore) Apply(ctx context.Context, b *store.Batch) error {
	if s.fail != nil {
		return s.fail
	}
	return s.Model.Apply(ctx, b)
}

// planned is a limiter over a fallback over a store with plans, overrides and holds.
type planned struct {
	*testing.T
	now   int64
	inner *awayStore
	s     *Fallback
	l     *dipwell.Limiter
}

func beginPlans(t *testing.T) *planned {
	p := &planned{T: t, now: 1e15}
	p.inner = &awayStore{Model: limittest.NewModel(func() int64 { return p.now })}
	s, err := NewFallback(p.inner, FallbackConfig{Clock: func() int64 { return p.now - 1e15 }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	p.s = s
	p.l, err = dipwell.New(s,
		store.Limit{Name: "api", Rate: 1, Period: time.Hour, Burst: 10, OnStoreError: store.FailLocal, Plans: store.NewPlans(
			store.Plan{Name: "pro", Rate: 100, Burst: 100}, store.Plan{Name: "staff", Mode: store.Unlimited}, store.Plan{Name: "banned", Mode: store.Blocked})},
		store.Limit{Name: "slots", Algorithm: store.Concurrency, Burst: 2, OnStoreError: store.FailLocal},
		store.Limit{Name: "open", Rate: 1, Period: time.Hour, Burst: 10, OnStoreError: store.FailOpen},
		store.Limit{Name: "closed", Rate: 1, Period: time.Hour, Burst: 10})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// take takes from the limit api, and checks what the answer says.
func (p *planned) take(key, plan string, n int64, allowed bool, source store.Source) dipwell.Decision {
	p.Helper()
	d, err := p.l.TakeAll(p.Context(), dipwell.Take{Limit: "api", Key: key, Plan: plan, Cost: n})
	if err != nil || d.Allowed != allowed || d.Source != source {
		p.Errorf("take %d of %s %s: %+v %v; want %v by %v", n, key, plan, d, err, allowed, source)
	}
	return d
}

func (p *planned) override(o store.Override) {
	p.Helper()
	if _, err := p.l.SetOverride(p.Context(), "api", o); err != nil {
		p.Fatal(err)
	}
}

const there = store.SourceStore

var errDown = errors.New("connection refused")

func TestPlansWhileTheStoreIsAway(t *testing.T) {
	p := beginPlans(t)
	p.take("k", "pro", 60, true, there)
	p.inner.fail = errDown
	p.take("k", "pro", 30, true, here)
	p.take("k", "pro", 30, false, here)
	p.take("k", "staff", 500, true, here)
	p.take("l", "banned", 1, false, here)
	p.take("l", "", 11, false, here)
}

func TestOverridesWhileTheStoreIsAway(t *testing.T) {
	p := beginPlans(t)
	p.override(store.Override{Key: "raised", Burst: 40, Until: p.now + 1e6})
	p.override(store.Override{Key: "free", Plan: "staff"})
	p.override(store.Override{Key: "banned", Plan: "banned"})
	p.override(store.Override{Key: "ended", Burst: 40})
	p.take("raised", "", 5, true, there)
	p.take("free", "", 99, true, there)
	p.take("banned", "pro", 1, false, there)
	p.take("ended", "", 30, true, there)
	if _, err := p.l.EndOverride(t.Context(), "api", "ended", dipwell.AnyOverride); err != nil {
		t.Fatal(err)
	}
	p.take("ended", "", 1, false, there)
	p.inner.fail = errDown
	if d := p.take("raised", "", 30, true, here); d.Remaining != 5 {
		t.Errorf("%+v", d)
	}
	p.take("free", "", 99, true, here)
	p.take("banned", "pro", 1, false, here)
	p.take("ended", "", 1, false, here)
	p.now += 1e6
	p.take("raised", "", 5, false, here)
	p.inner.fail = nil
	p.take("free", "", 99, true, there)
}

func TestHoldsWhileTheStoreIsAway(t *testing.T) {
	p := beginPlans(t)
	ctx := t.Context()
	take := func(limit string, n int64) dipwell.Take { return dipwell.Take{Limit: limit, Key: "k", Cost: n} }
	known, err := p.l.Hold(ctx, time.Minute, "known", take("api", 1), take("slots", 1))
	if err != nil || !known.Allowed {
		t.Fatal(known, err)
	}
	p.inner.fail = errDown
	if _, err = p.l.Settle(ctx, "known"); !errors.Is(err, errDown) {
		t.Errorf("settle of a hold of the store: %v", err)
	}
	if _, err = p.l.Extend(ctx, "known", time.Minute); !errors.Is(err, errDown) {
		t.Errorf("extend of a hold of the store: %v", err)
	}
	if _, err = p.l.Hold(ctx, time.Minute, "closed", take("closed", 1)); !errors.Is(err, errDown) {
		t.Errorf("hold of a limit that fails closed: %v", err)
	}
	d, err := p.l.Hold(ctx, time.Minute, "here", take("api", 6), take("slots", 2))
	if err != nil || !d.Allowed || d.Source != here || d.Hold != "here" || d.Expires.UnixMicro() != p.now+60e6 {
		t.Fatalf("%+v %v", d, err)
	}
	if d, err = p.l.Hold(ctx, time.Minute, "more", take("slots", 1)); err != nil || d.Allowed {
		t.Errorf("%+v %v", d, err)
	}
	p.inner.fail = nil // it is back, and does not know the hold
	if d, err = p.l.Settle(ctx, "here", 1, 0); err != nil || !d.Allowed || d.Limits[0].Source != here {
		t.Errorf("%+v %v", d, err)
	}
	if _, err = p.l.Settle(ctx, "nobody's"); !errors.Is(err, store.ErrUnknownHold) {
		t.Error(err)
	}
	if d, err = p.l.Settle(ctx, "known", 1, 0); err != nil || !d.Allowed || d.Limits[0].Source != there {
		t.Errorf("%+v %v", d, err)
	}
	p.inner.fail = errDown
	if d, err = p.l.Hold(ctx, time.Minute, "again", take("slots", 2)); err != nil || !d.Allowed {
		t.Errorf("%+v %v", d, err)
	}
}

// TestHoldsBesideOpenLimits checks that a hold that is made here beside a limit that fails
// open is known to the caller, who can settle and repeat it.
func TestHoldsBesideOpenLimits(t *testing.T) {
	p := beginPlans(t)
	p.inner.fail = errDown
	take := func(limit string, n int64) dipwell.Take { return dipwell.Take{Limit: limit, Key: "k", Cost: n} }
	for name, takes := range map[string][]dipwell.Take{
		"open last":  {take("slots", 2), take("open", 3)},
		"open first": {take("open", 3), take("slots", 2)},
	} {
		id := "id-" + name[5:]
		for i := range 2 {
			d, err := p.l.Hold(t.Context(), time.Minute, id, takes...)
			if err != nil || !d.Allowed || d.Hold != id || d.Repeated != (i == 1) {
				t.Fatalf("%s: %+v %v", name, d, err)
			}
		}
		for _, costs := range [][]int64{{1}, {1, 1, 1}} {
			if _, err := p.l.Settle(t.Context(), id, costs...); !errors.As(err, new(*store.FieldError)) {
				t.Errorf("%s: settled to %v: %v", name, costs, err)
			}
		}
		for i := range 2 {
			if d, err := p.l.Settle(t.Context(), id, 1, 1); err != nil || d.Repeated != (i == 1) {
				t.Errorf("%s: %+v %v", name, d, err)
			}
		}
		d, err := p.l.Holding(t.Context(), time.Minute, takes, func(context.Context) ([]int64, error) { return []int64{0, 0}, nil })
		if err != nil || !d.Allowed || d.Hold == "" {
			t.Errorf("%s: %+v %v", name, d, err)
		}
	}
	if d, err := p.l.Hold(t.Context(), time.Minute, "", take("open", 1)); err != nil || !d.Allowed || d.Hold != "" {
		t.Errorf("%+v %v", d, err)
	}
}

// TestHoldsAreRepeated checks that the id of a hold is an idempotency key for who made it.
func TestHoldsAreRepeated(t *testing.T) {
	for _, c := range []struct {
		name        string
		made, again error // of the store
	}{{"here, and then the store is back", errDown, nil}, {"here twice", errDown, errDown}, {"by the store twice", nil, nil}} {
		t.Run(c.name, func(t *testing.T) {
			p := beginPlans(t)
			hold := func(id string, n int64) (dipwell.Decision, error) {
				return p.l.Hold(t.Context(), 2*time.Minute, id, dipwell.Take{Limit: "api", Key: "k", Cost: n}, dipwell.Take{Limit: "slots", Key: "k", Cost: 1})
			}
			p.take("k", "", 1, true, there) // so that it is known here
			p.inner.fail = c.made
			first, err := hold("job7", 3)
			if err != nil || !first.Allowed || first.Repeated {
				t.Fatal(first, err)
			}
			p.inner.fail = c.again
			p.now += 1e6
			second, err := hold(first.Hold, 3)
			if err != nil || !second.Allowed || !second.Repeated || second.Hold != first.Hold || second.Expires != first.Expires || second.Granted != first.Granted {
				t.Errorf("again: %+v %v; first %+v", second, err, first)
			}
			if d, err := p.l.Check(t.Context(), "api", "k", 0); err != nil || errors.Is(c.made, c.again) && d.Remaining != 6 {
				t.Errorf("%+v %v", d, err)
			}
			if d, err := hold(first.Hold, 2); !errors.Is(err, store.ErrHoldConflict) {
				t.Errorf("another call: %+v %v", d, err)
			}
			p.inner.fail = c.made
			if d, err := p.l.Extend(t.Context(), first.Hold, time.Minute); err != nil {
				t.Error(d, err)
			}
			p.inner.fail = c.again
			if d, err := hold(first.Hold, 3); err != nil || !d.Repeated || d.Expires.UnixMicro() != p.now+60e6 {
				t.Errorf("extended: %+v %v", d, err)
			}
			p.now += 61e6
			if d, err := hold(first.Hold, 3); !errors.Is(err, store.ErrHoldConflict) {
				t.Errorf("expired: %+v %v", d, err)
			}
			p.inner.fail = c.made
			settled, err := hold("settled", 1)
			if err != nil || !settled.Allowed {
				t.Fatal(settled, err)
			}
			if _, err := p.l.Settle(t.Context(), settled.Hold); err != nil {
				t.Fatal(err)
			}
			p.inner.fail = c.again
			if d, err := hold("settled", 1); !errors.Is(err, store.ErrHoldConflict) {
				t.Errorf("settled: %+v %v", d, err)
			}
			p.now += 10 * 60e6 // both are forgotten
			if d, err := hold(first.Hold, 2); err != nil || !d.Allowed || d.Repeated {
				t.Errorf("forgotten: %+v %v", d, err)
			}
		})
	}
}

// TestHoldIDInAnotherCall checks that the id of a hold that was made here conflicts with
// a call that cannot be decided here.
func TestHoldIDInAnotherCall(t *testing.T) {
	p := beginPlans(t)
	p.inner.fail = errDown
	take := dipwell.Take{Limit: "api", Key: "k", Cost: 1}
	if d, err := p.l.Hold(t.Context(), time.Minute, "job", take); err != nil || !d.Allowed {
		t.Fatal(d, err)
	}
	for _, p.inner.fail = range []error{errDown, nil} {
		if d, err := p.l.Hold(t.Context(), time.Minute, "job", take, dipwell.Take{Limit: "closed", Key: "k", Cost: 1}); !errors.Is(err, store.ErrHoldConflict) {
			t.Errorf("the store answers %v: %+v %v", p.inner.fail, d, err)
		}
	}
}

// TestEndedOverridesAreForgotten checks that overrides that have ended leave their room to
// later ones.
func TestEndedOverridesAreForgotten(t *testing.T) {
	p := beginPlans(t)
	p.take("k", "", 1, true, there) // so that the time is known here
	def := p.l.Limit("api")
	learn := func(i int, until int64) bool {
		o := store.Override{Key: strconv.Itoa(i), Burst: 40, Until: until, ID: uint32(i + 1), Version: def.Number}
		_, ok := p.s.numberOf(&store.Op{Def: def.WithOverride(&o), Key: o.Key})
		return ok
	}
	for i := range maxOverrides { // half of them have no end
		if !learn(i, (p.now+1e6)*int64(i%2)) {
			t.Fatalf("there is no room for the %dth", i+1)
		}
	}
	if !learn(0, 0) {
		t.Error("an override cannot be read again")
	}
	if learn(maxOverrides, 0) {
		t.Error("there are more than maxOverrides")
	}
	if p.now += 2e6; !learn(maxOverrides, 0) {
		t.Error("those that have ended leave no room")
	}
	for i := range maxOverrides/2 - 1 {
		if !learn(maxOverrides+1+i, 0) {
			t.Fatalf("there is no room for the %dth in place of one that has ended", i+2)
		}
	}
	if learn(2*maxOverrides, 0) || p.s.local.Stats().Overrides != maxOverrides {
		t.Errorf("%d overrides", p.s.local.Stats().Overrides)
	}
}
