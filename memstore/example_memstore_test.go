package memstore_test

import (
	"context"
	"fmt"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/memstore"
)

// The test sets the clock of the store.
func Example() {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
	store, err := memstore.New(memstore.Config{Clock: func() int64 { return now }})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	limiter, err := dipwell.New(store, dipwell.Limit{Name: "login", Rate: 5, Period: time.Minute, Burst: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 4 {
		d, err := limiter.Take(context.Background(), "login", "user:7", 1)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(d.Allowed, d.RetryAfter)
		now += (5 * time.Second).Microseconds()
	}
	for _, m := range store.Abilities().Metrics() {
		if m.Name == "dipwell_keys" {
			fmt.Println(m.Value, "key")
		}
	}
	// Output:
	// true 0s
	// true 0s
	// false 2s
	// true 0s
	// 1 key
}
