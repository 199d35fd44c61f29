package lockstep

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// epoch is the time at which the clock starts: 2026-01-01T00:00:00Z.
const epoch = int64(1767225600e6)

// Bounds of the histories.
const (
	limitCount = 24
	keyCount   = 3000 // of each limit
	hotKeys    = 25   // that half of the calls are about, for a while
)

// event is a call or a change that is made on every side at the same time.
type event struct {
	number int
	now    int64
	what   string // ask, cancel, define, drop, sweep

	verb    store.Verb
	takes   []dipwell.Take
	several bool  // as one call of several entries, be it one
	within  int64 // µs: a reservation that is due by then; -1: whenever
	made    int   // number of the event whose reservation is given back; -1: of none
	limit   dipwell.Limit
}

// id returns the id of a reservation, for sides that do not choose it.
func (e *event) id() (id dipwell.Reservation) {
	binary.BigEndian.PutUint64(id[:], uint64(e.number)+1)
	binary.BigEndian.PutUint64(id[8:], (uint64(e.number)+1)*0x9e3779b97f4a7c15) // marks must differ
	return id
}

func (e *event) String() string {
	at := time.Duration(e.now-epoch) * time.Microsecond
	switch e.what {
	case "ask":
		var takes []string
		for _, t := range e.takes {
			takes = append(takes, fmt.Sprintf("%s %.20q %d", t.Limit, t.Key, t.Cost))
		}
		return fmt.Sprintf("event %d at %v: %s %s (several %v, within %d)", e.number, at, e.verb, strings.Join(takes, ", "), e.several, e.within)
	case "cancel":
		return fmt.Sprintf("event %d at %v: cancel what event %d reserved", e.number, at, e.made)
	case "define":
		return fmt.Sprintf("event %d at %v: define %+v", e.number, at, e.limit)
	}
	return fmt.Sprintf("event %d at %v: %s %s", e.number, at, e.what, e.limit.Name)
}

// history draws random events. It uses the reference to choose useful ones: at
// a retry time, or just before a reservation is due.
type history struct {
	*rand.Rand
	ref   *reference
	side  *library // the reference as a side
	count int
	now   int64
	high  int64 // the latest reading of the clock so far

	names []string
	gone  map[string]bool // limits that are dropped just now
	hot   []string
	made  []reserved // reservations to give back
	last  *event     // that was refused
	retry int64      // µs after it
	next  []*event   // drawn already
}

type reserved struct {
	event int
	id    dipwell.Reservation // on the reference
}

func newHistory(t testing.TB, seed uint64) *history {
	h := &history{Rand: rand.New(rand.NewPCG(seed, 0)), now: epoch, high: epoch, gone: map[string]bool{}}
	h.side = newLibrary(t, func(_ testing.TB, now func() int64) store.Store {
		h.ref = newReference(now)
		return h.ref
	})
	for i := range limitCount {
		name := fmt.Sprint("l", i)
		h.names = append(h.names, name)
		h.next = append(h.next, h.redefine(name))
	}
	h.warm()
	return h
}

// warm draws new hot keys.
func (h *history) warm() {
	h.hot = h.hot[:0]
	for range hotKeys {
		h.hot = append(h.hot, h.coldKey())
	}
}

func (h *history) coldKey() string {
	switch n := h.IntN(keyCount); n {
	case 1:
		return "ключ {с} \"кавычками\" 🪣 }{*?[\\"
	case 2:
		return strings.Repeat("k", store.MaxKey)
	default:
		return fmt.Sprint("user:", n)
	}
}

// shared is the limit that is shared.
const shared = "l2"

// key draws a key of a limit.
func (h *history) key(limit string) string {
	if limit == shared {
		return dipwell.Shared
	}
	switch d := h.ref.reg.Lookup(limit); {
	case d != nil && d.Block > 0 && h.IntN(3) > 0: // keys that run out
		return h.hot[h.IntN(2)]
	case h.IntN(2) == 0:
		return h.hot[h.IntN(len(h.hot))]
	}
	return h.coldKey()
}

// limit returns a defined limit, usually one of the first few.
func (h *history) limit() string {
	for {
		n := h.IntN(limitCount)
		if h.IntN(2) == 0 {
			n = h.IntN(4)
		}
		if name := h.names[n]; !h.gone[name] {
			return name
		}
	}
}

