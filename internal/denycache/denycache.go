// Package denycache answers for keys that were refused, without asking the
// store again before it can say anything else: a store in, a store out.
//
// The cache keeps the row behind a refusal and goes on from it with the limit's
// own algebra. While that row refuses a call, for the cost that was refused,
// any above it and any other that does not fit, the answer is made here: its
// source is store.SourceDenyCache, and its retry counts down to the µs. A
// call that fits, a smaller cost perhaps, goes to the store.
//
// What is exact: everything done through this Store. A grant, refund, charge,
// reset or failed call of a key forgets the key, cancelling any reservation
// forgets all keys, and a refusal that was in flight meanwhile is not kept. A
// changed definition is another version, and what was kept under the old one is
// not used. While such a call is in flight, concurrent calls may still be refused
// from the cached row, as if they had come first. After it returns, none are.
//
// What may be stale: what other processes do to a key (or to its definition,
// until this process knows) is seen at most Config.MaxAge late, counted from
// the moment the refused request was sent. Other processes' grants are no harm:
// they only make the refusal truer. Their refunds, resets and cancellations are
// what may be seen late; so is a step of the store's clock, and a call whose
// outcome is unknown and that takes effect after its error was returned.
//
// Of a take or check of several keys, one that is known to be refused refuses
// all; the store is asked about the others, without charging them, so that the
// answer tells their state.
//
// What is not answered here: limits in shadow mode, verbs that cannot be
// refused, and reservations of several keys.
//
// The store decided at some moment between the sending of the request and its
// answer. Whether a refusal still holds is computed as if that was the moment of
// sending, so it is kept too short by up to a round trip, never too long. Retry,
// reset and remaining are computed as if it was the moment of the answer, so a
// retry time is too late by up to a round trip, never too early.
//
// Memory is bounded: at most Config.Keys slots of 66 bytes, eight at a time from
// the first refusal among them on, found by a seeded 128-bit hash. When they are
// taken, the oldest of its neighbours gives way.
package denycache

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dipwell/dipwell/store"
)

// Config bounds a Store. A zero field means the default named in its comment.
type Config struct {
	MaxAge time.Duration // how long a refusal is believed, counted from its sending; default 1 s, at most 1 h
	Keys   int           // refused keys in memory, 1 to 1<<26; default 65536; rounded up to a power of two of at least 8
	Clock  func() int64  // µs that never step back, from any origin; default this process's monotonic clock
}

const (
	defaultMaxAge = time.Second
	maxMaxAge     = time.Hour
	defaultKeys   = 1 << 16
	maxKeys       = 1 << 26
)

// Store answers refused keys itself. It is safe for concurrent use.
type Store struct {
	inner  store.Store
	now    func() int64
	maxAge int64 // µs
	table  table
	epoch  atomic.Uint64 // grows whenever all that is kept is forgotten
	parts  sync.Pool     // of *part

	hits, misses, refused atomic.Uint64
}

var _ store.Store = (*Store)(nil)

