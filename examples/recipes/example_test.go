// Package recipes shows limits for common work, as programs that are tested.
package recipes

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/httplimit"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
)

var ctx = context.Background()

// newLimiter is a limiter in memory whose clock stands still, so that the
// examples print the same each time. Leave Clock out in a program.
func newLimiter(limits ...dipwell.Limit) *dipwell.Limiter {
	return newLimiterAt(func() int64 { return 1_800_000_000_000_000 }, limits...)
}

func newLimiterAt(clock func() int64, limits ...dipwell.Limit) *dipwell.Limiter {
	store, err := memstore.New(memstore.Config{Clock: clock})
	if err != nil {
		panic(err)
	}
	l, err := dipwell.New(store, limits...)
	if err != nil {
		panic(err)
	}
	return l
}

// Failed logins count, good ones do not: check before the password is looked
// at, charge when it was wrong. Two limits guard the account and the address.
func Example_failedLogins() {
	l := newLimiter(
		dipwell.Limit{Name: "login-account", Rate: 5, Period: 15 * time.Minute},
		dipwell.Limit{Name: "login-address", Rate: 50, Period: time.Hour},
	)
	login := func(user, addr, password string) string {
		var d dipwell.Decision
		err := l.DoAll(ctx, &d, store.VerbCheck, []dipwell.Take{
			{Limit: "login-account", Key: user, Cost: 1},
			{Limit: "login-address", Key: addr, Cost: 1},
		})
		switch {
		case err != nil:
			return "try again later" // we do not know, and a login fails closed
		case !d.Allowed:
			return fmt.Sprintf("locked by %s for %v", d.Limit, d.RetryAfter)
		case password == "secret":
			return "welcome"
		}
		// Charge, not Take: several wrong passwords that raced past the check all count.
		l.Charge(ctx, "login-account", user, 1)
		l.Charge(ctx, "login-address", addr, 1)
		return "wrong password"
	}
	for range 5 {
		login("ann", "192.0.2.7", "guess")
	}
	fmt.Println(login("ann", "192.0.2.7", "secret"))
	fmt.Println(login("bob", "192.0.2.7", "secret"))
	// Output:
	// locked by login-account for 3m0s
	// welcome
}

// A global sign-up limit is shared: it has one bucket for everybody.
func Example_globalSignUps() {
	l := newLimiter(dipwell.Limit{Name: "sign-ups", Rate: 100, Period: time.Hour, Burst: 2, Shared: true})
	for range 3 {
		d, _ := l.Take(ctx, "sign-ups", dipwell.Shared, 1)
		fmt.Println(d.Allowed, d.RetryAfter)
	}
	// A key is an error here, as a missing one is for limits that are not shared.
	_, err := l.Take(ctx, "sign-ups", "ann", 1)
	var bad *dipwell.FieldError
	fmt.Println(errors.As(err, &bad), bad.Field)
	// Output:
	// true 0s
	// true 0s
	// false 36s
	// true key
}

// Anonymous sessions are free to make, so limiting by session alone limits
// nobody. One call asks for the session and for the address it came from; if
// either refuses, neither is charged.
func Example_anonymousSessions() {
	l := newLimiter(
		dipwell.Limit{Name: "session", Rate: 10, Period: time.Second},
		dipwell.Limit{Name: "address", Rate: 20, Period: time.Second},
	)
	allowed := 0
	for i := range 30 { // a new session for each request
		d, _ := l.TakeAll(ctx,
			dipwell.Take{Limit: "session", Key: fmt.Sprint("s", i), Cost: 1},
			dipwell.Take{Limit: "address", Key: "192.0.2.7", Cost: 1})
		if d.Allowed {
			allowed++
		}
	}
	fmt.Println(allowed)
	// Output: 20
}

// Work of a known cost is scheduled rather than refused: reserve, and start after the delay.
func Example_scheduled() {
	l := newLimiter(dipwell.Limit{Name: "pages", Rate: 60, Period: time.Minute, MaxDebt: 120})
	for range 3 {
		d, _ := l.Reserve(ctx, "pages", "acme", 50)
		fmt.Println(d.Allowed, "start after", d.Delay) // time.Sleep(d.Delay), then the work
	}
	// A caller who gives up before its turn cancels, and the next one moves up.
	d, _ := l.Reserve(ctx, "pages", "acme", 30)
	fmt.Println(d.Delay, l.Cancel(ctx, d.Reservation), l.Cancel(ctx, d.Reservation))
	// Output:
	// true start after 0s
	// true start after 40s
	// true start after 1m30s
	// 2m0s <nil> the reservation is unknown, spent, due or reset
}

