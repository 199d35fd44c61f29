package dipwell

import (
	"cmp"
	"math"
	"sync"
	"time"

	"github.com/dipwell/dipwell/internal/adaptive"
	"github.com/dipwell/dipwell/internal/algebra"
	"github.com/dipwell/dipwell/store"
)

// Observe says how long a call behind an adaptive limit took, and whether it succeeded,
// or says the same of n equal calls, from 1 to 2^40: see Adaptive. Observe each call that
// the limit allowed, or a sample that does not depend on the result: if failures are left
// out, for example, the rate will be too high.
//
// Observe asks no store: it affects the takes of this Limiter, and of those that With
// made from it. The error is a *FieldError if the limit is not adaptive, latency is
// negative or n is out of bounds, or ErrUnknownLimit if there is no such limit.
func (l *Limiter) Observe(limit string, latency time.Duration, ok bool, n int64) error {
	def := l.registry.Lookup(limit)
	switch {
	case def == nil:
		return l.registry.Missing(limit)
	case !isAdaptive(def):
		return badField("limit", "%s is not adaptive", limit)
	case latency < 0:
		return badField("latency_us", "%v is negative", latency)
	case n < 1 || n > adaptive.MaxCount:
		return badField("count", "%d is not between 1 and 2^40", n)
	}
	sample := adaptive.Sample{Count: n}
	if def.Adaptive.Latency > 0 && latency > def.Adaptive.Latency {
		sample.Slow = n
	}
	if !ok {
		sample.Failed = n
	}
	l.adaptives.add(def, sample)
	return nil
}

// PresentRate returns the present rate of an adaptive limit in this Limiter, in tokens per
// Period, rounded down; why it last changed: "defined", "latency", "errors", "used" or
// "unobserved"; and when. For any other limit PresentRate returns the limit's rate, with
// "" and the zero time; 0 if there is no such limit.
func (l *Limiter) PresentRate(limit string) (rate int64, reason string, changed time.Time) {
	def := l.registry.Lookup(limit)
	switch {
	case def == nil:
		return 0, "", changed
	case !isAdaptive(def):
		return def.Rate, "", changed
	}
	s, changed := l.adaptives.add(def, adaptive.Sample{})
	return algebra.MulDiv(def.Rate, s.Fraction, adaptive.Full, false), string(s.Reason), changed
}

// isAdaptive reports whether a limit is adaptive. If it is, its plans are adaptive too.
func isAdaptive(d *store.Definition) bool { return d.Adaptive.Floor > 0 }

// adaptives has the state of each adaptive limit of a Limiter, by name.
type adaptives struct{ byName sync.Map } // by name: *adaptive.Limit

func (a *adaptives) of(limit string) *adaptive.Limit {
	v, there := a.byName.Load(limit)
	if !there {
		v, _ = a.byName.LoadOrStore(limit, new(adaptive.Limit))
	}
	return v.(*adaptive.Limit)
}

func (a *adaptives) add(d *store.Definition, s adaptive.Sample) (adaptive.State, time.Time) {
	c := target(&d.Base().Limit)
	return a.of(d.Name).Add(&c, s)
}

// The defaults of Adaptive, as it documents them.
const (
	defaultQuantile = 0.95
	defaultWindow   = time.Second
)

// target converts the settings of an adaptive limit to what its controller needs.
func target(l *Limit) adaptive.Config {
	const millionths = 1e6
	a := &l.Adaptive
	c := adaptive.Config{Floor: algebra.MulDiv(a.Floor, adaptive.Full, l.Rate, true), Slow: -1, Failed: -1}
	c.Window = cmp.Or(a.Window, defaultWindow).Microseconds()
	if a.Latency > 0 {
		c.Slow = int64(math.Round((1 - cmp.Or(a.Quantile, defaultQuantile)) * millionths))
	}
	if a.Errors > 0 {
		c.Failed = int64(math.Round(a.Errors * millionths))
	}
	return c
}

func (a *adaptives) price(g *store.Group) {
	for i := range g.Ops {
		if op := &g.Ops[i]; isAdaptive(op.Def) && op.Verb <= store.VerbCheck {
			if s, _ := a.add(op.Def, adaptive.Sample{}); s.Fraction < adaptive.Full {
				op.Fraction = s.Fraction
			}
		}
	}
}

// remained tells the controllers how many tokens of adaptive limits the answers have left.
func (a *adaptives) remained(g *store.Group) {
	for i := range g.Ops {
		if op := &g.Ops[i]; isAdaptive(op.Def) && op.Def.Mode <= store.Shadow && op.Source < store.SourceFallbackOpen {
			a.of(op.Def.Name).Remained(atPrice(op))
		}
	}
}

// atPrice returns how many tokens remain after an op, and the capacity, both counted at
// the op's price of a token. A full bucket counts as at least one token.
func atPrice(op *store.Op) (remaining, capacity int64) {
	r := &op.Def.Rule
	left := op.Remaining * r.Unit
	if op.TS != 0 {
		left = max(0, r.Cap-op.Used)
	}
	if op.Fraction == 0 {
		return left / r.Unit, r.Burst
	}
	tokens := func(units int64) int64 { return algebra.MulDiv(units, op.Fraction, adaptive.Full, false) / r.Unit }
	if capacity = max(1, tokens(r.Cap)); left >= r.Cap {
		return capacity, capacity
	}
	return tokens(left), capacity
}
