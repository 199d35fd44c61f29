package lease

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dipwell/dipwell/internal/background"
	"github.com/dipwell/dipwell/internal/bounded"
	"github.com/dipwell/dipwell/store"
)

const (
	calls    = 20                 // a key is leased from this many calls in a lease on; a chunk must also be for this many calls
	spans    = 5                  // number of leases over which demand is averaged
	requests = 4                  // largest number of requests in a lease
	recheck  = int64(time.Second) // ns: how long a key with an override is not leased
)

// A key is a key of a leased limit, with the tokens that are held for it.
type key struct {
	limit, name string
	now         atomic.Pointer[chunk] // the chunk that calls take from; nil: none
	_           [64]byte              // separates the fields above, which are rarely written

	mu        sync.Mutex
	next      *chunk // used when now is used up
	turn      *turn  // the request that is planned or in flight; nil: none
	waiting   int    // number of calls that wait for a turn that was not sent yet
	notBefore int64  // ns: earliest time for the next request
	spaced    int64  // as notBefore, while there are tokens left
	demand    demand
	mean      float64 // tokens per call when the key was last not leased
	remaining int64   // tokens left in the store, by its last answer
	def       *store.Definition
	seen      int64 // ns: time of the last call that asked the store
	tight     int64 // ns: the store has refused a call, so until this time calls wait for each other before they ask it
	flight    *flight
	refused   bool  // the last request was refused
	atLeast   int64 // least tokens of the next request, because the last chunk was used up early
	notLeased int64 // ns: an override has decided a call, so until this time nothing is requested
}

// idle reports whether no tokens are held for a key. last is the time of the last call
// that asked the store.
func (k *key) idle() (last int64, idle bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.seen, k.now.Load() == nil && k.next == nil && k.turn == nil
}

// missed counts a call that no lease could answer, and requests tokens if they are needed.
func (s *Store) missed(k *key, d *store.Definition, cost int64) {
	mono, _ := s.clock.now()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.seen, k.def = mono, d
	c := k.now.Load()
	alive := c != nil && mono < c.dies
	if alive && cost > c.most {
		return
	}
	k.demand.add(cost, 1)
	if alive && mono >= c.from && !c.empty && c.left() == 0 {
		k.usedUp(c, mono)
	}
	k.measure(d, mono)
	if !alive || c.isHalf() {
		s.need(k, mono, !alive || c.left() == 0)
	}
}

// usedUp makes the next chunk twice as large if this one was used up in less than half of
// the time that it was for. Callers that wait for the store show less demand than they
// have, so that the average would follow too slowly. k.mu is held.
func (k *key) usedUp(c *chunk, mono int64) {
	c.empty, k.atLeast = true, 0
	if 4*(mono-c.since)*c.whole < int64(c.def.Lease)*c.size {
		k.atLeast = 2 * c.whole
	}
}

// learn remembers what the store's answer says about a key.
func (s *Store) learn(k *key, op *store.Op) {
	mono, _ := s.clock.now()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.remaining = op.Remaining
	if !op.Allowed {
		k.tight = mono + int64(op.Def.Lease)
	}
	if overridden(op) {
		k.notLeased = mono + recheck
	}
}

// half requests the next chunk, after half of the last one was used.
func (s *Store) half(k *key, mono int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	s.need(k, mono, false)
}

// measure updates the demand of a key. k.mu is held.
func (k *key) measure(d *store.Definition, mono int64) {
	c := k.now.Load()
	if c != nil {
		k.spent(c)
	}
	k.demand.update(mono, spans*float64(d.Lease))
	if tokens, calls := k.demand.rate(spans * float64(d.Lease)); c == nil && k.next == nil && calls > 0 {
		k.mean = max(1, tokens/calls)
	}
}

// spent counts the tokens of a chunk that were used, and estimates how many calls used
// them. k.mu is held.
func (k *key) spent(c *chunk) {
	n := c.spent()
	k.demand.add(n, float64(n)/k.mean)
}

