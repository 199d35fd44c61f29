package away

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dipwell/dipwell/internal/bounded"
	"github.com/dipwell/dipwell/internal/memory"
	"github.com/dipwell/dipwell/store"
)

// FallbackConfig configures a Fallback. A zero field means the default that its comment names.
type FallbackConfig struct {
	MaxKeys int          // rows in memory that are not full, about 45 bytes each; default 1<<20; further ones are not copied
	Clock   func() int64 // monotonic, in µs from any origin; default this process's monotonic clock
	Wall    func() int64 // time in µs since the Unix epoch, used until the store has answered; default this machine's clock
}

const (
	defaultKeys = 1 << 20
	unknown     = math.MinInt64
)

// A Fallback decides calls in this process's memory while a store fails, for limits with
// OnStoreError FailLocal. It is safe for concurrent use.
//
// While the store answers, the row behind each answer of such a limit is copied into a bounded
// table in memory. When the store fails, calls are decided there, from the last known row instead
// of a full bucket; the source of such an answer is store.SourceFallbackLocal. Every call is sent
// to the store first, so the store decides again as soon as it can.
//
// Local decisions are less exact. Each process decides alone, so n processes may grant up
// to n times the limit, and the store does not learn of it afterwards. A key that this
// process has never seen, or has evicted, starts full. Time is the store's, continued
// from its last answer with the process's monotonic clock, and never ahead of it. A
// changed definition takes effect with the first call that uses it. A call that failed
// although the store charged it is charged twice.
//
// Plans decide in memory as in the store, and so does the override of a key, if an answer of
// the store had it. A concurrency limit starts empty. A hold that this process makes meanwhile
// is known only to it: it is repeated, extended and settled here, also after the store works
// again. A hold of the store is not known here: to extend or settle it while the store fails is
// an error, and requested again it is made a second time.
//
// A call with several keys is all or nothing in memory too. If one of its limits fails
// closed, the call fails. Limits that fail open allow their part. A reservation made in
// memory is known only to this process. It can be cancelled even after the store works
// again, but gives nothing back if a row from the store has replaced the row from which
// it took. Invalid input and calls whose context was cancelled are not decided in memory.
type Fallback struct {
	inner  store.Store
	local  *memory.Store
	clock  func() int64
	guess  int64        // µs from clock to the wall clock; used until offset is known
	offset atomic.Int64 // µs from clock to the inner store's clock, or slightly less; unknown before the first answer

	// Calls that made a hold here and whose last takes were of limits that fail open, by the
	// id of the hold. The local store does not know of these takes.
	open bounded.Map[string, takesOf]

	registry *store.Registry // limits of the inner store; nil if it has none
	mu       sync.Mutex      // held while the limits in memory follow those
}

var _ store.Store = (*Fallback)(nil)

// NewFallback returns a store that decides locally if inner fails. Close releases its memory.
func NewFallback(inner store.Store, c FallbackConfig) (*Fallback, error) {
	if inner == nil {
		return nil, errors.New("fallback: the inner store is nil")
	}
	if c.MaxKeys == 0 {
		c.MaxKeys = defaultKeys
	}
	s := &Fallback{inner: inner, clock: c.Clock}
	s.open.Most, s.open.Keep = maxOpen/2, func(id string, _ takesOf) bool {
		h := s.local.Hold(id)
		return !h.Settled && h.Expires > s.now()
	}
	if s.clock == nil {
		start := time.Now()
		s.clock = func() int64 { return time.Since(start).Microseconds() }
	}
	if c.Wall == nil {
		c.Wall = func() int64 { return time.Now().UnixMicro() }
	}
	s.guess = c.Wall() - s.clock()
	s.offset.Store(unknown)
	if limits := store.AbilitiesOf(inner).Limits; limits != nil {
		s.registry = limits.Registry()
	}
	var err error
	if s.local, err = memory.New(memory.Config{MaxKeys: c.MaxKeys, MaxOverrides: maxOverrides, Clock: s.now}); err != nil {
		return nil, fmt.Errorf("fallback: %w", err)
	}
	return s, nil
}

// Abilities returns those of the inner store, except Lanes. Quick is kept only if it
// answers from leases: such answers do not contain the row, and need no store.
func (s *Fallback) Abilities() store.Abilities {
	ab := store.AbilitiesOf(s.inner)
	if ab.Store, ab.Lanes = s, nil; ab.QuickSource != store.SourceLease {
		ab.Quick = nil
	}
	return ab
}

