// Package coalesce lets callers that wait while a statement is in flight ride
// on the next one: a store in, a store out.
//
// A lone caller asks the inner store itself, on its own goroutine and under its
// own context; nothing is held back. Calls that come while a statement is in
// flight queue up, first come first served, and are sent together when it
// returns. No call takes longer than Config.Timeout, waiting included.
//
// Each lane has at most one statement in flight. While few calls share a
// statement, all that queue do so at the first lane: one statement for all of
// them costs less than two for a half each. Otherwise they queue at the lane of
// their key, always the same one, so that two lanes do not fight over a row.
// While nobody queues there, a call may go by any lane that is idle. A group of
// several keys goes whole to the lane of one of them and stays all or
// nothing. It may touch rows of other lanes: inner stores that lock rows must
// lock those of a batch in one order, so that two lanes cannot deadlock.
//
// With Lanes.Spare some lanes have no queue. While few statements are in flight
// they take calls that would have to wait for another one; near capacity they
// stay idle, because calls that share a statement cost less.
//
// A caller whose context ends leaves at once and harms nobody: queued, its call
// is withdrawn and was certainly not charged; already sent, the error is
// dipwell.ErrOutcomeUnknown. A statement for several callers ends when the last
// of them would have given up.
//
// A row that another transaction has locked would hold up its lane for as long
// as that transaction likes. With Lanes.Quarantine a lane gives up a lock after
// Lanes.LockWait. The keys of that statement are then asked about on
// connections of their own: those that are not locked are answered at once and
// return to their lanes; calls of the locked ones wait there, in a bounded
// queue, until the lock goes or their contexts end. Other keys notice one
// statement that took LockWait longer.
//
// An inner store gives each group of a batch its own error. The stores of this
// module do, also where one row made a whole statement fail: they divide it
// themselves. Only when Apply itself returns an error, which speaks for every
// group, the batch is split in halves and sent again, until the group at fault is
// alone with its error. That needs an inner store that says
// dipwell.ErrOutcomeUnknown wherever it may have charged: such batches are never
// sent twice, nor are those that ran out of time.
package coalesce

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math/bits"
	"slices"
	"sync/atomic"
	"time"

	"github.com/dipwell/dipwell/store"
)

// Errors of calls that were certainly not charged.
var (
	ErrBusy   = fmt.Errorf("%w: too many calls are waiting; this one was not charged", store.ErrStore)
	ErrClosed = fmt.Errorf("%w: it is closed; the call was not charged", store.ErrStore)
)

// Config bounds a Store. A zero field means the default named in its comment.
type Config struct {
	MaxBatch int           // groups in one statement, 1 to 65536; default 1024
	MaxQueue int           // groups waiting for one lane, 1 to 1<<20; default 16384; more are refused with ErrBusy
	Timeout  time.Duration // the longest a call may take, waiting included; default 10 s

	// Of is the store whose abilities this one has besides Apply. Default: that of
	// the first lane.
	Of store.Store

	// OnBatch hears of each batch after a lane's store has decided it: its groups
	// with their errors, how long that took and the error of Apply. It must not
	// keep b, and is called by several goroutines. Default: nothing is done.
	OnBatch func(b *store.Batch, took time.Duration, err error)
}

// settings are what lanes and the quarantine know of their store.
type settings struct {
	store.Lanes
	Config
}

const (
	defaultBatch   = 1024
	maxBatch       = 1 << 16
	defaultQueue   = 1 << 14
	maxQueue       = 1 << 20
	defaultTimeout = 10 * time.Second
	defaultWait    = 10 * time.Millisecond
	maxLanes       = 1024
)

// Store coalesces calls. It is safe for concurrent use.
type Store struct {
	of         store.Store // has the abilities besides Apply
	lanes      []*lane
	home       int              // lanes that have a queue: the first of them
	connected  func(i int) bool // of a spare lane; nil: always
	spare      credits
	quarantine *quarantine // nil: there is none
	bounds     bounds
	seed       maphash.Seed
	busy       atomic.Int32 // lanes with a statement in flight
	riders     riders
}

var _ store.Store = (*Store)(nil)

