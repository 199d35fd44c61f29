package storetest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/store"
)

// historyCases compare random histories of all kinds of calls with the model.
var historyCases = []testCase{{"model", modelCase}}

func modelCase(e *env) {
	e.seeded(1, func(e *env, rnd *rand.Rand) { (&history{env: e, Rand: rnd}).run() })
}

// seeded plays random histories, each on a new store: half of them with fixed seeds from one
// on, half with random seeds, or with seeds that follow the environment's DIPWELL_SEED.
func (e *env) seeded(fixed uint64, play func(*env, *rand.Rand)) {
	seeds := []uint64{*seed}
	if *seed == 0 {
		seeds = nil
		first := limittest.NewSeed(e)
		for i := range e.histories {
			s := fixed + uint64(i)
			if i%2 == 1 {
				s = first + uint64(i)
			}
			seeds = append(seeds, s)
		}
	}
	for _, s := range seeds {
		ok := e.Run(fmt.Sprint("seed=", s), func(t *testing.T) { play(newEnv(t, e.open, e.size), rand.New(rand.NewPCG(s, 0))) })
		if !ok {
			e.Fatalf("replay it with: go test -run '%s' -seed %d", e.Name(), s)
		}
	}
}

// history is the state of one random history.
type history struct {
	*env
	*rand.Rand
	limits []string
	keys   []string
	ids    []store.Reservation // reservations made so far, possibly due or cancelled
	retry  time.Duration       // retry time of the last refusal
	latest int64               // latest time that the clock has shown
}

func (h *history) run() {
	h.keys = []string{"a", "b", "c", "ключ"}
	for i := range 5 {
		h.limits = append(h.limits, fmt.Sprint("l", i))
		h.redefine(h.limits[i])
	}
	for range h.steps {
		h.step()
		if now := h.clock.Load(); now < h.latest {
			h.resetFull(now)
		}
	}
}

func (h *history) step() {
	switch n := h.IntN(100); {
	case n < 55:
		h.call()
	case n < 65:
		h.group()
	case n < 72:
		h.giveBack()
	case n < 92:
		h.move()
	case n < 95:
		h.sweep()
	case n < 99:
		h.redefine(h.limit())
	default:
		h.forget()
	}
}

func (h *history) limit() string { return h.limits[h.IntN(len(h.limits))] }

// key draws a key of a limit.
func (h *history) key(limit string) string {
	if limit == shared {
		return dipwell.Shared
	}
	return h.keys[h.IntN(len(h.keys))]
}

const shared = "l4" // name of the limit that is shared

// cost draws a cost that is mostly small, sometimes near the limit's bounds or
// the largest possible.
func (h *history) cost(limit string) int64 {
	r := &h.l.Limit(limit).Rule
	switch h.IntN(12) {
	case 0:
		return 0
	case 1:
		return r.Burst + h.Int64N(3)
	case 2:
		return min(store.MaxInt, r.Most+h.Int64N(2))
	case 3:
		return 1 + h.Int64N(max(1, r.Burst))
	case 4:
		return store.MaxInt - h.Int64N(2)
	}
	return 1 + h.Int64N(3)
}

func (h *history) call() {
	limit, verb := h.limit(), []store.Verb{
		store.VerbTake, store.VerbTake, store.VerbTake, store.VerbCheck, store.VerbTakeUpTo,
		store.VerbReserve, store.VerbReserve, store.VerbReserve, store.VerbCharge, store.VerbRefund, store.VerbReset,
	}[h.IntN(11)]
	cost := h.cost(limit)
	switch verb {
	case store.VerbReserve:
		if h.l.Limit(limit).Algorithm == store.SlidingWindow {
			verb = store.VerbTake
		}
	case store.VerbCharge:
		cost = min(cost, h.l.Limit(limit).Rule.MaxCharge)
	case store.VerbReset:
		if cost = 0; h.IntN(4) > 0 {
			return
		}
	}
	h.note(h.do(verb, limit, h.key(limit), cost))
}

func (h *history) note(d dipwell.Decision) {
	if d.Reservation != (store.Reservation{}) {
		h.ids = append(h.ids, d.Reservation)
	}
	if d.RetryAfter > 0 {
		h.retry = d.RetryAfter
	}
}

func (h *history) group() {
	takes := make([]dipwell.Take, 1+h.IntN(5))
	for i := range takes {
		limit := h.limit()
		if h.OneKey && i > 0 && (limit == shared) != (takes[0].Limit == shared) {
			limit = takes[0].Limit
		}
		takes[i] = dipwell.Take{Limit: limit, Key: h.key(limit), Cost: min(h.cost(limit), store.MaxInt/16)}
		if h.OneKey {
			takes[i].Key = takes[0].Key
		}
	}
	verb := []store.Verb{store.VerbTake, store.VerbTake, store.VerbCheck, store.VerbReserve}[h.IntN(4)]
	if slices.ContainsFunc(takes, func(t dipwell.Take) bool { return h.l.Limit(t.Limit).Algorithm == store.SlidingWindow }) {
		verb = min(verb, store.VerbCheck)
	}
	h.note(h.doAll(verb, takes...))
}