// Requests and tokens a minute: the estimate is held, and settled to what was used.
func Example_holdTheEstimate() {
	l := newLimiter(
		dipwell.Limit{Name: "requests", Rate: 500, Period: time.Minute},
		dipwell.Limit{Name: "tokens", Rate: 60_000, Period: time.Minute},
	)
	ask := func(_ context.Context, used int64) (int64, error) { return used, nil }
	call := func(customer string, estimate, used int64) error {
		d, err := l.Holding(ctx, 30*time.Second, []dipwell.Take{
			{Limit: "requests", Key: customer, Cost: 1},
			{Limit: "tokens", Key: customer, Cost: estimate},
		}, func(ctx context.Context) ([]int64, error) {
			used, err := ask(ctx, used) // the model, which says what it used
			return []int64{1, used}, err
		})
		if err == nil {
			err = d.Err() // a refusal
		}
		return err
	}
	fmt.Println(call("acme", 50_000, 20_000))
	fmt.Println(call("acme", 35_000, 39_000)) // more than estimated is charged
	fmt.Println(call("acme", 35_000, 35_000))
	// Output:
	// <nil>
	// <nil>
	// rate limited by tokens: retry after 34s
}

// A call of a model counts against two limits: requests and tokens. Both are held
// together, and settled to what was used when the answer is there.
func Example_requestsAndTokens() {
	l := newLimiter(
		dipwell.Limit{Name: "requests", Rate: 5, Period: time.Minute},
		dipwell.Limit{Name: "tokens", Rate: 60_000, Period: time.Minute, Burst: 100_000},
	)
	call := func(customer string, estimate, used int64) error {
		d, err := l.Hold(ctx, 5*time.Minute, "", []dipwell.Take{
			{Limit: "requests", Key: customer, Cost: 1},
			{Limit: "tokens", Key: customer, Cost: estimate},
		}...)
		if err != nil {
			return err
		}
		if !d.Allowed {
			return fmt.Errorf("limit %s: again in %v", d.Limit, d.RetryAfter)
		}
		// Ask the model here. If it fails, settle with 0 tokens.
		_, err = l.Settle(ctx, d.Hold, 1, used)
		return err
	}
	fmt.Println(call("acme", 50_000, 30_000)) // 70,000 are left
	fmt.Println(call("acme", 50_000, 52_000)) // 18,000
	fmt.Println(call("acme", 50_000, 50_000))
	d, err := l.Check(ctx, "tokens", "acme", 0)
	fmt.Println(d.Remaining, err)
	// Output:
	// <nil>
	// <nil>
	// limit tokens: again in 32s
	// 18000 <nil>
}

// One limit, with a plan for each kind of customer.
func Example_limitsByPlan() {
	l := newLimiter(dipwell.Limit{Name: "api", Rate: 60, Period: time.Minute, Burst: 10, Plans: dipwell.NewPlans(
		dipwell.Plan{Name: "pro", Rate: 600, Burst: 1000},
		dipwell.Plan{Name: "staff", Mode: dipwell.Unlimited, OverrideOnly: true},
		dipwell.Plan{Name: "banned", Mode: dipwell.Blocked},
	)})
	plans := map[string]string{"bob": "", "acme": "pro"}
	for _, customer := range []string{"bob", "acme"} {
		var d dipwell.Decision
		err := l.Do(ctx, &d, store.VerbTakeUpTo, dipwell.Take{Limit: "api", Key: customer, Cost: 50, Plan: plans[customer]})
		fmt.Println(customer, d.Granted, d.Remaining, err)
	}
	plans["bob"] = "pro" // an upgrade: what he has used stays used
	d, err := l.TakeAll(ctx, dipwell.Take{Limit: "api", Key: "bob", Cost: 50, Plan: plans["bob"]})
	fmt.Println("bob", d.Granted, d.Remaining, err)
	// Output:
	// bob 10 0 <nil>
	// acme 50 950 <nil>
	// bob 50 940 <nil>
}

