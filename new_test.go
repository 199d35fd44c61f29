package dipwell_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
)

// hangingDefiner is a store with limits that never answers.
type hangingDefiner struct{ reg store.Registry }

func (h *hangingDefiner) Apply(ctx context.Context, _ *store.Batch) error {
	<-ctx.Done()
	return ctx.Err()
}
func (h *hangingDefiner) Abilities() store.Abilities                  { return store.Abilities{Limits: h} }
func (h *hangingDefiner) Registry() *store.Registry                   { return &h.reg }
func (h *hangingDefiner) Drop(ctx context.Context, _, _ string) error { <-ctx.Done(); return ctx.Err() }
func (h *hangingDefiner) Define(ctx context.Context, _ store.Limit, _ string) (*store.Definition, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestNewIsBounded checks that New over a store that hangs returns after 30 seconds,
// whatever the number of limits, and Define when its context ends.
func TestNewIsBounded(t *testing.T) {
	limits := []store.Limit{{Name: "a", Rate: 1, Period: time.Second}, {Name: "b", Rate: 1, Period: time.Second}}
	for bound, build := range map[time.Duration]func() error{
		30 * time.Second: func() error { _, err := dipwell.New(new(hangingDefiner), limits...); return err },
		time.Second: func() error {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			l, err := dipwell.New(new(hangingDefiner))
			if err == nil {
				_, err = l.Define(ctx, limits[0], store.OwnerCode)
			}
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

// TestNewWithALimitTwice checks that two limits of one name are an error, and that nothing
// is defined.
func TestNewWithALimitTwice(t *testing.T) {
	s, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	limit := dipwell.Limit{Name: "login", Rate: 5, Period: time.Minute}
	_, err = dipwell.New(s, limit, dipwell.Limit{Name: "login", Rate: 50, Period: time.Hour})
	if err == nil || err.Error() != "limit login: name: is given twice" {
		t.Error(err)
	}
	if l, err := dipwell.New(s); err != nil || len(l.Limits()) > 0 {
		t.Errorf("%v, %v", l.Limits(), err)
	}
}
