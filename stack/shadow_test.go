package stack

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
	"github.com/dipwell/dipwell/storetest"
)

// failing is a store that fails when told to.
type failing struct {
	store.Store
	err error
}

func (f *failing) Abilities() store.Abilities { return store.AbilitiesOf(f.Store) }

func (f *failing) Apply(ctx context.Context, b *store.Batch) error {
	if f.err != nil {
		return f.err
	}
	return f.Store.Apply(ctx, b)
}

func open(t *testing.T) (*dipwell.Limiter, *failing) {
	t.Helper()
	st, err := memstore.New(memstore.Config{Clock: func() int64 { return 1e15 }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	f := &failing{Store: st}
	l, err := dipwell.New(newShadow(f), store.Limit{Name: "a", Rate: 1, Period: time.Hour, Burst: 3}, store.Limit{Name: "b", Rate: 1, Period: time.Hour, Burst: 9},
		store.Limit{Name: "drop", Algorithm: store.LeakyBucket, Rate: 1, Period: time.Hour, MaxDebt: 1})
	if err != nil {
		t.Fatal(err)
	}
	return l, f
}

func TestNothingIsRefused(t *testing.T) {
	l, _ := open(t)
	for i := range 5 {
		d, err := l.Take(t.Context(), "a", "k", 1)
		if err != nil || !d.Allowed || d.Shadow != (i >= 3) || d.Granted != min(1, max(0, int64(3-i))) {
			t.Errorf("take %d: %+v %v", i, d, err)
		}
		if d.Shadow && d.RetryAfter != time.Hour {
			t.Errorf("take %d: it would be allowed after %v", i, d.RetryAfter)
		}
	}
	for verb, ask := range map[string]func(context.Context, string, string, int64) (dipwell.Decision, error){
		"check": l.Check, "take_up_to": l.TakeUpTo, "reserve": l.Reserve,
	} {
		if d, err := ask(t.Context(), "a", "k", 99); err != nil || !d.Allowed || !d.Shadow || d.Granted != 0 {
			t.Errorf("%s: %+v %v", verb, d, err)
		}
	}
	d, err := l.TakeAll(t.Context(), dipwell.Take{Limit: "a", Key: "k", Cost: 1}, dipwell.Take{Limit: "b", Key: "k", Cost: 1})
	if err != nil || !d.Allowed || !d.Shadow || !d.Limits[0].Shadow || d.Limits[1].Shadow || d.Limits[1].Granted != 0 {
		t.Errorf("several: %+v %v", d, err)
	}
	if d, err = l.Check(t.Context(), "b", "k", 9); err != nil || d.Shadow {
		t.Errorf("a refused call was charged: %+v %v", d, err)
	}
}

func TestFailingStore(t *testing.T) {
	l, f := open(t)
	d, err := l.Reserve(t.Context(), "drop", "k", 1)
	if err != nil {
		t.Fatal(err)
	}
	f.err = errors.New("gone")
	got, err := l.Take(t.Context(), "a", "k", 1)
	if err != nil || !got.Allowed || !got.Shadow || got.Source != store.SourceFallbackOpen {
		t.Errorf("%+v %v", got, err)
	}
	if _, err = l.Charge(t.Context(), "a", "k", 1); !errors.Is(err, store.ErrStore) {
		t.Errorf("a charge that was lost: %v", err)
	}
	if err = l.Cancel(t.Context(), d.Reservation); err == nil {
		t.Error("a cancellation that was lost is no error")
	}
	f.err = &store.FieldError{Field: "cost", Reason: "is too much"}
	if _, err = l.Take(t.Context(), "a", "k", 1); !errors.As(err, new(*store.FieldError)) {
		t.Errorf("the caller's mistake: %v", err)
	}
}

// holdless is a store that refuses to make holds, or fails to, and knows none.
type holdless struct{ fail error }

func (s holdless) Apply(_ context.Context, b *store.Batch) error {
	g := &b.Groups[0]
	if g.Err = s.fail; g.Settles() && s.fail == nil {
		g.Err = store.ErrUnknownHold
	}
	return nil
}

func TestHoldsThatTheStoreDoesNotHave(t *testing.T) {
	d, err := store.NewDefinition(store.Limit{Name: "a", Rate: 1, Period: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	s := newShadow(holdless{})
	call := func(h store.HoldCall) store.Group {
		b := store.Batch{Groups: []store.Group{{Hold: &h}}}
		if h.Verb == store.MakeHold {
			b.Groups[0].Ops = []store.Op{{Def: d, Key: "k", Cost: 3}}
		}
		if err := s.Apply(t.Context(), &b); err != nil {
			t.Fatal(err)
		}
		return b.Groups[0]
	}
	g := call(store.HoldCall{ID: "h", TTL: 1e6})
	if !g.Allowed || g.Err != nil || !g.Ops[0].Shadow || g.Ops[0].Granted != 0 || g.Hold.Expires == 0 {
		t.Errorf("hold: %+v %+v", g, *g.Hold)
	}
	if g = call(store.HoldCall{ID: "h", Verb: store.ExtendHold, TTL: 1e9}); !g.Allowed || g.Err != nil {
		t.Errorf("extend: %+v", g)
	}
	for i := range 2 {
		g = call(store.HoldCall{ID: "h", Verb: store.SettleHold, Costs: []int64{2}})
		if !g.Allowed || g.Err != nil || g.Hold.Repeated != (i > 0) || len(g.Ops) != 1 || g.Ops[0].Key != "k" || !g.Ops[0].Shadow {
			t.Errorf("settle %d: %+v %+v", i, g, *g.Hold)
		}
	}
	for _, h := range []store.HoldCall{{ID: "h", Verb: store.SettleHold, Costs: []int64{1}}, {ID: "h", Verb: store.ExtendHold, TTL: 1e6}, {ID: "h", TTL: 1e6}} {
		if g = call(h); !errors.Is(g.Err, store.ErrHoldConflict) {
			t.Errorf("%+v: %v", h, g.Err)
		}
	}
	if g = call(store.HoldCall{ID: "other", Verb: store.SettleHold}); !errors.Is(g.Err, store.ErrUnknownHold) {
		t.Errorf("a hold that nobody made: %v", g.Err)
	}
	s = newShadow(holdless{errors.New("gone")})
	if g = call(store.HoldCall{ID: "h", TTL: 1e6}); !g.Allowed || g.Err != nil || g.Ops[0].Source != store.SourceFallbackOpen {
		t.Errorf("a hold of a store that failed: %+v", g)
	}
	if g = call(store.HoldCall{ID: "h", Verb: store.SettleHold}); g.Err == nil {
		t.Error("a settle that was lost is no error")
	}
}

// TestShadowHoldsAreHolds checks that a hold that was allowed here is repeated, settled and
// extended as a store does.
func TestShadowHoldsAreHolds(t *testing.T) {
	l, inner := open(t)
	s := newShadow(inner)
	call := func(h store.HoldCall, cost int64) store.Group {
		b := store.Batch{Groups: []store.Group{{Hold: &store.HoldCall{ID: "before", Verb: store.SettleHold}}, {Hold: &h}, {Hold: &store.HoldCall{ID: "after", Verb: store.SettleHold}}}}
		if h.Verb == store.MakeHold {
			b.Groups[1].Ops = []store.Op{{Def: l.Limit("a"), Key: "k", Cost: cost}}
		}
		if err := s.Apply(t.Context(), &b); err != nil || b.Groups[0].Err == nil || b.Groups[2].Err == nil {
			t.Fatal(err, b.Groups)
		}
		return b.Groups[1]
	}
	for _, c := range []struct {
		name     string
		call     store.HoldCall
		cost     int64
		repeated bool
		err      error
	}{
		{"made", store.HoldCall{ID: "h", TTL: 60e6}, 4, false, nil},
		{"made again", store.HoldCall{ID: "h", TTL: 60e6}, 4, true, nil},
		{"another call", store.HoldCall{ID: "h", TTL: 60e6}, 3, false, store.ErrHoldConflict}, // which the store would allow
		{"another ttl", store.HoldCall{ID: "h", TTL: 61e6}, 4, false, store.ErrHoldConflict},
		{"too many costs", store.HoldCall{ID: "h", Verb: store.SettleHold, Costs: []int64{4, 0}}, 0, false, errField},
		{"extended for too long", store.HoldCall{ID: "h", Verb: store.ExtendHold, TTL: 1e18}, 0, false, errField},
		{"settled", store.HoldCall{ID: "h", Verb: store.SettleHold}, 0, false, nil},
		{"settled to what was held", store.HoldCall{ID: "h", Verb: store.SettleHold, Costs: []int64{4}}, 0, true, nil},
		{"settled to less", store.HoldCall{ID: "h", Verb: store.SettleHold, Costs: []int64{3}}, 0, false, store.ErrHoldConflict},
		{"made after the end", store.HoldCall{ID: "h", TTL: 60e6}, 4, false, store.ErrHoldConflict},
		{"made another", store.HoldCall{ID: "late", TTL: 60e6}, 4, false, nil},
		{"made after it expired", store.HoldCall{ID: "late", TTL: 60e6}, 4, false, store.ErrHoldConflict},
		{"extended after it expired", store.HoldCall{ID: "late", Verb: store.ExtendHold, TTL: 60e6}, 0, false, store.ErrHoldConflict},
		{"settled after it expired", store.HoldCall{ID: "late", Verb: store.SettleHold, Costs: []int64{9}}, 0, false, nil},
		{"settled again", store.HoldCall{ID: "late", Verb: store.SettleHold, Costs: []int64{9}}, 0, true, nil},
	} {
		g := call(c.call, c.cost)
		as := errors.Is(g.Err, c.err)
		if errors.Is(c.err, errField) {
			as = errors.As(g.Err, new(*store.FieldError))
		}
		if !as || c.err == nil && (!g.Allowed || g.Hold.Repeated != c.repeated || !g.Ops[0].Shadow) {
			t.Errorf("%s: %+v, %+v; want %v, repeated %v", c.name, g, *g.Hold, c.err, c.repeated)
		}
		if h, ok := s.holds.Get("late"); ok && c.call.Verb == store.MakeHold {
			h.Expires -= 61e6
		}
	}
}

var errField = errors.New("a *store.FieldError")

// TestMostHolds checks that the latest holds are known, however many were made before.
func TestMostHolds(t *testing.T) {
	d, err := store.NewDefinition(store.Limit{Name: "a", Rate: 1, Period: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	s := newShadow(holdless{})
	call := func(h store.HoldCall) error {
		b := store.Batch{Groups: []store.Group{{Hold: &h}}}
		if h.Verb == store.MakeHold {
			b.Groups[0].Ops = []store.Op{{Def: d, Key: "k", Cost: 3}}
		}
		if err := s.Apply(t.Context(), &b); err != nil {
			t.Fatal(err)
		}
		return b.Groups[0].Err
	}
	const last = 70_000
	for i := range last + 1 {
		if err := call(store.HoldCall{ID: strconv.Itoa(i), TTL: 60e6}); err != nil {
			t.Fatal(err)
		}
	}
	for _, i := range []int{last, last - 30_000} {
		if err := call(store.HoldCall{ID: strconv.Itoa(i), Verb: store.SettleHold}); err != nil {
			t.Errorf("hold %d of %d: %v", i, last, err)
		}
	}
}

// enforcing refuses what the decorator has allowed.
type enforcing struct {
	*shadowStore
}

func (e *enforcing) Apply(ctx context.Context, b *store.Batch) error {
	err := e.shadowStore.Apply(ctx, b)
	for i := range b.Groups {
		g := &b.Groups[i]
		for j := range g.Ops {
			if op := &g.Ops[j]; op.Shadow && op.Def.Mode != store.Shadow {
				op.Allowed, op.Shadow, g.Allowed = false, false, false
			}
		}
		if g.Hold != nil && g.Err == nil && !g.Allowed {
			g.Hold.Expires = 0
			e.mu.Lock()
			e.holds.Remove(g.Hold.ID)
			e.mu.Unlock()
		}
	}
	return err
}

// TestShadowIsAStore runs the suite of all stores. All that the decorator changes in an answer
// is that a refusal is allowed and has Shadow.
func TestShadowIsAStore(t *testing.T) {
	storetest.Run(t, func(t testing.TB, now func() int64) store.Store {
		inner, err := memstore.New(memstore.Config{Clock: now})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = inner.Close() })
		return &enforcing{shadowStore: newShadow(inner)}
	}, storetest.Options{Quick: true})
}

// TestEveryFieldCrossesShadow checks calls that the inner store allows.
func TestEveryFieldCrossesShadow(t *testing.T) {
	limittest.Crossing{Wrap: func(inner store.Store) store.Store { return newShadow(inner) }, Allows: true}.Run(t)
}
