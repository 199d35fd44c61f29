package dipwell

import (
	"cmp"

	"github.com/dipwell/dipwell/internal/algebra"
	"github.com/dipwell/dipwell/internal/number"
	"github.com/dipwell/dipwell/store"
)

// groupRetry returns the time in µs until a refused group would be allowed if nobody else
// took tokens, or never. That is the longest retry of the ops that refused, unless the
// override of a key ends before that: it may allow its op now, and the definition that
// decides then may refuse it.
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
	for again := true; again && !never; { // once more for each op at most: after its override has ended, it stays allowed
		again = false
		for i := range g.Ops {
			op := &g.Ops[i]
			if o := op.Def.Override; o == nil || o.Until == 0 || now+retry < o.Until || op.TS == 0 || op.Def.Algorithm == Concurrency {
				continue
			}
			more, ends := retryAt(op, now+retry)
			retry, never, again = retry+more, never || ends, again || more > 0
		}
	}
	return retry, never
}

// retryAt returns the time in µs from t until an op whose override has ended at t would be
// allowed, or never.
func retryAt(op *store.Op, t int64) (retry int64, never bool) {
	o := *op.Def.Override
	o.ID, o.Version = number.Override(op.Def.Number), op.Def.Base().Number // as of the row
	then := *op
	then.Def, then.Answer = cmp.Or(op.Asked, op.Def.Base()), store.Answer{}
	_, _, err := then.Step(t, store.State{Used: op.Used, TS: op.TS, Version: op.Def.Number, Override: &o}, true)
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
