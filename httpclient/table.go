package httpclient

import (
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dipwell/dipwell/internal/bounded"
)

// table is what a transport has learned, for all its requests: an entry for each host, and
// for each route of a host whose routes have different limits. A request locks mu twice,
// for less than a microsecond. A forgotten entry costs at most one refused request.
type table struct {
	mu      sync.Mutex
	entries bounded.Map[key, *entry]
}

// key identifies an entry. Different credentials have different entries.
type key struct {
	host  string
	cred  uint64
	route string // "" for the entry of a host
}

type entry struct {
	blocked  time.Time // no request is sent before this time
	told     bool      // blocked was set by a Retry-After
	name     string    // name of the quota or bucket that blocked
	quotas   []state
	inFlight int64         // requests in flight
	tokens   int64         // cost of the requests in flight in tokens
	changed  chan struct{} // closed when a request in flight ends; nil if nobody waits for that
	split    bool          // for a host: its routes have entries
}

// state is a quota as a response last reported it.
type state struct {
	quota
	at     time.Time // time of that response
	until  time.Time // from this time on the quota delays nothing: its reset, or an earlier Retry-After or MaxBlock; zero if unknown
	most   time.Duration
	tokens bool // the quota counts tokens, not requests
}

// resetSlack is how much the resets of one window may differ, since services send whole seconds.
const resetSlack = time.Second

// available returns what is left at now, with requests in flight not counted.
func (s *state) available(now time.Time) int64 {
	switch {
	case s.Remaining < 0:
		return math.MaxInt64
	case s.until.IsZero():
		return s.Remaining
	case s.Refills && s.Limit > s.Remaining && now.Before(s.until):
		refilled := float64(s.Limit-s.Remaining) * float64(now.Sub(s.at)) / float64(s.Reset)
		return min(s.Limit, s.Remaining+int64(max(0, refilled)))
	case now.Before(s.until):
		return s.Remaining
	case s.Limit > 0:
		return s.Limit
	}
	return math.MaxInt64
}

// roll begins a new window when the old one has ended. Until the next response
// roll assumes that all of the limit is available.
func (s *state) roll(now time.Time) {
	if s.until.IsZero() || now.Before(s.until) {
		return
	}
	s.Remaining, s.at, s.until = s.Limit, now, time.Time{}
	if s.Limit <= 0 {
		s.Remaining = unknown
	}
	if s.Window > 0 && !s.Refills {
		s.Reset, s.until = s.Window, now.Add(min(s.Window, s.most))
	}
}

// wait returns how long a request must wait, given the cost of the requests in
// flight. The wait is soft, and may end sooner, if only requests in flight cause
// it, which the service may have counted already.
func (s *state) wait(now time.Time, cost, inFlight int64) (wait time.Duration, soft bool) {
	s.roll(now)
	have := s.available(now)
	if have == math.MaxInt64 || have-inFlight >= cost {
		return 0, false
	}
	if s.until.IsZero() && inFlight == 0 {
		return 0, false // the time is unknown: send the request, and let the service answer
	}
	if s.Limit >= 0 && cost > s.Limit && inFlight == 0 {
		return 0, false // the cost exceeds the limit: send the request, and let the service answer
	}
	soft = have >= cost
	if s.until.IsZero() {
		return time.Second, true
	}
	if s.Refills && s.Limit > s.Remaining {
		missing := float64(min(cost, s.Limit)-s.Remaining) + float64(inFlight)
		after := missing * float64(s.Reset) / float64(s.Limit-s.Remaining)
		due := s.at.Add(time.Duration(min(after, float64(s.Reset)))) // after may be longer than a Duration can be
		return max(time.Microsecond, min(due.Sub(now), s.until.Sub(now))), soft
	}
	return s.until.Sub(now), soft
}

// update sets the quota to q, read at now. The quota then delays requests for at most most.
func (s *state) update(q *quota, now time.Time, most time.Duration) {
	until := time.Time{}
	if s.most = most; q.Reset >= 0 {
		until = now.Add(min(q.Reset, most))
	}
	if s.Limit >= 0 && q.Limit < 0 {
		q.Limit = s.Limit // not every response has the field with the policies
	}
	if s.Window >= 0 && q.Window < 0 {
		q.Window = s.Window
	}
	// Responses may arrive out of order: within a window the lowest remaining value is right.
	if !q.Refills && !s.until.IsZero() && now.Before(s.until) && until.Before(s.until.Add(resetSlack)) && s.Remaining >= 0 && s.Remaining < q.Remaining {
		q.Remaining = s.Remaining
		until = s.until
	}
	q.Name = s.Name // which does not keep the header in memory
	s.quota, s.at, s.until = *q, now, until
}