// draw returns the next event and the reference's answer.
func (h *history) draw(ctx context.Context) (*event, reply) {
	if len(h.next) == 0 {
		h.move()
		h.next = append(h.next, h.any())
	}
	e := h.next[0]
	h.next = h.next[1:]
	if e.what == "ask" && !h.certain(e) {
		return h.finish(ctx, h.resetFirst(e))
	}
	return h.finish(ctx, e)
}

func (h *history) finish(ctx context.Context, e *event) (*event, reply) {
	e.number, e.now = h.count, h.now
	h.count++
	h.side.setClock(h.now)
	r, id := play(ctx, h.side, e, func(int) dipwell.Reservation { return h.idOf(e.made) })
	if r.reserved {
		h.made = append(h.made, reserved{e.number, id})
		if len(h.made) > 500 {
			h.made = h.made[250:]
		}
	}
	if e.what == "ask" && r.err == "" && !r.allowed && h.IntN(3) == 0 {
		h.follow(e)
	}
	return e, r
}

func (h *history) idOf(event int) dipwell.Reservation {
	for _, m := range h.made {
		if m.event == event {
			return m.id
		}
	}
	return dipwell.Reservation{}
}

// follow repeats a refused call 1 µs before its retry time, at it, and after
// it.
func (h *history) follow(e *event) {
	h.last, h.retry = e, 0
	for _, t := range e.takes {
		if def := h.ref.reg.Lookup(t.Limit); def != nil {
			h.retry = max(h.retry, h.ref.fullAt(bucket{t.Limit, keyOf(t)})-h.now)
		}
	}
	var d dipwell.Decision
	if !e.several && e.within < 0 && h.side.Do(context.Background(), &d, store.VerbCheck, dipwell.Take{Limit: e.takes[0].Limit, Key: e.takes[0].Key, Cost: e.takes[0].Cost}) == nil && d.RetryAfter > 0 {
		h.retry = d.RetryAfter.Microseconds()
	}
}

// move sets the clock near a retry or due time, forward by a random span, or
// back.
func (h *history) move() {
	switch n := h.IntN(100); {
	case n < 45:
	case n < 55 && h.last != nil && h.retry > 0 && h.retry < 1e9:
		h.now += h.retry + h.Int64N(3) - 1
		again := *h.last
		h.next = append(h.next, &again)
		h.last = nil
	case n < 60 && len(h.made) > 0:
		v := h.ref.held[h.made[h.IntN(len(h.made))].id]
		if due := v.Due + h.Int64N(3) - 1; due > h.now && due < h.now+1e9 {
			h.now = due
		}
	case n < 97:
		h.now += h.span()
	case h.now == h.high:
		h.now -= h.span() / 4
	}
	if h.now < h.high && h.IntN(12) == 0 {
		h.now = h.high
	}
	h.high = max(h.high, h.now)
	if h.IntN(150) == 0 {
		h.warm()
	}
}

func (h *history) span() int64 {
	scale := []int64{10, 1e4, 1e5, 1e5, 1e6, 1e6, 1e7, 6e7}
	if h.IntN(200) == 0 {
		return h.Int64N(48 * 3600e6)
	}
	return h.Int64N(scale[h.IntN(len(scale))])
}

// any draws an event. Limits change only while the clock is at its latest time:
// a row that is full then may be deleted, and stays full.
func (h *history) any() *event {
	steady := h.now == h.high
	switch n := h.IntN(1000); {
	case n < 700:
		return h.call()
	case n < 850:
		return h.group()
	case n < 930:
		return h.giveBack()
	case n < 965:
		return h.mistake()
	case n < 975:
		return &event{what: "sweep"}
	case n < 987 && steady:
		return h.redefine(h.names[h.IntN(limitCount)])
	case n < 993 && steady && len(h.gone) < limitCount/4:
		return h.drop(h.limit())
	}
	return h.call()
}

