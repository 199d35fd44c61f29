package recipes

import (
	"fmt"
	"time"

	"github.com/dipwell/dipwell"
)

// Jobs that call a partner are scheduled at the time at which they may run, so no worker
// sleeps. A refusal means that the queue of that partner is full.
func Example_webhooks() {
	l := newLimiter(dipwell.Limit{Name: "webhooks", Rate: 2, Period: time.Second, Burst: 2, MaxDebt: 3})
	schedule := func(endpoint string) string {
		d, err := l.Reserve(ctx, "webhooks", endpoint, 1)
		switch {
		case err != nil:
			return "try again later" // the store could not decide
		case !d.Allowed:
			return fmt.Sprint("put back for ", d.RetryAfter)
		}
		return fmt.Sprint("run in ", d.Delay) // keep d.Reservation with the job, to cancel it
	}
	for range 6 {
		fmt.Println(schedule("https://shop.example/hook"))
	}
	// Output:
	// run in 0s
	// run in 0s
	// run in 500ms
	// run in 1s
	// run in 1.5s
	// put back for 500ms
}

// E-mail has a quota for a day and a pace. One call takes from both, so a mail that has to
// wait for its pace is not counted against the day.
func Example_mail() {
	l := newLimiter(
		dipwell.Limit{Name: "mail-day", Algorithm: dipwell.FixedWindow, Rate: 500, Period: 24 * time.Hour, Start: "00:00 UTC"},
		dipwell.Limit{Name: "mail-pace", Rate: 10, Period: time.Minute, Burst: 2},
	)
	for range 3 {
		d, err := l.TakeAll(ctx,
			dipwell.Take{Limit: "mail-day", Key: "acme", Cost: 1},
			dipwell.Take{Limit: "mail-pace", Key: "acme", Cost: 1})
		fmt.Println(d.Allowed, d.Limit, d.RetryAfter, err)
	}
	d, err := l.Check(ctx, "mail-day", "acme", 1)
	fmt.Println(d.Remaining, "left today", err)
	// Output:
	// true mail-pace 0s <nil>
	// true mail-pace 0s <nil>
	// false mail-pace 6s <nil>
	// 498 left today <nil>
}

// A free tier of calls a month, and a paid one.
func Example_freeTier() {
	l := newLimiter(dipwell.Limit{Name: "calls", Algorithm: dipwell.FixedWindow, Rate: 1000, Period: dipwell.Month, Start: "00:00 UTC",
		Plans: dipwell.NewPlans(dipwell.Plan{Name: "paid", Rate: 100_000})})
	for _, plan := range []string{"", "paid"} { // of the account, as your program knows it
		d, err := l.TakeAll(ctx, dipwell.Take{Limit: "calls", Key: "acme", Cost: 1000, Plan: plan})
		fmt.Println(d.Allowed, d.Remaining, err)
	}
	// Output:
	// true 0 <nil>
	// true 98000 <nil>
}

// A query of GraphQL costs what it may read. One that costs more than the whole burst
// would never be allowed, so it is a mistake of the caller and not a reason to wait.
func Example_graphQL() {
	l := newLimiter(dipwell.Limit{Name: "graphql", Rate: 1000, Period: time.Minute})
	for _, cost := range []int64{600, 600, 1001} { // computed from the query, before it runs
		d, err := l.Take(ctx, "graphql", "acme", cost)
		switch {
		case err != nil:
			fmt.Println(503, err)
		case d.Never:
			fmt.Println(400, "the query may cost", d.Capacity)
		case !d.Allowed:
			fmt.Println(429, "again in", d.RetryAfter)
		default:
			fmt.Println(200, d.Remaining)
		}
	}
	// Output:
	// 200 400
	// 429 again in 12s
	// 400 the query may cost 1000
}
