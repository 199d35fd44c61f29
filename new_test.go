package dipwell_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// hung is a store that keeps limits and never answers.
type hung struct{ reg store.Registry }

func (h *hung) Apply(ctx context.Context, _ *store.Batch) error { <-ctx.Done(); return ctx.Err() }
func (h *hung) Abilities() store.Abilities                      { return store.Abilities{Limits: h} }
func (h *hung) Registry() *store.Registry                       { return &h.reg }
func (h *hung) Drop(ctx context.Context, _, _ string) error     { <-ctx.Done(); return ctx.Err() }
func (h *hung) Define(ctx context.Context, _ store.Limit, _ string) (*store.Definition, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestNewIsBounded: over a store that hangs New ends after 30 seconds, whatever
// the number of limits, and NewContext with its context.
func TestNewIsBounded(t *testing.T) {
	limits := []store.Limit{{Name: "a", Rate: 1, Period: time.Second}, {Name: "b", Rate: 1, Period: time.Second}}
	for bound, build := range map[time.Duration]func() error{
		30 * time.Second: func() error { _, err := dipwell.New(new(hung), limits...); return err },
		time.Second: func() error {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_, err := dipwell.NewContext(ctx, new(hung), limits...)
			return err
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			if err := build(); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != bound {
				t.Errorf("after %v: %v", time.Since(start), err)
			}
		})
	}
}
