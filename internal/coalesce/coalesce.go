// Package coalesce sends the calls that arrive while a statement is in flight
// together in the next statement. It is a decorator: it wraps a store and is one.
//
// If no statement is in flight, a call goes to the inner store at once. Calls that
// arrive while a statement is in flight queue up, first come first served, and are
// sent together when it returns. There is no timer, so a lone call is never held
// back. No call takes longer than Config.Timeout, including its wait.
//
// Each lane has at most one statement in flight. While few calls share a
// statement, all calls queue at the first lane: one statement for all of them
// costs less than two with half of them each. Otherwise a call queues at the lane
// of its key, so that two lanes do not contend for a row, or if that hangs, the next. While
// nothing is queued there, a call may use any idle lane. A group of several keys goes to the
// lane of one of them; a call of several levels to that of the topmost one, whose
// row most calls share. It may touch rows of other lanes, so inner stores that lock
// rows must lock those of a batch in one order; otherwise two lanes can deadlock.
//
// A caller whose context ends returns at once, without effect on others. If its
// call was queued, it is removed and was not charged. If it was already sent, the
// error is store.ErrOutcomeUnknown, and the statement goes on: to cancel it would cost the
// connection, and the calls that wait would wait for a new one. A statement ends at the latest
// deadline of its callers, but not before it has run for a second.
//
// A row that another transaction has locked would block its lane until that
// transaction ends. With Lanes.Quarantine a lane stops waiting for a lock after
// Lanes.LockWait. The keys of that statement are then tried on separate connections.
// Keys that are not locked are answered at once and return to their lanes. Calls for
// the locked keys wait in a bounded queue until the lock is released or their contexts end.
//
// An inner store sets an error per group. Only if Apply itself returns an error, which applies
// to every group, is the batch split in halves and sent again, until the failing group is
// alone with its error. This requires an inner store that returns store.ErrOutcomeUnknown
// whenever it may have charged: such batches are never sent twice, nor are those that timed
// out.
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

	"github.com/dipwell/dipwell/internal/background"
	"github.com/dipwell/dipwell/store"
)

// These are errors of calls that were not charged.
var (
	ErrBusy   = fmt.Errorf("%w: too many calls are waiting; this call was not charged", store.ErrStore)
	ErrClosed = fmt.Errorf("%w: it is closed; the call was not charged", store.ErrStore)
)

// Config configures a Store. A zero field means the default that its comment names.
type Config struct {
	MaxBatch int           // most groups in one statement; default 1024
	MaxQueue int           // groups queued at one lane; default 16384; beyond it calls fail with ErrBusy
	Timeout  time.Duration // maximum duration of a call, including its wait; default 10 s

	// Of is the store whose abilities a Store has besides Apply. Default of
	// Of: the store of the first lane.
	Of store.Store

	// OnBatch is called after each batch, as stack.Options says. Default: none.
	OnBatch func(b *store.Batch, took time.Duration, err error)

	// The fields below are set by simulations. A quarantine does not use these fields.
	Clock func() time.Time                // default time.Now
	Go    func(f func())                  // starts f in the background; default a goroutine
	After func(d time.Duration, f func()) // calls f in the background after d; default a timer
	Gate  func() Gate                     // makes a gate where a queued call waits; default none
}

// A Gate lets a call wait until another goroutine opens it, which happens once at most.
type Gate interface {
	Wait(ctx context.Context) error // waits until the gate is open, or until ctx ends; then the error is ctx's
	Open()
}

// settings is the configuration that a Store shares with its lanes and quarantine.
type settings struct {
	store.Lanes
	Config
}

const (
	defaultBatch   = 1024
	defaultQueue   = 1 << 14
	defaultTimeout = 10 * time.Second
	defaultWait    = 10 * time.Millisecond
	maxLanes       = 1024
)

// Store coalesces calls. It is safe for concurrent use.
type Store struct {
	*settings
	lanes      []*lane
	quarantine *quarantine // nil if not configured
	seed       maphash.Seed
	busy       atomic.Int32 // number of lanes with a statement in flight
	peak       peak
}

