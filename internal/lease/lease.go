// Package lease decides calls from tokens that this process took from the store in
// advance. It is a decorator: it wraps a store and is one.
//
// It does so for limits with a Lease, called τ here. The bucket of such a limit is smaller
// than its burst by 1.002 times what comes back in τ (store.Limit.Lease). A token is used
// at most τ after the request that took it was sent. So all tokens that are granted
// between two instants were taken from the smaller bucket after the first instant minus τ
// and before the second. These are at most the burst and what comes back between the two
// instants, for any number of processes. A token expires by the monotonic clock, and also if
// the wall clock has moved by more than τ since its request, because the monotonic clock of
// some machines stops while they are suspended. The 0.002 allow for two clocks that are wrong
// by 1,000 ppm each.
//
// A lease never refuses. Calls for which it has no tokens are sent to the store, and so
// are all calls but a Take of one key by the limit itself, without a floor. A key is not
// leased while the store's answers show that it has an override.
//
// For τ after the store has refused a call of a key, one call of the key at a time is sent to
// the store, and others wait for its answer, each for at most two: one answer serves most of
// the calls that find no tokens at the same time.
//
// A key is leased while it has at least 20 calls in τ, averaged over about 5 τ. Its chunk
// is what the process's own calls take in τ/2, but at most half of what comes back in τ
// or half of what is left in the bucket, whichever is more. The tokens that the process
// holds and has requested are never more than a chunk. It requests the missing ones once
// half of the last ones are used, or once only as many are left as its calls use while
// the store answers. If tokens were used up in less than half of the time that they were
// for, the next chunk is twice as large. The first request comes with the 20th call, and
// until half a lease has passed each request is for as many tokens as all calls took
// before. Calls that cost more than a twentieth of the chunk are sent to the store.
// Requests are made in the background, at most four in τ while there are tokens. A call
// that finds none waits for a chunk that begins within 5 ms, or for the answer of a
// request that is in flight, instead of being sent to the store too.
//
// For τ after the store had fewer tokens than were requested, requests are 0.23 to 0.41 τ
// apart, and calls that find no tokens wait for the next one, up to 1,024 of a
// key, unless a deny cache below refuses them at once. A Check of one token is sent with
// each of these requests; if the store refuses that, calls that came before the request
// was sent and got no tokens are refused.
//
// If the limit has no debt, a request is a TakeUpTo. The rest of a chunk that expires is
// given back by one Refund, less what has come back by time since, whether by this
// machine's clock or by the store's; but not if the key has holds, because a Refund does
// not know what they may give back, and not if the limit has changed or an override
// decides, because more may have come back then. If the limit has debt, a request is a
// Reserve that is due within 2τ/5, or within τ/2 after one that was refused. Processes that
// request more than comes back then take turns, and a refusal stays valid for some time, so
// the deny cache answers most calls for which no token is left. Nothing is given back then.
//
// If the outcome of a request is unknown, its tokens count as used. A process that ends
// without Close loses the tokens that it holds. After a Reset, a block, a new version of
// the limit or an override by another process, tokens taken before it are used for up to
// τ more.
package lease

