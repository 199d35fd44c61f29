package storetest

import (
	"context"
	"errors"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// slidingCases test sliding windows. The model computes each answer in these cases too.
var slidingCases = []testCase{
	{"sliding-window", slidingWindow},
	{"sliding-retries", slidingRetries},
	{"sliding-verbs", slidingVerbs},
	{"sliding-changes", slidingChanges},
	{"sliding-input", slidingInput},
	{"sliding-cancel", slidingCancel},
}

// A group with a sliding window that waits for another limit may be cancelled. The tokens that
// it took from the sliding window stay counted, also when that window has become the one
// before.
func slidingCancel(e *env) {
	b := newCaller(e, "leaky=1/1h,algorithm=leaky_bucket,max_debt=5", "s=3/1h,algorithm=sliding_window,start=0s")
	b.at(30 * time.Minute)
	for _, key := range []string{"k", "l"} {
		b.take("leaky "+key+" 1", true)
		g := b.do(store.VerbTake, "leaky "+key+" 1", "s "+key+" 2")
		b.wait(20 * time.Minute)
		if _, err := b.decide(&store.Group{Cancel: true, ID: g.ID}); !g.Reserved || err != nil {
			b.Error(g.Reserved, err)
		}
		if key == "k" {
			b.free("s k", 1)
		}
	}
	b.free("s k", 2) // 834 thousandths of 2 tokens count
	b.free("s l", 2)
}

func slide(rate int64, per time.Duration) store.Limit {
	return store.Limit{Name: "s", Algorithm: store.SlidingWindow, Rate: rate, Period: per, Start: "0s"}
}

// The tokens of the window before count by the part of the present window that is left, in
// thousandths.
func slidingWindow(e *env) {
	e.define(slide(100, time.Minute))
	e.at(30 * time.Second)
	e.allowed("s", "k", 80, 20)
	e.at(time.Minute)
	e.left("s", "k", 20)
	e.at(75 * time.Second) // 750 thousandths count: 60 tokens
	e.left("s", "k", 40)
	e.at(75*time.Second - time.Microsecond) // 751: 60.08
	e.left("s", "k", 40)
	e.at(74 * time.Second) // 767: 61.36
	e.left("s", "k", 39)
	e.at(75 * time.Second)
	e.allowed("s", "k", 40, 0)
	e.at(105 * time.Second) // 250 thousandths: 20, and 40 of this window
	e.allowed("s", "k", 40, 0)
	e.at(2 * time.Minute)
	e.left("s", "k", 20)
	e.at(3*time.Minute - time.Microsecond) // 1: 0.08
	if d := e.check("s", "k", 0); d.Remaining != 100 || d.ResetAfter != time.Microsecond {
		e.Fatalf("at the end of the window after it: %+v", d)
	}
	e.at(3 * time.Minute)
	e.left("s", "k", 100)
	// The worst case of a sliding window: twice the rate within one period.
	e.at(4*time.Minute - time.Millisecond)
	e.allowed("s", "w", 100, 0)
	e.at(5*time.Minute - time.Millisecond) // 1: 0.1
	e.allowed("s", "w", 100, 0)
}

// A retry lies in the present window, or in one of the next two.
func slidingRetries(e *env) {
	e.define(slide(10, 10*time.Second))
	e.at(5 * time.Second)
	e.allowed("s", "k", 10, 0)
	e.refused("s", "k", 1, 5*time.Second+10*time.Millisecond) // 999 thousandths of 10 tokens count as 9
	e.refused("s", "k", 10, 14010*time.Millisecond)           // 99 thousandths of them count as 0
	e.exact(store.VerbTake, "s", "k", 3)
	e.exact(store.VerbCheck, "s", "k", 10)
	e.at(30 * time.Second)
	e.allowed("s", "k", 4, 6)
	e.at(45 * time.Second)
	e.allowed("s", "k", 8, 0)
	e.refused("s", "k", 2, 2510*time.Millisecond) // 249 thousandths of 4 tokens count as 0
	for _, verb := range []store.Verb{store.VerbTake, store.VerbTakeUpTo, store.VerbCheck} {
		e.do(store.VerbTakeUpTo, "s", "k", 10)
		e.exact(verb, "s", "k", 7)
	}
	e.takeNever("s", "k", 11)
	e.takeNever("s", "k", store.MaxInt)
	e.define(store.Limit{Name: "p", Algorithm: store.SlidingWindow, Rate: 3, Period: 7 * time.Microsecond}) // the period is shorter than 1000 thousandths of a µs
	for _, key := range []string{"a", "b", "c"} {
		for n := int64(1); n <= 3; n++ {
			e.do(store.VerbTakeUpTo, "p", key, 3)
			e.exact(store.VerbTake, "p", key, n)
		}
	}
}

func slidingVerbs(e *env) {
	e.define(slide(1<<26-1, 100*24*time.Hour))
	e.do(store.VerbCharge, "s", "k", 1<<26-2)
	e.do(store.VerbCharge, "s", "k", 1<<26-1)
	e.exact(store.VerbTake, "s", "k", 1<<26-1)
	e.do(store.VerbCharge, "s", "k", 1<<26-1)
	if d := e.do(store.VerbRefund, "s", "k", 10); d.Remaining != 10 {
		e.Fatalf("a refund of 10 after charges that stopped at the most: %+v", d)
	}
	e.do(store.VerbRefund, "s", "k", store.MaxInt)
	e.do(store.VerbTakeUpTo, "s", "k", store.MaxInt)
	e.do(store.VerbReset, "s", "k", 0)
	e.left("s", "k", 1<<26-1)
	l := slide(5, time.Minute)
	l.Name, l.Mode = "shadow", store.Shadow
	e.define(l)
	e.allowed("shadow", "k", 5, 0)
	if d := e.take("shadow", "k", 1); !d.Shadow {
		e.Fatalf("in shadow mode: %+v", d)
	}
	_, err := e.l.Reserve(e.ctx, "shadow", "k", 1)
	e.wrong("limit", err)
	if store.AbilitiesOf(e.store).Holds != nil {
		_, err = e.l.Hold(e.ctx, time.Second, "", dipwell.Take{Limit: "shadow", Key: "k", Cost: 1})
		e.wrong("limit", err)
	}
	var d dipwell.Decision
	e.wrong("floor", e.l.Do(e.ctx, &d, store.VerbTake, dipwell.Take{Limit: "shadow", Key: "k", Cost: 1, Floor: 1}))
	ctx, cancel := context.WithCancel(e.ctx)
	cancel()
	if _, err = e.l.Wait(ctx, "s", "k", 1); !errors.Is(err, context.Canceled) {
		e.Fatalf("a cancelled wait: %v", err)
	}
}

// If a change keeps the window length, both counts of a sliding window stay; otherwise what
// counts at the change becomes the tokens of the present window.
func slidingChanges(e *env) {
	e.define(slide(100, time.Minute))
	fill := func() {
		e.at((e.since()/time.Minute + 4) * time.Minute)
		e.do(store.VerbReset, "s", "k", 0)
		e.take("s", "k", 50)
		e.advance(75 * time.Second)
		e.take("s", "k", 3)
	}
	bucket := store.Limit{Name: "s", Rate: 100, Period: time.Minute}
	other, same := slide(100, 50*time.Second), slide(200, time.Minute)
	spread := slide(100, time.Minute)
	spread.Start = ""
	for _, to := range []store.Limit{bucket, other, same, spread} {
		for _, policy := range []store.ChangePolicy{store.Keep, store.Proportional, store.StartOver} {
			from := slide(100, time.Minute)
			from.OnChange = store.Keep
			e.define(from)
			fill()
			to.OnChange = policy
			e.define(to)
			e.take("s", "k", 7)
			e.advance(11 * time.Second)
			e.exact(store.VerbTake, "s", "k", 90)
		}
	}
	e.define(slide(100, time.Minute))
	fill()
	e.define(bucket)
	e.left("s", "k", 59) // 3 tokens and 50·750/1000, rounded up
	e.define(slide(20, time.Minute))
	e.left("s", "k", 0)
	e.refused("s", "k", 1, 75780*time.Millisecond) // 41 tokens are the present window's now: 487 thousandths of them are 19
}

// wrong fails unless an error names the given field.
func (e *env) wrong(field string, err error) {
	e.Helper()
	if f, ok := errors.AsType[*store.FieldError](err); !ok || f.Field != field {
		e.Fatalf("%v, want an error about %s", err, field)
	}
}

func slidingInput(e *env) {
	for _, c := range []struct {
		field  string
		change func(l *store.Limit)
	}{
		{"rate", func(l *store.Limit) { l.Rate = 1 << 26 }},
		{"per", func(l *store.Limit) { l.Period = 100*24*time.Hour + time.Microsecond }},
		{"per", func(l *store.Limit) { l.Period = store.Month }},
		{"per", func(l *store.Limit) { l.Period = time.Microsecond + time.Nanosecond }},
		{"burst", func(l *store.Limit) { l.Burst = 10 }},
		{"max_debt", func(l *store.Limit) { l.MaxDebt = 1 }},
		{"start", func(l *store.Limit) { l.Start, l.Period = "00:00 UTC", 24*time.Hour }},
		{"start", func(l *store.Limit) { l.Start = "1m" }},
		{"start", func(l *store.Limit) { l.Start = "first_call" }},
		{"parent", func(l *store.Limit) { l.Parent = "above" }},
		{"parts", func(l *store.Limit) { l.Parts = 2 }},
		{"shards", func(l *store.Limit) { l.Shards = 2 }},
		{"lease", func(l *store.Limit) { l.Lease = 100 * time.Millisecond }},
		{"adaptive", func(l *store.Limit) { l.Adaptive = store.Adaptive{Floor: 1, Errors: 0.1} }},
	} {
		l := slide(10, time.Minute)
		c.change(&l)
		_, err := e.l.Define(e.ctx, l, store.OwnerCode)
		e.wrong(c.field, err)
	}
	e.define(store.Limit{Name: "above", Rate: 5, Period: time.Second, Parts: 1})
	e.define(slide(10, time.Minute))
	below := store.Limit{Name: "below", Rate: 5, Period: time.Second, Parent: "s"}
	_, err := e.l.Define(e.ctx, below, store.OwnerCode)
	e.wrong("parent", err)
	below.Parent = "above"
	e.define(below)
	_, err = e.l.Define(e.ctx, store.Limit{Name: "above", Algorithm: store.SlidingWindow, Rate: 5, Period: time.Second, Parts: 1}, store.OwnerCode)
	e.wrong("parts", err)
	_, err = e.l.Define(e.ctx, store.Limit{Name: "above", Algorithm: store.SlidingWindow, Rate: 5, Period: time.Second}, store.OwnerCode)
	e.wrong("algorithm", err)
}

// A live hold gives nothing back to a limit that has become a sliding window, but charges
// more if it is settled to more.
func holdChangeSliding(e *env) {
	b := newCaller(e, "s=100/1m")
	b.hold("less", 40*second, "s k 30")
	b.hold("more", 40*second, "s k 10")
	b.hold("late", second, "s k 2")
	b.wait(2 * time.Second) // 38.67 tokens are used, and 2 of them given back
	b.define("s=100/20s,algorithm=sliding_window,start=0s")
	b.free("s k", 63)
	b.settle("less", 5)
	b.free("s k", 63)
	b.settle("more", 17)
	b.free("s k", 56)
	b.settle("late", 3)
	b.free("s k", 53)
	b.wait(23 * time.Second) // 750 thousandths of 47 tokens
	b.free("s k", 65)
	b.define("s=100/1m")
	b.free("s k", 64)

	b.define("w=1000/1d")
	b.hold("all", second, "w k 1000")
	b.define("w=10/1m,algorithm=sliding_window,start=0s")
	b.wait(2 * time.Second)
	b.settle("all", 1000) // the amount of an expired hold can always be charged
	b.free("w k", 0)
}
