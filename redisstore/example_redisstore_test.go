package redisstore_test

import (
	"context"
	"fmt"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/redistest"
	"github.com/dipwell/dipwell/redisstore"
)

// Two programs on one Redis share each bucket. The key's bucket is kept by the
// server and expires when it is full.
func Example() {
	ctx := context.Background()
	url := redistest.URL() // in a program: redis://localhost:6379
	for range 2 {
		store, err := redisstore.Open(ctx, url, redisstore.Config{Prefix: "shop"})
		if err != nil {
			panic(err)
		}
		defer store.Close()
		limiter, err := dipwell.New(store, dipwell.Limit{Name: "mail", Rate: 10, Period: time.Hour})
		if err != nil {
			panic(err)
		}
		d, err := limiter.Take(ctx, "mail", "user:7", 4)
		fmt.Println(d.Allowed, d.Remaining, err)
	}
	// Output:
	// true 6 <nil>
	// true 2 <nil>
}
