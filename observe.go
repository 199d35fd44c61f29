package dipwell

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dipwell/dipwell/store"
)

// Observe says how long a call behind an adaptive limit took, and whether it succeeded,
// or the same of n calls that were alike, from 1 to 2^40: see Adaptive. Observe each call
// that the limit allowed, or a sample that does not depend on the result: if failures are
// left out, for example, the rate will be too high.
//
// The Limiter counts in memory, together with the tokens that were taken through it, and
// sends the counts to the store once in a quarter of a window, in the first Observe after
// that time. That one waits for the store, at most for the limit's Timeout, by default a
// second; the others do not wait. If the store fails, the counts are lost, the rate stays
// as it is, and the error is the store's. It is a *FieldError if the limit is not
// adaptive, latency is negative or n is out of bounds; ErrUnknownLimit if there is no
// such limit; and store.ErrNotSupported if the store cannot keep its rate.
func (l *Limiter) Observe(ctx context.Context, limit string, latency time.Duration, ok bool, n int64) error {
	def := l.registry.Lookup(limit)
	switch {
	case def == nil:
		return core.Missing(l.registry, limit)
	case def.Rule.Pace == nil:
		return badField("limit", "%s is not adaptive", limit)
	case latency < 0:
		return badField("latency_us", "%v is negative", latency)
	case n < 1 || n > maxObserved:
		return badField("count", "%d is not between 1 and 2^40", n)
	case l.abilities.Observe == nil:
		return store.ErrNotSupported
	}
	sample := store.Observation{Count: n}
	if def.Adaptive.Latency > 0 && latency > def.Adaptive.Latency {
		sample.Slow = n
	}
	if !ok {
		sample.Failed = n
	}
	if sample, due := l.observers.of(def.Name).add(&sample, def.Rule.Pace.Config().Window/4); due {
		ctx, cancel := context.WithTimeout(ctx, cmp.Or(def.Timeout, observeTimeout))
		defer cancel()
		return l.abilities.Observe(ctx, def, sample)
	}
	return nil
}

const (
	maxObserved    = 1 << 40 // calls; a window counts at most as many
	observeTimeout = time.Second
)

// observers have the observations of each adaptive limit that were not sent yet.
type observers struct {
	any    atomic.Bool // set once Observe was called
	byName sync.Map    // string → *observer
}

type observer struct {
	mu   sync.Mutex
	seen store.Observation
	sent time.Time
}

func (o *observers) of(limit string) *observer {
	if v, ok := o.byName.Load(limit); ok {
		return v.(*observer)
	}
	v, _ := o.byName.LoadOrStore(limit, &observer{sent: time.Now()})
	o.any.Store(true)
	return v.(*observer)
}

// add counts a sample. Once in us µs it returns, with true, everything that was counted
// since the last time, which the caller sends to the store.
func (o *observer) add(s *store.Observation, us int64) (all store.Observation, due bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	count(&o.seen, s)
	if time.Since(o.sent) < time.Duration(us)*time.Microsecond {
		return all, false
	}
	all, o.seen, o.sent = o.seen, store.Observation{}, time.Now()
	return all, true
}

// count adds x to sum. Each number of sum stays at most maxObserved.
func count(sum, x *store.Observation) {
	sum.Count = min(sum.Count+x.Count, maxObserved)
	sum.Slow = min(sum.Slow+x.Slow, maxObserved)
	sum.Failed = min(sum.Failed+x.Failed, maxObserved)
	sum.Taken = min(sum.Taken+x.Taken, maxObserved)
}

// took counts the tokens that a group has taken from adaptive limits that are observed in
// this process.
func (o *observers) took(g *store.Group) {
	for i := range g.Ops {
		op := &g.Ops[i]
		if op.Def.Rule.Pace == nil || op.Granted == 0 {
			continue
		}
		if v, ok := o.byName.Load(op.Def.Name); ok {
			s := v.(*observer)
			s.mu.Lock()
			count(&s.seen, &store.Observation{Taken: op.Granted})
			s.mu.Unlock()
		}
	}
}
