// Package fallback decides from this process's own memory while a store cannot
// answer, for the limits that ask for it: a store in, a store out.
//
// While the store answers, each answer about a limit with OnStoreError
// FailLocal leaves its row in a bounded memstore. When the store fails, calls
// about such limits are decided there, starting from the row that this process
// last knew and not from a full bucket; the source of such an answer is
// store.SourceFallbackLocal. The store is asked first at every call, so it
// decides again as soon as it can.
//
// What this costs in exactness: each process decides by itself, so n processes
// may grant up to n times the limit while the store is away; the store does not
// learn of it afterwards; a key that this process has never seen, or has
// forgotten, starts full. Time is the store's, counted on from its last answer
// by the process's monotonic clock and never ahead of it. A changed definition is
// learnt with the first call under it. A failed call that the store charged after
// all has been charged twice.
//
// A call with several keys is all or nothing here as well. Where one of its
// limits fails closed, all of it does; limits that fail open let it pass and
// do not count. A reservation made here is known here alone: it can be
// cancelled, also once the store is back, and then gives nothing back where a
// row of the store has taken the place of the one that it was made on. Input that the store refuses as
// wrong, and calls whose context was cancelled, are not decided here.
package fallback

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dipwell/dipwell/internal/memory"
	"github.com/dipwell/dipwell/store"
)

// Config bounds a Store. A zero field means the default named in its comment.
type Config struct {
	MaxKeys int          // rows in memory that are not full, about 45 bytes each; default 1<<20; more are not remembered
	Clock   func() int64 // µs that never step back, from any origin; default this process's monotonic clock
}

const (
	defaultKeys = 1 << 20
	unknown     = math.MinInt64
)

// Store falls back to local decisions. It is safe for concurrent use.
type Store struct {
	inner  store.Store
	local  *memory.Store
	clock  func() int64
	guess  int64        // µs from clock to the wall clock, until the inner store has answered
	offset atomic.Int64 // µs from clock to the inner store's time, or less; unknown before its first answer

	defined  *store.Registry // nil: nobody says which limits are gone
	mu       sync.Mutex
	reserved map[string]uint32 // limits with reservations made here, and the version of the last
}

var _ store.Store = (*Store)(nil)

// New returns a store that asks inner, and itself where inner cannot answer.
// Close gives its memory back.
func New(inner store.Store, c Config) (*Store, error) {
	if inner == nil {
		return nil, errors.New("fallback: the inner store is nil")
	}
	if c.MaxKeys == 0 {
		c.MaxKeys = defaultKeys
	}
	s := &Store{inner: inner, clock: c.Clock}
	if s.clock == nil {
		start := time.Now()
		s.clock = func() int64 { return time.Since(start).Microseconds() }
	}
	s.guess = time.Now().UnixMicro() - s.clock()
	s.offset.Store(unknown)
	if limits := store.AbilitiesOf(inner).Limits; limits != nil {
		s.defined = limits.Registry()
	}
	var err error
	if s.local, err = memory.New(memory.Config{MaxKeys: c.MaxKeys, Clock: s.now}); err != nil {
		return nil, fmt.Errorf("fallback: %w", err)
	}
	return s, nil
}

// Unwrap returns the inner store.
func (s *Store) Unwrap() store.Store { return s.inner }

// Abilities are those of the inner store.
func (s *Store) Abilities() store.Abilities {
	ab := store.AbilitiesOf(s.inner)
	ab.Store, ab.Quick, ab.Lanes = s, nil, nil
	return ab
}

// Close gives the memory back. The inner store stays open.
func (s *Store) Close() error { return s.local.Close() }

// now is the inner store's time as far as this process knows, or a little less.
func (s *Store) now() int64 {
	offset := s.offset.Load()
	if offset == unknown {
		offset = s.guess
	}
	return s.clock() + offset
}

// learn narrows the offset from an answer that the store gave at its instant at,
// between sent and now on this process's clock: the offset is from at-now to
// at-sent. A slow answer does not lower an offset that a quick one has shown;
// after a step of the store's clock the old offset lies outside and is dropped.
func (s *Store) learn(at, sent, now int64) {
	for {
		old := s.offset.Load()
		if old >= at-now && old <= at-sent || s.offset.CompareAndSwap(old, at-now) {
			return
		}
	}
}

