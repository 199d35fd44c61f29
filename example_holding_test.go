package dipwell_test

import (
	"context"
	"fmt"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/memstore"
)

// A request to a language model holds an estimate of its tokens, and settles to what it
// really used. The slots bound how many run at a time.
func ExampleLimiter_Holding() {
	store, err := memstore.New(memstore.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	limiter, err := dipwell.New(store,
		dipwell.Limit{Name: "tokens", Rate: 10000, Period: 24 * time.Hour},
		dipwell.Limit{Name: "slots", Algorithm: dipwell.Concurrency, Burst: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	takes := []dipwell.Take{{Limit: "tokens", Key: "acme", Cost: 3000}, {Limit: "slots", Key: "acme", Cost: 1}}
	d, err := limiter.Holding(ctx, time.Minute, takes, func(context.Context) ([]int64, error) {
		held, err := limiter.Check(ctx, "slots", "acme", 0)
		fmt.Println("slots while it runs:", held.Remaining)
		return []int64{2150, 1}, err
	})
	fmt.Println(d.Allowed, err)

	left, err := limiter.Check(ctx, "slots", "acme", 0)
	fmt.Println("slots afterwards:", left.Remaining, err)
	enough, err := limiter.Check(ctx, "tokens", "acme", 7850)
	fmt.Println("7850 tokens are left:", enough.Allowed, err)
	// Output:
	// slots while it runs: 1
	// true <nil>
	// slots afterwards: 2 <nil>
	// 7850 tokens are left: true <nil>
}
