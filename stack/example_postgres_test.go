package stack_test

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/stack"
)

// What dipwell serve does with its default settings, in a Go program.
func Example_postgres() {
	ctx := context.Background()
	url := pgtest.URL()                   // in a program: postgres://shop@db/shop
	if err := migrated(url); err != nil { // in a shell: dipwell migrate up --store postgres://shop@db/shop
		fmt.Println(err)
		return
	}

	base, err := pgstore.Open(ctx, url, pgstore.Config{
		Lazy:  true, // start although the database does not answer
		Sweep: true, // delete full rows in the background
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer base.Close()
	s, err := stack.New(ctx, base, stack.Options{
		Breaker:    true,
		DenyMaxAge: time.Second,
		Leases:     true,
		Fallback:   true,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close() // before the store
	limiter, err := dipwell.New(s.Store, dipwell.Limit{Name: "login", Rate: 5, Period: time.Hour, Burst: 2})
	if err != nil {
		fmt.Println(err)
		return
	}

	for range 4 {
		d, err := limiter.Take(ctx, "login", "user:7", 1)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(d.Allowed, d.Source)
	}

	// In a transaction of the program the same limiter is used without the stack.
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close(ctx)
	tx, err := conn.Begin(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	d, err := limiter.With(base.With(tx)).Take(ctx, "login", "user:8", 2)
	fmt.Println(d.Allowed, d.Remaining, err)
	if err := tx.Rollback(ctx); err != nil {
		fmt.Println(err)
		return
	}
	d, err = limiter.Check(ctx, "login", "user:8", 2)
	fmt.Println(d.Allowed, d.Remaining, err)
	// Output:
	// true store
	// true store
	// false store
	// false deny-cache
	// true 0 <nil>
	// true 2 <nil>
}
