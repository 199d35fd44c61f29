package coalesce

import (
	"context"
	"sync/atomic"
	"time"
)

// bounds gives calls that have no deadline, or a late one, a deadline at most
// Timeout after they came.
type bounds struct {
	timeout time.Duration
	shared  atomic.Pointer[shared]
}

// shared is a deadline for all calls without a context of their own that begin
// within a tenth of timeout. A timer for each would cost a hundredth of a call,
// and more where processors are waked by it.
type shared struct {
	context.Context
	cancel context.CancelFunc
	until  time.Time // serves calls that begin before
}

// bound returns ctx with a deadline that is at most timeout away, and for a ctx
// that cannot end at least nine tenths of it. done releases it.
func (b *bounds) bound(ctx context.Context) (bounded context.Context, done context.CancelFunc) {
	now := time.Now()
	switch until, ok := ctx.Deadline(); {
	case ok && until.Sub(now) <= b.timeout:
		return ctx, nothing
	case ok || ctx.Done() != nil:
		return context.WithTimeout(ctx, b.timeout)
	}
	s := b.shared.Load()
	if s == nil || !now.Before(s.until) {
		next := &shared{until: now.Add(b.timeout / 10)}
		next.Context, next.cancel = context.WithDeadline(context.Background(), now.Add(b.timeout))
		if b.shared.CompareAndSwap(s, next) {
			s = next
		} else {
			next.cancel()
			s = b.shared.Load()
		}
	}
	return valued{s.Context, ctx}, nothing
}

func nothing() {}

// close ends the calls that share a deadline.
func (b *bounds) close() {
	if s := b.shared.Load(); s != nil {
		s.cancel()
	}
}

// valued has the deadline of one context and the values of another.
type valued struct {
	context.Context
	values context.Context
}

func (v valued) Value(key any) any {
	if x := v.values.Value(key); x != nil {
		return x
	}
	return v.Context.Value(key) // package context looks for its own here
}
