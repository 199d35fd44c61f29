// Package pace takes tokens for requests and calls: it bounds how long they wait, and
// extends and settles their holds.
package pace

import (
	"context"
	"math"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// Forever is a bound for no bound.
const Forever time.Duration = math.MaxInt64

// Left returns how long a caller may wait: until the context's deadline, but at most
// bound.
func Left(ctx context.Context, bound time.Duration) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		bound = min(bound, time.Until(deadline))
	}
	return bound
}

// Take takes from the limits, all or nothing, and sets d. It does not allocate for
// one limit.
func Take(ctx context.Context, l *dipwell.Limiter, d *dipwell.Decision, takes []dipwell.Take) error {
	if len(takes) > 1 {
		return l.DoAll(ctx, d, store.VerbTake, takes)
	}
	return l.Do(ctx, d, store.VerbTake, takes[0])
}