var _ store.Store = (*Store)(nil)

// New returns a store over lanes. One lane is enough for an inner store without
// connections.
func New(lanes store.Lanes, c Config) (*Store, error) {
	set := &settings{lanes, c}
	if err := set.check(); err != nil {
		return nil, err
	}
	s := &Store{settings: set, seed: maphash.MakeSeed(), quarantine: newQuarantine(set)}
	for _, inner := range lanes.Stores {
		s.lanes = append(s.lanes, &lane{store: inner, settings: set, base: set.now(), allBusy: &s.busy, peak: &s.peak, quarantine: s.quarantine})
	}
	return s, nil
}

func (s *settings) check() error {
	s.MaxBatch = cmp.Or(s.MaxBatch, defaultBatch)
	s.MaxQueue = cmp.Or(s.MaxQueue, defaultQueue)
	s.Timeout = cmp.Or(s.Timeout, defaultTimeout)
	s.LockWait = cmp.Or(s.LockWait, defaultWait)
	if s.Go == nil {
		s.Go = func(f func()) { go f() }
	}
	if s.Of == nil && len(s.Stores) > 0 {
		s.Of = s.Stores[0]
	}
	switch n := len(s.Stores); {
	case n == 0 || n > maxLanes:
		return fmt.Errorf("coalesce: %d lanes; want 1 to %d", n, maxLanes)
	case slices.Contains(s.Stores, nil):
		return fmt.Errorf("coalesce: lane %d is nil", slices.Index(s.Stores, nil))
	case s.Timeout < 0:
		return fmt.Errorf("coalesce: Timeout %v is negative", s.Timeout)
	case (s.Sorter == nil) != (s.Quarantine == nil):
		return errors.New("coalesce: Sorter and Quarantine must be set together")
	case s.LockWait < 0:
		return fmt.Errorf("coalesce: LockWait %v is negative", s.LockWait)
	}
	return nil
}

// listTimeout is the longest time that a list may take. For a list Redis reads the names
// of all keys.
const listTimeout = 30 * time.Second

// Abilities returns those of Config.Of, except Quick and InProcess: a call may have to
// queue. The verbs take no longer than calls, and lists no longer than listTimeout.
func (s *Store) Abilities() store.Abilities {
	ab := store.AbilitiesOf(s.Of)
	ab.Store, ab.Quick, ab.Lanes, ab.InProcess = s, nil, nil, false
	ab.Guard(func(ctx context.Context, long bool) (context.Context, context.CancelFunc, error) {
		timeout := s.Timeout
		if long {
			timeout = max(timeout, listTimeout)
		}
		ctx, cancel := context.WithTimeout(ctx, timeout)
		return ctx, cancel, nil
	})
	if s.quarantine != nil {
		ab.AddMetrics(s.metrics)
	}
	return ab
}

func (s *Store) metrics() []store.Metric {
	return []store.Metric{
		{Name: "dipwell_store_quarantined_keys", Help: "Keys whose row another transaction has locked, or lately had; their calls use a separate connection.", Value: float64(s.quarantine.size.Load())},
		{Name: "dipwell_store_quarantine_refused_total", Help: "Calls refused because too many calls wait for locked rows.", Counter: true, Value: float64(s.quarantine.refused.Load())},
	}
}

// Close makes new and queued calls fail with ErrClosed, and waits for the
// statements in flight. Close does not close the inner stores.
func (s *Store) Close() error {
	for _, l := range s.lanes {
		l.close()
	}
	s.quarantine.close()
	for _, l := range s.lanes {
		l.waitIdle()
	}
	s.quarantine.waitIdle()
	return nil
}