// Close releases the memory. Close does not close the inner store.
func (s *Fallback) Close() error { return s.local.Close() }

// now returns the inner store's time, as far as it is known, or slightly less.
func (s *Fallback) now() int64 {
	offset := s.offset.Load()
	if offset == unknown {
		offset = s.guess
	}
	return s.clock() + offset
}

// learnOffset updates the offset with an answer that the store gave at its time at,
// between sent and now on this process's clock. The true offset lies between at-now
// and at-sent. An offset in that range is kept, so that a slow answer does not
// lower it. After a step of the store's clock it is out of range and replaced.
func (s *Fallback) learnOffset(at, sent, now int64) {
	for {
		old := s.offset.Load()
		if old >= at-now && old <= at-sent || s.offset.CompareAndSwap(old, at-now) {
			return
		}
	}
}

// Apply sends the batch to the inner store and decides the groups that fail.
func (s *Fallback) Apply(ctx context.Context, b *store.Batch) error {
	rest, at := s.repeat(b)
	if len(rest.Groups) == 0 {
		return nil
	}
	sent := s.clock()
	err := s.inner.Apply(ctx, rest)
	for i := range rest.Groups {
		g := &rest.Groups[i]
		if err != nil {
			g.Err = err
		}
		if g.Err == nil {
			s.remember(g, sent)
		} else {
			g.Err = s.decide(g, g.Err)
		}
	}
	for i, of := range at {
		b.Groups[of] = rest.Groups[i]
	}
	return nil
}

// remember copies the rows in the answers to a group, which was sent at the time sent.
func (s *Fallback) remember(g *store.Group, sent int64) {
	for i := range g.Ops {
		op := &g.Ops[i]
		if op.Def.OnStoreError != store.FailLocal || op.Source != store.SourceStore || op.TS == 0 {
			continue
		}
		if op.Def.Algorithm == store.Concurrency { // the rows of a concurrency limit mean nothing without its holds
			continue
		}
		if op.Def.Mode <= store.Shadow {
			s.learnOffset(op.DecidedAt(), sent, s.clock())
		}
		// Put installs the limit of the answer. If the limit in memory is an earlier one of the
		// same name, its records must be forgotten first.
		base := op.Def.Base()
		if here := s.local.Registry().Lookup(base.Name); here != nil && !knows(base, version{here.Number, here.Since}) && s.learnLimit(base.Name) != nil {
			continue
		}
		number, ok := s.numberOf(op)
		if !ok {
			continue
		}
		// If the table is full, the key starts full when the store fails. memory counts
		// such keys.
		_ = s.local.Put(op.Def, op.Key, store.State{Used: op.Used, TS: op.TS, Version: number})
	}
}

// decide decides a group that failed with why, or returns the error for the group.
func (s *Fallback) decide(g *store.Group, why error) error {
	switch {
	case g.Cancel && s.applyLocal(&store.Batch{Groups: []store.Group{{ID: g.ID, Cancel: true}}}) == nil: // it was made in memory
		return nil
	case g.Cancel:
		return why
	case g.Settles():
		return s.settle(g, why)
	}
	if !storeFailed(why) || g.NoWait && errors.Is(why, store.ErrLocked) {
		return why
	}
	switch err, can := s.decideHere(g); {
	case !can:
		return why
	case err != nil:
		return fmt.Errorf("%w (and not locally: %w)", why, err)
	}
	return nil
}

// decideHere decides a group in memory. can is false if the group's limits do not allow that.
func (s *Fallback) decideHere(g *store.Group) (err error, can bool) {
	var local store.Batch
	var ops [store.MaxTakes]store.Op
	group, _ := local.Single()
	group.Ops, group.ID, group.Hold = ops[:0], g.ID, g.Hold
	for i := range g.Ops {
		switch op := &g.Ops[i]; op.Def.OnStoreError {
		case store.FailClosed:
			if !op.FailsOpen() {
				return nil, false
			}
		case store.FailLocal:
			group.Ops = append(group.Ops, *op)
		}
	}
	if len(group.Ops) == 0 {
		return nil, false
	}
	if err := s.applyLocal(&local); err != nil {
		return err, true
	}
	if n := (takesOf{countTakes(g.Ops), countTakes(group.Ops)}); n.all != n.held && group.Hold != nil && group.Allowed && !group.Hold.Repeated {
		s.open.Put(g.Hold.ID, n)
	}
	copyAnswers(g, group)
	return nil, true
}

