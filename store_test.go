package dipwell_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/dipwell/dipwell"
)

// A reservation that would be due too late is refused until the instant at
// which the same call succeeds: 1 µs before it is refused, whether the bound on
// the delay or the limit's debt stands in the way, or both.
func TestTheRetryOfABoundedReserveIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, r := anyRule(t)
		def := dipwell.MustDefinition(l)
		if r.Most == 0 {
			return
		}
		row := dipwell.State{
			Used: rapid.Int64Range(0, r.Cap+r.Debt).Draw(t, "used"), TS: rapid.Int64Range(0, 4e15).Draw(t, "ts"), Version: def.Number,
		}
		now := row.TS + rapid.OneOf(rapid.Int64Range(-1000, 1000), rapid.Int64Range(0, 1e12)).Draw(t, "later")
		op := dipwell.Op{Def: def, Key: "k", Verb: dipwell.VerbReserve, Cost: rapid.Int64Range(1, r.Most).Draw(t, "cost"), Bounded: true}
		due := r.FullIn(r.Cap+r.Debt, now, now)
		op.MaxDelay = rapid.OneOf(rapid.Int64Range(0, 1000), rapid.Int64Range(0, due)).Draw(t, "most")
		if _, _, err := op.Step(now, row, false); err != nil {
			t.Fatal(err)
		}
		if op.Allowed {
			if op.Delay > op.MaxDelay {
				t.Fatalf("allowed with a delay of %d, more than %d", op.Delay, op.MaxDelay)
			}
			return
		}
		if op.Cost > r.Burst && op.Retry >= op.Reset {
			return // the row is full before, and then the due instant moves with the call
		}
		retry := op.Retry
		if retry <= 0 || op.Never || op.Granted != 0 || op.Delay != 0 {
			t.Fatalf("a refusal: %+v", op.Answer)
		}
		if _, _, err := op.Step(now+retry-1, row, false); err != nil || op.Allowed || op.Retry != 1 {
			t.Fatalf("1 µs before its retry of %d: %+v, %v", retry, op.Answer, err)
		}
		if _, _, err := op.Step(now+retry, row, false); err != nil || !op.Allowed {
			t.Fatalf("at its retry of %d: %+v, %v", retry, op.Answer, err)
		}
	})
}