import (
	"context"
	"crypto/rand"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

// Config configures a Store. A zero field means the default that its comment names.
type Config struct {
	Clock func() int64                    // monotonic, in ns from any origin; default this process's monotonic clock
	Wall  func() int64                    // in ns since the Unix epoch; default this machine's clock
	Go    func(f func())                  // starts background work; default a goroutine
	After func(d time.Duration, f func()) // calls f in the background after d; default a timer
	Gate  func() Gate                     // makes a gate; default one of a channel
	ID    func(id *store.Reservation)     // sets a random id; default by crypto/rand
	// Stripes bounds the parts of a chunk from which processors take at once. Default: one each.
	Stripes int
}

// Store decides from tokens taken in advance. It is safe for concurrent use.
type Store struct {
	inner   store.Store
	refuser refuser // the inner store, if it is a deny cache; otherwise nil
	holds   func(ctx context.Context, d *store.Definition, key string) ([]store.KeyHold, error)
	clock   *clock
	run     func(f func())
	after   func(d time.Duration, f func())
	gate    func() Gate
	id      func(id *store.Reservation)
	stripes int
	table   table

	ctx     context.Context //nolint:containedctx // context of background requests; ended by Close
	cancel  context.CancelFunc
	mu      sync.Mutex
	idle    sync.Cond // signals a change of working
	working int       // number of background tasks
	closing atomic.Bool

	requests, asked, taken, returned, lost atomic.Int64
}

var _ store.Store = (*Store)(nil)

// A refuser answers calls that it knows the store would refuse, without asking it.
type refuser interface{ Refuse(g *store.Group) bool }

// New returns a store that leases from inner. Close ends what it does in the background.
func New(inner store.Store, c Config) *Store {
	ab := store.AbilitiesOf(inner)
	s := &Store{inner: inner, holds: ab.Holds, clock: systemClock(), run: c.Go, after: c.After, gate: c.Gate, id: c.ID, stripes: c.Stripes, table: newTable()}
	s.refuser, _ = inner.(refuser)
	if c.Clock != nil && c.Wall != nil {
		s.clock = &clock{exact: func() (int64, int64) { return c.Clock(), c.Wall() }}
	}
	if s.run == nil {
		s.run = func(f func()) { go f() }
	}
	if s.after == nil {
		s.after = func(d time.Duration, f func()) { time.AfterFunc(d, f) }
	}
	if s.gate == nil {
		s.gate = func() Gate { return make(gate) }
	}
	if s.id == nil {
		s.id = func(id *store.Reservation) { rand.Read(id[:]) }
	}
	s.idle.L = &s.mu
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// Abilities returns those of the inner store with Quick, which answers from leases, and
// without Lanes.
func (s *Store) Abilities() store.Abilities {
	ab := store.AbilitiesOf(s.inner)
	ab.Store, ab.Lanes, ab.InProcess = s, nil, false
	ab.Quick, ab.QuickSource = s.quick, store.SourceLease
	ab.AddMetrics(s.metrics)
	return ab
}

// Close waits for background requests, gives back what is left, and stops leasing.
// Calls that come later ask the inner store, which stays open.
func (s *Store) Close() error {
	if s.closing.Swap(true) {
		return nil
	}
	s.wait()
	s.table.each(func(k *key) { s.drop(k, true) })
	s.wait()
	s.cancel()
	return nil
}

// background starts f in the background. It is called with a key's lock held, so f must
// not run before it returns.
func (s *Store) background(f func()) {
	s.mu.Lock()
	s.working++
	s.mu.Unlock()
	s.run(func() {
		defer func() {
			s.mu.Lock()
			s.working--
			s.mu.Unlock()
			s.idle.Broadcast()
		}()
		f()
	})
}

// wait waits until there is no background work.
func (s *Store) wait() {
	s.mu.Lock()
	for s.working > 0 {
		s.idle.Wait()
	}
	s.mu.Unlock()
}

// leased reports whether calls under a definition may be leased.
func leased(d *store.Definition) bool {
	return d.Lease != 0 && d.Plan == "" && d.Override == nil && d.Mode == store.Enforce
}

// Apply answers a Take from a lease, or asks the inner store.
func (s *Store) Apply(ctx context.Context, b *store.Batch) error {
	if len(b.Groups) != 1 || len(b.Groups[0].Ops) != 1 || b.Groups[0].Ops[0].Def.Lease == 0 {
		return s.inner.Apply(ctx, b)
	}
	g := &b.Groups[0]
	op := &g.Ops[0]
	if op.Verb == store.VerbReset {
		if k := s.table.find(op.Def.Name, op.Key); k != nil {
			defer s.drop(k, false)
		}
	}
	if op.Verb != store.VerbTake || op.Cost < 1 || op.Floor != 0 || op.Fraction != 0 || g.Hold != nil || g.Cancel || !leased(op.Def) {
		return s.inner.Apply(ctx, b)
	}
	return s.takeOne(ctx, b, g, op)
}

func (s *Store) takeOne(ctx context.Context, b *store.Batch, g *store.Group, op *store.Op) error {
	mono, _ := s.clock.now()
	k := s.table.findOrAdd(op.Def, op.Key, mono)
	if k == nil {
		return s.inner.Apply(ctx, b)
	}
	if s.fromLease(k, g, op) {
		return nil
	}
	s.missed(k, op.Def, op.Cost)
	return s.ask(ctx, k, b, g, op)
}

// fromLease answers a Take from a lease, if there are tokens.
func (s *Store) fromLease(k *key, g *store.Group, op *store.Op) bool {
	c, at := s.take(k, op.Def, op.Cost)
	if c == nil {
		return false
	}
	op.Asked = nil
	op.Answer = store.Answer{Allowed: true, Source: store.SourceLease, Granted: op.Cost, Remaining: c.remaining, Reset: c.reset(at)}
	g.Err, g.Allowed, g.Reserved = nil, true, false
	return true
}

// quick is store.Abilities.Quick. Keys that it finds have been checked before.
func (s *Store) quick(d *store.Definition, name string, verb store.Verb, cost int64, _ bool) (a store.QuickAnswer, held *sync.Mutex, ok bool) {
	if d.Lease == 0 || verb != store.VerbTake || cost < 1 || !leased(d) {
		return
	}
	k := s.table.find(d.Name, name)
	if k == nil {
		return
	}
	c, at := s.take(k, d, cost)
	if c == nil {
		return
	}
	return store.QuickAnswer{Granted: cost, Remaining: c.remaining, Reset: c.reset(at)}, nil, true
}

// take takes tokens from a key's chunks. The time it returns is when it took them. The
// chunk is nil if there are not enough tokens.
func (s *Store) take(k *key, d *store.Definition, cost int64) (*chunk, int64) {
	c := k.now.Load()
	if c == nil {
		return nil, 0
	}
	mono, wall := s.clock.now()
	for c != nil {
		if c.def.Number < d.Number || !c.alive(mono, wall) {
			c = s.advance(k, c, true, mono)
			continue
		}
		if mono < c.from || cost > c.most {
			break
		}
		ok, half := c.take(cost)
		if half {
			s.half(k, mono)
		}
		if ok {
			return c, mono
		}
		c = s.advance(k, c, false, mono)
	}
	return nil, 0
}

// reset returns the time in µs until the bucket is full, if nothing more is taken.
func (c *chunk) reset(now int64) int64 { return max(0, (c.fullAt-now)/1000) }

// overridden reports whether something other than the limit itself has decided an op.
func overridden(op *store.Op) bool {
	return terms.IsOverride(op.Def.Number) || !leased(op.Def)
}
