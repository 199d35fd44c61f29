package away_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/away"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
)

// remote is a store that can be made to fail.
type remote struct {
	*memstore.Store
	away bool
}

func (r *remote) Apply(ctx context.Context, b *store.Batch) error {
	if r.away {
		return errors.New("connection refused")
	}
	return r.Store.Apply(ctx, b)
}

func Example() {
	mem, err := memstore.New(memstore.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer mem.Close()
	inner := &remote{Store: mem}
	store, err := away.NewFallback(inner, away.FallbackConfig{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	limiter, err := dipwell.New(store, dipwell.Limit{
		Name: "api", Rate: 1, Period: time.Hour, Burst: 3, OnStoreError: dipwell.FailLocal,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for i := range 5 {
		inner.away = i == 2 || i == 3
		d, err := limiter.Take(context.Background(), "api", "user:7", 1)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(d.Allowed, d.Source)
	}
	// Output:
	// true store
	// true store
	// true fallback-local
	// false fallback-local
	// true store
}
