package pgstore_test

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/pgstore"
)

// A token is taken in the transaction that it allows. If the transaction rolls
// back, the token comes back with everything else.
func Example_transaction() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, pgtest.URL()) // in a program: postgres://localhost/shop
	if err != nil {
		panic(err)
	}
	defer pool.Close()
	if _, err = pool.Exec(ctx, "create table orders (customer int not null, item text not null)"); err != nil {
		panic(err)
	}
	if _, err = pgstore.Migrate(ctx, pool, pgstore.MigrateOptions{}); err != nil { // or: dipwell migrate up
		panic(err)
	}
	store, err := pgstore.New(ctx, pool, pgstore.Config{})
	if err != nil {
		panic(err)
	}
	defer store.Close()
	limiter, err := dipwell.New(store, dipwell.Limit{Name: "orders", Rate: 10, Period: time.Hour})
	if err != nil {
		panic(err)
	}
	order := func(item any) error {
		tx, err := pool.Begin(ctx)
		if err != nil {
			return err
		}
		defer tx.Rollback(ctx) // gives the token back unless the order was placed
		d, err := limiter.With(store.With(tx)).Take(ctx, "orders", "customer:7", 1)
		if err != nil {
			return err
		}
		if !d.Allowed {
			return fmt.Errorf("too many orders; again in %v", d.RetryAfter)
		}
		if _, err = tx.Exec(ctx, "insert into orders (customer, item) values (7, $1)", item); err != nil {
			return err
		}
		return tx.Commit(ctx)
	}
	fmt.Println(order("a pump"))
	fmt.Println(order(nil) != nil) // item must not be null
	d, err := limiter.Check(ctx, "orders", "customer:7", 1)
	fmt.Println(d.Remaining, err)
	// Output:
	// <nil>
	// true
	// 9 <nil>
}
