package replay

import (
	"fmt"
	"slices"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/period"
	"github.com/dipwell/dipwell/store"
)

// PlaySettings are a limit and the calls that are made to it.
type PlaySettings struct {
	Limit   string  `json:"limit"`   // in the form of dipwell.ParseLimit; no concurrency limit
	Verb    string  `json:"verb"`    // take, take_up_to or reserve
	Cost    int64   `json:"cost"`    // tokens per call
	Span    string  `json:"span"`    // how long calls are made, at most 10 years
	Pattern string  `json:"pattern"` // steady, bursts, poll or drawn
	Every   string  `json:"every"`   // for steady, bursts: the time between calls or bursts; for poll: the pause after an allowed call
	Count   int64   `json:"count"`   // for bursts: calls in each burst
	Drawn   []int64 `json:"drawn"`   // for drawn: calls in each part; all parts of the span have the same length
}

// Bounds of a run, which a page can draw.
const (
	maxCalls    = 2000
	maxParts    = 240
	maxSpan     = 10 * 366 * 24 * time.Hour
	playColumns = 400 // points of the level where there are no calls
)

// begin is the time at which a run begins, in µs: midnight UTC on a Thursday, where a
// week since the epoch begins.
const begin = 1_767_225_600_000_000

// A Run is what the limit answered.
type PlayRun struct {
	Limit    string      `json:"limit"` // in the form of Limit.String
	Warning  string      `json:"warning,omitempty"`
	Capacity int64       `json:"capacity"` // tokens
	Span     int64       `json:"span_us"`
	Calls    []PlayCall  `json:"calls"`
	Level    []PlayPoint `json:"level"` // from time 0 to the span
	Steps    bool        `json:"steps"` // the level stays until the next point; otherwise it changes linearly
	Allowed  int64       `json:"allowed"`
	Refused  int64       `json:"refused"`
	Granted  int64       `json:"granted"` // tokens
	Longest  int64       `json:"longest_wait_us"`
	Stopped  string      `json:"stopped,omitempty"` // why fewer calls were made than the pattern says
}

// A Call is one call and its answer. Times are in µs since the run began.
type PlayCall struct {
	At        int64 `json:"t_us"`
	Allowed   bool  `json:"allowed"`
	Never     bool  `json:"never,omitempty"`
	Granted   int64 `json:"granted"`
	Remaining int64 `json:"remaining"`
	Retry     int64 `json:"retry_after_us,omitempty"`
	Delay     int64 `json:"delay_us,omitempty"`
}

// A Point is the level of the bucket at a time: [µs, tokens]. If the bucket is in debt, the
// level is negative.
type PlayPoint [2]float64

// A player has the state of a run.
type player struct {
	run    *PlayRun
	rule   *store.Rule
	limits store.Registry // empty, because no limit changes
	group  store.Group
	row    store.State
	next   int64 // the first column for which Level has no point yet
}

// Play makes the calls. The error is a *dipwell.FieldError that names a setting.
func Play(s PlaySettings) (*PlayRun, error) {
	l, err := dipwell.ParseLimit(s.Limit)
	if err != nil {
		return nil, err
	}
	if l.Algorithm == dipwell.Concurrency {
		return nil, badOption("algorithm", "tokens of a concurrency limit come back when holds end, which no pattern says")
	}
	l.Shards = 0 // play the sum of the rows as one
	d, err := store.NewDefinition(l)
	if err != nil {
		return nil, err
	}
	verb := slices.Index([]string{"take", "", "take_up_to", "reserve"}, s.Verb)
	if verb < 0 || s.Verb == "" {
		return nil, badOption("verb", "%q is not take, take_up_to or reserve", s.Verb)
	}
	if err := d.CheckVerb(store.Verb(verb), false); err != nil {
		return nil, badOption("verb", "%s: %v", s.Verb, err)
	}
	if s.Cost < 0 || s.Cost > store.MaxInt {
		return nil, badOption("cost", "%d is not between 0 and %d", s.Cost, int64(store.MaxInt))
	}
	span, err := length("span", s.Span)
	if err != nil {
		return nil, err
	}
	calls, err := s.calls(span)
	if err != nil {
		return nil, err
	}
	windows := l.Algorithm == dipwell.FixedWindow || l.Algorithm == dipwell.Interval
	p := &player{group: store.Group{Ops: []store.Op{{Def: d, Verb: store.Verb(verb), Cost: s.Cost}}},
		run: &PlayRun{Limit: d.String(), Warning: d.Warning, Capacity: d.Rule.Burst, Steps: windows, Span: span, Calls: []PlayCall{}, Level: []PlayPoint{}}}
	p.rule = d.RuleFor("", new(store.Rule))
	if err := p.play(calls, span); err != nil {
		return nil, err
	}
	return p.run, nil
}