// New returns a store over lanes. One lane is enough where the inner store has
// no connections to keep busy.
func New(lanes store.Lanes, c Config) (*Store, error) {
	set := &settings{lanes, c}
	if err := set.check(); err != nil {
		return nil, err
	}
	s := &Store{of: set.Of, connected: lanes.Connected, seed: maphash.MakeSeed(), quarantine: newQuarantine(set), home: len(lanes.Stores) - lanes.Spare}
	s.bounds.timeout = set.Timeout
	for _, inner := range lanes.Stores {
		s.lanes = append(s.lanes, &lane{store: inner, settings: set, made: time.Now(), allBusy: &s.busy, riders: &s.riders, bounds: &s.bounds, quarantine: s.quarantine})
	}
	return s, nil
}

// grace is how long a statement needs that is refused a lock.
func (s *settings) grace() time.Duration { return s.LockWait + s.LockWait/2 }

func (s *settings) check() error {
	s.MaxBatch = cmp.Or(s.MaxBatch, defaultBatch)
	s.MaxQueue = cmp.Or(s.MaxQueue, defaultQueue)
	s.Timeout = cmp.Or(s.Timeout, defaultTimeout)
	s.LockWait = cmp.Or(s.LockWait, defaultWait)
	if s.Of == nil && len(s.Stores) > 0 {
		s.Of = s.Stores[0]
	}
	switch n := len(s.Stores); {
	case n == 0 || n > maxLanes:
		return fmt.Errorf("coalesce: %d lanes; from 1 to %d", n, maxLanes)
	case slices.Contains(s.Stores, nil):
		return fmt.Errorf("coalesce: lane %d is nil", slices.Index(s.Stores, nil))
	case s.MaxBatch < 1 || s.MaxBatch > maxBatch:
		return fmt.Errorf("coalesce: MaxBatch %d; from 1 to %d", s.MaxBatch, maxBatch)
	case s.MaxQueue < 1 || s.MaxQueue > maxQueue:
		return fmt.Errorf("coalesce: MaxQueue %d; from 1 to %d", s.MaxQueue, maxQueue)
	case s.Spare < 0 || s.Spare >= n:
		return fmt.Errorf("coalesce: Spare %d of %d lanes; from 0 to one less", s.Spare, n)
	case s.Timeout < 0:
		return fmt.Errorf("coalesce: Timeout %v is negative", s.Timeout)
	case (s.Sorter == nil) != (s.Quarantine == nil):
		return errors.New("coalesce: Sorter and Quarantine need each other")
	case s.LockWait < 0:
		return fmt.Errorf("coalesce: LockWait %v is negative", s.LockWait)
	}
	return nil
}

// Unwrap returns the store whose abilities this one has.
func (s *Store) Unwrap() store.Store { return s.of }

// Abilities are those of Config.Of. A call may have to queue.
func (s *Store) Abilities() store.Abilities {
	ab := store.AbilitiesOf(s.of)
	ab.Store, ab.Quick, ab.Lanes, ab.InProcess = s, nil, nil, false
	if s.quarantine != nil {
		ab.AddMetrics(s.metrics)
	}
	return ab
}

func (s *Store) metrics() []store.Metric {
	st := s.Stats()
	return []store.Metric{
		{Name: "dipwell_store_quarantined_keys", Help: "Keys whose row another transaction holds locked: their calls wait on a connection of their own.", Value: float64(st.Quarantined)},
		{Name: "dipwell_store_quarantine_refused_total", Help: "Calls that were refused because too many wait for such rows.", Counter: true, Value: float64(st.Refused)},
	}
}

// Close refuses new calls and those in the queue with ErrClosed, and waits for
// the statements in flight. The inner stores stay open.
func (s *Store) Close() error {
	for _, l := range s.lanes {
		l.close()
	}
	s.quarantine.close()
	for _, l := range s.lanes {
		l.drained()
	}
	s.quarantine.drained()
	return nil
}

