package dipwell_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/memstore"
)

// silent never answers.
type silent struct{}

func (silent) Apply(ctx context.Context, _ *dipwell.Batch) error {
	<-ctx.Done()
	return ctx.Err()
}

// Memory needs no timeout. Another store that takes its place does.
func TestWithKeepsTheTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, err := memstore.New(memstore.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		l, err := dipwell.New(store, dipwell.Limit{Name: "api", Rate: 1, Period: time.Hour, Timeout: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		if d, err := l.With(silent{}).Take(ctx, "api", "k", 1); !errors.Is(err, dipwell.ErrStore) || d.Allowed || time.Since(start) != time.Second {
			t.Errorf("after %v: %+v, %v", time.Since(start), d, err)
		}
	})
}
