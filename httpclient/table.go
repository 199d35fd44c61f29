package httpclient

import (
	"math"
	"strings"
	"sync"
	"time"
)

// table is what all requests of a transport know of services: an entry a host,
// and one a bucket where a host has several. One mutex holds it: a request
// touches it twice, for less than a microsecond.
type table struct {
	mu      sync.Mutex
	entries map[key]*entry
	max     int
	spread  bool
}

// key names an entry. Requests with other credentials have other budgets.
type key struct {
	host string
	cred uint64
	kind byte // 0 the host, 'b' a bucket, 'r' a route
	name string
}

// entry is a host, a bucket, or a route that leads to a bucket.
type entry struct {
	used    time.Time // when it was last asked for
	blocked time.Time // no request before this
	name    string    // of the quota or bucket that blocked
	next    time.Time // spreading: the next request's turn
	quotas  []state
	flying  int64 // requests under way
	tokens  int64 // what they may cost in tokens
	waiting int   // requests that wait for this entry: it must not be forgotten
	changed chan struct{}

	split  byte   // of a host: how a route is made of a request; 0 when it has no buckets
	bucket string // of a route: the bucket it leads to
	target *entry // of a route: the bucket's entry
	gone   bool   // forgotten
}

// state is a quota as it was last told.
type state struct {
	Quota
	at     time.Time // when it was told
	until  time.Time // the end of the window; zero is unknown
	tokens bool      // counted in tokens, not requests
}

// resetSlack is how much two answers about one window may differ: services tell whole seconds.
const resetSlack = time.Second

// available is what is left at now, before what is under way.
func (s *state) available(now time.Time) int64 {
	switch {
	case s.Remaining < 0:
		return math.MaxInt64
	case s.until.IsZero():
		return s.Remaining
	case s.Refills && s.Limit > s.Remaining && now.Before(s.until):
		back := float64(s.Limit-s.Remaining) * float64(now.Sub(s.at)) / float64(s.Reset)
		return min(s.Limit, s.Remaining+int64(max(0, back)))
	case now.Before(s.until):
		return s.Remaining
	case s.Limit > 0:
		return s.Limit
	}
	return math.MaxInt64
}

// roll begins a new window when the old one is over: as much as the limit says,
// until the service says more.
func (s *state) roll(now time.Time) {
	if s.until.IsZero() || now.Before(s.until) {
		return
	}
	s.Remaining, s.at, s.until = s.Limit, now, time.Time{}
	if s.Limit <= 0 {
		s.Remaining = Unknown
	}
	if s.Window > 0 && !s.Refills {
		s.until = now.Add(s.Window)
	}
}

// wait is how long a request of this cost must wait, given what is under way.
// What is under way may have been counted already: then the wait is soft, and
// may end sooner.
func (s *state) wait(now time.Time, cost, flying int64) (wait time.Duration, soft bool) {
	s.roll(now)
	have := s.available(now)
	if have == math.MaxInt64 || have-flying >= cost {
		return 0, false
	}
	if s.until.IsZero() && flying == 0 {
		return 0, false // nobody knows when: the service must say
	}
	if s.Limit >= 0 && cost > s.Limit && flying == 0 {
		return 0, false // more than there ever is: the service must say
	}
	soft = have >= cost
	if s.until.IsZero() {
		return time.Second, true
	}
	if s.Refills && s.Limit > s.Remaining {
		lacking := float64(min(cost, s.Limit)-s.Remaining) + float64(flying)
		due := s.at.Add(time.Duration(lacking * float64(s.Reset) / float64(s.Limit-s.Remaining)))
		return max(time.Microsecond, min(due.Sub(now), s.until.Sub(now))), soft
	}
	return s.until.Sub(now), soft
}

// told takes over what a response says of the quota.
func (s *state) told(q *Quota, now time.Time) {
	until := time.Time{}
	if q.Reset >= 0 {
		until = now.Add(q.Reset)
	}
	if s.Limit >= 0 && q.Limit < 0 {
		q.Limit = s.Limit // policies are not sent with each response
	}
	if s.Window >= 0 && q.Window < 0 {
		q.Window = s.Window
	}
	// Answers overtake each other: within a window the least counts.
	if !q.Refills && !s.until.IsZero() && now.Before(s.until) && until.Before(s.until.Add(resetSlack)) && s.Remaining >= 0 && s.Remaining < q.Remaining {
		q.Remaining = s.Remaining
		until = s.until
	}
	name := s.Name
	s.Quota, s.at, s.until = *q, now, until
	s.Name = name
}

// get returns an entry, or nil.
func (t *table) get(k key, now time.Time) *entry {
	e := t.entries[k]
	if e != nil {
		e.used = now
	}
	return e
}

