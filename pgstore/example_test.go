package pgstore_test

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/pgstore"
)

// Rate-limiting inside the business transaction: when it rolls back, the tokens
// come back with everything else.
func Example_transaction() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/shop")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pool.Close()
	if _, err = pgstore.Migrate(ctx, pool, pgstore.MigrateOptions{}); err != nil {
		fmt.Println(err)
		return
	}
	store, err := pgstore.New(ctx, pool, pgstore.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	limiter, err := dipwell.New(store, dipwell.Limit{Name: "orders", Rate: 10, Period: time.Minute})
	if err != nil {
		fmt.Println(err)
		return
	}

	tx, err := pool.Begin(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer tx.Rollback(ctx) // gives the token back unless the order was placed
	d, err := limiter.With(store.With(tx)).Take(ctx, "orders", "customer:7", 1)
	if err != nil || !d.Allowed {
		fmt.Println("later:", d.RetryAfter, err)
		return
	}
	if _, err = tx.Exec(ctx, "insert into orders (customer) values (7)"); err == nil {
		err = tx.Commit(ctx)
	}
	fmt.Println(err)
}
