package dipwell_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/memstore"
)

func Example() {
	ctx := context.Background()
	store, err := memstore.New(memstore.Config{})
	if err != nil {
		panic(err)
	}
	defer store.Close()
	limiter, err := dipwell.New(store, dipwell.Limit{Name: "login", Rate: 5, Period: time.Minute, Burst: 20})
	if err != nil {
		panic(err)
	}
	for _, n := range []int64{1, 15, 10} {
		d, err := limiter.Take(ctx, "login", "user:7", n)
		fmt.Println(d.Allowed, d.Remaining, d.RetryAfter.Round(time.Minute), err)
	}
	// Output:
	// true 19 0s <nil>
	// true 4 0s <nil>
	// false 4 1m0s <nil>
}

func ExampleLimiter_Take() {
	ctx := context.Background()
	store, err := memstore.New(memstore.Config{})
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := dipwell.New(store, dipwell.Limit{Name: "login", Rate: 5, Period: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	d, err := limiter.Take(ctx, "login", "user:7", 1)
	fmt.Println(d.Allowed, d.Remaining, d.RetryAfter, err) // an error means that the store could not decide
	// Output: true 4 0s <nil>
}