// One middleware for all plans.
func Example_middlewareByPlan() {
	limiter := newLimiter(dipwell.Limit{Name: "api", Rate: 60, Period: time.Minute, Burst: 1,
		Plans: dipwell.NewPlans(dipwell.Plan{Name: "pro", Rate: 600, Burst: 2})})
	plans := map[string]string{"acme": "pro"}
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") })

	wrap, err := httplimit.New(limiter, httplimit.Config{
		Skip: func(r *http.Request) bool { return r.URL.Path == "/healthz" },
		Limits: []httplimit.Limit{{
			Name: "api",
			Key:  httplimit.Header("X-Account"), // of an account that you have authenticated
			Plan: func(r *http.Request) string { return plans[r.Header.Get("X-Account")] },
		}},
	})
	if err != nil {
		panic(err)
	}
	limited := wrap(handler)

	for _, account := range []string{"bob", "bob", "acme", "acme", "acme"} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("X-Account", account)
		w := httptest.NewRecorder()
		limited.ServeHTTP(w, r)
		fmt.Println(account, w.Code)
	}
	// Output:
	// bob 200
	// bob 429
	// acme 200
	// acme 200
	// acme 429
}

// A customer is raised for an hour. Nothing else about the limit changes.
func Example_raiseOneCustomer() {
	l := newLimiter(dipwell.Limit{Name: "api", Rate: 60, Period: time.Minute, Burst: 10})
	for range 10 {
		_, _ = l.Take(ctx, "api", "cust-7", 1)
	}
	d, err := l.Take(ctx, "api", "cust-7", 1)
	fmt.Println(d.Allowed, d.RetryAfter, err)
	now := time.UnixMicro(1_800_000_000_000_000) // time.Now()
	o, err := l.SetOverride(ctx, "api", dipwell.Override{Key: "cust-7", Rate: 600, Burst: 1000,
		Until: now.Add(time.Hour).UnixMicro(), Note: "ticket 81"})
	if err != nil {
		panic(err)
	}
	d, err = l.Take(ctx, "api", o.Key, 1)
	fmt.Println(d.Allowed, d.Capacity, d.Remaining, err)
	ended, err := l.EndOverride(ctx, "api", "cust-7", dipwell.AnyOverride)
	fmt.Println(ended.Note, err)
	// Output:
	// false 1s <nil>
	// true 1000 989 <nil>
	// ticket 81 <nil>
}

// Costs are whole numbers. Where a cheap call costs half of a dear one, count
// in halves: 10 a second with half-unit costs is a rate of 20.
func Example_halfUnits() {
	const half, one = 1, 2
	l := newLimiter(dipwell.Limit{Name: "api", Rate: 10 * one, Period: time.Second})
	d, _ := l.Take(ctx, "api", "user:7", 9*one)
	fmt.Println(d.Allowed, d.Remaining)
	d, _ = l.Take(ctx, "api", "user:7", half)
	fmt.Println(d.Allowed, d.Remaining)
	d, _ = l.Take(ctx, "api", "user:7", one)
	fmt.Println(d.Allowed, d.RetryAfter)
	// Output:
	// true 2
	// true 1
	// false 50ms
}

// Credit for quiet times: 100 a second, and what was not used during the last
// five minutes may be used at once.
func Example_burstCredit() {
	l := newLimiter(dipwell.Limit{Name: "api", Rate: 100, Period: time.Second, Burst: 100 * 5 * 60})
	d, _ := l.TakeUpTo(ctx, "api", "user:7", 1_000_000)
	fmt.Println(d.Granted)
	// Output: 30000
}

// A daily quota that turns at midnight in Rome, where days have 23 or 25 hours
// twice a year.
func Example_dailyQuota() {
	l := newLimiter(dipwell.Limit{Name: "quota", Algorithm: dipwell.FixedWindow,
		Rate: 1000, Period: 24 * time.Hour, Start: "00:00 Europe/Rome"})
	l.Take(ctx, "quota", "acme", 1000)
	d, _ := l.Take(ctx, "quota", "acme", 1)
	fmt.Println(d.Allowed, d.RetryAfter)
	// Output: false 15h0m0s
}
