package coalesce_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/coalesce"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
)

func Example() {
	inner, err := memstore.New(memstore.Config{}) // or a store for each connection, over one database
	if err != nil {
		fmt.Println(err)
		return
	}
	defer inner.Close()
	over, err := coalesce.New(store.Lanes{Stores: []store.Store{inner}}, coalesce.Config{MaxBatch: 512})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer over.Close()
	limiter, err := dipwell.New(over, dipwell.Limit{Name: "api", Rate: 1, Period: time.Hour, Burst: 60})
	if err != nil {
		fmt.Println(err)
		return
	}
	var granted atomic.Int64
	var callers sync.WaitGroup
	for range 100 {
		callers.Go(func() {
			d, err := limiter.Take(context.Background(), "api", "user:7", 1)
			if err == nil && d.Allowed {
				granted.Add(1)
			}
		})
	}
	callers.Wait()
	fmt.Println(granted.Load(), "of 100 granted")
	// Output: 60 of 100 granted
}
