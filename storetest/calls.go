package storetest

import (
	"errors"
	"fmt"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// do makes a call to the store and to the model, and fails if any field of
// their answers differs.
func (e *env) do(verb store.Verb, limit, key string, n int64) dipwell.Decision {
	e.Helper()
	var d dipwell.Decision
	if err := e.l.Do(e.ctx, &d, verb, dipwell.Take{Limit: limit, Key: key, Cost: n}); err != nil {
		e.Fatalf("%s %s %q %d at %s: %v", verb, limit, key, n, e.since(), err)
	}
	a := e.m.call(e.clock.Load(), verb, []dipwell.Take{{Limit: limit, Key: key, Cost: n}})
	e.compare(fmt.Sprintf("%s %s %q %d", verb, limit, key, n), d, a.ops[0])
	e.reserved(d, a)
	return d
}

// doAll is do for a group of takes.
func (e *env) doAll(verb store.Verb, takes ...dipwell.Take) dipwell.Decision {
	e.Helper()
	var d dipwell.Decision
	what := fmt.Sprintf("%s all %v", verb, takes)
	if err := e.l.DoAll(e.ctx, &d, verb, takes); err != nil {
		e.Fatalf("%s at %s: %v", what, e.since(), err)
	}
	a := e.m.call(e.clock.Load(), verb, takes)
	if d.Allowed != a.allowed || len(d.Limits) != len(takes) {
		e.Fatalf("%s at %s: allowed %v with %d limits, want %v with %d", what, e.since(), d.Allowed, len(d.Limits), a.allowed, len(takes))
	}
	for i := range takes {
		e.compare(fmt.Sprintf("%s, entry %d", what, i), d.Limits[i], a.ops[i])
	}
	e.compareTop(what, d)
	e.reserved(d, a)
	return d
}

// compareTop checks that the top level of a decision is the one with the
// fewest remaining tokens if allowed, and the latest retry time if refused.
func (e *env) compareTop(what string, d dipwell.Decision) {
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
		e.Fatalf("%s: remaining %d at the top level, want the fewest, %d", what, d.Remaining, fewest)
	case !d.Allowed && d.Never != never, !d.Allowed && !never && d.RetryAfter != latest:
		e.Fatalf("%s: never %v, retry %v at the top level, want %v, %v", what, d.Never, d.RetryAfter, never, latest)
	}
}

// reserved checks that the call made a reservation if and only if the model's
// call did, and gives the model its id.
func (e *env) reserved(d dipwell.Decision, a answers) {
	e.Helper()
	has := d.Reservation != store.Reservation{}
	if has != (a.reservation != nil) {
		e.Fatalf("at %s: reservation made: %v, want %v (%+v)", e.since(), has, a.reservation != nil, d)
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
		e.Fatalf("%s at %s:\n  got  %+v\n  want %+v", what, e.since(), got, want)
	}
}

// since returns the time passed since epoch, for messages.
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

// allowed takes n and fails unless they are granted and the given number of
// tokens remains.
func (e *env) allowed(limit, key string, n, remaining int64) {
	e.Helper()
	d := e.take(limit, key, n)
	if !d.Allowed || d.Granted != n || d.Remaining != remaining {
		e.Fatalf("take %s %q %d at %s: allowed %v, granted %d, remaining %d; want a grant with %d remaining", limit, key, n, e.since(), d.Allowed, d.Granted, d.Remaining, remaining)
	}
}

// refused takes n and fails unless the call is refused with this retry time.
func (e *env) refused(limit, key string, n int64, retry time.Duration) dipwell.Decision {
	e.Helper()
	d := e.take(limit, key, n)
	if d.Allowed || d.Never || d.Granted != 0 || d.RetryAfter != retry {
		e.Fatalf("take %s %q %d at %s: allowed %v, never %v, retry after %v; want a refusal with retry after %v", limit, key, n, e.since(), d.Allowed, d.Never, d.RetryAfter, retry)
	}
	return d
}

// left fails unless a check of 0 returns this number of remaining tokens.
func (e *env) left(limit, key string, remaining int64) {
	e.Helper()
	if d := e.check(limit, key, 0); d.Remaining != remaining {
		e.Fatalf("%s %q at %s: %d remaining, want %d", limit, key, e.since(), d.Remaining, remaining)
	}
}

// cancel cancels a reservation in the store and in the model, and fails if only
// one of them succeeds or the error is not ErrReservation.
func (e *env) cancel(id store.Reservation) error {
	e.Helper()
	err := e.l.Cancel(e.ctx, id)
	if want := e.m.cancel(e.clock.Load(), id); want != (err == nil) {
		e.Fatalf("cancel at %s: %v; want success: %v", e.since(), err, want)
	}
	if err != nil && !errors.Is(err, store.ErrReservation) {
		e.Fatalf("cancel at %s: %v, want ErrReservation", e.since(), err)
	}
	return err
}
