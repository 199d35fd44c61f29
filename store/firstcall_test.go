package store_test

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/store"
)

// TestFirstCall compares windows that begin with a call, and that have no roll-over, with a
// literal reading: a call that finds nothing used begins a window, and a window that is over
// is forgotten, or is followed by the next one if it was overdrawn.
func TestFirstCall(t *testing.T) {
	rnd := rand.New(rand.NewPCG(limittest.NewSeed(t), 1))
	for range 300 {
		d := limittest.Definition(store.Limit{Name: "w", Algorithm: store.FixedWindow, Rate: 1 + rnd.Int64N(9), Period: time.Duration(1+rnd.Int64N(100)) * time.Microsecond, Start: "first_call"})
		every := d.Period.Microseconds()
		var row store.State
		var used, begin int64
		now := int64(1e15)
		for range 60 {
			now += []int64{0, 1, every / 2, every - 1, every, 3 * every}[rnd.IntN(6)]
			for used > 0 && now >= begin+every {
				used, begin = max(0, used-d.Rate), begin+every
			}
			if used == 0 {
				begin = now
			}
			op := store.Op{Def: d, Key: "k", Verb: []store.Verb{store.VerbTake, store.VerbTake, store.VerbCheck, store.VerbCharge, store.VerbRefund}[rnd.IntN(5)], Cost: 1 + rnd.Int64N(d.Rate)}
			next, write, err := op.Step(now, row, false)
			if write {
				row = next
			}
			want := used
			switch {
			case op.Verb == store.VerbRefund:
				want = max(0, used-op.Cost)
			case op.Verb == store.VerbCharge || op.Verb == store.VerbTake && used+op.Cost <= d.Rate:
				want = used + op.Cost
			}
			allowed := op.Verb == store.VerbCharge || op.Verb == store.VerbRefund || used+op.Cost <= d.Rate
			if used = want; err != nil || op.Allowed != allowed || op.Used != used || used > 0 && (op.TS != begin || op.DecidedAt() != now) {
				t.Fatalf("%v of %d at %d: %+v, %v; want %d used in the window since %d", op.Verb, op.Cost, now, op.Answer, err, used, begin)
			}
			if !allowed {
				retryTaken(t, d, row, now, op)
			}
			if got := d.Rule.Used(row, now); got != used {
				t.Fatalf("the row %+v has %d used; want %d", row, got, used)
			}
		}
	}
}

// retryTaken checks that a refused call is allowed at its retry, and not 1 µs earlier.
func retryTaken(t *testing.T, d *store.Definition, row store.State, now int64, op store.Op) {
	t.Helper()
	for _, late := range []int64{-1, 0} {
		again := store.Op{Def: d, Key: "k", Verb: op.Verb, Cost: op.Cost}
		if _, _, err := again.Step(now+op.Retry+late, row, false); err != nil || again.Allowed != (late == 0) {
			t.Fatalf("%v of %d, told to wait for %d µs, %d µs later: %+v, %v", op.Verb, op.Cost, op.Retry, late, again.Answer, err)
		}
	}
}

// TestFirstCallOverridden checks that an override leaves the window that is under way.
func TestFirstCallOverridden(t *testing.T) {
	now := int64(1e15)
	m := limittest.NewModel(func() int64 { return now })
	ctx := t.Context()
	if _, err := m.Define(ctx, store.Limit{Name: "w", Algorithm: store.FixedWindow, Rate: 10, Period: time.Minute, Start: "first_call"}, store.OwnerCode); err != nil {
		t.Fatal(err)
	}
	take := func(verb store.Verb, remaining, reset int64) {
		t.Helper()
		var b store.Batch
		g, op := b.Single()
		op.Def, op.Key, op.Verb, op.Cost = m.Registry().Lookup("w"), "k", verb, 1
		if err := m.Apply(ctx, &b); err != nil || g.Err != nil || op.Remaining != remaining || op.Reset != reset {
			t.Fatalf("%+v, %v, %v; want %d left and a reset in %d µs", op.Answer, err, g.Err, remaining, reset)
		}
	}
	take(store.VerbTake, 9, 60e6)
	now += 20e6
	if _, err := m.SetOverride(ctx, m.Registry().Lookup("w"), store.Override{Key: "k", Rate: 50, Until: now + 10e6}); err != nil {
		t.Fatal(err)
	}
	take(store.VerbTake, 48, 40e6)
	now += 20e6 // the override has ended
	take(store.VerbTake, 7, 20e6)
	now += 20e6
	take(store.VerbCheck, 10, 0)
}

// TestFirstCallNeverSooner checks that a reservation whose delay is bounded is never allowed
// if a full bucket would be due too late: waiting does not bring its next window closer.
func TestFirstCallNeverSooner(t *testing.T) {
	d := limittest.Definition(store.Limit{Name: "w", Algorithm: store.FixedWindow, Rate: 5, Period: time.Minute, Start: "first_call"})
	now := int64(1e15)
	reserve := func(row store.State, most int64) store.Op {
		op := store.Op{Def: d, Key: "k", Verb: store.VerbReserve, Cost: 6, Bounded: true, MaxDelay: most}
		if _, _, err := op.Step(now, row, false); err != nil {
			t.Fatal(err)
		}
		return op
	}
	if op := reserve(store.State{}, 30e6); op.Allowed || !op.Never || op.Retry != 0 {
		t.Errorf("on a full bucket: %+v", op.Answer)
	}
	if op := reserve(store.State{}, 60e6); !op.Allowed || op.Delay != 60e6 {
		t.Errorf("within a window: %+v", op.Answer)
	}
	if op := reserve(store.State{Used: 1, TS: now - 10e6, Version: 1}, 30e6); op.Allowed || op.Never || op.Retry != 20e6 {
		t.Errorf("in a window with a token used: %+v", op.Answer)
	}
}

func TestFirstCallNeedsALength(t *testing.T) {
	for _, l := range []store.Limit{
		{Name: "x", Algorithm: store.FixedWindow, Rate: 1, Period: store.Month, Start: "first_call"},
		{Name: "x", Rate: 1, Period: time.Hour, Start: "first_call"},
	} {
		_, err := store.NewDefinition(l)
		if field, ok := errors.AsType[*store.FieldError](err); !ok || field.Field != "start" {
			t.Errorf("%+v: %v", l, err)
		}
	}
}