// New returns a store that asks inner for what it cannot refuse itself.
func New(inner store.Store, c Config) (*Store, error) {
	if inner == nil {
		return nil, fmt.Errorf("denycache: the inner store is nil")
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	s := &Store{inner: inner, now: c.Clock, maxAge: c.MaxAge.Microseconds()}
	s.table.init(c.Keys)
	s.parts.New = func() any { return new(part) }
	return s, nil
}

func (c *Config) check() error {
	if c.MaxAge == 0 {
		c.MaxAge = defaultMaxAge
	}
	if c.Keys == 0 {
		c.Keys = defaultKeys
	}
	if c.Clock == nil {
		start := time.Now()
		c.Clock = func() int64 { return time.Since(start).Microseconds() }
	}
	switch {
	case c.MaxAge < time.Microsecond || c.MaxAge > maxMaxAge:
		return fmt.Errorf("denycache: MaxAge %v; from 1µs to %v", c.MaxAge, maxMaxAge)
	case c.Keys < 1 || c.Keys > maxKeys:
		return fmt.Errorf("denycache: Keys %d; from 1 to %d", c.Keys, maxKeys)
	}
	return nil
}

// Unwrap returns the inner store.
func (s *Store) Unwrap() store.Store { return s.inner }

// Abilities are those of the inner store.
func (s *Store) Abilities() store.Abilities {
	ab := store.AbilitiesOf(s.inner)
	ab.Store, ab.Quick, ab.Lanes = s, nil, nil
	ab.AddMetrics(s.metrics)
	return ab
}

func (s *Store) metrics() []store.Metric {
	st := s.Stats()
	return []store.Metric{
		{Name: "dipwell_deny_cache_hits_total", Help: "Lookups that found a refusal which could be believed.", Counter: true, Value: float64(st.Hits)},
		{Name: "dipwell_deny_cache_misses_total", Help: "Other lookups for calls that could have been refused.", Counter: true, Value: float64(st.Misses)},
		{Name: "dipwell_deny_cache_refusals_total", Help: "Calls refused by a refusal that was remembered.", Counter: true, Value: float64(st.Refused)},
		{Name: "dipwell_deny_cache_keys", Help: "Refusals in memory.", Value: float64(st.Keys)},
	}
}

// Apply refuses what is known to be refused, and sends the rest to the inner store.
func (s *Store) Apply(ctx context.Context, b *store.Batch) error {
	sent := s.now()
	if len(b.Groups) != 1 || len(b.Groups[0].Ops) > 1 {
		return s.several(ctx, b, sent)
	}
	var few [1]mark
	marks, known := s.refuse(few[:0], &b.Groups[0], sent)
	if known != 0 {
		return nil
	}
	return s.ask(ctx, b, marks, sent)
}

// several refuses what it can of a batch and sends the rest as one.
func (s *Store) several(ctx context.Context, b *store.Batch, sent int64) error {
	p := s.parts.Get().(*part)
	defer s.parts.Put(p)
	for i := range b.Groups {
		var known refusals
		p.marks, known = s.refuse(p.marks, &b.Groups[i], sent)
		p.add(i, &b.Groups[i], known)
	}
	var err error
	if len(p.from) > 0 {
		err = s.ask(ctx, &p.batch, p.marks, sent)
	}
	for i, from := range p.from {
		if known := p.known[i]; known != 0 {
			known.join(&b.Groups[from], &p.batch.Groups[i])
		} else {
			b.Groups[from] = p.batch.Groups[i]
		}
	}
	p.clear()
	return err
}

// part is the groups of a batch that the inner store must answer.
type part struct {
	batch store.Batch
	from  []int      // the group's place in the whole
	known []refusals // of the group: the store is asked about the other ops alone
	marks []mark
}

// add takes in what of a group the inner store must answer.
func (p *part) add(from int, g *store.Group, known refusals) {
	switch rest := known.rest(g); {
	case known == 0:
		p.batch.Groups = append(p.batch.Groups, *g)
	case len(rest) == 0:
		return
	default:
		p.batch.Groups = append(p.batch.Groups, store.Group{Ops: rest})
	}
	p.from, p.known = append(p.from, from), append(p.known, known)
}

func (p *part) clear() {
	clear(p.batch.Groups)
	p.batch.Groups, p.from, p.known, p.marks = p.batch.Groups[:0], p.from[:0], p.known[:0], p.marks[:0]
}

// refuse answers the ops of a call that rows kept here refuse, and says which
// those are: with one of them the call is refused. It appends a mark for each
// other op.
func (s *Store) refuse(marks []mark, g *store.Group, now int64) ([]mark, refusals) {
	var known refusals
	may := answerable(g)
	for i := range g.Ops {
		op := &g.Ops[i]
		e, m := s.table.look(op.Def.Name, op.Key)
		if may && s.knows(&e, op, now) && refuses(&e, op, now) {
			known |= 1 << i
		} else {
			marks = append(marks, m)
		}
	}
	if known != 0 {
		s.refused.Add(1)
		g.Err, g.Allowed, g.Reserved = nil, false, false
	}
	return marks, known
}

// knows is fresh, counted for the calls that a row kept here could answer.
func (s *Store) knows(e *slot, op *store.Op, now int64) bool {
	if op.Verb > store.VerbReserve || op.Def.Mode == store.Shadow {
		return false
	}
	fresh := s.fresh(e, op, now)
	if fresh {
		s.hits.Add(1)
	} else {
		s.misses.Add(1)
	}
	return fresh
}

// fresh reports whether what is kept may still be believed about the op.
func (s *Store) fresh(e *slot, op *store.Op, now int64) bool {
	age := now - e.sent
	return e.full() && age >= 0 && age < s.maxAge && e.version == op.Def.Number && e.epoch == s.epoch.Load()
}

// refuses answers the op if the row that is kept refuses it at the latest time
// that the store's clock can show now. The answer is of the earliest such time.
func refuses(e *slot, op *store.Op, now int64) bool {
	row := store.State{Used: e.used, TS: e.ts, Version: e.version}
	latest := e.at + (now - e.sent)
	for _, at := range [...]int64{latest, latest - int64(e.trip)} {
		if _, _, err := op.Step(at, row, true); err != nil || op.Allowed {
			op.Answer = store.Answer{}
			return false
		}
	}
	op.Source = store.SourceDenyCache
	return true
}

// ask passes a batch on and learns from its answers.
func (s *Store) ask(ctx context.Context, b *store.Batch, marks []mark, sent int64) error {
	epoch := s.epoch.Load()
	err := s.inner.Apply(ctx, b)
	trip := s.now() - sent
	for i := range b.Groups {
		g := &b.Groups[i]
		if g.Cancel {
			s.epoch.Add(1) // only the store knows which keys it gave back to
		}
		for j := range g.Ops {
			if op := &g.Ops[j]; err == nil && g.Err == nil && kept(g, op) && trip >= 0 && trip < s.maxAge {
				s.keep(marks[0], op, sent, trip, epoch)
			} else {
				s.table.forget(marks[0])
			}
			marks = marks[1:]
		}
	}
	return err
}

// kept reports whether an answer is a refusal to remember, and not an effect.
func kept(g *store.Group, op *store.Op) bool {
	return !g.Allowed && !op.Allowed && op.Source == store.SourceStore && op.TS != 0
}

// keep remembers the row behind a refusal, unless something happened to the key
// since the request was sent.
func (s *Store) keep(m mark, op *store.Op, sent, trip int64, epoch uint64) {
	s.table.put(m, slot{
		used: op.Used, ts: op.TS, version: op.Def.Number,
		at: op.At(), sent: sent, trip: uint32(trip), epoch: epoch,
	})
}