// add returns an entry, making one if need be. nil: there is no room, since all
// that could go is in use.
func (t *table) add(k key, now time.Time) *entry {
	if e := t.get(k, now); e != nil {
		return e
	}
	if len(t.entries) >= t.max && !t.forget() {
		return nil
	}
	k.host, k.name = strings.Clone(k.host), strings.Clone(k.name) // not the whole header, nor the URL
	e := &entry{used: now}
	if t.entries == nil {
		t.entries = map[key]*entry{}
	}
	t.entries[k] = e
	return e
}

// forget drops the entry that was not asked for the longest among a few: the
// map hands them out in random order.
func (t *table) forget() bool {
	const sample = 16
	var oldest key
	var found *entry
	seen := 0
	for k, e := range t.entries {
		if e.flying == 0 && e.waiting == 0 && (found == nil || e.used.Before(found.used)) {
			oldest, found = k, e
		}
		if seen++; seen >= sample && found != nil {
			break
		}
	}
	if found == nil {
		return false
	}
	found.gone = true
	delete(t.entries, oldest)
	return true
}

// ticket is one request's place: its entries are charged until it is given back.
type ticket struct {
	host, bucket *entry
	tokens       int64
}

// pause is why a request may not go yet.
type pause struct {
	wait  time.Duration
	soft  bool
	name  string
	entry *entry
}

// admit charges a request to what it takes from, or says how long to wait.
func (t *table) admit(k *ticket, now time.Time) (p pause) {
	for _, e := range [...]*entry{k.host, k.bucket} {
		if e == nil {
			continue
		}
		if q := e.pause(now, k.tokens); q.wait > p.wait || q.wait == p.wait && p.soft && q.wait > 0 {
			p = q
		}
	}
	if p.wait > 0 {
		return p
	}
	for _, e := range [...]*entry{k.host, k.bucket} {
		if e != nil {
			if t.spread {
				e.next = now.Add(e.interval(now))
			}
			e.flying++
			e.tokens += k.tokens
		}
	}
	return p
}

func (e *entry) pause(now time.Time, tokens int64) (p pause) {
	p.entry = e
	if wait := e.blocked.Sub(now); !e.blocked.IsZero() && wait > 0 {
		p.wait, p.name = wait, e.name
	}
	if wait := e.next.Sub(now); !e.next.IsZero() && wait > p.wait {
		p.wait, p.soft, p.name = wait, false, e.name
	}
	for i := range e.quotas {
		s := &e.quotas[i]
		cost, flying := int64(1), e.flying
		if s.tokens {
			cost, flying = tokens, e.tokens
		}
		if wait, soft := s.wait(now, cost, flying); wait > p.wait {
			p.wait, p.soft, p.name = wait, soft, s.Name
		}
	}
	return p
}

// interval is the distance at which what is left lasts until it comes back.
func (e *entry) interval(now time.Time) (d time.Duration) {
	for i := range e.quotas {
		s := &e.quotas[i]
		if s.tokens || s.until.IsZero() || !now.Before(s.until) {
			continue
		}
		if have := s.available(now) - e.flying; have > 0 {
			d = max(d, s.until.Sub(now)/time.Duration(have))
		}
	}
	return d
}

// done gives a ticket back. A request that told nothing of a quota may have
// been charged to it.
func (t *table) done(k *ticket, charged bool) {
	for _, e := range [...]*entry{k.host, k.bucket} {
		if e == nil {
			continue
		}
		e.flying--
		e.tokens -= k.tokens
		if charged {
			for i := range e.quotas {
				s := &e.quotas[i]
				cost := int64(1)
				if s.tokens {
					cost = k.tokens
				}
				if s.Remaining > 0 {
					s.Remaining = max(0, s.Remaining-cost)
				}
			}
		}
		if e.changed != nil {
			close(e.changed)
			e.changed = nil
		}
	}
}

// learn takes over what a response says of an entry's quotas.
func (e *entry) learn(a *Advice, now time.Time) {
	for i := range a.Quotas() {
		q := &a.quotas[i]
		e.quota(q).told(q, now)
	}
}

func (e *entry) quota(q *Quota) *state {
	for i := range e.quotas {
		if e.quotas[i].Name == q.Name {
			return &e.quotas[i]
		}
	}
	if len(e.quotas) == maxQuotas { // policies were renamed: the one told of the longest ago goes
		old := 0
		for i := range e.quotas {
			if e.quotas[i].at.Before(e.quotas[old].at) {
				old = i
			}
		}
		e.quotas[old] = newState(q)
		return &e.quotas[old]
	}
	e.quotas = append(e.quotas, newState(q))
	return &e.quotas[len(e.quotas)-1]
}

func newState(q *Quota) state {
	return state{Quota: Quota{Name: strings.Clone(q.Name), Limit: Unknown, Remaining: Unknown, Reset: Unknown, Window: Unknown},
		tokens: strings.Contains(q.Name, "tokens")}
}

// block lets nothing through for a while.
func (e *entry) block(now time.Time, wait time.Duration, name string) {
	if until := now.Add(wait); until.After(e.blocked) {
		e.blocked, e.name = until, strings.Clone(name)
	}
}