func (h *history) call() *event {
	limit, verb := h.limit(), []store.Verb{
		store.VerbTake, store.VerbTake, store.VerbTake, store.VerbCheck, store.VerbTakeUpTo, store.VerbReserve,
		store.VerbReserve, store.VerbReserve, store.VerbCharge, store.VerbRefund, store.VerbReset,
	}[h.IntN(11)]
	if verb == store.VerbReserve && h.slides(limit) {
		verb = store.VerbTake
	}
	e := &event{what: "ask", verb: verb, within: -1, takes: []dipwell.Take{{Limit: limit, Key: h.key(limit), Cost: h.cost(limit)}}}
	cost := &e.takes[0].Cost
	switch verb {
	case store.VerbCharge:
		*cost = min(*cost, h.ref.reg.Lookup(limit).Rule.MaxCharge)
	case store.VerbReset:
		*cost = 0
	case store.VerbReserve:
		if h.IntN(4) == 0 {
			e.within = h.span()
		}
	}
	return e
}

// slides reports whether a limit is a sliding window, which has no reservations.
func (h *history) slides(limit string) bool { return h.ref.reg.Lookup(limit).Rule.Sliding }

// cost returns a cost that is mostly small, sometimes near the limit's bounds
// or the largest possible.
func (h *history) cost(limit string) int64 {
	r := &h.ref.reg.Lookup(limit).Rule
	switch h.IntN(14) {
	case 0:
		return 0
	case 1:
		return r.Burst + h.Int64N(3)
	case 2:
		return min(store.MaxInt, r.Most+h.Int64N(2))
	case 3, 4, 5:
		return 1 + h.Int64N(max(1, r.Burst))
	case 6:
		return store.MaxInt - h.Int64N(2)
	}
	return 1 + h.Int64N(3)
}

func (h *history) group() *event {
	e := &event{what: "ask", several: true, within: -1,
		verb:  []store.Verb{store.VerbTake, store.VerbTake, store.VerbCheck, store.VerbReserve}[h.IntN(4)],
		takes: make([]dipwell.Take, 1+h.IntN(5))}
	if h.IntN(20) == 0 {
		e.takes = make([]dipwell.Take, store.MaxTakes)
	}
	for i := range e.takes {
		limit := h.limit()
		e.takes[i] = dipwell.Take{Limit: limit, Key: h.key(limit), Cost: min(h.cost(limit), store.MaxInt/store.MaxTakes)}
		if i > 0 && h.IntN(8) == 0 { // the same again: it adds up
			e.takes[i].Limit, e.takes[i].Key = e.takes[0].Limit, e.takes[0].Key
		}
		if e.verb == store.VerbReserve && h.slides(e.takes[i].Limit) {
			e.verb = store.VerbTake
		}
	}
	return e
}

// mistake returns a call that must fail with an error that names the field.
func (h *history) mistake() *event {
	e := h.call()
	if h.IntN(3) == 0 {
		e = h.group()
		e.verb = store.VerbTake // SQL has take_all alone
	}
	e.within = -1
	t := &e.takes[h.IntN(len(e.takes))]
	n := h.IntN(6)
	if e.verb == store.VerbReset && n < 2 { // in SQL its cost is of no account
		n = 2
	}
	switch n {
	case 0:
		t.Cost = -1 - h.Int64N(store.MaxInt)
	case 1:
		t.Cost = store.MaxInt + 1 + h.Int64N(2)
	case 2:
		t.Key = ""
	case 3:
		t.Key = strings.Repeat("k", store.MaxKey+1)
	case 4:
		t.Limit = "nobody's"
	case 5:
		e.several, e.verb, e.takes = false, store.VerbCharge, e.takes[:1]
		t = &e.takes[0]
		t.Cost = h.ref.reg.Lookup(t.Limit).Rule.MaxCharge + 1
	}
	return e
}

// giveBack cancels a reservation, which may be due, cancelled or reset. After
// the clock stepped back, stores may have deleted what was due before.
func (h *history) giveBack() *event {
	e := &event{what: "cancel", made: -1}
	if len(h.made) == 0 || h.IntN(20) == 0 {
		return e
	}
	m := h.made[len(h.made)-1-h.IntN(min(len(h.made), 30))]
	v, known := h.ref.held[m.id]
	if known && v.Due > h.now && v.Due <= h.high {
		return h.call()
	}
	for _, p := range v.Parts {
		if h.unsure(bucket{p.Limit, p.Key}) {
			return h.call()
		}
	}
	e.made = m.event
	return e
}

