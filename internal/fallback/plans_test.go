package fallback

import (
	"context"
	"errors"
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
	l     *dipwell.Limiter
}

func beginPlans(t *testing.T) *planned {
	p := &planned{T: t, now: 1e15}
	p.inner = &awayStore{Model: limittest.NewModel(func() int64 { return p.now })}
	s, err := New(p.inner, Config{Clock: func() int64 { return p.now - 1e15 }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	p.l, err = dipwell.New(s,
		store.Limit{Name: "api", Rate: 1, Period: time.Hour, Burst: 10, OnStoreError: store.FailLocal, Plans: store.NewPlans(
			store.Plan{Name: "pro", Rate: 100, Burst: 100}, store.Plan{Name: "staff", Mode: store.Unlimited}, store.Plan{Name: "banned", Mode: store.Blocked})},
		store.Limit{Name: "slots", Algorithm: store.Concurrency, Burst: 2, OnStoreError: store.FailLocal},
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
	if _, err := p.l.EndOverride(t.Context(), "api", "ended"); err != nil {
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
