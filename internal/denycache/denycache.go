// Package denycache remembers refusals, and refuses calls without the store as long as
// the store would refuse them too. It is a decorator: it wraps a store and is one.
//
// The cache keeps the row behind a refusal and steps it with the limit's own rule. While
// that row refuses a call under the same definition that needs at least as many free
// tokens as the refused call, the call is answered from the cache: its source is
// store.SourceDenyCache, and its retry time counts down to the microsecond. Other calls
// go to the store.
//
// Calls through a denycache.Store take effect at once. A grant, refund, charge, reset,
// override, settled hold or failed call of a key removes the key from the cache. The
// cancellation of any reservation removes all keys from the cache. A refusal that was in
// flight meanwhile is not cached. A changed definition has another version, or began at
// another time if the limit was dropped and defined again, and rows of the old one are not
// used. A reservation that has to wait replaces the row of a refused key by its own: until
// it is due every take is refused. While such a call is in flight, concurrent calls may
// still be refused from the cached row. After it returns, none are.
//
// Calls of other processes, and changes of the definition that this process does not know
// yet, take effect at most Config.MaxAge after the refused request was sent. Grants by
// other processes can only lengthen a refusal. These may take effect late: a refund,
// reset, cancellation, settled or expired hold, or override elsewhere, a step of the
// store's clock, and a call with an unknown outcome that is done after its error was
// returned. Refusals of a limit that has plans or overrides are used for one second at
// most.
//
// Calls of limits in shadow mode or with a block and of concurrency limits, verbs that cannot
// be refused, holds, calls with an unlimited or blocked plan or under an override, and calls
// of several keys, whose answer has the state of each, always go to the store. A refusal is
// kept only if its retry time is exact (store.Answer.Bound).
//
// The store decided at some time between sending and answer. Whether a refusal still
// applies is computed as if it was at the sending, so a refusal is kept for up to a
// round trip too short, never too long. Retry, reset and remaining are computed as if it
// was at the answer, so a retry time is up to a round trip too late, never too early.
//
// Memory is bounded: at most Config.Keys slots of 82 bytes, allocated in sets of
// eight with the first refusal of a set, and found by a seeded 128-bit hash. In a
// full set the oldest slot is replaced.
package denycache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/dipwell/dipwell/internal/algebra"
	"github.com/dipwell/dipwell/internal/bounded"
	"github.com/dipwell/dipwell/store"
)

// Config configures a Store. A zero field means the default that its comment names.
type Config struct {
	MaxAge time.Duration // how long a refusal is used, counted from its request; default 1 s, at most 1 h
	Keys   int           // refused keys in memory; default 65536; rounded up to a power of two of at least 8
	Clock  func() int64  // monotonic, in µs from any origin; default this process's monotonic clock
}

const (
	defaultMaxAge = time.Second
	maxMaxAge     = time.Hour
	defaultKeys   = 1 << 16
)

// Store answers calls for refused keys. It is safe for concurrent use.
type Store struct {
	inner    store.Store
	now      func() int64
	maxAge   int64 // µs
	table    table
	epoch    atomic.Uint64 // incremented to make all slots invalid
	counters bounded.Copies[counters]
}

var _ store.Store = (*Store)(nil)

