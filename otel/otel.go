// Package otel counts the decisions of a dipwell.Limiter as OpenTelemetry metrics. It is a
// module of its own, so that dipwell needs no OpenTelemetry.
package otel

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/dipwell/dipwell/store"
)

// observed is a store that counts what the store in it decides.
type observed struct {
	store.Store
	decisions metric.Int64Counter
	seconds   metric.Float64Histogram
}

// Observed returns a store to make a Limiter of. It has the abilities of inner, but every
// call goes through Apply. Attributes are names of limits and never keys, of which there
// is no end.
func Observed(inner store.Store, m metric.Meter) (store.Store, error) {
	decisions, err := m.Int64Counter("dipwell.decisions", metric.WithUnit("{decision}"))
	if err != nil {
		return nil, err
	}
	seconds, err := m.Float64Histogram("dipwell.store.duration", metric.WithUnit("s"),
		metric.WithExplicitBucketBoundaries(.00001, .0001, .0005, .001, .0025, .005, .01, .025, .05, .1, .5, 1))
	return &observed{inner, decisions, seconds}, err
}

func (o *observed) Abilities() store.Abilities { return store.AbilitiesOf(o.Store) }

func (o *observed) Apply(ctx context.Context, b *store.Batch) error {
	begin := time.Now()
	err := o.Store.Apply(ctx, b)
	o.seconds.Record(ctx, time.Since(begin).Seconds())
	for i := range b.Groups {
		for j := range b.Groups[i].Ops {
			op, result := &b.Groups[i].Ops[j], "refused"
			switch {
			case err != nil || b.Groups[i].Err != nil:
				result = "error"
			case op.Shadow:
				result = "shadow"
			case op.Allowed:
				result = "allowed"
			}
			o.decisions.Add(ctx, 1, metric.WithAttributes(attribute.String("limit", op.Def.Name),
				attribute.String("verb", op.Verb.String()), attribute.String("result", result)))
		}
	}
	return err
}