func (h *history) giveBack() {
	if len(h.ids) == 0 {
		return
	}
	i := h.IntN(len(h.ids))
	r := h.m.reservations[h.ids[i]]
	_ = h.cancel(h.ids[i])
	if r != nil && r.due <= h.clock.Load() { // the store may delete a due reservation, so do not cancel it after the clock stepped back
		h.ids = slices.Delete(h.ids, i, i+1)
	}
}

// move sets the clock near the last retry time, or moves it forward or back
// by a random span.
func (h *history) move() {
	switch n := h.IntN(10); {
	case n < 3 && h.retry > 0 && h.retry < 1000*time.Hour:
		h.advance(h.retry + time.Duration(h.IntN(3)-1)*time.Microsecond)
		h.retry = 0
	case n < 8:
		h.advance(h.span())
	default:
		h.back(h.span() / 10)
	}
}

func (h *history) span() time.Duration {
	scale := []time.Duration{time.Microsecond, time.Millisecond, 100 * time.Millisecond, time.Second, 10 * time.Second, time.Minute, time.Hour, 24 * time.Hour}
	return (time.Duration(h.Int64N(int64(scale[h.IntN(len(scale))]*10))) / time.Microsecond * time.Microsecond)
}

// resetFull resets the keys that are full at now. The store may or may not
// have deleted their rows, which would make a difference before now.
func (h *history) resetFull(now int64) {
	for k := range h.m.rows {
		if h.m.usedAt(k, now).Sign() == 0 {
			h.reset(k)
		}
	}
}

func (h *history) reset(k rowKey) {
	key := k.key
	if key == "" {
		key = dipwell.Shared
	}
	h.do(store.VerbReset, k.limit, key, 0)
}

// back steps the clock back. The store may delete reservations that are due now, so the
// history does not use them again. It resets their keys, because a row without live records
// may change by another policy.
func (h *history) back(d time.Duration) {
	now := h.clock.Load()
	h.latest = max(h.latest, now)
	h.resetFull(now)
	var ids []store.Reservation
	for _, id := range h.ids {
		if r := h.m.reservations[id]; r == nil || r.due > now {
			ids = append(ids, id)
		} else {
			delete(h.m.reservations, id)
		}
	}
	h.ids = ids
	for k, records := range h.m.records {
		if slices.ContainsFunc(records, func(c *record) bool { return c.ends <= now }) {
			h.reset(k)
		}
	}
	h.advance(-d.Truncate(time.Microsecond))
}

// redefine changes a limit to random settings.
func (h *history) redefine(name string) {
	for {
		l := h.anyLimit(name)
		if _, err := store.NewDefinition(l); err == nil {
			h.define(l)
			return
		}
	}
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

func (h *history) anyLimit(name string) store.Limit {
	l := store.Limit{
		Name:      name,
		Shared:    name == shared,
		Algorithm: pick(h.Rand, store.TokenBucket, store.TokenBucket, store.FixedWindow, store.Interval, store.LeakyBucket, store.SlidingWindow),
		Rate:      pick[int64](h.Rand, 1, 2, 3, 7, 10, 60, 1000, 999983, 1+h.Int64N(100)),
		Period:    pick(h.Rand, time.Millisecond, time.Second, time.Second, 7*time.Second, time.Minute, time.Hour, 24*time.Hour, 30*24*time.Hour),
		Burst:     pick[int64](h.Rand, 0, 1, 2, 5, 20, 1+h.Int64N(50), store.NoBurst),
		MaxDebt:   pick[int64](h.Rand, 0, 0, 1, 7, 40, store.NoDebt, store.UnlimitedDebt),
		MaxCharge: pick[int64](h.Rand, 0, 0, 0, 1, 30),
		OnChange:  pick(h.Rand, store.Keep, store.Keep, store.Proportional, store.StartOver),
	}
	if h.IntN(8) == 0 {
		l.Mode = store.Shadow
	}
	switch l.Algorithm {
	case store.SlidingWindow:
		l.Burst, l.MaxDebt, l.Start = 0, 0, pick(h.Rand, "", "", "0s", "500us")
	case store.LeakyBucket:
		l.Burst = 0
	case store.FixedWindow, store.Interval:
		l.Start = pick(h.Rand, "", "", "0s", "3s", "500ms", "first_call", "first_call")
		switch h.IntN(6) {
		case 0:
			l.Start, l.Period = "06:00 Europe/Rome", 24*time.Hour
		case 1:
			l.Start, l.Period = pick(h.Rand, "", "00:00 UTC"), store.Month
		}
	}
	return l
}

// forget drops a limit and defines it again, which makes its keys full.
func (h *history) forget() {
	name := h.limit()
	var ids []store.Reservation
	for _, id := range h.ids {
		if r := h.m.reservations[id]; r == nil || !r.of(name) {
			ids = append(ids, id)
		}
	}
	h.ids = ids
	h.drop(name)
	h.redefine(name)
}