func (t *table) add(k key) *entry {
	e, ok := t.entries.Get(k)
	if !ok {
		e = &entry{}
	}
	k.host, k.route = strings.Clone(k.host), strings.Clone(k.route) // do not keep the whole header or URL
	t.entries.Put(k, e)                                             // put again if it is known, so that it is not the next to be forgotten
	return e
}

type flight struct {
	host, route *entry // nil if the entry is not known
	tokens      int64
	adaptive    []string // adaptive limits that will observe the request
}

type pause struct {
	wait  time.Duration
	soft  bool   // see state.wait
	name  string // name of the quota or bucket that makes it wait
	entry *entry
}

// quotas yields the quotas of the request's entries, and its cost in them.
func (k *flight) quotas(yield func(s *state, cost int64) bool) {
	for e := range k.entries {
		for i := range e.quotas {
			s, cost := &e.quotas[i], int64(1)
			if s.tokens {
				cost = k.tokens
			}
			if !yield(s, cost) {
				return
			}
		}
	}
}

func (k *flight) entries(yield func(*entry) bool) {
	for _, e := range [...]*entry{k.host, k.route} {
		if e != nil && !yield(e) {
			return
		}
	}
}

// admit counts a request as in flight, or returns how long it must wait first.
func (t *table) admit(k *flight, now time.Time) (p pause) {
	for e := range k.entries {
		if q := e.pause(now, k.tokens); q.wait > p.wait || q.wait == p.wait && p.soft && q.wait > 0 {
			p = q
		}
	}
	if p.wait > 0 {
		return p
	}
	for e := range k.entries {
		e.inFlight++
		e.tokens += k.tokens
	}
	return p
}

func (e *entry) pause(now time.Time, tokens int64) (p pause) {
	p.entry = e
	if wait := e.blocked.Sub(now); !e.blocked.IsZero() && wait > 0 {
		p.wait, p.name = wait, e.name
	}
	for i := range e.quotas {
		s := &e.quotas[i]
		cost, inFlight := int64(1), e.inFlight
		if s.tokens {
			cost, inFlight = tokens, e.tokens
		}
		if wait, soft := s.wait(now, cost, inFlight); wait > p.wait {
			p.wait, p.soft, p.name = wait, soft, s.Name
		}
	}
	return p
}

// delay returns how long a refused request must wait according to its entries.
func (k *flight) delay(now time.Time) (d time.Duration) {
	for e := range k.entries {
		d = max(d, e.blocked.Sub(now))
	}
	for s, cost := range k.quotas {
		wait, _ := s.wait(now, cost, 0)
		d = max(d, wait)
	}
	return d
}

// obey ends the quotas that would delay a refused request for longer than its Retry-After,
// because the service knows better.
func (k *flight) obey(now time.Time, retryAfter time.Duration) {
	for s, cost := range k.quotas {
		if wait, _ := s.wait(now, cost, 0); wait > retryAfter {
			s.until = now.Add(retryAfter)
		}
	}
}

// done ends a request in flight. If the service may have counted it but its
// response had no quotas, charged is true, and the quotas are lowered by its cost.
func (t *table) done(k *flight, charged bool) {
	for e := range k.entries {
		e.inFlight--
		e.tokens -= k.tokens
		if e.changed != nil {
			close(e.changed)
			e.changed = nil
		}
	}
	for s, cost := range k.quotas {
		if charged && s.Remaining > 0 {
			s.Remaining = max(0, s.Remaining-cost)
		}
	}
}

func (e *entry) quota(q *quota) *state {
	i := slices.IndexFunc(e.quotas, func(s state) bool { return s.Name == q.Name })
	if i < 0 {
		if len(e.quotas) == maxQuotas { // the quota whose response is the oldest makes room
			slices.SortFunc(e.quotas, func(a, b state) int { return b.at.Compare(a.at) })
			e.quotas = e.quotas[:maxQuotas-1]
		}
		i, e.quotas = len(e.quotas), append(e.quotas, state{quota: *newQuota(strings.Clone(q.Name)), tokens: strings.Contains(q.Name, "tokens")})
	}
	return &e.quotas[i]
}

// block makes requests of the route, or of the host, wait for the time wait. A Retry-After
// also ends an earlier block that was computed from a reset.
func (k *flight) block(a *advice, now time.Time, wait time.Duration) {
	e := k.host
	if k.route != nil {
		e = k.route
	}
	told := a.RetryAfter >= 0
	if until := now.Add(wait); until.After(e.blocked) || told && !e.told {
		e.blocked, e.told, e.name = until, told, strings.Clone(nameOf(a))
	}
}