// applyLocal decides a batch of one group in memory, by the limits as they are now.
func (s *Fallback) applyLocal(b *store.Batch) error {
	g := &b.Groups[0]
	var err error
	for i := range g.Ops {
		err = cmp.Or(err, s.learnLimit(g.Ops[i].Def.Name))
	}
	if g.Cancel {
		for _, p := range s.local.Reservation(g.ID).Parts {
			err = cmp.Or(err, s.learnLimit(p.Limit))
		}
	}
	if g.Settles() {
		for _, p := range s.local.Hold(g.Hold.ID).Parts {
			err = cmp.Or(err, s.learnLimit(p.Limit))
		}
	}
	if err == nil {
		err = s.local.Apply(context.Background(), b)
	}
	return cmp.Or(err, g.Err)
}

// learnLimit makes the local store follow the present definition of a limit.
func (s *Fallback) learnLimit(name string) error {
	if s.registry == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.follow(name, s.registry.Lookup(name)) // read under the lock, so that no older one follows a newer one
}

// follow installs a definition that has changed, and forgets a limit that was dropped (d is
// nil), also if there is now another one of its name. Some changes, such as of the mode, begin
// no version by which the local store would notice them. s.mu is held.
func (s *Fallback) follow(name string, d *store.Definition) error {
	here := s.local.Registry().Lookup(name)
	if here != nil && (d == nil || !knows(d, version{here.Number, here.Since})) {
		s.local.Forget(name)
	}
	if d == nil || d == here || d.OnStoreError != store.FailLocal {
		return nil
	}
	return s.local.Follow(d)
}

// copyAnswers copies local answers to g. Limits that fail open, or are in shadow mode, allow.
func copyAnswers(g, local *store.Group) {
	g.Err, g.Allowed, g.Reserved = nil, local.Allowed, local.Reserved
	next := 0
	for i := range g.Ops {
		op := &g.Ops[i]
		if op.Def.OnStoreError == store.FailLocal {
			*op = local.Ops[next]
			op.Source = store.SourceFallbackLocal
			next++
		} else {
			op.Answer = store.Answer{Source: store.SourceFallbackOpen, Allowed: true, Shadow: op.Def.OnStoreError != store.FailOpen}
		}
	}
}

// settle settles or extends a hold that was made in memory, or returns why.
func (s *Fallback) settle(g *store.Group, why error) error {
	if !storeFailed(why) && !errors.Is(why, store.ErrUnknownHold) {
		return why
	}
	h, err := s.partHere(*g.Hold)
	if err != nil {
		return err
	}
	b := store.Batch{Groups: []store.Group{{Hold: &h}}}
	group := &b.Groups[0]
	switch err := s.applyLocal(&b); {
	case errors.Is(err, store.ErrUnknownHold):
		return why
	case err != nil:
		return err
	}
	g.Hold.Expires, g.Hold.Repeated = h.Expires, h.Repeated
	g.Err, g.Allowed, g.Reserved = nil, group.Allowed, false
	g.Ops = slices.DeleteFunc(group.Ops, func(op store.Op) bool { return s.registry != nil && s.registry.Lookup(op.Def.Name) == nil })
	for i := range g.Ops {
		g.Ops[i].Source = store.SourceFallbackLocal
	}
	return nil
}

type version struct {
	number uint32
	since  int64
}

// knows reports whether a version belongs to d's limit. Stores keep only the last few versions:
// if a limit has many, those before the first kept one belong to it too. In PostgreSQL the
// versions of a limit that was dropped and defined again have the numbers of those before.
func knows(d *store.Definition, of version) bool {
	past := d.Past
	return of == version{d.Number, d.Since} || len(past) >= fewPast && of.number < past[0].Number && of.since <= past[0].Since ||
		slices.ContainsFunc(past, func(v *store.Version) bool { return of == version{v.Number, v.Since} })
}

// Every store keeps at least fewPast older versions of a limit that often changes.
const fewPast = 16

// storeFailed reports whether an error is the store's, not of the input or a cancelled context.
func storeFailed(err error) bool {
	return !errors.As(err, new(*store.FieldError)) && !errors.Is(err, store.ErrReservation) &&
		!errors.Is(err, store.ErrUnknownLimit) && !errors.Is(err, store.ErrNotSupported) &&
		!errors.Is(err, store.ErrUnknownHold) && !errors.Is(err, store.ErrHoldConflict) &&
		!errors.Is(err, context.Canceled)
}
