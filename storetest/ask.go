package storetest

import (
	"errors"
	"fmt"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// do asks the store and the model, and fails where they differ in any field.
func (e *env) do(verb store.Verb, limit, key string, n int64) dipwell.Decision {
	e.Helper()
	var d dipwell.Decision
	if err := e.l.Do(e.ctx, &d, verb, limit, key, n); err != nil {
		e.Fatalf("%s %s %q %d at %s: %v", verb, limit, key, n, e.since(), err)
	}
	a := e.m.ask(e.clock.Load(), verb, []dipwell.Take{{Limit: limit, Key: key, Cost: n}})
	e.compare(fmt.Sprintf("%s %s %q %d", verb, limit, key, n), d, a.ops[0])
	e.reserved(d, a)
	return d
}

// doAll asks for several keys at one instant.
func (e *env) doAll(verb store.Verb, takes ...dipwell.Take) dipwell.Decision {
	e.Helper()
	var d dipwell.Decision
	what := fmt.Sprintf("%s all %v", verb, takes)
	if err := e.l.DoAll(e.ctx, &d, verb, takes); err != nil {
		e.Fatalf("%s at %s: %v", what, e.since(), err)
	}
	a := e.m.ask(e.clock.Load(), verb, takes)
	if d.Allowed != a.allowed || len(d.Limits) != len(takes) {
		e.Fatalf("%s at %s: allowed %v with %d limits; the model says %v with %d", what, e.since(), d.Allowed, len(d.Limits), a.allowed, len(takes))
	}
	for i := range takes {
		e.compare(fmt.Sprintf("%s, entry %d", what, i), d.Limits[i], a.ops[i])
	}
	e.speaks(what, d)
	e.reserved(d, a)
	return d
}

// speaks checks that the top of a decision is the limit that decides.
func (e *env) speaks(what string, d dipwell.Decision) {
	e.Helper()
	fewest, latest, never := d.Limits[0].Remaining, time.Duration(0), false
	for _, x := range d.Limits {
		fewest = min(fewest, x.Remaining)
		if !x.Allowed {
			latest = max(latest, x.RetryAfter)
			never = never || x.Never
		}
	}
	switch {
	case d.Allowed && d.Remaining != fewest:
		e.Fatalf("%s: remaining %d on top, the fewest is %d", what, d.Remaining, fewest)
	case !d.Allowed && d.Never != never, !d.Allowed && !never && d.RetryAfter != latest:
		e.Fatalf("%s: on top never %v, retry %v; want %v, %v", what, d.Never, d.RetryAfter, never, latest)
	}
}

// reserved checks that a reservation was made exactly when one is due later,
// and tells the model its name.
func (e *env) reserved(d dipwell.Decision, a answers) {
	e.Helper()
	has := d.Reservation != store.Reservation{}
	if has != (a.reservation != nil) {
		e.Fatalf("at %s: a reservation was made: %v; the model says %v (%+v)", e.since(), has, a.reservation != nil, d)
	}
	if has {
		e.m.reservations[d.Reservation] = a.reservation
		if want := time.Duration(a.reservation.due-e.clock.Load()) * time.Microsecond; d.Delay != want {
			e.Fatalf("at %s: the call's delay is %v, want %v", e.since(), d.Delay, want)
		}
	}
}

func (e *env) compare(what string, d dipwell.Decision, want answer) {
	e.Helper()
	got := answer{
		allowed: d.Allowed, never: d.Never, shadow: d.Shadow, granted: d.Granted, remaining: d.Remaining,
		retry: d.RetryAfter.Microseconds(), reset: d.ResetAfter.Microseconds(), delay: d.Delay.Microseconds(),
	}
	if got != want {
		e.Fatalf("%s at %s:\n  the store says %+v\n  the model says %+v", what, e.since(), got, want)
	}
}

// since is the time of the case, for messages.
func (e *env) since() time.Duration {
	return time.Duration(e.clock.Load()-epoch) * time.Microsecond
}

func (e *env) take(limit, key string, n int64) dipwell.Decision {
	e.Helper()
	return e.do(store.VerbTake, limit, key, n)
}

func (e *env) check(limit, key string, n int64) dipwell.Decision {
	e.Helper()
	return e.do(store.VerbCheck, limit, key, n)
}

func (e *env) reserve(limit, key string, n int64) dipwell.Decision {
	e.Helper()
	return e.do(store.VerbReserve, limit, key, n)
}

// allowed takes n and wants it granted with so many left.
func (e *env) allowed(limit, key string, n, remaining int64) dipwell.Decision {
	e.Helper()
	d := e.take(limit, key, n)
	if !d.Allowed || d.Granted != n || d.Remaining != remaining {
		e.Fatalf("take %s %q %d at %s: allowed %v, granted %d, remaining %d; want it granted with %d remaining", limit, key, n, e.since(), d.Allowed, d.Granted, d.Remaining, remaining)
	}
	return d
}

// refused takes n and wants it refused until so much later.
func (e *env) refused(limit, key string, n int64, retry time.Duration) dipwell.Decision {
	e.Helper()
	d := e.take(limit, key, n)
	if d.Allowed || d.Never || d.Granted != 0 || d.RetryAfter != retry {
		e.Fatalf("take %s %q %d at %s: allowed %v, never %v, retry after %v; want a refusal for %v", limit, key, n, e.since(), d.Allowed, d.Never, d.RetryAfter, retry)
	}
	return d
}

// left wants so many tokens there, by a check of 0 that changes nothing.
func (e *env) left(limit, key string, remaining int64) {
	e.Helper()
	if d := e.check(limit, key, 0); d.Remaining != remaining {
		e.Fatalf("%s %q at %s: %d remaining, want %d", limit, key, e.since(), d.Remaining, remaining)
	}
}

// cancel gives a reservation back and wants that to work or not, as the model says.
func (e *env) cancel(id store.Reservation) error {
	e.Helper()
	err := e.l.Cancel(e.ctx, id)
	if want := e.m.cancel(e.clock.Load(), id); want != (err == nil) {
		e.Fatalf("cancel at %s: %v; the model says it works: %v", e.since(), err, want)
	}
	if err != nil && !errors.Is(err, store.ErrReservation) {
		e.Fatalf("cancel at %s: %v is not ErrReservation", e.since(), err)
	}
	return err
}
