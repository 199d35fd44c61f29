package dipwell

import (
	"cmp"

	"github.com/dipwell/dipwell/internal/algebra"
	"github.com/dipwell/dipwell/store"
)

// maxGroupRetries bounds the instants that groupRetry tries. Two windows of 7 and 11 s are
// in any position to each other within 77 s, which are 18 boundaries; windows whose
// lengths have nothing in common may need far more.
const maxGroupRetries = 256

// groupRetry returns the time in µs until a refused group would be allowed if nobody else
// took tokens, or never. That is the longest retry of the ops that refused, unless an op
// that is allowed earlier may be refused then: see changes. Beyond maxGroupRetries it
// returns a time before which the group is refused.
func groupRetry(g *store.Group) (retry int64, never bool) {
	for i := range g.Ops {
		if op := &g.Ops[i]; !op.Allowed {
			retry, never = max(retry, op.Retry), never || op.Never
		}
	}
	now := int64(store.MaxInt)
	for i := range g.Ops {
		now = min(now, decidedAt(&g.Ops[i]))
	}
	end := repeatsAfter(g, retry)
	for tries := 0; tries < maxGroupRetries && !never; tries++ {
		before := retry
		for i := range g.Ops {
			if op := &g.Ops[i]; changes(op) && op.TS != 0 && !never {
				var more int64
				more, never = retryAt(op, now+retry)
				retry += more
			}
		}
		if retry == before {
			break
		}
		never = never || retry >= end
	}
	return retry, never
}

// changes reports whether an op that is allowed at one time may be refused later, though
// nobody takes tokens: the override of its key ends, or it comes and goes.
func changes(op *store.Op) bool {
	o := op.Def.Override
	return o != nil && o.Until != 0 && op.Def.Algorithm != Concurrency || comesAndGoes(op)
}

// comesAndGoes reports whether an op is a bounded reservation of more than the burst. Its
// delay is short before a tick and long after it.
func comesAndGoes(op *store.Op) bool {
	return op.Bounded && op.Verb == store.VerbReserve && op.Cost > op.Def.Rule.Burst
}

// repeatsAfter returns the time in µs after which a group that was refused until then is
// always refused, because all windows were in each position to each other. retry is the
// longest of its ops. It is MaxInt if that is not known.
func repeatsAfter(g *store.Group, retry int64) int64 {
	period := int64(1)
	for i := range g.Ops {
		op := &g.Ops[i]
		switch every := op.Def.Rule.Every; {
		case op.TS == 0 || op.Def.Override != nil || comesAndGoes(op) && every == 0:
			return store.MaxInt
		case comesAndGoes(op):
			retry = max(retry, op.Reset)
			period = algebra.MulCap(period/gcd(period, every), every, store.MaxInt/2)
		}
	}
	return min(retry, store.MaxInt/2) + period
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// retryAt returns the time in µs from t until an op would be allowed, or never.
func retryAt(op *store.Op, t int64) (retry int64, never bool) {
	then := *op
	then.Answer = store.Answer{}
	if o := op.Def.Override; o != nil {
		if t < o.Until && !comesAndGoes(op) {
			return 0, false
		}
		then.Def = cmp.Or(op.Asked, op.Def.Base())
	}
	_, _, err := then.Step(t, algebra.Row(op), true)
	if err != nil || then.Allowed {
		return 0, false
	}
	return then.Retry, then.Never
}

// decidedAt returns the time of the store's clock at which an op was decided, or a later
// one if the answer does not have it.
func decidedAt(op *store.Op) int64 {
	switch {
	case op.TS == 0:
		return store.MaxInt
	case op.Def.Algorithm == Concurrency || op.Def.Base().Rule.Pace != nil:
		return op.TS
	}
	return algebra.DecidedAt(op)
}