// wanted returns how many tokens the key's chunk should have, or 0. k.mu is held.
func (k *key) wanted(d *store.Definition) int64 {
	tokens, _ := k.demand.rate(spans * float64(d.Lease))
	in := tokens * float64(d.Lease)
	if least := calls * k.mean; in < least || k.demand.beginning() && in < 2*least {
		return 0 // at the beginning, when that many calls have arrived
	}
	back := float64(d.Rate) * float64(d.Lease) / float64(d.Period)
	return int64(min(max(math.Ceil(in/2), float64(k.atLeast)), max(back/2, float64(k.remaining/2))))
}

// missing returns the size of the key's chunk, and how many tokens the next request
// should ask for: those that the key does not hold, or 0 if they are less than a quarter
// of the chunk. k.mu is held.
func (k *key) missing(mono int64) (chunk, n int64) {
	chunk = k.wanted(k.def)
	n = chunk
	if c := k.now.Load(); c != nil && mono < c.dies {
		n -= c.left()
	}
	if 4*n < chunk {
		n = 0
	}
	return chunk, n
}

// ahead returns how far ahead a request may reserve, in µs. After a refusal it is more,
// so that this process does not lose to others again and again. k.mu is held.
func (k *key) ahead(d *store.Definition) int64 {
	if k.refused {
		return d.Lease.Microseconds() / 2
	}
	return d.Lease.Microseconds() * 2 / 5
}

// need plans a request unless one is in flight or there is a next chunk. If there are
// tokens left, or tokens are scarce, it is sent some time after the previous one. k.mu is
// held.
func (s *Store) need(k *key, mono int64, dry bool) {
	if k.next != nil || s.closing.Load() || mono < k.notLeased || k.turn != nil && k.turn.at <= mono {
		return
	}
	at := max(mono, k.notBefore)
	if !dry || mono < k.tight {
		at = max(at, k.spaced)
	}
	if k.turn != nil {
		if at < k.turn.at {
			k.turn.at = at
			s.plan(k, k.turn, mono)
		}
		return
	}
	if _, n := k.missing(mono); n > 0 {
		k.turn = &turn{gate: s.gate(), at: at}
		s.plan(k, k.turn, mono)
	}
}

// plan sends a request at its planned time. k.mu is held.
func (s *Store) plan(k *key, t *turn, mono int64) {
	request := func() { s.background(func() { s.request(k, t) }) }
	if wait := t.at - mono; wait > 0 {
		s.after(time.Duration(wait), request)
	} else {
		request()
	}
}

// space returns the time in ns from one request to the next. While tokens are scarce, a
// request gets what has come back since the last request of any process. A third of the
// time in which that came back is subtracted. So a process that asks soon after another
// one waits longer the next time, and after some turns equal processes are evenly spaced.
// The rest depends on the time in ns, so that processes do not stay in step.
func (t *turn) space(d *store.Definition, got int64) int64 {
	lease := int64(d.Lease)
	back := int64(float64(got) * float64(d.Period) / float64(d.Rate) / 3)
	part := int64(uint64(t.sent) * 0x9e3779b97f4a7c15 >> 48) // of 65536
	return lease*7/20 - min(lease/8, back) + lease*part>>20
}

