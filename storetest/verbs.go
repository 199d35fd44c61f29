package storetest

import (
	"errors"
	"strings"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// verbCases test each verb.
var verbCases = []testCase{
	{"take", takeCase},
	{"check", checkCase},
	{"take-up-to", takeUpToCase},
	{"charge", chargeCase},
	{"refund", refundCase},
	{"reset", resetCase},
	{"cost-zero", costZero},
	{"retry-exact", retryExact},
	{"leaky-bucket", leakyBucket},
	{"shadow", shadowCase},
	{"bad-input", badInput},
	{"unlimited-debt", unlimitedDebt},
	{"call-site-definition", callSite},
	{"coarse-ticks", coarseTicks},
}

func takeCase(e *env) {
	e.bucket("t", 3, 7*time.Second, 5)
	e.allowed("t", "k", 0, 5)
	e.allowed("t", "k", 5, 0)
	e.refused("t", "k", 1, 2333334*time.Microsecond)
	e.refused("t", "k", 5, 11666667*time.Microsecond)
	e.advance(2333333 * time.Microsecond)
	e.refused("t", "k", 1, time.Microsecond)
	e.advance(time.Microsecond)
	e.allowed("t", "k", 1, 0)
	e.advance(time.Hour)
	e.allowed("t", "k", 5, 0)
	e.takeNever("t", "k", 6)
}

func checkCase(e *env) {
	e.bucket("c", 1, time.Second, 5)
	for range 3 {
		if d := e.check("c", "k", 5); !d.Allowed || d.Granted != 0 || d.Remaining != 5 || d.ResetAfter != 0 {
			e.Fatalf("a check of a fresh key: %+v", d)
		}
	}
	e.allowed("c", "k", 4, 1)
	if d := e.check("c", "k", 2); d.Allowed || d.RetryAfter != time.Second || d.Remaining != 1 {
		e.Fatalf("a check of more than there is: %+v", d)
	}
	e.allowed("c", "k", 1, 0)
}

func takeUpToCase(e *env) {
	e.bucket("u", 1, time.Second, 5)
	for _, c := range []struct{ ask, want int64 }{{3, 3}, {3, 2}, {3, 0}} {
		d := e.do(store.VerbTakeUpTo, "u", "k", c.ask)
		if d.Granted != c.want || d.Allowed != (c.want > 0) {
			e.Fatalf("take_up_to %d: granted %d, want %d", c.ask, d.Granted, c.want)
		}
	}
	e.advance(999999 * time.Microsecond)
	if d := e.do(store.VerbTakeUpTo, "u", "k", 3); d.Allowed || d.RetryAfter != time.Microsecond {
		e.Fatalf("take_up_to without a whole token: %+v", d)
	}
	e.advance(1500001 * time.Microsecond)
	if d := e.do(store.VerbTakeUpTo, "u", "k", store.MaxInt); d.Granted != 2 {
		e.Fatalf("take_up_to with 2.5 tokens left granted %d", d.Granted)
	}
	e.do(store.VerbTakeUpTo, "u", "k", 0)
	e.do(store.VerbTakeUpTo, "u", "fresh", 0)
	e.advance(500 * time.Millisecond)
	e.allowed("u", "k", 1, 0) // the fraction of a token was kept
}

func chargeCase(e *env) {
	e.define(store.Limit{Name: "c", Rate: 1, Period: time.Second, Burst: 5, MaxDebt: store.NoDebt})
	e.do(store.VerbCharge, "c", "k", 3)
	e.left("c", "k", 2)
	if d := e.do(store.VerbCharge, "c", "k", 50); !d.Allowed || d.Granted != 50 || d.Remaining != 0 || d.ResetAfter != 53*time.Second {
		e.Fatalf("a charge of ten bursts: %+v", d)
	}
	if d, err := e.l.Charge(e.ctx, "c", "k", 51); err == nil {
		e.Fatalf("a charge above ten bursts: %+v", d)
	}
	e.refused("c", "k", 1, 49*time.Second)
	e.define(store.Limit{Name: "small", Rate: 1, Period: time.Second, Burst: 5, MaxCharge: 2})
	e.do(store.VerbCharge, "small", "k", 2)
	if _, err := e.l.Charge(e.ctx, "small", "k", 3); err == nil {
		e.Fatal("a charge above max_charge was accepted")
	}
	e.left("small", "k", 3)
	e.do(store.VerbCharge, "small", "k", 0)
	e.left("small", "k", 3)
}

func refundCase(e *env) {
	e.bucket("r", 1, time.Second, 5)
	e.do(store.VerbRefund, "r", "fresh", 3)
	e.left("r", "fresh", 5)
	e.allowed("r", "k", 4, 1)
	e.do(store.VerbRefund, "r", "k", 2)
	e.left("r", "k", 3)
	e.do(store.VerbRefund, "r", "k", 3)
	e.left("r", "k", 5)
	e.allowed("r", "k", 5, 0)
	e.advance(300 * time.Millisecond)
	e.do(store.VerbRefund, "r", "k", 1)
	e.advance(700 * time.Millisecond)
	e.allowed("r", "k", 2, 0)
}

func resetCase(e *env) {
	e.bucket("r", 1, time.Hour, 5)
	e.allowed("r", "k", 5, 0)
	e.allowed("r", "other", 5, 0)
	if d := e.do(store.VerbReset, "r", "k", 0); !d.Allowed || d.Remaining != 5 {
		e.Fatalf("reset: %+v", d)
	}
	e.refused("r", "other", 1, time.Hour)
	e.allowed("r", "k", 5, 0)
	e.do(store.VerbReset, "r", "never seen", 0)
	e.define(store.Limit{Name: "deep", Rate: 1, Period: time.Hour, Burst: 5, MaxDebt: 5})
	d := e.reserve("deep", "k", 8)
	e.advance(10 * time.Hour) // the bucket is full, but the store may still have its row
	e.do(store.VerbReset, "deep", "k", 0)
	e.advance(-10 * time.Hour)
	e.allowed("deep", "k", 5, 0)
	if e.cancel(d.Reservation) == nil {
		e.Fatal("a reservation was cancelled after a reset of its key")
	}
}

func costZero(e *env) {
	e.define(store.Limit{Name: "z", Rate: 1, Period: time.Second, Burst: 2, MaxDebt: 5})
	e.define(store.Limit{Name: "leaky", Algorithm: store.LeakyBucket, Rate: 1, Period: time.Second, MaxDebt: 5})
	for _, limit := range []string{"z", "leaky"} {
		for _, used := range []int64{0, 1, 1, 2} {
			if used > 0 {
				e.reserve(limit, "k", used)
			}
			for verb := store.VerbTake; verb <= store.VerbRefund; verb++ {
				if d := e.do(verb, limit, "k", 0); d.Granted != 0 {
					e.Fatalf("%s of 0 granted %d", verb, d.Granted)
				}
			}
		}
	}
	if d := e.take("z", "k", 0); d.Allowed || d.RetryAfter != 2*time.Second {
		e.Fatalf("a take of 0 with a debt of two tokens: %+v", d)
	}
}

// At the retry time the same call is allowed. 1 µs earlier it is refused.
func retryExact(e *env) {
	limits := []store.Limit{
		{Name: "a", Rate: 3, Period: 7 * time.Second, Burst: 5, MaxDebt: 4},
		{Name: "b", Rate: 999983, Period: time.Minute, Burst: 3, MaxDebt: 10},
		{Name: "c", Algorithm: store.FixedWindow, Rate: 4, Period: 9 * time.Second, Burst: 6},
		{Name: "d", Algorithm: store.Interval, Rate: 2, Period: 1500 * time.Millisecond, Burst: 7, Start: "1s"},
		{Name: "e", Algorithm: store.LeakyBucket, Rate: 7, Period: 3 * time.Second, MaxDebt: 3},
		{Name: "f", Rate: 1, Period: 24 * time.Hour, Burst: 100_000, MaxDebt: 4},
		{Name: "g", Algorithm: store.FixedWindow, Rate: 2, Period: store.Month, Burst: 4},
	}
	for _, l := range limits {
		d := e.define(l)
		for verb := store.VerbTake; verb <= store.VerbReserve; verb++ {
			key := verb.String()
			for i := int64(e.part - 1); i < 12; i += int64(e.part) {
				e.do(store.VerbCharge, l.Name, key, min(i*i, d.Rule.MaxCharge))
				e.advance(time.Duration(i*i) * 77777 * time.Microsecond)
				e.exact(verb, l.Name, key, 1+i%max(1, min(d.Rule.Burst, 9)))
			}
		}
	}
}

// exact makes a call and, if it is refused, checks that it is refused 1 µs
// before the retry time and allowed at it.
func (e *env) exact(verb store.Verb, limit, key string, n int64) {
	e.Helper()
	d := e.do(verb, limit, key, n)
	if d.Allowed {
		return
	}
	if d.RetryAfter <= 0 || d.Never {
		e.Fatalf("%s %s %d: refused without a retry time: %+v", verb, limit, n, d)
	}
	e.advance(d.RetryAfter - time.Microsecond)
	if early := e.do(verb, limit, key, n); early.Allowed || early.RetryAfter != time.Microsecond {
		e.Fatalf("%s %s %d: 1 µs before the retry time: %+v", verb, limit, n, early)
	}
	e.advance(time.Microsecond)
	if late := e.do(verb, limit, key, n); !late.Allowed {
		e.Fatalf("%s %s %d: refused at the retry time: %+v", verb, limit, n, late)
	}
}

func leakyBucket(e *env) {
	e.define(store.Limit{Name: "l", Algorithm: store.LeakyBucket, Rate: 2, Period: time.Second, MaxDebt: 3})
	var last dipwell.Decision
	for k := range 4 {
		last = e.take("l", "k", 1)
		if want := time.Duration(k) * 500 * time.Millisecond; !last.Allowed || last.Delay != want {
			e.Fatalf("call %d: allowed %v, delay %v; want %v", k, last.Allowed, last.Delay, want)
		}
	}
	if d := e.take("l", "k", 1); d.Allowed || d.RetryAfter != 500*time.Millisecond {
		e.Fatalf("beyond the queue: %+v", d)
	}
	if err := e.cancel(last.Reservation); err != nil {
		e.Fatalf("cancel the last call in the queue: %v", err)
	}
	if d := e.check("l", "k", 1); !d.Allowed || d.Delay != 1500*time.Millisecond {
		e.Fatalf("a check of the queue: %+v", d)
	}
	if d := e.take("l", "k", 5); !d.Never {
		e.Fatalf("a take of more than max_debt and burst: %+v", d)
	}
	e.advance(10 * time.Second)
	if d := e.take("l", "k", 2); d.Delay != 500*time.Millisecond {
		e.Fatalf("a take of 2 of an idle leaky bucket: %+v", d)
	}
	e.define(store.Limit{Name: "noqueue", Algorithm: store.LeakyBucket, Rate: 2, Period: time.Second, MaxDebt: store.NoDebt})
	e.take("noqueue", "k", 1)
	if d := e.take("noqueue", "k", 1); d.Allowed || d.RetryAfter != 500*time.Millisecond {
		e.Fatalf("a leaky bucket without a queue: %+v", d)
	}
}

func shadowCase(e *env) {
	e.define(store.Limit{Name: "s", Rate: 1, Period: time.Second, Burst: 3, MaxDebt: 2, Mode: store.Shadow})
	if d := e.take("s", "k", 2); !d.Allowed || d.Shadow || d.Granted != 2 {
		e.Fatalf("shadow mode, enough tokens: %+v", d)
	}
	for range 3 {
		d := e.take("s", "k", 2)
		if !d.Allowed || !d.Shadow || d.Granted != 0 || d.Remaining != 1 || d.RetryAfter != time.Second {
			e.Fatalf("shadow mode, too few tokens: %+v", d)
		}
	}
	e.allowed("s", "k", 1, 0)
	e.do(store.VerbTakeUpTo, "s", "k", 1)
	e.do(store.VerbReserve, "s", "k", 2)
	e.do(store.VerbReserve, "s", "k", 2)
	if d := e.do(store.VerbTake, "s", "k", 4); !d.Allowed || !d.Shadow || !d.Never {
		e.Fatalf("shadow mode, more than the burst: %+v", d)
	}
	e.advance(2 * time.Second)
	e.left("s", "k", 0)
}

// Every invalid call returns an error that names the field, and changes nothing.
func badInput(e *env) {
	e.bucket("b", 1, time.Hour, 5)
	e.allowed("b", "k", 1, 4)
	for name, c := range map[string]struct {
		field, limit, key string
		cost              int64
	}{
		"negative": {"cost", "b", "k", -1}, "2^53": {"cost", "b", "k", 1 << 53}, "least": {"cost", "b", "k", -1 << 63},
		"empty": {"key", "b", "", 1}, "long": {"key", "b", strings.Repeat("k", 513), 1},
		"NUL": {"key", "b", "k\x00", 1}, "NULs": {"key", "b", "\x00\x00", 1}, "not UTF-8": {"key", "b", "k\xff", 1},
		"surrogate": {"key", "b", "\xed\xa0\x80", 1},
	} {
		for verb := store.VerbTake; verb <= store.VerbReset; verb++ {
			var d dipwell.Decision
			var field *store.FieldError
			err := e.l.Do(e.ctx, &d, verb, dipwell.Take{Limit: c.limit, Key: c.key, Cost: c.cost})
			if !errors.As(err, &field) || field.Field != c.field || d.Allowed {
				e.Fatalf("%s, %s: %v, want an error about %s", verb, name, err, c.field)
			}
		}
	}
	if _, err := e.l.Take(e.ctx, "B", "k", 1); !errors.Is(err, store.ErrUnknownLimit) {
		e.Fatalf("an unknown limit: %v", err)
	}
	many := make([]dipwell.Take, store.MaxTakes+1)
	for i := range many {
		many[i] = dipwell.Take{Limit: "b", Key: "k", Cost: 0}
	}
	for name, takes := range map[string][]dipwell.Take{
		"none": {}, "17": many,
		"bad second": {{Limit: "b", Key: "k", Cost: 1}, {Limit: "b", Key: "", Cost: 1}},
		"sum":        {{Limit: "b", Key: "k", Cost: store.MaxInt}, {Limit: "b", Key: "k", Cost: 1}},
		"unknown":    {{Limit: "b", Key: "k", Cost: 1}, {Limit: "nosuch", Key: "k", Cost: 1}},
	} {
		if d, err := e.l.TakeAll(e.ctx, takes...); err == nil {
			e.Fatalf("take all, %s: allowed, want an error: %+v", name, d)
		}
	}
	for _, id := range []store.Reservation{{}, {1, 2, 3}} {
		if err := e.l.Cancel(e.ctx, id); !errors.Is(err, store.ErrReservation) {
			e.Fatalf("cancel of an unknown reservation: %v", err)
		}
	}
	e.left("b", "k", 4)
}

func unlimitedDebt(e *env) {
	e.define(store.Limit{Name: "u", Rate: 1, Period: time.Second, Burst: 2, MaxDebt: store.UnlimitedDebt})
	for k := int64(1); k <= 5; k++ {
		if d := e.reserve("u", "k", 1000); !d.Allowed || d.Delay != time.Duration(1000*k-2)*time.Second {
			e.Fatalf("reservation %d with unlimited debt: %+v", k, d)
		}
	}
	e.refused("u", "k", 1, 4999*time.Second)
	if d := e.reserve("u", "far", store.MaxInt); d.Allowed || !d.Never {
		e.Fatalf("a reservation of more than MaxUsed: %+v", d)
	}
}

// The first call with a definition defines the limit. A later call with a different
// definition is decided by the limit in force.
func callSite(e *env) {
	l := store.Limit{Name: "site", Rate: 1, Period: time.Hour, Burst: 5}
	for left := int64(4); left >= 0; left-- {
		d, err := e.l.TakeWith(e.ctx, l, "k", 1)
		if e.must(d, err); !d.Allowed || d.Remaining != left {
			e.Fatalf("want %d remaining: %+v", left, d)
		}
	}
	d, err := e.l.TakeWith(e.ctx, l, "k", 1)
	if e.must(d, err); d.Allowed {
		e.Fatal("granted beyond the burst")
	}
	same := l
	same.MaxDebt = 5 // the default
	if d, err = e.l.TakeWith(e.ctx, same, "k", 1); err != nil || d.Allowed {
		e.Fatalf("the same definition with a default written out: %+v, %v", d, err)
	}
	// If the numbers of a call site differ from those in force, the latter decide.
	for _, change := range []func(*store.Limit){
		func(l *store.Limit) { l.Rate = 10 },
		func(l *store.Limit) { l.Burst = 8 },
		func(l *store.Limit) { l.Timeout = time.Second },
		func(l *store.Limit) { l.Algorithm, l.Burst = store.FixedWindow, 0 },
	} {
		other := l
		change(&other)
		if d, err = e.l.TakeWith(e.ctx, other, "k", 1); err != nil || d.Allowed || d.Capacity != 5 || d.RetryAfter != time.Hour || d.Plan != "" {
			e.Fatalf("with %+v: %+v, %v", other, d, err)
		}
		if d, err = e.l.TakeAll(e.ctx, dipwell.Take{With: &other, Key: "k", Cost: 1}); err != nil || d.Allowed || d.Capacity != 5 {
			e.Fatalf("with %+v in a group: %+v, %v", other, d, err)
		}
	}
	if def := e.l.Limit("site"); def.Limit != l || def.Number != 1 || def.Owner != store.OwnerCode {
		e.Fatalf("a call with another definition changed the limit: %+v", def)
	}
	for key, left := range map[string]int64{"k": 0, "other": 5} {
		d, err := e.l.Check(e.ctx, "site", key, 0)
		if e.must(d, err); d.Remaining != left {
			e.Fatalf("%s: %d remaining, want %d", key, d.Remaining, left)
		}
	}
	d, err = e.l.TakeAll(e.ctx, dipwell.Take{Limit: "site", With: &l, Key: "other", Cost: 2})
	if e.must(d, err); !d.Allowed || d.Remaining != 3 {
		e.Fatalf("in a group: %+v", d)
	}
}

// These limits' numbers fit into 64 bits only with ticks longer than 1 µs.
func coarseTicks(e *env) {
	for _, l := range []store.Limit{
		{Name: "day", Rate: 1 << 30, Period: 24 * time.Hour},
		{Name: "prime", Rate: 999983, Period: 30 * 24 * time.Hour},
		{Name: "month", Rate: 1 << 40, Period: 30 * 24 * time.Hour},
	} {
		def := e.define(l)
		if def.Rule.Every == 1 && l.Name != "day" {
			e.Logf("%s fits in ticks of 1 µs", l.Name)
		}
		e.allowed(l.Name, "k", l.Rate, 0)
		for i := range 20 {
			e.advance(time.Duration(i*i)*7*time.Second + 12345*time.Microsecond)
			e.exact(store.VerbTake, l.Name, "k", 1+l.Rate>>20*int64(i))
		}
	}
}
