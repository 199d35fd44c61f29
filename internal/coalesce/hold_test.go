package coalesce_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell/internal/coalesce"
	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/store"
)

// settler is a gate that answers calls about holds, and decides ops by another
// definition than the caller's.
type settler struct {
	*gate
	decides *store.Definition
}

func (s settler) Apply(ctx context.Context, b *store.Batch) error {
	if err := s.gate.Apply(ctx, b); err != nil {
		return err
	}
	for i := range b.Groups {
		g := &b.Groups[i]
		if h := g.Hold; h != nil {
			h.Expires, h.Repeated = 77, true
		}
		if g.Settles() {
			g.Ops = []store.Op{{Def: s.decides, Key: g.Hold.ID, Cost: g.Hold.Costs[0]}}
		}
		for j := range g.Ops {
			g.Ops[j].Def = s.decides
		}
	}
	return nil
}

// The answer of a call that shares a statement has the definition that decided, what
// the store says of a hold, and the ops of a hold that is settled.
func TestAnswersOfHoldsAndPlans(t *testing.T) {
	def := limittest.Definition(store.Limit{Name: "a", Rate: 1, Period: time.Hour, Plans: store.NewPlans(store.Plan{Name: "pro", Rate: 2})})
	synctest.Test(t, func(t *testing.T) {
		inner := settler{newGate(), def.WithPlan("pro")}
		s := newStore(t, coalesce.Config{}, inner)
		first := ask(s, "a")
		one := <-inner.arrived
		hold := &store.Batch{Groups: []store.Group{{Hold: &store.HoldCall{ID: "h", TTL: 9}, Ops: []store.Op{{Def: def, Key: "k"}, {Def: def, Key: "l"}}}}}
		settle := &store.Batch{Groups: []store.Group{{Hold: &store.HoldCall{ID: "h", Verb: store.SettleHold, Costs: []int64{5}}}}}
		done := make(chan error)
		for _, b := range []*store.Batch{hold, settle} {
			go func() { done <- s.Apply(t.Context(), b) }()
			synctest.Wait()
		}
		one.finish <- outcome{}
		first.turn(t)
		(<-inner.arrived).finish <- outcome{}
		for range 2 {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		for _, b := range []*store.Batch{hold, settle} {
			if g := b.Groups[0]; g.Hold.Expires != 77 || !g.Hold.Repeated || g.Err != nil {
				t.Errorf("%+v %+v", g, *g.Hold)
			}
		}
		if ops := hold.Groups[0].Ops; ops[0].Def.Plan != "pro" || ops[1].Def.Plan != "pro" || ops[1].Key != "l" {
			t.Errorf("hold: %+v", ops)
		}
		if ops := settle.Groups[0].Ops; len(ops) != 1 || ops[0].Key != "h" || ops[0].Cost != 5 || ops[0].Def.Plan != "pro" {
			t.Errorf("settle: %+v", ops)
		}
	})
}

// A caller that has left may use its HoldCall again while its statement still runs.
func TestAHoldOfACallerThatLeft(t *testing.T) {
	def := limittest.Definition(store.Limit{Name: "a", Rate: 1, Period: time.Hour})
	synctest.Test(t, func(t *testing.T) {
		inner := settler{newGate(), def}
		s := newStore(t, coalesce.Config{}, inner)
		first := ask(s, "a")
		one := <-inner.arrived
		ctx, cancel := context.WithCancel(t.Context())
		b := &store.Batch{Groups: []store.Group{{Hold: &store.HoldCall{ID: "h", Verb: store.SettleHold, Costs: []int64{5}}}}}
		done := make(chan error)
		go func() { done <- s.Apply(ctx, b); *b.Groups[0].Hold = store.HoldCall{ID: "another"} }()
		synctest.Wait()
		one.finish <- outcome{}
		first.turn(t)
		two := <-inner.arrived
		cancel()
		<-done
		synctest.Wait()
		two.finish <- outcome{}
		synctest.Wait()
		if h := b.Groups[0].Hold; h.ID != "another" || h.Expires != 0 || len(b.Groups[0].Ops) != 0 {
			t.Errorf("the call of a caller that left was changed: %+v", *h)
		}
	})
}