// length reads a setting that is a length of time, in µs.
func length(field, text string) (int64, error) {
	d, err := period.ParseDuration(text)
	if err != nil {
		return 0, badOption(field, "%v", err)
	}
	if d < time.Microsecond || d > maxSpan {
		return 0, badOption(field, "%s is not between 1 µs and 3,660 days", text)
	}
	return d.Microseconds(), nil
}

// calls returns a function that returns the time of the next call, given the previous call
// with its answer, or nil for the first. If there is no next call it returns the span.
func (s *PlaySettings) calls(span int64) (func(*PlayCall) int64, error) {
	if s.Pattern == "drawn" {
		return s.parts(span)
	}
	every, err := length("every", s.Every)
	if err != nil {
		return nil, err
	}
	switch s.Pattern {
	case "steady":
		return repeated(1, every), nil
	case "bursts":
		if s.Count < 1 || s.Count > maxCalls {
			return nil, badOption("count", "%d is not between 1 and %d", s.Count, maxCalls)
		}
		return repeated(s.Count, every), nil
	case "poll":
		return func(last *PlayCall) int64 {
			switch {
			case last == nil:
				return 0
			case last.Never:
				return span
			case last.Allowed:
				return last.At + last.Delay + every
			}
			return last.At + last.Retry
		}, nil
	}
	return nil, badOption("pattern", "%q is not steady, bursts, poll or drawn", s.Pattern)
}

// repeated makes n calls at a time.
func repeated(n, every int64) func(*PlayCall) int64 {
	made := int64(0)
	return func(last *PlayCall) int64 {
		if last == nil {
			made = 1
			return 0
		}
		if made++; (made-1)%n == 0 {
			return last.At + every
		}
		return last.At
	}
}

// parts makes the calls of each part of the span at equal distances.
func (s *PlaySettings) parts(span int64) (func(*PlayCall) int64, error) {
	n := int64(len(s.Drawn))
	if n < 1 || n > maxParts {
		return nil, badOption("drawn", "it has %d parts; from 1 to %d", n, maxParts)
	}
	var times []int64
	for i, count := range s.Drawn {
		if count < 0 || count > maxCalls || int64(len(times))+count > maxCalls {
			return nil, badOption("drawn", "it has more than %d calls, or fewer than 0", maxCalls)
		}
		from, to := span/n*int64(i), span/n*int64(i+1)
		for k := range count {
			times = append(times, from+(to-from)/count*k)
		}
	}
	return func(*PlayCall) int64 {
		if len(times) == 0 {
			return span
		}
		next := times[0]
		times = times[1:]
		return next
	}, nil
}

func (p *player) play(next func(*PlayCall) int64, span int64) error {
	var last *PlayCall
	for t := next(nil); t < span; t = next(last) {
		if len(p.run.Calls) == maxCalls {
			p.run.Stopped = fmt.Sprintf("the first %d calls are shown", maxCalls)
			break
		}
		p.levels(t)
		c, err := p.call(t)
		if err != nil {
			return err
		}
		p.point(t)
		p.run.Calls = append(p.run.Calls, c)
		last = &c
	}
	if len(p.run.Calls) == maxCalls {
		span = last.At + 1
		p.run.Span = span
	}
	p.levels(span)
	return nil
}

// call decides a call at t and counts it.
func (p *player) call(t int64) (PlayCall, error) {
	run := p.run
	if err := p.group.DecideIn(&states{ops: p.group.Ops, rows: []*store.State{&p.row}}, &p.limits, begin+t); err != nil {
		return PlayCall{}, err
	}
	a := &p.group.Ops[0].Answer
	if a.Allowed {
		run.Allowed++
		run.Granted += min(a.Granted, store.MaxInt-run.Granted)
		run.Longest = max(run.Longest, a.Delay)
	} else {
		run.Refused++
		run.Longest = max(run.Longest, a.Retry)
	}
	return PlayCall{At: t, Allowed: a.Allowed, Never: a.Never, Granted: a.Granted, Remaining: a.Remaining, Retry: a.Retry, Delay: a.Delay}, nil
}

// levels adds the points of the level at the beginning of each column before t, and at t.
func (p *player) levels(t int64) {
	width := max(1, p.run.Span/playColumns)
	for ; p.next < t; p.next += width {
		p.point(p.next)
	}
	p.point(t)
}

// point adds the level of the bucket at t, computed by the rule itself.
func (p *player) point(t int64) {
	used := p.rule.Used(p.row, begin+t)
	p.run.Level = append(p.run.Level, PlayPoint{float64(t), float64(p.rule.Cap-p.rule.Counted(used, max(begin+t, p.row.TS))) / float64(p.rule.Unit)})
}
