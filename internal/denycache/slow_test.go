package denycache_test

import (
	"context"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/denycache"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
)

// slow is a store with a delay before and after its decision.
type slow struct {
	store.Store
	there, back int64 // µs
	clock       int64 // µs, of the store and the process
}

func (s *slow) Abilities() store.Abilities { return store.AbilitiesOf(s.Store) }
func (s *slow) now() int64                 { return s.clock }

func (s *slow) Apply(ctx context.Context, b *store.Batch) error {
	s.clock += s.there
	err := s.Store.Apply(ctx, b)
	s.clock += s.back
	return err
}

var slowLimits = []store.Limit{
	{Name: "bucket", Rate: 1, Period: time.Second, Burst: 3},
	{Name: "fast", Rate: 7, Period: 10 * time.Millisecond, Burst: 20},
	{Name: "window", Algorithm: store.FixedWindow, Rate: 2, Period: 500 * time.Millisecond},
	{Name: "interval", Algorithm: store.Interval, Rate: 3, Period: 200 * time.Millisecond, Burst: 7},
	{Name: "leaky", Algorithm: store.LeakyBucket, Rate: 5, Period: time.Second, MaxDebt: 4},
}

// TestRefusalsOfSlowStore checks that the cache never refuses longer than the store,
// and never returns times too early, at whatever point of the round trip the store
// decided.
func TestRefusalsOfSlowStore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &slow{clock: start}
		inner, err := memstore.New(memstore.Config{Clock: s.now})
		if err != nil {
			t.Fatal(err)
		}
		defer inner.Close()
		s.Store = inner
		cache, err := denycache.New(s, denycache.Config{MaxAge: time.Minute, Clock: s.now})
		if err != nil {
			t.Fatal(err)
		}
		l, err := dipwell.New(cache, rapid.SampledFrom(slowLimits).Draw(t, "limit"))
		if err != nil {
			t.Fatal(err)
		}
		for range rapid.IntRange(1, 40).Draw(t, "calls") {
			s.clock += rapid.Int64Range(0, 300_000).Draw(t, "pass")
			slowCall(t, s, l)
		}
	})
}

func slowCall(t *rapid.T, s *slow, l *dipwell.Limiter) {
	name := l.Limits()[0].Name
	verb := rapid.SampledFrom([]store.Verb{store.VerbTake, store.VerbTakeUpTo, store.VerbCheck, store.VerbReserve}).Draw(t, "verb")
	cost := rapid.Int64Range(1, 4).Draw(t, "cost")
	s.there, s.back = rapid.Int64Range(0, 400_000).Draw(t, "there"), rapid.Int64Range(0, 400_000).Draw(t, "back")
	var d dipwell.Decision
	if err := l.Do(t.Context(), &d, verb, dipwell.Take{Limit: name, Key: "k", Cost: cost}); err != nil {
		t.Fatal(err)
	}
	if d.Source != store.SourceDenyCache {
		return
	}
	s.there, s.back = 0, 0
	if own := ask(t, l.With(s), withoutEffect(verb), name, cost); own.Allowed {
		t.Fatalf("%v %d: refused by the cache, allowed by the store", verb, cost)
	} else if own.RetryAfter > d.RetryAfter || own.ResetAfter > d.ResetAfter || own.Never != d.Never || own.Remaining < d.Remaining {
		t.Fatalf("%v %d: the cache says retry %v, reset %v, never %v, remaining %d; the store %v, %v, %v, %d", verb, cost,
			d.RetryAfter, d.ResetAfter, d.Never, d.Remaining, own.RetryAfter, own.ResetAfter, own.Never, own.Remaining)
	}
	if d.Never || rapid.Bool().Draw(t, "stays") {
		return
	}
	s.clock += d.RetryAfter.Microseconds()
	if again := ask(t, l, withoutEffect(verb), name, cost); !again.Allowed {
		t.Fatalf("%v %d at its retry time: refused by %v, retry after %v", verb, cost, again.Source, again.RetryAfter)
	}
}

// withoutEffect returns a verb that is refused when v is, and changes nothing.
func withoutEffect(v store.Verb) store.Verb {
	if v == store.VerbTake {
		return store.VerbCheck
	}
	return v
}

func ask(t *rapid.T, l *dipwell.Limiter, verb store.Verb, name string, cost int64) (d dipwell.Decision) {
	if err := l.Do(t.Context(), &d, verb, dipwell.Take{Limit: name, Key: "k", Cost: cost}); err != nil {
		t.Fatal(err)
	}
	return d
}
