package storetest

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
	"github.com/dipwell/dipwell/testdata/golden"
)

// goldenCallCases replay the histories of each kind through a Limiter.
var goldenCallCases = []testCase{
	{"plan-golden", goldenCalls("plans")},
	{"override-golden", goldenCalls("overrides")},
	{"hold-golden", goldenCalls("holds")},
	{"concurrency-golden", goldenCalls("concurrency")},
	{"levels-golden", goldenCalls("levels")},
	{"floor-golden", goldenCalls("floor")},
	{"together-golden", goldenCalls("together")},
	{"block-golden", goldenCalls("blocks")},
}

// callsByKind returns the histories of golden.Calls by kind; nobody changes them. They are
// decoded once: they are 2 MB of JSON, and each kind is a case of each run of the suite.
var callsByKind = sync.OnceValues(func() (map[string][]golden.History, error) {
	all := map[string][]golden.History{}
	for line := range bytes.Lines(golden.Calls) {
		var h golden.History
		if err := json.Unmarshal(line, &h); err != nil {
			return nil, err
		}
		all[h.Kind] = append(all[h.Kind], h)
	}
	return all, nil
})

// fewer is how many times rarer a history is left out than a vector.
const fewer = 4

// goldenCalls replays the histories of a kind.
func goldenCalls(kind string) func(e *env) {
	return func(e *env) {
		p := &callPlayer{env: e, defined: map[string]string{}}
		all, err := callsByKind()
		e.must(nil, err)
		n, played := 0, 0
		for i := range all[kind] {
			h := &all[kind][i]
			if !p.can(h) {
				continue
			}
			if n++; n%(1+e.vectors/fewer) == 0 {
				p.play(h)
				played++
			}
		}
		if played == 0 && !e.OneKey && len(e.Lacks) == 0 {
			e.Errorf("no history of %d was played", n)
		}
	}
}

// A callPlayer plays histories, one after another, on the same store.
type callPlayer struct {
	*env
	defined map[string]string // text of each limit, by its name
	ids     map[int]store.Reservation
	holds   map[string]string // from the id of the call to the id that the store gave
}

// can reports whether the store can decide all calls of a history.
func (p *callPlayer) can(h *golden.History) bool {
	lacks := func(a string) bool { return slices.Contains(p.Lacks, a) }
	if lacks(h.Kind) || lacks("concurrency") && slices.ContainsFunc(h.Limits, func(text string) bool { return strings.Contains(text, "algorithm=concurrency") }) {
		return false
	}
	for _, s := range h.Steps {
		if p.OneKey && len(s.Want.Limits) > 1 || lacks("holds") && s.Hold != "" || lacks("overrides") && s.Override != nil ||
			lacks("plans") && slices.ContainsFunc(s.Takes, func(t golden.Take) bool { return t.Plan != "" || t.Floor > 0 }) {
			return false
		}
	}
	return true
}

func (p *callPlayer) play(h *golden.History) {
	p.Helper()
	p.ids, p.holds = map[int]store.Reservation{}, map[string]string{}
	p.clock.Store(h.Steps[0].At)
	p.use(h.Limits)
	for i := range h.Steps {
		s := &h.Steps[i]
		p.clock.Store(s.At)
		d, err := p.step(i, s)
		p.compare(i, h, d, err)
		if i%7 == 6 { // a sweep changes no decision
			p.sweep()
		}
	}
}

// use defines the limits of a history, dropping first those that are defined differently.
func (p *callPlayer) use(texts []string) {
	p.Helper()
	differs := false
	names := make([]string, len(texts))
	for i, text := range texts {
		names[i], _, _ = strings.Cut(text, "=")
		was := p.defined[names[i]]
		differs = differs || was != "" && was != text
	}
	for _, name := range slices.Backward(names) { // parents last
		if differs && p.defined[name] != "" {
			p.must(nil, p.l.Drop(p.ctx, name, store.OwnerCode))
			p.defined[name] = ""
		}
	}
	for i, text := range texts {
		if p.defined[names[i]] == "" {
			p.change(text)
		}
	}
}

// change defines a limit, or a new version of an existing one.
func (p *callPlayer) change(text string) {
	p.Helper()
	l, err := dipwell.ParseLimit(text)
	p.must(nil, err)
	p.must(p.l.Define(p.ctx, l, store.OwnerCode))
	p.defined[l.Name] = text
}

