package model

import (
	"fmt"
	"strings"
	"testing"
)

type kind int

const (
	kCall kind = iota
	kCancel
	kHold
	kSettle
	kExtend
	kDefine
	kDrop
	kOverride
	kEndOverride
	kClock
	kSweep
	kInspect
)

// An op is a step of a history: a call, a change or a move of the clock.
type op struct {
	kind
	verb  verb
	takes []take
	id    string // of a hold or reservation
	ttl   int64
	costs []int64
	settings
	override  *override
	temporary bool // of endOverride
	standing  bool
	block     bool
	by        int64 // of clock
}

var verbNames = []string{"take", "check", "take_up_to", "reserve", "charge", "refund", "reset"}

func (o *op) String() string {
	switch o.kind {
	case kCall:
		return fmt.Sprintf("%s %s %s", verbNames[o.verb], texts(o.takes), o.id)
	case kCancel:
		return "cancel " + o.id
	case kHold:
		return fmt.Sprintf("hold %s ttl %dus %s", o.id, o.ttl, texts(o.takes))
	case kSettle:
		return fmt.Sprintf("settle %s %v", o.id, o.costs)
	case kExtend:
		return fmt.Sprintf("extend %s ttl %dus", o.id, o.ttl)
	case kDefine:
		return "define " + limitOf(&o.settings, "").String()
	case kDrop:
		return "drop " + o.name
	case kOverride:
		return fmt.Sprintf("override %s %s: %s", o.takes[0].limit, o.takes[0].key, o.override)
	case kEndOverride:
		return fmt.Sprintf("end override %s %s temporary %v standing %v block %v", o.takes[0].limit, o.takes[0].key, o.temporary, o.standing, o.block)
	case kClock:
		return fmt.Sprintf("clock %+dus", o.by)
	case kInspect:
		return fmt.Sprintf("inspect %s %q", o.takes[0].limit, o.takes[0].key)
	}
	return "sweep"
}

func (o *override) String() string {
	if o == nil {
		return "none"
	}
	begins := o.text
	if o.start != nil {
		begins = o.start.text()
	}
	if o.block {
		return fmt.Sprintf("block until %d", o.until)
	}
	if o.plan != "" {
		return fmt.Sprintf("plan %s until %d start %q", o.plan, o.until, begins)
	}
	return fmt.Sprintf("rate %d per %dus burst %d until %d start %q", o.rate, o.per, o.burst, o.until, begins)
}

