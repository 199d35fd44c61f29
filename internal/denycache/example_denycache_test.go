package denycache_test

import (
	"context"
	"fmt"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/denycache"
	"github.com/dipwell/dipwell/memstore"
)

func Example() {
	inner, err := memstore.New(memstore.Config{}) // usually a store behind a network
	if err != nil {
		fmt.Println(err)
		return
	}
	defer inner.Close()
	store, err := denycache.New(inner, denycache.Config{MaxAge: time.Second})
	if err != nil {
		fmt.Println(err)
		return
	}
	limiter, err := dipwell.New(store, dipwell.Limit{Name: "login", Rate: 1, Period: time.Hour, Burst: 2})
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
		fmt.Println(d.Allowed, d.Source)
	}
	// Output:
	// true store
	// true store
	// false store
	// false deny-cache
}
