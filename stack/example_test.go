package stack_test

import (
	"context"
	"fmt"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/stack"
)

func Example() {
	ctx := context.Background()
	base, err := memstore.New(memstore.Config{}) // pgstore.Open or redisstore.Open in a program with several instances
	if err != nil {
		fmt.Println(err)
		return
	}
	defer base.Close()
	s, err := stack.New(ctx, base, stack.Options{DenyMaxAge: time.Second})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	limiter, err := dipwell.New(s.Store, dipwell.Limit{Name: "login", Rate: 5, Period: time.Hour, Burst: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 3 {
		d, err := limiter.Take(ctx, "login", "user:7", 1)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(d.Allowed, d.Source)
	}
	// Output:
	// true store
	// false store
	// false deny-cache
}