// unsure reports whether stores may differ in a bucket: it was full, so that
// its row may be deleted, and is not full at the clock's present time; or a
// record was due, so that a sweep may have advanced it; or its block had ended.
func (h *history) unsure(b bucket) bool {
	full := h.ref.fullAt(b)
	return h.now < full && full <= h.high || h.now < h.high && h.ref.ends(b, h.now, h.high)
}

func (h *history) certain(e *event) bool {
	for _, t := range e.takes {
		if h.unsure(bucket{t.Limit, keyOf(t)}) {
			return false
		}
	}
	return true
}

// resetFirst resets the first such bucket, and makes the call after that.
func (h *history) resetFirst(e *event) *event {
	for _, t := range e.takes {
		if h.unsure(bucket{t.Limit, keyOf(t)}) {
			h.next = append([]*event{e}, h.next...)
			return &event{what: "ask", verb: store.VerbReset, within: -1, takes: []dipwell.Take{{Limit: t.Limit, Key: t.Key}}}
		}
	}
	return e
}

func (h *history) drop(name string) *event {
	h.gone[name] = true
	if h.last != nil && slices.ContainsFunc(h.last.takes, func(t dipwell.Take) bool { return t.Limit == name }) {
		h.last = nil
	}
	return &event{what: "drop", limit: dipwell.Limit{Name: name}}
}

// redefine changes a limit to random settings, or drops it and defines it
// again.
func (h *history) redefine(name string) *event {
	for {
		l := h.anyLimit(name)
		if _, err := store.NewDefinition(l); err == nil {
			delete(h.gone, name)
			return &event{what: "define", limit: l}
		}
	}
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

func (h *history) anyLimit(name string) dipwell.Limit {
	const day = 24 * time.Hour
	l := dipwell.Limit{
		Name:      name,
		Shared:    name == shared,
		Algorithm: pick(h.Rand, store.TokenBucket, store.TokenBucket, store.TokenBucket, dipwell.FixedWindow, dipwell.Interval, dipwell.LeakyBucket, store.SlidingWindow),
		Rate:      pick[int64](h.Rand, 1, 2, 3, 7, 10, 60, 1000, 1+h.Int64N(100)),
		Period:    pick(h.Rand, time.Millisecond, time.Second, 7*time.Second, time.Minute, time.Minute, time.Hour, day, 30*day),
		Burst:     pick[int64](h.Rand, 0, 1, 2, 5, 20, 1+h.Int64N(50), dipwell.NoBurst),
		MaxDebt:   pick[int64](h.Rand, 0, 0, 1, 7, 40, dipwell.NoDebt, dipwell.UnlimitedDebt),
		OnChange:  pick(h.Rand, store.Keep, store.Keep, dipwell.Proportional, dipwell.StartOver),
	}
	if h.IntN(8) == 0 {
		l.Mode = dipwell.Shadow
	}
	if h.IntN(4) == 0 { // an error for some limits, which are drawn again
		l.Block = pick(h.Rand, time.Millisecond, time.Second, 10*time.Second, time.Minute, 2*time.Hour)
	}
	switch l.Algorithm {
	case dipwell.LeakyBucket:
		l.Burst = 0
	case store.SlidingWindow:
		l.Burst, l.MaxDebt, l.Start = 0, 0, pick(h.Rand, "", "", "0s", "3s")
	case store.TokenBucket:
		switch h.IntN(12) { // the extremes
		case 0:
			l.Rate, l.Period, l.Burst = 1<<30, day, 0
		case 1:
			l.Rate, l.Period, l.Burst = 999_983, 30*day, 0
		case 2:
			l.Rate, l.Period, l.Burst = 1<<40, 30*day, 0
		case 3:
			l.Rate, l.Period, l.Burst = 300_000, time.Second, 2
		}
	case dipwell.FixedWindow, dipwell.Interval:
		l.Start = pick(h.Rand, "", "", "0s", "3s", "500ms", "first_call")
		switch h.IntN(6) {
		case 0:
			l.Start, l.Period = pick(h.Rand, "06:00 Europe/Rome", "02:30 America/New_York", "00:00 Australia/Lord_Howe"), pick(h.Rand, day, 7*day)
		case 1:
			l.Start, l.Period = pick(h.Rand, "", "00:00 UTC", "23:59 Asia/Kathmandu"), pick(h.Rand, dipwell.Month, 12*dipwell.Month, 3*dipwell.Month)
		}
	}
	return l
}
