package lockstep

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/store"
)

// play makes one event on one side. made returns the reservation that an event
// made there.
func play(ctx context.Context, s side, e *event, made func(event int) dipwell.Reservation) (r reply, id dipwell.Reservation) {
	switch e.what {
	case "ask":
		return s.ask(ctx, e)
	case "cancel":
		r.err = classOf(s.cancel(ctx, made(e.made)))
	case "define":
		r.err = classOf(s.define(ctx, e.limit))
	case "drop":
		r.err = classOf(s.drop(ctx, e.limit.Name))
	case "sweep":
		r.err = classOf(s.sweep(ctx))
	}
	return r, id
}

// walker plays the history on one side.
type walker struct {
	name    string
	side    side
	now     int64
	made    map[int]dipwell.Reservation
	replies []reply // to the events of this stretch
}

func (w *walker) walk(ctx context.Context, events []*event) {
	w.replies = w.replies[:0]
	for _, e := range events {
		if e.now != w.now {
			w.side.setClock(e.now)
			w.now = e.now
		}
		r, id := play(ctx, w.side, e, func(event int) dipwell.Reservation { return w.made[event] })
		if w.replies = append(w.replies, r); r.reserved {
			w.made[e.number] = id
		}
	}
}

// stretch is the number of events after which the sides are compared. Within a
// stretch each side goes at its own pace.
const stretch = 500

// defaultSteps is the number of events of a normal run.
const defaultSteps = 3000

// TestLockstep checks that every store gives the same answers, in every field,
// to one random history of all calls over thousands of keys. Two seeds are run,
// one of them fixed. One side has all decorators.
func TestLockstep(t *testing.T) {
	seeds := []uint64{limittest.NewSeed(t)}
	if !limittest.SeedIsSet() {
		seeds = append(seeds, 1)
	}
	steps := setting(t, stepsSetting, defaultSteps)
	for _, seed := range seeds {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { walkTogether(t, seed, steps) })
	}
}

func walkTogether(t *testing.T, seed uint64, steps int) {
	walkers := []*walker{{name: "SQL functions", side: newSQL(t)}}
	for _, s := range stores {
		walkers = append(walkers, &walker{name: s.name, side: newLibrary(t, s.open)})
	}
	walkers = append(walkers, &walker{name: "memstore, all decorators", side: newLibrary(t, func(t testing.TB, now func() int64) store.Store {
		return all(t, openMemory(t, now), now)
	})})
	for _, s := range stores {
		if s.served {
			walkers = append(walkers, &walker{name: s.name + ", over HTTP", side: newService(t, s.open)})
		}
	}
	for _, w := range walkers {
		w.made, w.now = map[int]dipwell.Reservation{}, epoch
	}
	h := newHistory(t, seed)
	t.Logf("%d events on %d stores; repeat it with %s=%d %s=%d", steps, len(walkers), limittest.SeedSetting, seed, stepsSetting, steps)
	asked, touched := map[string]int{}, map[bucket]bool{}
	for h.count < steps {
		var events []*event
		var want []reply
		for range min(stretch, steps-h.count) {
			e, r := h.draw(t.Context())
			events, want = append(events, e), append(want, r)
			asked[kindOf(e, r)]++
			h.settings(e, asked)
			for _, take := range e.takes {
				if r.err != "" {
					break
				}
				touched[bucket{take.Limit, take.Key}] = true
			}
		}
		compareStretch(t, seed, walkers, events, want)
	}
	h.now = h.high
	endWith(t, h, seed, walkers, touched)
	t.Logf("%d keys of limits; %v", len(touched), asked)
	for _, kind := range []string{"take", "check", "take_up_to", "reserve", "charge", "refund", "reset", "take all", "check all", "reserve all",
		"cancel", "define", "drop", "sweep", "cancel: reservation", "refused", "a mistake", "reserved"} {
		if steps >= defaultSteps && asked[kind] == 0 {
			t.Errorf("the history has no %q", kind)
		}
	}
	for _, setting := range []string{"a sliding window", "a window that begins with a call", "a blocked key"} {
		if seed == 1 && steps >= defaultSteps && asked[setting] < 20 { // not each history has all of them
			t.Errorf("the history has %q %d times", setting, asked[setting])
		}
	}
}

// settings counts the settings of the limits that an event asks, and the blocked keys.
func (h *history) settings(e *event, asked map[string]int) {
	for _, t := range e.takes {
		d := h.ref.reg.Lookup(t.Limit)
		if d == nil {
			continue
		}
		if d.Rule.Sliding {
			asked["a sliding window"]++
		}
		if d.Rule.BeginsWithCall() {
			asked["a window that begins with a call"]++
		}
		if o := h.ref.overrides[bucket{t.Limit, keyOf(t)}]; o != nil && o.Until > h.now {
			asked["a blocked key"]++
		}
	}
}

// kindOf returns the name under which an event is counted.
func kindOf(e *event, r reply) string {
	switch {
	case e.what == "cancel" && r.err != "":
		return "cancel: " + r.err
	case r.err != "":
		return "a mistake"
	case e.what != "ask":
		return e.what
	case !r.allowed:
		return "refused"
	case r.reserved:
		return "reserved"
	case e.several:
		return e.verb.String() + " all"
	}
	return e.verb.String()
}

// endWith sweeps, and checks some of the keys that were used.
func endWith(t *testing.T, h *history, seed uint64, walkers []*walker, touched map[bucket]bool) {
	t.Helper()
	var events []*event
	var want []reply
	ask := func(e *event) {
		e, r := h.finish(t.Context(), e)
		events, want = append(events, e), append(want, r)
	}
	ask(&event{what: "sweep"})
	for b := range touched {
		if ask(&event{what: "ask", verb: store.VerbCheck, within: -1, takes: []dipwell.Take{{Limit: b.limit, Key: b.key}}}); len(events) > 2000 {
			break
		}
	}
	compareStretch(t, seed, walkers, events, want)
}

// compareStretch plays a stretch on every side and compares the answers.
func compareStretch(t *testing.T, seed uint64, walkers []*walker, events []*event, want []reply) {
	t.Helper()
	var wg sync.WaitGroup
	for _, w := range walkers {
		wg.Go(func() { w.walk(t.Context(), events) })
	}
	wg.Wait()
	for i, e := range events {
		differs := false
		for _, w := range walkers {
			differs = differs || w.replies[i] != want[i]
		}
		if !differs {
			continue
		}
		t.Errorf("%v\n  the contract says    %+v", e, want[i])
		for _, w := range walkers {
			if w.replies[i] != want[i] {
				t.Errorf("  %-20s %+v", w.name, w.replies[i])
			}
		}
		t.Fatalf("repeat it with %s=%d %s=%d", limittest.SeedSetting, seed, stepsSetting, e.number+1)
	}
}
