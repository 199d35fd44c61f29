package coalesce_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dipwell/dipwell/internal/coalesce"
	"github.com/dipwell/dipwell/store"
)

// slow is like a store behind a network: each statement takes 100 µs, whatever its
// size, and runs alone.
type slow struct {
	mu         sync.Mutex
	statements int
}

func (s *slow) Apply(_ context.Context, b *store.Batch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.statements++
	for start := time.Now(); time.Since(start) < 100*time.Microsecond; {
	}
	for i := range b.Groups {
		b.Groups[i].Allowed = true
	}
	return nil
}

// free answers at once, so that a benchmark measures the cost of coalescing.
type free struct{}

func (free) Apply(_ context.Context, b *store.Batch) error {
	for i := range b.Groups {
		b.Groups[i].Allowed = true
	}
	return nil
}

func BenchmarkApply(b *testing.B) {
	for _, callers := range []int{1, 8, 64, 512} {
		b.Run(fmt.Sprintf("direct/%d", callers), func(b *testing.B) { load(b, callers, &slow{}) })
		b.Run(fmt.Sprintf("coalesced/%d", callers), func(b *testing.B) {
			inner := &slow{}
			s, _ := coalesce.New(store.Lanes{Stores: []store.Store{inner}}, coalesce.Config{})
			load(b, callers, s)
			b.ReportMetric(float64(b.N)/float64(inner.statements), "groups/statement")
		})
		b.Run(fmt.Sprintf("overhead/%d", callers), func(b *testing.B) {
			s, _ := coalesce.New(store.Lanes{Stores: []store.Store{free{}}}, coalesce.Config{})
			load(b, callers, s)
		})
	}
}

// load makes b.N calls from a number of goroutines.
func load(b *testing.B, callers int, s store.Store) {
	b.ReportAllocs()
	ctx := context.Background()
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	b.ResetTimer()
	for range callers {
		wg.Go(func() {
			var batch store.Batch
			for left.Add(-1) >= 0 {
				g, op := batch.Single()
				op.Def, op.Key, op.Cost = def, "user:7", 1
				if err := s.Apply(ctx, &batch); err != nil || g.Err != nil || !g.Allowed {
					b.Error(err, g.Err)
				}
			}
		})
	}
	wg.Wait()
}
