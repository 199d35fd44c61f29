package storetest

import (
	"fmt"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// startCases test standing overrides that give a key windows of its own.
var startCases = []testCase{
	{"override-start", overrideStart},
	{"override-start-layers", overrideStartLayers},
	{"override-start-of-each-kind", overrideStartKinds},
	{"override-start-sliding", overrideStartSliding},
	{"override-start-refused", overrideStartRefused},
	{"override-start-holds", overrideStartHolds},
	{"override-start-block", overrideStartBlock},
}

const monthly = "m=100/1mo,algorithm=fixed_window,start=00:00 UTC,plans=pro:rate=1000|gold:rate=5000|banned:mode=blocked"

// date sets the clock to a date and time in UTC.
func (b *caller) date(text string) {
	b.Helper()
	t, err := time.Parse("2006-01-02 15:04:05.999999", text)
	if err != nil {
		b.Fatal(err)
	}
	b.clock.Store(t.UnixMicro())
}

// fullOn checks how many tokens a key has left, and when it is full.
func (b *caller) fullOn(call string, left int64, text string) {
	b.Helper()
	b.free(call, left)
	t, err := time.Parse("2006-01-02 15:04", text)
	op := b.do(store.VerbCheck, call+" 0").Ops[0]
	if at := time.UnixMicro(b.clock.Load() + op.Reset).UTC(); err != nil || !at.Equal(t) {
		b.Fatalf("%s is full on %s, want %s (%v)", call, at, text, err)
	}
}

// A customer's billing day: tokens used in the limit's month stay used until that day, and
// are then counted from day to day.
func overrideStart(e *env) {
	b := newCaller(e, monthly)
	b.date("2026-01-10 12:00:00")
	b.take("m k 60", true)
	b.fullOn("m k", 40, "2026-02-01 00:00")
	set := b.override("m", store.Override{Key: "k", Start: "17 00:00 Europe/Rome", Note: "billing day"})
	if set.Start != "17 00:00 Europe/Rome" || set.Plan != "" || set.Rate != 0 {
		b.Errorf("%+v", set)
	}
	b.fullOn("m k", 40, "2026-01-16 23:00")
	b.fullOn("m other", 100, "2026-01-10 12:00")
	b.date("2026-01-16 22:59:59.999999")
	if op := b.take("m k 41", false); op.Retry != 1 || op.Bound {
		b.Errorf("one µs before the day: %+v", op.Answer)
	}
	b.date("2026-01-16 23:00:00")
	b.take("m k 30", true)
	b.date("2026-02-01 00:00:00")
	b.fullOn("m k", 70, "2026-02-16 23:00")
	b.define("m=120/1mo,algorithm=fixed_window,start=00:00 UTC,plans=pro:rate=1000")
	b.fullOn("m k", 90, "2026-02-16 23:00")
	if list, err := b.overrides().Overrides(b.ctx, b.limits["m"], "", "", 10); err != nil || len(list) != 1 || list[0].Start != "17 00:00 Europe/Rome" {
		b.Errorf("%+v, %v", list, err)
	}
	b.date("2026-02-20 00:00:00")
	b.take("m k 20", true)
	if again := b.override("m", store.Override{Key: "k", Start: "31 00:00 UTC"}); again.Replaced == nil || again.Replaced.Start != "17 00:00 Europe/Rome" {
		b.Errorf("another day: %+v", again)
	}
	b.fullOn("m k", 100, "2026-02-28 00:00") // the last day of February
	b.date("2026-02-28 00:00:00")
	b.take("m k 20", true)
	b.fullOn("m k", 100, "2026-03-31 00:00")
	if !b.endOverride("m", "k") {
		b.Error("it was not ended")
	}
	b.fullOn("m k", 100, "2026-03-01 00:00")
}

// A key's own start stays below a temporary override, and may stand beside a plan.
func overrideStartLayers(e *env) {
	b := newCaller(e, monthly)
	b.date("2026-03-10 00:00:00")
	b.override("m", store.Override{Key: "k", Plan: "pro", Start: "17 00:00 UTC"})
	if op := b.take("m k 300", true); op.Def.Plan != "pro" || op.Remaining != 700 {
		b.Errorf("%s: %+v", op.Def.Plan, op.Answer)
	}
	b.fullOn("m k", 700, "2026-03-17 00:00")
	until := time.Date(2026, 3, 12, 0, 0, 0, 0, time.UTC).UnixMicro()
	raise := b.override("m", store.Override{Key: "k", Rate: 2000, Until: until})
	if raise.Start != "" || raise.Under == nil || raise.Under.Start != "17 00:00 UTC" {
		b.Errorf("%+v", raise)
	}
	b.fullOn("m k", 1700, "2026-03-17 00:00")
	b.override("m", store.Override{Key: "k", Plan: "gold", Until: until})
	b.fullOn("m k", 4700, "2026-03-17 00:00")
	b.override("m", store.Override{Key: "k", Plan: "banned", Until: until})
	b.take("m k 1", false)
	b.override("m", store.Override{Key: "k", Plan: "pro", Start: "20 00:00 UTC"}) // this override lies below the other one
	b.date("2026-03-12 00:00:00")
	b.take("m k 100", true)
	b.fullOn("m k", 600, "2026-03-20 00:00")
	b.override("m", store.Override{Key: "k", Rate: 1500})
	b.fullOn("m k", 1100, "2026-04-01 00:00")
}

// Windows of all lengths are tested, and offsets and first_call in place of a calendar.
func overrideStartKinds(e *env) {
	b := newCaller(e, "q=10/3mo,algorithm=fixed_window", "y=10/1y,algorithm=interval,burst=20,start=00:00 UTC", "f=10/2w,algorithm=fixed_window,start=06:00 UTC",
		"d=10/1d,algorithm=fixed_window,start=0s", "c=10/1d,algorithm=fixed_window,start=first_call")
	for i, c := range []struct{ limit, start, full string }{
		{"q", "05-17 00:00 UTC", "2026-05-17 00:00"},
		{"q", "12:00 UTC", "2026-04-01 12:00"},
		{"y", "05-17 00:00 UTC", "2026-05-17 00:00"},
		{"f", "00:00 UTC", "2026-03-16 00:00"},
		{"f", "1d", "2026-03-13 00:00"},
		{"d", "7h", "2026-03-11 07:00"},
		{"d", "06:00 America/New_York", "2026-03-10 10:00"},
		{"d", "first_call", "2026-03-11 09:00"},
		{"c", "0s", "2026-03-11 00:00"},
		{"c", "06:00 UTC", "2026-03-11 06:00"},
	} {
		b.date("2026-03-10 09:00:00")
		key := fmt.Sprintf("%s k%d", c.limit, i)
		b.override(c.limit, store.Override{Key: key[2:], Start: c.start})
		b.take(key+" 4", true)
		b.fullOn(key, b.limits[c.limit].Rule.Burst-4, c.full)
		b.clock.Add(b.do(store.VerbCheck, key+" 0").Ops[0].Reset - 1)
		b.free(key, b.limits[c.limit].Rule.Burst-4)
		b.clock.Add(1)
		b.free(key, b.limits[c.limit].Rule.Burst)
	}
}

// Tokens that count in a sliding window count in the present window of another grid after the
// change.
func overrideStartSliding(e *env) {
	b := newCaller(e, "s=10/1d,algorithm=sliding_window")
	b.date("2026-03-10 09:00:00")
	b.take("s k 4", true)
	b.override("s", store.Override{Key: "k", Start: "7h"})
	b.fullOn("s k", 6, "2026-03-12 07:00")
	b.date("2026-03-11 07:00:00")
	b.free("s k", 6)
	b.date("2026-03-11 19:00:00")
	b.fullOn("s k", 8, "2026-03-12 07:00")
	b.endOverride("s", "k")
	b.free("s k", 8)
}

func overrideStartRefused(e *env) {
	b := newCaller(e, monthly, "w=10/1w,algorithm=fixed_window", "b=10/1s", "slots=3,algorithm=concurrency")
	for _, c := range []struct {
		limit string
		o     store.Override
		field string
	}{
		{"m", store.Override{Start: "17 00:00 UTC", Until: b.clock.Load() + second}, "start"},
		{"m", store.Override{Start: "17 00:00 UTC", Plan: "pro", Until: b.clock.Load() + second}, "start"},
		{"m", store.Override{Start: "17 00:00 UTC", Plan: "pro", Rate: 3}, "plan"},
		{"m", store.Override{Start: "32 00:00 UTC"}, "start"},
		{"m", store.Override{Start: "17 00:00 Rome"}, "start"},
		{"m", store.Override{Start: "17"}, "start"},
		{"m", store.Override{Start: "40d"}, "start"},
		{"m", store.Override{Start: "first_call"}, "start"},
		{"w", store.Override{Start: "17 00:00 UTC"}, "start"},
		{"b", store.Override{Start: "0s"}, "start"},
		{"b", store.Override{Start: "0s", Rate: 3}, "start"},
		{"slots", store.Override{Start: "0s"}, "start"},
		{"m", store.Override{}, "plan"},
	} {
		c.o.Key = "k"
		_, err := b.overrides().SetOverride(b.ctx, b.limits[c.limit], c.o)
		b.wantField(c.field, err)
	}
	b.free("m k", 100)
	b.override("m", store.Override{Key: "k", Plan: "pro", Start: "17 00:00 UTC"})
	l, err := dipwell.ParseLimit("m=100/1d,algorithm=fixed_window,plans=pro:rate=1000")
	if err == nil {
		_, err = b.l.Define(b.ctx, l, store.OwnerCode)
	}
	b.wantField("start", err)
	b.free("m k", 1000)
}

// What a hold took is given back in the windows that the key has when it ends.
func overrideStartHolds(e *env) {
	b := newCaller(e, monthly+",ttl=31d")
	b.date("2026-03-10 00:00:00")
	b.take("m k 20", true)
	b.hold("h", 20*86400*second, "m k 50")
	b.override("m", store.Override{Key: "k", Plan: "pro", Start: "12 00:00 UTC"})
	b.fullOn("m k", 930, "2026-03-12 00:00")
	b.settle("h", 10)
	b.fullOn("m k", 970, "2026-03-12 00:00")
	b.hold("late", 5*86400*second, "m k 400")
	b.date("2026-03-12 00:00:00") // all of the tokens have come back
	b.take("m k 100", true)
	b.date("2026-03-15 00:00:00") // the hold has expired
	b.fullOn("m k", 900, "2026-04-12 00:00")
	g := b.do(store.VerbReserve, "m k 950")
	if op := g.Ops[0]; op.Delay != 28*86400*second {
		b.Errorf("%+v", op.Answer)
	}
	b.override("m", store.Override{Key: "k", Plan: "pro", Start: "20 00:00 UTC"})
	if _, err := b.decide(&store.Group{Cancel: true, ID: g.ID}); err != nil {
		b.Error(err)
	}
	b.fullOn("m k", 900, "2026-03-20 00:00")
}

// A block lies over the key's own start and leaves its windows alone: after it the
// customer's day decides, and setting that day during a block does not end the block.
func overrideStartBlock(e *env) {
	b := newCaller(e, "b=2/1mo,algorithm=fixed_window,start=00:00 UTC,max_debt=0,block=1d")
	b.date("2026-01-10 12:00:00")
	b.override("b", store.Override{Key: "k", Start: "11 00:00 UTC"})
	b.take("b k 2", true)
	until := b.after(24 * time.Hour)
	op := b.take("b k 1", false)
	b.blocked(&op, until, 24*time.Hour)
	b.wait(24*time.Hour - time.Microsecond)
	b.blocked(&b.do(store.VerbCheck, "b k 1").Ops[0], until, time.Microsecond)
	b.wait(time.Microsecond)
	b.fullOn("b k", 2, "2026-01-11 12:00")
	b.take("b k 2", true)
	until = b.after(24 * time.Hour)
	b.take("b k 1", false)
	b.override("b", store.Override{Key: "k", Start: "13 00:00 UTC"})
	if op = b.take("b k 1", false); op.Def.Override == nil || op.Def.Override.Until != until || op.Def.Mode != store.Blocked {
		b.Errorf("after a new day was set: %+v, %+v", op.Def.Override, op.Answer)
	}
	b.wait(24 * time.Hour)
	b.fullOn("b k", 0, "2026-01-13 00:00")
}
