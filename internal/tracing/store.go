package tracing

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/dipwell/dipwell/store"
)

// Store makes a span for each batch of a traced call.
type Store struct {
	inner  store.Store
	tracer *Tracer
}

var _ store.Store = (*Store)(nil)

func (t *Tracer) Store(inner store.Store) store.Store { return &Store{inner, t} }

// Abilities are those of the inner store.
func (s *Store) Abilities() store.Abilities {
	ab := store.AbilitiesOf(s.inner)
	ab.Store, ab.Quick, ab.Lanes = s, nil, nil
	return ab
}

func (s *Store) Apply(ctx context.Context, b *store.Batch) error {
	if parent := trace.SpanFromContext(ctx); !parent.IsRecording() || len(b.Groups) != 1 {
		return s.inner.Apply(ctx, b)
	}
	g := &b.Groups[0]
	ctx, span := s.tracer.tracer.Start(ctx, name(g), trace.WithSpanKind(trace.SpanKindClient))
	defer span.End()
	err := s.inner.Apply(ctx, b)
	if len(g.Ops) == 1 {
		span.SetAttributes(s.tracer.about(&g.Ops[0])...)
	} else {
		for i := range g.Ops { // recorded as events, because a span has one value for each attribute
			span.AddEvent(g.Ops[i].Verb.String(), trace.WithAttributes(s.tracer.about(&g.Ops[i])...))
		}
	}
	failed := err
	if failed == nil {
		failed = g.Err
	}
	if failed != nil {
		span.SetStatus(codes.Error, "the store could not decide") // without the error's text, which may contain an address
	} else {
		span.SetAttributes(attribute.Bool("dipwell.allowed", g.Allowed || g.Cancel))
	}
	return err
}

func name(g *store.Group) string {
	switch {
	case g.Cancel:
		return "store cancel"
	case g.Hold != nil:
		return "store " + [...]string{store.MakeHold: "hold", store.SettleHold: "settle", store.ExtendHold: "extend"}[g.Hold.Verb]
	case len(g.Ops) == 0:
		return "store"
	}
	return "store " + g.Ops[0].Verb.String()
}

func (t *Tracer) about(op *store.Op) []attribute.KeyValue {
	out := []attribute.KeyValue{
		attribute.String("dipwell.limit", op.Def.Name), attribute.String("dipwell.verb", op.Verb.String()), attribute.Int64("dipwell.cost", op.Cost),
		attribute.Bool("dipwell.op_allowed", op.Allowed), attribute.Bool("dipwell.shadow", op.Shadow), attribute.String("dipwell.source", op.Source.String()),
	}
	if op.Def.Plan != "" {
		out = append(out, attribute.String("dipwell.plan", op.Def.Plan))
	}
	if op.Floor > 0 {
		out = append(out, attribute.Int64("dipwell.floor", op.Floor))
	}
	if op.Key != "" && t.redact != nil {
		out = append(out, attribute.String("dipwell.key", t.redact(op.Def.Name, op.Key)))
	}
	return out
}
