package recipes

import (
	"fmt"
	"time"

	"github.com/dipwell/dipwell"
)

// In place of a map of golang.org/x/time/rate's limiters.
func Example_fromTimeRate() {
	// rate.NewLimiter(10, 20) for each key
	limiter := newLimiter(dipwell.Limit{Name: "api", Rate: 10, Period: time.Second, Burst: 20})

	d, err := limiter.Take(ctx, "api", "user:7", 1) // limiterOf("user:7").Allow()
	fmt.Println(d.Allowed, err)

	d, err = limiter.Reserve(ctx, "api", "user:7", 20) // .ReserveN(time.Now(), 20)
	fmt.Println(d.Allowed, d.Delay, err)               // .OK(), .Delay()

	err = limiter.Cancel(ctx, d.Reservation) // .Cancel()
	fmt.Println(err)

	d, err = limiter.Check(ctx, "api", "user:7", 0) // .Tokens()
	fmt.Println(d.Remaining, err)
	// Output:
	// true <nil>
	// true 100ms <nil>
	// <nil>
	// 19 <nil>
}

// In place of github.com/go-redis/redis_rate: the limit has a name, and the call its key.
func Example_fromRedisRate() {
	limiter := newLimiter(dipwell.Limit{Name: "login", Rate: 5, Period: time.Minute}) // redis_rate.PerMinute(5)

	d, err := limiter.Take(ctx, "login", "user:7", 2) // AllowN(ctx, "login:user:7", limit, 2)
	fmt.Println(d.Granted, d.Remaining, err)          // Allowed, Remaining

	d, err = limiter.TakeUpTo(ctx, "login", "user:7", 9) // AllowAtMost(ctx, "login:user:7", limit, 9)
	fmt.Println(d.Granted, d.ResetAfter, err)

	d, err = limiter.Take(ctx, "login", "user:7", 1)
	fmt.Println(d.Allowed, d.RetryAfter, err)
	// Output:
	// 2 3 <nil>
	// 3 1m0s <nil>
	// false 12s <nil>
}
