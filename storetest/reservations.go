package storetest

import (
	"errors"
	"fmt"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// reservationCases test Reserve and Cancel.
var reservationCases = []testCase{
	{"reserve", reserveCase},
	{"cancel-until-due", cancelUntilDue},
	{"cancel-group", cancelGroup},
	{"cancel-beside-charge", cancelBesideCharge},
	{"cancel-after-reset", cancelAfterReset},
	{"cancel-after-drop", cancelAfterDrop},
	{"cancel-refill", cancelRefill},
	{"cancel-clock-back", cancelClockBack},
	{"reserve-many", reserveMany},
	{"reserve-too-many", reserveTooMany},
	{"reserve-months", func(e *env) {
		var takes []dipwell.Take
		for i := range store.MaxTakes {
			name := fmt.Sprint("month", i)
			e.define(store.Limit{Name: name, Algorithm: store.FixedWindow, Rate: 5, Period: store.Month, MaxDebt: 10_000})
			takes = append(takes, take(name, "k", int64(5*(40+17*i)))) // reservations due in 39 months to 24 years
		}
		e.doAll(store.VerbReserve, takes...)
	}},
}

// reserveTooMany checks that a key has at most 4,096 reservations that wait.
func reserveTooMany(e *env) {
	if e.part > 1 || e.Options.Parallel {
		return // see hold-too-many
	}
	e.define(store.Limit{Name: "w", Rate: 1, Period: time.Second, Burst: 5, MaxDebt: 10_000})
	e.allowed("w", "k", 5, 0)
	first := e.reserve("w", "k", 1)
	var last dipwell.Decision
	for range maxWaiting - 1 {
		last = e.reserve("w", "k", 1)
	}
	full := func() {
		e.Helper()
		_, err := e.l.Reserve(e.ctx, "w", "k", 1)
		var f *store.FieldError
		if !errors.As(err, &f) || f.Field != "key" {
			e.Fatalf("one reservation too many: %v", err)
		}
	}
	full()
	if last.Delay != maxWaiting*time.Second {
		e.Errorf("the last one waits for %v", last.Delay)
	}
	e.reserve("w", "other", 6)
	e.must(nil, e.cancel(last.Reservation))
	e.reserve("w", "k", 1)
	full()
	e.advance(first.Delay)
	e.reserve("w", "k", 1)
	full()
}

// cancelBesideCharge checks that cancelling a group does not give back a Charge in it.
func cancelBesideCharge(e *env) {
	b := newCaller(e, "a=1/1s,burst=5,max_debt=10", "w=1/1s,burst=5,max_debt=10")
	b.take("w k 5", true)
	g := &store.Group{ID: store.Reservation{1}, Ops: []store.Op{b.op(store.VerbCharge, "a k 3"), b.op(store.VerbReserve, "w k 2")}}
	g, err := b.decide(g)
	if err != nil || !g.Reserved {
		b.Fatalf("%+v, %v", g, err)
	}
	if _, err = b.decide(&store.Group{ID: g.ID, Cancel: true}); err != nil {
		b.Fatal(err)
	}
	b.free("a k", 2)
	b.wait(time.Second)
	b.free("w k", 1)
}

func (e *env) work(name string) {
	e.Helper()
	e.define(store.Limit{Name: name, Rate: 1, Period: time.Second, Burst: 5, MaxDebt: 10})
}

func reserveCase(e *env) {
	e.work("w")
	if d := e.reserve("w", "k", 5); d.Delay != 0 || d.Reservation != (store.Reservation{}) {
		e.Fatalf("a reservation with enough tokens: %+v", d)
	}
	first, second := e.reserve("w", "k", 4), e.reserve("w", "k", 6)
	if first.Delay != 4*time.Second || second.Delay != 10*time.Second || first.Reservation == second.Reservation {
		e.Fatalf("reservations in a row: %+v, %+v", first, second)
	}
	if d := e.reserve("w", "k", 1); d.Allowed || d.RetryAfter != time.Second || d.Reservation != (store.Reservation{}) {
		e.Fatalf("beyond max_debt: %+v", d)
	}
	e.advance(time.Second)
	if d := e.reserve("w", "k", 1); d.Delay != 10*time.Second {
		e.Fatalf("at the retry time: %+v", d)
	}
	e.advance(10 * time.Second)
	e.left("w", "k", 0)
}

func cancelUntilDue(e *env) {
	e.work("w")
	for i, wait := range []time.Duration{0, 3*time.Second - time.Microsecond, 3 * time.Second, 4 * time.Second} {
		key := string(rune('a' + i))
		e.at(0)
		e.allowed("w", key, 5, 0)
		d := e.reserve("w", key, 3)
		e.at(wait)
		e.sweep()
		err := e.cancel(d.Reservation)
		if (err == nil) != (wait < d.Delay) {
			e.Fatalf("cancel after %v of %v: %v", wait, d.Delay, err)
		}
		e.check("w", key, 5)
		if e.cancel(d.Reservation) == nil {
			e.Fatal("cancelled twice")
		}
		e.check("w", key, 5)
	}
}

// A group has one reservation, which is due when the group's last part is.
// Cancelling the reservation gives back all parts.
func cancelGroup(e *env) {
	e.work("a")
	e.work("b")
	e.work("c")
	e.allowed("b", "k", 5, 0)
	e.allowed("c", "k", 5, 0)
	group := []dipwell.Take{take("a", "k", 2), take("b", "k", 1), take("c", "k", 2), take("c", "k", 1), take("a", "none", 0)}
	d := e.doAll(store.VerbReserve, group...)
	if !d.Allowed || d.Delay != 3*time.Second {
		e.Fatalf("a group due in 0, 1 and 3 s: %+v", d)
	}
	e.advance(2 * time.Second) // the part of limit b is due, that of c is not
	e.must(nil, e.cancel(d.Reservation))
	e.left("a", "k", 5)
	e.left("b", "k", 2)
	e.left("c", "k", 2)
	if e.cancel(d.Reservation) == nil {
		e.Fatal("a group was cancelled twice")
	}
	if d := e.doAll(store.VerbReserve, take("a", "k", 1), take("b", "k", 1)); d.Delay != 0 {
		e.Fatalf("a group that is due at once: %+v", d)
	}
	if d := e.doAll(store.VerbReserve, take("a", "k", 4), take("b", "k", 15)); d.Allowed {
		e.Fatalf("a group with one part beyond max_debt: %+v", d)
	}
	e.left("a", "k", 4)
}

// A reset of one key ends every reservation that has a part in it.
func cancelAfterReset(e *env) {
	e.work("a")
	e.work("b")
	e.allowed("a", "k", 5, 0)
	e.allowed("b", "k", 5, 0)
	group := e.doAll(store.VerbReserve, take("a", "k", 2), take("b", "k", 2))
	single := e.reserve("b", "k", 1)
	other := e.reserve("a", "k", 1)
	e.do(store.VerbReset, "b", "k", 0)
	for _, id := range []store.Reservation{group.Reservation, single.Reservation} {
		if e.cancel(id) == nil {
			e.Fatal("a reservation was cancelled after a reset of its key")
		}
	}
	e.left("b", "k", 5)
	e.refused("a", "k", 1, 4*time.Second)
	e.must(nil, e.cancel(other.Reservation))
	e.refused("a", "k", 1, 3*time.Second)
	e.do(store.VerbReset, "a", "k", 0)
	e.allowed("a", "k", 5, 0)
}

// Cancelling gives back no tokens that a refund or time has returned: the bucket
// is never above full.
func cancelRefill(e *env) {
	e.work("w")
	e.allowed("w", "k", 5, 0)
	d := e.reserve("w", "k", 10)
	e.do(store.VerbRefund, "w", "k", 12)
	e.advance(9 * time.Second)
	e.sweep() // the row is full, and the reservation is not yet due
	e.must(nil, e.cancel(d.Reservation))
	e.left("w", "k", 5)
	e.allowed("w", "k", 5, 0)
	e.refused("w", "k", 1, time.Second)
}

// A cancellation steps the row to its time, as other writes do, so a clock that
// steps back afterwards changes nothing.
func cancelClockBack(e *env) {
	e.work("w")
	e.allowed("w", "k", 5, 0)
	d := e.reserve("w", "k", 5)
	e.advance(3 * time.Second)
	e.must(nil, e.cancel(d.Reservation))
	e.left("w", "k", 3)
	e.advance(-2 * time.Second)
	e.left("w", "k", 3)
	e.advance(2 * time.Second)
	e.left("w", "k", 3)

	e.define(store.Limit{Name: "day", Algorithm: store.FixedWindow, Rate: 5, Period: 24 * time.Hour, MaxDebt: 10, Start: "00:00 UTC"})
	e.at(0)
	e.allowed("day", "k", 5, 0)
	e.reserve("day", "k", 4)
	d = e.reserve("day", "k", 6)
	e.at(25 * time.Hour)
	e.must(nil, e.cancel(d.Reservation))
	e.left("day", "k", 1)
	e.at(23 * time.Hour)
	e.left("day", "k", 1)
}

// Many reservations are cancelled in an order other than that of their
// creation, some after they are due.
func reserveMany(e *env) {
	e.define(store.Limit{Name: "w", Rate: 3, Period: time.Second, Burst: 2, MaxDebt: 200})
	var ids []store.Reservation
	for k := range 40 {
		d := e.reserve("w", "k", int64(1+k%4))
		if d.Delay > 0 {
			ids = append(ids, d.Reservation)
		}
		e.advance(50 * time.Millisecond)
	}
	e.advance(5 * time.Second)
	for i := range ids {
		_ = e.cancel(ids[(i*7)%len(ids)])
		e.advance(100 * time.Millisecond)
	}
	e.take("w", "k", 1)
}