func (p *callPlayer) step(i int, s *golden.Step) (d dipwell.Decision, err error) {
	p.Helper()
	var takes []dipwell.Take
	for _, t := range s.Takes {
		takes = append(takes, dipwell.Take{Limit: t.Limit, Plan: t.Plan, Key: t.Key, Cost: t.Cost, Floor: t.Floor})
	}
	id := s.Hold
	if p.holds[id] != "" && s.Do != "hold" {
		id = p.holds[id]
	}
	switch s.Do {
	case "define":
		p.change(s.Limit)
	case "override", "end_override":
		p.override(s)
	case "cancel":
		return d, p.l.Cancel(p.ctx, p.ids[s.Of])
	case "hold":
		d, err = p.l.Hold(p.ctx, time.Duration(s.TTL)*time.Microsecond, id, takes...)
		if err == nil && d.Allowed {
			p.holds[id] = d.Hold
		}
	case "settle":
		return p.l.Settle(p.ctx, id, s.Costs...)
	case "extend":
		return p.l.Extend(p.ctx, id, time.Duration(s.TTL)*time.Microsecond)
	default:
		verb := store.VerbTake
		for verb.String() != s.Do {
			verb++
		}
		err = p.l.DoAll(p.ctx, &d, verb, takes)
		p.ids[i] = d.Reservation
	}
	return d, err
}

func (p *callPlayer) override(s *golden.Step) {
	p.Helper()
	overrides, def, o := overriderOf(p, p.store), p.l.Limit(s.Limit), s.Override
	if s.Do == "end_override" {
		p.must(overrides.EndOverride(p.ctx, def, o.Key, store.AnyOverride))
		return
	}
	p.must(overrides.SetOverride(p.ctx, def, store.Override{Key: o.Key, Plan: o.Plan, Rate: o.Rate, Burst: o.Burst, Until: o.Until}))
}

// compare fails unless a step was answered as the vector says.
func (p *callPlayer) compare(i int, h *golden.History, d dipwell.Decision, err error) {
	p.Helper()
	s := &h.Steps[i]
	w, got := &s.Want, golden.Want{Error: p.classOf(err)}
	if err == nil {
		got.Allowed, got.Reserved, got.Repeated = d.Allowed, d.Reservation != (store.Reservation{}), d.Repeated
		if !d.Expires.IsZero() {
			got.Expires = d.Expires.UnixMicro()
		}
		got.Limits = partsOf(d, len(s.Takes) > 0)
	}
	differ := got.Error != w.Error || got.Allowed != w.Allowed || got.Reserved != w.Reserved || got.Repeated != w.Repeated ||
		got.Expires != w.Expires || len(got.Limits) != len(w.Limits)
	for j := range min(len(got.Limits), len(w.Limits)) {
		differ = differ || !sameParts(got.Limits[j], w.Limits[j])
	}
	if !differ {
		return
	}
	text := func(v any) string {
		b, err := json.Marshal(v)
		p.must(nil, err)
		return string(b)
	}
	for _, before := range h.Steps[:i] {
		p.Log(text(before))
	}
	p.Fatalf("%s\n  got %s\n  error %v", text(s), text(got), err)
}

// partsOf returns the answers for the limits of a decision; for a call with takes, also
// what blocks a key.
func partsOf(d dipwell.Decision, takes bool) (parts []golden.Part) {
	limits := d.Limits
	if limits == nil && d.Limit != "" {
		limits = []dipwell.Decision{d}
	}
	for _, x := range limits {
		part := golden.Part{Limit: x.Limit, Key: x.Key, Plan: x.Plan, Allowed: x.Allowed, Never: x.Never, Shadow: x.Shadow, Bound: x.RetryIsBound,
			Granted: x.Granted, Remaining: x.Remaining, Retry: x.RetryAfter.Microseconds(), Reset: x.ResetAfter.Microseconds(), Delay: x.Delay.Microseconds()}
		if def := x.Definition; takes && def.Override != nil && def.Mode == store.Blocked {
			part.Blocked = def.Override.Until
		}
		parts = append(parts, part)
	}
	return parts
}

// sameParts reports whether the answers are what a vector wants. An answer may be
// marked as a bound though it is exact.
func sameParts(got, want golden.Part) bool {
	if want.Early {
		if got.Remaining > want.Remaining || got.Reset < want.Reset {
			return false
		}
		got.Remaining, got.Reset, got.Early = want.Remaining, want.Reset, true
	}
	got.Bound = want.Bound || got.Bound && want.Retry == 0
	return got == want
}

func (p *callPlayer) classOf(err error) string {
	p.Helper()
	var field *store.FieldError
	switch {
	case err == nil:
		return ""
	case errors.Is(err, store.ErrReservation):
		return "reservation"
	case errors.Is(err, store.ErrUnknownHold):
		return "unknown hold"
	case errors.Is(err, store.ErrHoldConflict):
		return "conflict"
	case errors.As(err, &field):
		return "field"
	}
	p.Fatal(err)
	return ""
}