// New returns a deny cache in front of inner.
func New(inner store.Store, c Config) (*Store, error) {
	if inner == nil {
		return nil, fmt.Errorf("denycache: the inner store is nil")
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	s := &Store{inner: inner, now: c.Clock, maxAge: c.MaxAge.Microseconds(), counters: bounded.NewCopies[counters]()}
	s.table.init(c.Keys)
	return s, nil
}

func (c *Config) check() error {
	c.MaxAge, c.Keys = cmp.Or(c.MaxAge, defaultMaxAge), cmp.Or(c.Keys, defaultKeys)
	if c.Clock == nil {
		start := time.Now()
		c.Clock = func() int64 { return time.Since(start).Microseconds() }
	}
	if c.MaxAge < time.Microsecond || c.MaxAge > maxMaxAge {
		return fmt.Errorf("denycache: MaxAge %v; want 1µs to %v", c.MaxAge, maxMaxAge)
	}
	return nil
}

// Abilities returns those of the inner store, except Quick and Lanes.
func (s *Store) Abilities() store.Abilities {
	ab := store.AbilitiesOf(s.inner)
	ab.Store, ab.Quick, ab.Lanes = s, nil, nil
	if ab.Overrides != nil {
		ab.Overrides = overrides{ab.Overrides, s}
	}
	ab.AddMetrics(s.metrics)
	return ab
}

// The overrides of the inner store. Setting or ending an override removes its key from
// the cache.
type overrides struct {
	store.Overrider
	s *Store
}

func (o overrides) SetOverride(ctx context.Context, d *store.Definition, v store.Override) (store.Override, error) {
	defer o.s.forget(d, v.Key)
	return o.Overrider.SetOverride(ctx, d, v)
}

func (o overrides) EndOverride(ctx context.Context, d *store.Definition, key string, kind store.OverrideKind) (*store.Override, error) {
	defer o.s.forget(d, key)
	return o.Overrider.EndOverride(ctx, d, key, kind)
}

func (s *Store) forget(d *store.Definition, key string) {
	s.table.forget(ref{id: s.table.hash(d.Name, key)})
}

func (s *Store) metrics() []store.Metric {
	var hits, misses, refused uint64
	for i := range s.counters {
		c := &s.counters[i]
		hits, misses, refused = hits+c.hits.Load(), misses+c.misses.Load(), refused+c.refused.Load()
	}
	return []store.Metric{
		{Name: "dipwell_deny_cache_hits_total", Help: "Lookups that found a refusal young enough to use.", Counter: true, Value: float64(hits)},
		{Name: "dipwell_deny_cache_misses_total", Help: "Other lookups for calls that could be refused.", Counter: true, Value: float64(misses)},
		{Name: "dipwell_deny_cache_refusals_total", Help: "Calls refused from memory.", Counter: true, Value: float64(refused)},
		{Name: "dipwell_deny_cache_keys", Help: "Refusals in memory.", Value: float64(s.table.keys.Load())},
	}
}

// counters are the counts of one processor.
type counters struct {
	hits, misses, refused atomic.Uint64

	_ [40]byte // padding to a cache line
}

// Apply answers a call that the cache refuses, and sends any other to the inner store.
func (s *Store) Apply(ctx context.Context, b *store.Batch) error {
	sent := s.now()
	var buf [store.MaxTakes]ref
	refs := buf[:0]
	for i := range b.Groups {
		g := &b.Groups[i]
		for j := range g.Ops {
			e, m := s.table.lookup(g.Ops[j].Def.Name, g.Ops[j].Key)
			if len(b.Groups) == 1 && s.refuse(g, &e, sent) {
				return nil
			}
			refs = append(refs, m)
		}
	}
	epoch := s.epoch.Load()
	err := s.inner.Apply(ctx, b)
	s.learnAll(b, refs, sent, epoch, err)
	return err
}

// Refuse answers a call of one op if the cache refuses it, and reports whether it did.
// Refuse does not ask the inner store.
func (s *Store) Refuse(g *store.Group) bool {
	if len(g.Ops) != 1 {
		return false
	}
	e, _ := s.table.lookup(g.Ops[0].Def.Name, g.Ops[0].Key)
	return s.refuse(g, &e, s.now())
}

// refuse is Refuse with the slot of the op's key. A hold is not refused, because it may be a
// repeated call.
func (s *Store) refuse(g *store.Group, e *slot, now int64) bool {
	if g.Cancel || g.Hold != nil || len(g.Ops) != 1 || !s.lookup(e, &g.Ops[0], now) || !refuses(e, &g.Ops[0], now) {
		return false
	}
	s.counters.Mine().refused.Add(1)
	g.Err, g.Allowed, g.Reserved = nil, false, false
	return true
}

// lookup is fresh, for ops that the cache could answer; it also counts hits and misses.
func (s *Store) lookup(e *slot, op *store.Op, now int64) bool {
	if op.Verb > store.VerbReserve || op.Def.Mode != store.Enforce || op.Def.Block != 0 { // a limit with a Block goes to the store, which begins blocks
		return false
	}
	fresh := s.fresh(e, op, now)
	if c := s.counters.Mine(); fresh {
		c.hits.Add(1)
	} else {
		c.misses.Add(1)
	}
	return fresh
}

// fresh reports whether a slot is in use and still valid for the op.
func (s *Store) fresh(e *slot, op *store.Op, now int64) bool {
	age := now - e.sent
	return e.inUse() && age >= 0 && age < s.maxAge && e.version == op.Def.Number && e.since == op.Def.Since && e.epoch == s.epoch.Load() &&
		(age < maxAgeOverridden || !varied(op.Def))
}

// maxAgeOverridden bounds the age of refusals of a varied limit, in µs, so that an
// override that another process sets takes effect within a second, whatever MaxAge is.
const maxAgeOverridden = 1e6

// varied reports whether keys of a limit may be under other definitions than the base:
// an override or a plan.
func varied(d *store.Definition) bool {
	base := d.Base()
	return base != d || base.Overridden || base.Plans != (store.Plans{})
}

// room returns how many units may be in use for an op to be allowed.
func room(op *store.Op) int64 {
	r := &op.Def.Rule
	units, most := algebra.UnitsOf(op.Cost, r.Unit), r.Cap-algebra.UnitsOf(op.Floor, r.Unit)
	switch {
	case op.Verb == store.VerbTakeUpTo:
		units = min(units, r.Unit)
	case op.Verb == store.VerbReserve || r.Leaky:
		most += r.Debt
	case op.Fraction > 0:
		units = algebra.PricedUnits(units, op.Fraction, most)
	}
	return most - units
}

// refuses answers the op if its cached row refuses it at the latest time that the
// store's clock can show now. The answer is computed for the earliest such time.
func refuses(e *slot, op *store.Op, now int64) bool {
	if room(op) > e.room {
		return false
	}
	row := store.State{Used: e.used, TS: e.ts, Version: e.version}
	latest := e.at + (now - e.sent)
	var scratch store.Rule
	for _, at := range [...]int64{latest, latest - int64(e.roundTrip)} {
		if _, _, err := op.Step(at, row, true); err != nil || op.Allowed || op.RuleFor(&scratch).Counted(op.Used, op.TS) <= e.room {
			op.Answer = store.Answer{}
			return false
		}
	}
	op.Source = store.SourceDenyCache
	return true
}

// learnAll updates the cache with the answers to a batch that was sent to the inner store at
// sent, in an epoch.
func (s *Store) learnAll(b *store.Batch, refs []ref, sent int64, epoch uint64, err error) {
	roundTrip := s.now() - sent
	for i := range b.Groups {
		g := &b.Groups[i]
		if g.Cancel {
			s.epoch.Add(1) // all keys, because only the store knows those of the reservation
		}
		if g.Settles() {
			s.settled(g, err)
			continue
		}
		for j := range g.Ops {
			s.learn(g, &g.Ops[j], refs[0], err, slot{sent: sent, roundTrip: uint32(max(0, min(roundTrip, s.maxAge))), epoch: epoch})
			refs = refs[1:]
		}
	}
}

// settled removes the keys of a hold that was settled or extended, or all keys if the
// store does not say which they are.
func (s *Store) settled(g *store.Group, err error) {
	if err == nil {
		err = g.Err
	}
	if errors.Is(err, store.ErrStore) {
		s.epoch.Add(1)
	} else if err == nil {
		for i := range g.Ops {
			s.forget(g.Ops[i].Def, g.Ops[i].Key)
		}
	}
}

// learn updates the cache with the answer of an op. e is the slot of its request.
func (s *Store) learn(g *store.Group, op *store.Op, m ref, err error, e slot) {
	kept := false
	if err == nil && g.Err == nil && int64(e.roundTrip) < s.maxAge {
		e.used, e.ts, e.version, e.since, e.at = op.Used, op.TS, op.Def.Number, op.Def.Since, op.DecidedAt()
		if cacheable(g, op) {
			e.room, kept = room(op), true
			s.table.put(m, e)
		} else if inDebt(g, op) {
			e.room = op.Def.Rule.Cap - op.Def.Rule.Unit
			kept = s.table.renew(m, e, s.maxAge)
		}
	}
	if !kept {
		s.table.forget(m)
	}
}

// cacheable reports whether an answer is a refusal that follows from the row in the answer
// until its retry. If the row is under another definition than op.Def, Bound is set. But that
// the op can never be allowed does not depend on the row, and so does not show it.
func cacheable(g *store.Group, op *store.Op) bool {
	return !g.Allowed && !op.Allowed && op.Source == store.SourceStore && op.TS != 0 &&
		g.Hold == nil && !op.Bound && op.Def.Mode == store.Enforce && op.Def.Algorithm != store.Concurrency &&
		op.Def.Override == nil && (!op.Never || !varied(op.Def))
}

// inDebt reports whether an op is a reservation that has to wait. Until it is due, the
// row in its answer refuses every take.
func inDebt(g *store.Group, op *store.Op) bool {
	if op.Verb != store.VerbReserve || len(g.Ops) > 1 || !g.Allowed || op.Delay == 0 || op.Source != store.SourceStore || op.TS == 0 ||
		op.Def.Mode != store.Enforce || op.Def.Override != nil {
		return false
	}
	due := store.Op{Def: op.Def, Key: op.Key, Verb: store.VerbCheck}
	_, _, err := due.Step(op.DecidedAt(), store.State{Used: op.Used, TS: op.TS, Version: op.Def.Number}, true)
	return err == nil && !due.Allowed && due.Retry == op.Delay
}