// Apply sends the batch at once if a lane is idle and no calls are queued at the
// lane of its keys. Otherwise each group is queued for the next statement of its
// lane. Groups whose row is locked go to the quarantine.
func (s *Store) Apply(ctx context.Context, b *store.Batch) error {
	if err := ctx.Err(); err != nil {
		return background.NotSent(err)
	}
	if len(b.Groups) == 0 {
		return nil
	}
	c := s.newCall(ctx)
	if len(b.Groups) == 1 && s.quarantine.contains(&b.Groups[0]) {
		b.Groups[0].Err = errQuarantined
		s.quarantine.admit(&c, b)
		return nil
	}
	own := s.laneOf(&b.Groups[0])
	for i := 1; i < len(b.Groups) && own != nil; i++ {
		if s.laneOf(&b.Groups[i]) != own {
			own = nil
		}
	}
	idle := s.idleFor(own)
	var one [1]*waiter
	waiters := one[:0]
	for i := range b.Groups {
		g, l := &b.Groups[i], idle
		if l == nil {
			l = s.laneOf(g)
		}
		w := l.waiter(&c, g)
		if g.Err = l.enqueue(w); g.Err != nil {
			w.recycle()
			w = nil
		} else {
			c.deadline = w.deadline
		}
		waiters = append(waiters, w)
	}
	if idle != nil {
		idle.begin()
	}
	for i, w := range waiters {
		if w == nil {
			continue
		}
		if idle == nil {
			w.lane.start()
		}
		w.lane.wait(&c, w, &b.Groups[i])
	}
	s.quarantine.admit(&c, b)
	return nil
}

// idleFor acquires an idle lane for calls of the lane own, or returns nil. It takes the
// first idle lane, whose connection is the warmest. own is nil if the calls are of
// several lanes.
func (s *Store) idleFor(own *lane) *lane {
	if own == nil || int(s.busy.Load()) == len(s.lanes) || own.hasQueue() {
		return nil
	}
	for _, l := range s.lanes {
		if l.acquire() {
			return l
		}
	}
	return nil
}

// laneOf returns the lane of a group. While the peak is low, the lane of every group is
// the first lane that is not stuck. Otherwise it is the lane of the smallest key hash,
// so that the same keys in another order go to the same lane, or if that hangs, the next
// one. Only the topmost level of a limit with parents counts: otherwise calls that share
// the row of the parent would wait for each other in two lanes. With three levels and
// 512 callers, a decision would then cost twice the processor time.
func (s *Store) laneOf(g *store.Group) *lane {
	n := uint64(len(s.lanes))
	if n == 1 {
		return s.lanes[0]
	}
	if s.peak.low() {
		for _, l := range s.lanes {
			if !l.olderThan(stuckAfter) {
				return l
			}
		}
	}
	switch {
	case g.Cancel:
		return s.laneFrom(maphash.Bytes(s.seed, g.ID[:]) % n)
	case g.Settles():
		return s.laneFrom(maphash.String(s.seed, g.Hold.ID) % n)
	}
	smallest := ^uint64(0)
	for i := range g.Ops {
		if op := &g.Ops[i]; op.Def.Parent == "" {
			smallest = min(smallest, s.hash(op))
		}
	}
	hi, _ := bits.Mul64(smallest*0x9e3779b97f4a7c15, n) // the smallest of several hashes is small, so spread it again
	return s.laneFrom(hi)
}

// laneFrom returns the first lane from the given one on that does not hang. If all hang, it
// returns the given one.
func (s *Store) laneFrom(at uint64) *lane {
	n := uint64(len(s.lanes))
	for i := range n {
		if l := s.lanes[(at+i)%n]; !l.hangs.Load() {
			return l
		}
	}
	return s.lanes[at]
}

func (s *Store) hash(op *store.Op) uint64 {
	return bits.RotateLeft64(maphash.String(s.seed, op.Def.Name), 31) ^ maphash.String(s.seed, op.Key)
}

// resendable reports whether a failed statement changed nothing.
func resendable(err error) bool {
	return !errors.Is(err, store.ErrOutcomeUnknown) &&
		!errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded)
}