// request asks the store for a chunk, and keeps it.
func (s *Store) request(k *key, t *turn) {
	k.mu.Lock()
	if k.turn != t || t.sent != 0 { // it was sent earlier than first planned
		k.mu.Unlock()
		return
	}
	d := k.def
	t.sent, t.wall = s.clock.exact() // read before sending: the life of the tokens begins here
	k.measure(d, t.sent)
	if t.chunk, t.n = k.missing(t.sent); t.n < 1 || s.closing.Load() || t.sent < k.notLeased {
		k.turn = nil
		t.gate.Open()
		k.mu.Unlock()
		return
	}
	tight := t.sent < k.tight
	if !k.demand.beginning() {
		k.spaced = t.sent + int64(d.Lease)/requests
	}
	ahead := k.ahead(d)
	k.mu.Unlock()

	ctx, cancel := context.WithTimeout(s.ctx, d.Lease)
	defer cancel()
	var b store.Batch
	g, op := b.Single()
	op.Def, op.Key, op.Cost = d, k.name, t.n
	if op.Verb = store.VerbTakeUpTo; d.Rule.Debt > 0 {
		op.Verb, op.Bounded, op.MaxDelay = store.VerbReserve, true, ahead
		s.id(&g.ID)
	}
	if tight {
		b.Groups = append(b.Groups, store.Group{Ops: []store.Op{{Def: d, Key: k.name, Verb: store.VerbCheck, Cost: 1}}})
	}
	s.requests.Add(1)
	s.asked.Add(t.n)
	err := background.Apply(ctx, s.inner, &b)
	g = &b.Groups[0]
	if len(b.Groups) > 1 && err == nil && g.Err == nil {
		t.learn(&b.Groups[1])
	}
	if err == nil {
		err = g.Err
	}
	s.answered(k, &g.Ops[0], err)
}

// answered handles the answer of a request.
func (s *Store) answered(k *key, op *store.Op, err error) {
	mono, _ := s.clock.now()
	k.mu.Lock()
	defer k.mu.Unlock()
	d, t := op.Def, k.turn
	defer t.gate.Open()
	k.turn = nil
	switch {
	case errors.Is(err, store.ErrLocked):
		k.notBefore = max(k.notBefore, t.sent+int64(d.Lease)/requests)
		return
	case err != nil: // the tokens may have been taken
		s.lost.Add(t.n)
		k.notBefore = mono + int64(d.Lease)
		return
	case overridden(op):
		s.lost.Add(op.Granted)
		k.notLeased = mono + recheck
		return
	}
	k.remaining = op.Remaining
	if !op.Allowed || op.Granted < t.n {
		k.tight = mono + int64(d.Lease)
	}
	if t.sent < k.tight {
		k.spaced = t.sent + t.space(d, op.Granted)
	}
	if !op.Allowed || op.Granted == 0 {
		k.atLeast, k.refused = 0, true // so that others that ask for less are not always served first
		k.notBefore = max(k.notBefore, mono+min(op.Retry*1000, int64(d.Lease)))
		return
	}
	k.refused = false
	s.taken.Add(op.Granted)
	life := int64(d.Lease) - s.clock.off
	tokens, _ := k.demand.rate(spans * float64(d.Lease))
	trip := mono - t.sent
	c := &chunk{def: d, sent: t.sent, taken: op.DecidedAt(), from: mono + op.Delay*1000 + s.clock.off, dies: t.sent + life, early: t.wall - life, late: t.wall + life,
		size: op.Granted, pool: op.Granted, whole: op.Granted, most: max(1, t.chunk/calls), trip: trip, low: max(op.Granted/2, int64(tokens*float64(trip))), remaining: op.Remaining, fullAt: mono + op.Reset*1000,
		keepsUnused: op.Verb == store.VerbReserve, stripes: bounded.NewCopies[stripe]()}
	if s.stripes > 0 {
		c.stripes = c.stripes[:min(s.stripes, len(c.stripes))]
	}
	s.keep(k, c, mono)
}

// keep makes a chunk the one that calls take from, or the next one. k.mu is held.
func (s *Store) keep(k *key, c *chunk, mono int64) {
	if old := k.now.Load(); old != nil && mono < old.dies && old.left() > 0 {
		k.next = c
		c.whole += old.left()
	} else {
		c.since = max(mono, c.from)
		k.now.Store(c)
		if old != nil {
			s.retire(k, old, mono)
		}
	}
	s.after(time.Duration(c.dies-mono), func() { s.expire(k, c) }) // otherwise a key without calls would never be idle
}