// Apply asks the inner store and decides what it could not.
func (s *Store) Apply(ctx context.Context, b *store.Batch) error {
	sent := s.clock()
	err := s.inner.Apply(ctx, b)
	for i := range b.Groups {
		g := &b.Groups[i]
		if err != nil {
			g.Err = err
		}
		if g.Err == nil {
			s.note(g, sent)
		} else {
			g.Err = s.decide(g, g.Err)
		}
	}
	return nil
}

// note remembers the rows behind the answers of a group that was sent at sent.
func (s *Store) note(g *store.Group, sent int64) {
	for i := range g.Ops {
		op := &g.Ops[i]
		if op.Def.OnStoreError != store.FailLocal || op.Source != store.SourceStore || op.TS == 0 {
			continue
		}
		s.learn(op.At(), sent, s.clock())
		// A full memory is counted by itself: the key would start full then.
		_ = s.local.Put(op.Def, op.Key, store.State{Used: op.Used, TS: op.TS, Version: op.Def.Number})
	}
}

// decide answers a group that the store could not, or returns why it did not.
func (s *Store) decide(g *store.Group, why error) error {
	if g.Cancel {
		return s.cancel(g, why)
	}
	if !away(why) {
		return why
	}
	var ours store.Batch
	var ops [store.MaxTakes]store.Op
	here, _ := ours.Single()
	here.Ops, here.ID = ops[:0], g.ID
	for i := range g.Ops {
		switch op := &g.Ops[i]; op.Def.OnStoreError {
		case store.FailClosed:
			return why
		case store.FailLocal:
			here.Ops = append(here.Ops, *op)
		}
	}
	if len(here.Ops) == 0 {
		return why
	}
	s.forget()
	if err := s.ask(&ours); err != nil {
		return fmt.Errorf("%w (and not locally: %w)", why, err)
	}
	if here.Reserved {
		s.keep(here.Ops)
	}
	answer(g, here)
	return nil
}

// ask decides a batch of one group locally.
func (s *Store) ask(b *store.Batch) error {
	if err := s.local.Apply(context.Background(), b); err != nil {
		return err
	}
	return b.Groups[0].Err
}

// answer copies what was decided here into the caller's group. Limits that fail
// open only pass.
func answer(g, here *store.Group) {
	g.Err, g.Allowed, g.Reserved = nil, here.Allowed, here.Reserved
	next := 0
	for i := range g.Ops {
		op := &g.Ops[i]
		if op.Def.OnStoreError == store.FailLocal {
			*op = here.Ops[next]
			op.Source = store.SourceFallbackLocal
			next++
		} else {
			op.Answer = store.Answer{Source: store.SourceFallbackOpen, Allowed: true}
		}
	}
}

// cancel gives back a reservation that was made here, whether the store is away
// or does not know it.
func (s *Store) cancel(g *store.Group, why error) error {
	var b store.Batch
	here, _ := b.Single()
	here.Ops, here.ID, here.Cancel = nil, g.ID, true
	s.forget()
	if s.ask(&b) == nil {
		return nil
	}
	return why
}

// keep remembers which limits have reservations here.
func (s *Store) keep(ops []store.Op) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reserved == nil {
		s.reserved = map[string]uint32{}
	}
	for i := range ops {
		s.reserved[ops[i].Def.Name] = ops[i].Def.Number
	}
}

// forget drops the reservations of limits that were dropped since: a definition
// that does not know the version of their time is another limit of the name.
func (s *Store) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.defined == nil {
		return
	}
	for name, number := range s.reserved {
		d := s.defined.Lookup(name)
		if d == nil || d.Number != number && !slices.ContainsFunc(d.Past, func(v store.Version) bool { return v.Number == number }) {
			s.local.ForgetReservations(name)
			delete(s.reserved, name)
		}
	}
}

// away reports whether an error says that the store could not decide, rather
// than that the caller was wrong or gone.
func away(err error) bool {
	var field *store.FieldError
	return !errors.As(err, &field) && !errors.Is(err, store.ErrReservation) &&
		!errors.Is(err, store.ErrUnknownLimit) && !errors.Is(err, store.ErrNotSupported) &&
		!errors.Is(err, context.Canceled)
}