func texts(takes []take) string {
	var out []string
	for _, t := range takes {
		text := fmt.Sprintf("%s %q %d", t.limit, t.key, t.cost)
		if t.plan != "" {
			text += " plan " + t.plan
		}
		if t.floor > 0 {
			text += fmt.Sprint(" floor ", t.floor)
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

// do plays an op on the model. A sweep changes nothing.
func (w *world) do(o *op) answer {
	switch o.kind {
	case kCall:
		if w.limits[o.takes[0].limit].now().algorithm == concurrency {
			return w.slotCall(o)
		}
		return w.apply(o.verb, o.takes, o.id)
	case kCancel:
		return w.cancel(o.id)
	case kHold:
		return w.make(o.id, o.ttl, o.takes)
	case kSettle:
		return w.end(o.id, o.costs)
	case kExtend:
		return w.extend(o.id, o.ttl)
	case kDefine:
		w.define(o.settings)
	case kDrop:
		w.drop(o.name)
	case kOverride:
		w.setOverride(o.takes[0].limit, o.takes[0].key, o.override)
	case kEndOverride:
		w.endOverride(o.takes[0].limit, o.takes[0].key, o.temporary, o.standing, o.block)
	case kInspect:
		return w.inspect(o.takes[0])
	case kClock:
		w.now += o.by
	}
	return answer{allowed: true}
}

// inspect is what is known of a key: what decides a call of it, what its row is under, and its
// overrides.
func (w *world) inspect(t take) answer {
	l := w.limits[t.limit]
	x := &level{take: t, l: l}
	check := op{kind: kCall, verb: vCheck, takes: []take{t}}
	a := answer{allowed: true, levels: w.do(&check).levels[:1]}
	s := w.under(x)
	if l.now().algorithm != concurrency {
		w.chargeOne(s)
		a.levels = append(a.levels, s.said())
	}
	for _, o := range []*override{s.r.temporary, s.r.standing} {
		a.overrides = append(a.overrides, o.String())
	}
	return a
}

// slotCall is a check or a reset of a concurrency limit.
func (w *world) slotCall(o *op) answer {
	if o.verb == vReset {
		return w.applyReset(o.takes)
	}
	a := answer{allowed: true}
	var steps []*step
	for _, x := range w.levels(o.takes, true) {
		s := w.open(x)
		w.askSlots(s)
		s.granted = 0
		a.allowed = a.allowed && s.allowed
		steps = append(steps, s)
	}
	return a.with(steps)
}

// A target is a store that plays histories.
type target interface {
	// do plays an op. Names of limits begin with prefix there.
	do(prefix string, o *op) (answer, error)
	// drop drops limits, the last first, and forgets ids of holds.
	drop(prefix string, limits []string) error
	setClock(now int64)
	// adapt removes from what the model says what the target cannot say.
	adapt(o *op, want *answer)
}

// play plays a history on a target and a new model, and returns the first difference.
func play(g target, prefix string, from int64, ops []*op) (at int, difference string) {
	w := newWorld()
	w.now, w.prefix = from, prefix
	defer func() {
		if err := g.drop(prefix, w.droppable()); err != nil && difference == "" {
			at, difference = 0, fmt.Sprint("drop: error ", err)
		}
	}()
	for i, o := range ops {
		if o.kind == kClock {
			if o.by < 0 && !w.calm(-o.by) {
				return i, "the clock must not step back here: error in a shortened history"
			}
			w.do(o)
			continue
		}
		if w.ahead(o.kind == kDefine) > 0 {
			return i, "a full row is ahead of the clock: error in a shortened history"
		}
		g.setClock(w.now)
		looked := w.touched(o)
		if d := compare(g, w, prefix, o); d != "" {
			return i, d
		}
		for j := range looked {
			if d := compare(g, w, prefix, &op{kind: kInspect, takes: looked[j : j+1]}); d != "" {
				return i, fmt.Sprintf("%v\n%s", o, d)
			}
		}
	}
	return len(ops), ""
}

// compare plays an op on both, and returns the difference.
func compare(g target, w *world, prefix string, o *op) string {
	want := w.do(o)
	if o.kind == kCall || o.kind == kHold {
		want.levels = perTake(want.levels, o.takes)
	}
	got, err := g.do(prefix, o)
	if err != nil {
		return fmt.Sprintf("%v: error %v", o, err)
	}
	for i := range want.levels { // a store may have forgotten such holds, or not
		x := &want.levels[i]
		if x.freed && i < len(got.levels) {
			x.bound, got.levels[i].bound = false, false
		}
		x.freed = false
	}
	for _, a := range []*answer{&want, &got} {
		unsaid(o, a)
		g.adapt(o, a)
	}
	if d := differ(want, got); d != "" {
		return fmt.Sprintf("%v\n%s", o, d)
	}
	return ""
}

// perTake are levels with one for each take, and then those of parents.
func perTake(levels []told, takes []take) (out []told) {
	own := map[int]bool{}
	for _, t := range takes {
		for i, x := range levels {
			if x.limit == t.limit && x.key == t.key {
				own[i] = true
				x.granted = min(x.granted, t.cost)
				out = append(out, x)
				break
			}
		}
	}
	for i, x := range levels {
		if !own[i] {
			out = append(out, x)
		}
	}
	return out
}

// touched are the keys that an op is about.
func (w *world) touched(o *op) (keys []take) {
	for _, t := range o.takes {
		keys = append(keys, take{limit: t.limit, key: t.key})
	}
	var parts []*part
	if v := w.reservations[o.id]; o.kind == kCancel && v != nil {
		parts = v.parts
	} else if h := w.holds[o.id]; o.kind != kHold && h != nil {
		parts = h.parts
	}
	for _, p := range parts {
		if w.limits[p.limit] != nil {
			keys = append(keys, take{limit: p.limit, key: p.key})
		}
	}
	return keys
}

// unsaid removes from an answer what the contract leaves open.
func unsaid(o *op, a *answer) {
	for i := range a.levels {
		x := &a.levels[i]
		if o.kind == kSettle || o.kind == kExtend || a.repeated {
			x.granted = 0
		}
	}
}

// differ compares two answers.
func differ(want, got answer) string {
	if a, b := fmt.Sprintf("%+v", want), fmt.Sprintf("%+v", got); a == b {
		return ""
	}
	wl, gl := want.levels, got.levels
	want.levels, got.levels = nil, nil
	out := fmt.Sprintf("model %+v\nstore %+v\n", want, got)
	for i := range max(len(wl), len(gl)) {
		if i < len(wl) {
			out += fmt.Sprintf("  model %+v\n", wl[i])
		}
		if i < len(gl) {
			out += fmt.Sprintf("  store %+v\n", gl[i])
		}
	}
	return out
}

// shrink leaves out what is not needed for a difference.
func shrink(g target, prefix string, from int64, ops []*op) []*op {
	n := 0
	fails := func(ops []*op) bool {
		n++
		at, d := tryPlay(g, prefix, from, ops)
		return d != "" && at == len(ops)-1
	}
	for size := max(1, len(ops)/2); size >= 1; {
		removed := false
		for i := 0; i+size < len(ops) && n < 3000; {
			less := append(append([]*op(nil), ops[:i]...), ops[i+size:]...)
			if fails(less) {
				ops, removed = less, true
			} else {
				i += size
			}
		}
		if size == 1 && !removed || n >= 3000 {
			break
		}
		if !removed {
			size = max(1, size/2)
		}
	}
	return ops
}

// oneClock makes moves of the clock that follow each other one.
func oneClock(ops []*op) (out []*op) {
	for _, o := range ops {
		if n := len(out); o.kind == kClock && n > 0 && out[n-1].kind == kClock {
			both := *o
			both.by += out[n-1].by
			out[n-1] = &both
			continue
		}
		out = append(out, o)
	}
	return out
}

// tryPlay is play of a history that may make no sense, since something was left out.
func tryPlay(g target, prefix string, from int64, ops []*op) (at int, d string) {
	defer func() {
		if recover() != nil {
			at, d = 0, ""
		}
	}()
	at, d = play(g, prefix, from, ops)
	if strings.Contains(d, ": error ") {
		return at, ""
	}
	return at, d
}

// run plays random histories of at least so many steps.
func run(t *testing.T, g target, seed uint64, steps int) {
	t.Helper()
	done := 0
	for h := 0; done < steps; h++ {
		prefix := fmt.Sprintf("h%d-", h)
		m := newMaker(seed, h, prefix)
		ops := m.history(min(400, steps-done))
		done += len(ops)
		at, d := play(g, prefix, m.from, ops)
		if d == "" {
			continue
		}
		ops = shrink(g, prefix, m.from, ops[:at+1])
		ops = oneClock(ops)
		_, less := play(g, prefix, m.from, ops)
		if less == "" {
			less = "(the shortened history differs no more)\n" + d
		}
		var text strings.Builder
		for _, o := range ops {
			fmt.Fprintln(&text, o)
		}
		t.Fatalf("history %d of seed %d, step %d, from %d: after\n%s%s", h, seed, at, m.from, text.String(), less)
	}
	t.Logf("%d steps", done)
}