// advance replaces a chunk that is used up or dead by the next one. advance returns the
// chunk that calls take from.
func (s *Store) advance(k *key, c *chunk, dead bool, mono int64) *chunk {
	k.mu.Lock()
	defer k.mu.Unlock()
	if now := k.now.Load(); now != c {
		return now
	}
	if !dead && (k.next == nil || mono < k.next.from) {
		return nil
	}
	if !dead && !c.empty {
		k.usedUp(c, mono)
	}
	next := k.begin(mono)
	s.retire(k, c, mono)
	return next
}

// begin makes the next chunk, if there is one, the one that calls take from. k.mu is held.
func (k *key) begin(mono int64) *chunk {
	next := k.next
	if k.next = nil; next != nil {
		next.since = max(mono, next.from)
	}
	k.now.Store(next)
	return next
}

// expire retires a chunk that has died, even if no call arrives.
func (s *Store) expire(k *key, c *chunk) {
	mono, _ := s.clock.now()
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.now.Load() == c:
		k.begin(mono)
	case k.next == c:
		k.next = nil
	default:
		return
	}
	s.retire(k, c, mono)
}

// drop drops the tokens that are held for a key. With giveBack, they are given back.
func (s *Store) drop(k *key, giveBack bool) {
	mono, _ := s.clock.now()
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range []*chunk{k.now.Swap(nil), k.next} {
		if c != nil {
			c.keepsUnused = c.keepsUnused || !giveBack
			s.retire(k, c, mono)
		}
	}
	k.next = nil
}

// retire ends a chunk. What is left is given back, or lost. k.mu is held.
func (s *Store) retire(k *key, c *chunk, mono int64) {
	k.spent(c)
	left := c.end()
	if left == 0 {
		return
	}
	if c.keepsUnused || c.unused(left, mono-c.sent) < 1 {
		s.lost.Add(left)
		return
	}
	s.background(func() {
		back := s.giveBack(k, c, left)
		s.returned.Add(back)
		s.lost.Add(left - back)
	})
}

// unused returns how many of the left tokens may be given back by a Refund that is sent
// passed ns after they were taken: those that cannot have come back by time before the
// Refund times out. Then the bucket never has more tokens than if they had not been taken.
func (c *chunk) unused(left, passed int64) int64 {
	d := c.def
	return left - int64(math.Ceil(float64(passed+int64(d.Lease))*1.002*float64(d.Rate)/float64(d.Period)))
}

// giveBack gives tokens back, in one attempt, and returns how many were given back.
func (s *Store) giveBack(k *key, c *chunk, left int64) int64 {
	ctx, cancel := context.WithTimeout(s.ctx, c.def.Lease)
	defer cancel()
	if s.holds != nil {
		var holds []store.KeyHold
		err := background.Call(func() (err error) {
			holds, err = s.holds(ctx, c.def, k.name)
			return err
		})
		if err != nil || len(holds) > 0 {
			return 0
		}
	}
	op := store.Op{Verb: store.VerbCheck} // a Check tells the store's clock and the deciding definition, which may have changed
	if !s.decide(ctx, k, c, &op) || overridden(&op) || op.Def.Number != c.def.Number || op.Source != store.SourceStore || op.Used == 0 {
		return 0
	}
	mono, _ := s.clock.now()
	op = store.Op{Verb: store.VerbRefund, Cost: c.unused(left, max(mono-c.sent, (op.DecidedAt()-c.taken)*1000))}
	if op.Cost < 1 || !s.decide(ctx, k, c, &op) {
		return 0
	}
	return op.Cost
}

// decide has an op of a chunk's key decided by the store, and reports whether it was.
func (s *Store) decide(ctx context.Context, k *key, c *chunk, op *store.Op) bool {
	var b store.Batch
	g, o := b.Single()
	*o = *op
	o.Def, o.Key = c.def, k.name
	err := background.Apply(ctx, s.inner, &b)
	*op = g.Ops[0]
	return err == nil && g.Err == nil
}