// Apply sends the batch at once by a lane that is idle, unless others wait at
// its own; otherwise each of its groups goes on the next statement of the
// group's lane. Groups whose row is locked go to the quarantine.
func (s *Store) Apply(ctx context.Context, b *store.Batch) error {
	if err := ctx.Err(); err != nil {
		return notSent(err)
	}
	if len(b.Groups) == 0 {
		return nil
	}
	c := s.bounds.call(ctx)
	if s.quarantine == nil {
		return s.send(&c, b)
	}
	var err error
	if len(b.Groups) == 1 && s.quarantine.holds(&b.Groups[0]) {
		err = errHeld
	} else {
		err = s.send(&c, b)
	}
	return s.quarantine.admit(&s.bounds, &c, b, err)
}

func (s *Store) send(c *call, b *store.Batch) error {
	if s.hasty(c) {
		return s.scatter(c, b)
	}
	l := s.laneOf(&b.Groups[0])
	for i := 1; i < len(b.Groups) && l != nil; i++ {
		if s.laneOf(&b.Groups[i]) != l {
			l = nil
		}
	}
	if l != nil {
		if idle := s.idleFor(l); idle != nil {
			return idle.alone(c, b)
		}
	}
	if len(b.Groups) == 1 {
		return l.ride(c, b)
	}
	return s.scatter(c, b)
}

// idleFor makes an idle lane busy for a call of the lane home, where nobody
// waits: the first one there is, for its connection is the warmest.
func (s *Store) idleFor(home *lane) *lane {
	busy := int(s.busy.Load())
	if busy == len(s.lanes) || home.crowded() {
		return nil
	}
	for _, l := range s.lanes[:s.home] {
		if l.lead() {
			s.spare.earn(busy < earnBelow*s.home)
			return l
		}
	}
	if s.home == len(s.lanes) {
		return nil
	}
	s.spare.earn(busy < earnBelow*s.home)
	return s.spareLane()
}

// hasty reports whether a caller may leave while its statement waits for a lock.
// The statement must outlive it, so it cannot run in the caller's context.
func (s *Store) hasty(c *call) bool {
	switch {
	case s.quarantine == nil:
		return false
	case c.ours:
		return s.bounds.timeout < s.quarantine.grace()
	}
	return time.Until(c.deadline) < s.quarantine.grace()
}

// scatter sends each group by itself and waits for all.
func (s *Store) scatter(c *call, b *store.Batch) error {
	waiters := make([]*waiter, len(b.Groups))
	for i := range b.Groups {
		g := &b.Groups[i]
		l := s.laneOf(g)
		w := l.waiter(c, g)
		if err := l.start(w); err != nil {
			g.Err = err
			w.free()
			continue
		}
		waiters[i], c.deadline = w, w.deadline
	}
	for i, w := range waiters {
		if w != nil {
			w.lane.wait(c, w, &b.Groups[i])
		}
	}
	return nil
}

// laneOf is the lane of a group: while riders are few the first one that is not
// stuck, otherwise that of its smallest key hash, so that the same keys in another
// order meet the same lane.
func (s *Store) laneOf(g *store.Group) *lane {
	n := uint64(s.home)
	if n == 1 {
		return s.lanes[0]
	}
	if s.riders.few() {
		for _, l := range s.lanes[:n] {
			if !l.stuck() {
				return l
			}
		}
	}
	if g.Cancel {
		return s.lanes[maphash.Bytes(s.seed, g.ID[:])%n]
	}
	least := ^uint64(0)
	for i := range g.Ops {
		least = min(least, s.hash(&g.Ops[i]))
	}
	hi, _ := bits.Mul64(least*0x9e3779b97f4a7c15, n) // spread again: the least of several is small
	return s.lanes[hi]
}

func (s *Store) hash(op *store.Op) uint64 {
	return bits.RotateLeft64(maphash.String(s.seed, op.Def.Name), 31) ^ maphash.String(s.seed, op.Key)
}

func notSent(err error) error {
	return fmt.Errorf("%w: not sent and not charged: %w", store.ErrStore, err)
}

// again reports whether a statement that failed certainly changed nothing.
func again(err error) bool {
	return !errors.Is(err, store.ErrOutcomeUnknown) &&
		!errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded)
}
