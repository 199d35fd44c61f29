package filestore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dipwell/dipwell/internal/memory"
	"github.com/dipwell/dipwell/store"
)

// Each, as Config.Every, answers a decision once it is on the disk.
const Each time.Duration = -1

// Defaults and bounds of Config.Every.
const (
	defaultEvery = 100 * time.Millisecond
	minEvery     = 10 * time.Millisecond
	maxEvery     = time.Hour
)

// Config sets up a Store. The zero value means the defaults.
type Config struct {
	// Every is how long a decision may be in memory alone: what a crash can
	// forget. Default 100 ms; at least 10 ms. Each: not at all.
	Every time.Duration
	// MaxKeys and MaxReservations are memstore's. A file that holds more than
	// that is not opened.
	MaxKeys         int
	MaxReservations int
	// Clock tells the time in µs since the Unix epoch. Default: the wall clock
	// as it is when the store is opened, or as the store's own clock was when it
	// was written last if that is later, and the monotonic clock from then on.
	Clock func() int64
	// OnError hears of a disk that begins to fail, and of what was odd about a
	// file. Calls get the failure as their own error besides.
	OnError func(error)
}

// A Store keeps buckets in memory and in a file. It is safe for concurrent use;
// one process at a time can have the file open.
type Store struct {
	mem      *memory.Store
	memQuick func(def *store.Definition, key string, verb store.Verb, cost int64, checked bool) (store.QuickAnswer, bool)
	path     string
	every    time.Duration // 0: each
	state    atomic.Uint32 // of the bits below; 0: decide in memory and go
	dirty    dirty
	disk     *disk
	plan     limits
	keep     keeper

	// Groups and reservations change several things at once. They hold it for
	// reading; who wants to see all or nothing of them holds it for writing.
	together sync.RWMutex
	joint    []mark // keys that such calls changed since the last turn; see keeper.collect
	jointMu  sync.Mutex

	failure atomic.Pointer[error]
	report  func(error)
}

// Reasons for a call not to be answered from memory at once.
const (
	stateEach   = 1 << iota // wait for the disk
	stateFailed             // the disk fails
	stateBehind             // too many keys are dirty
	stateClosed
)

var _ store.Store = (*Store)(nil)

// ErrClosed is what calls get after Close.
var ErrClosed = fmt.Errorf("%w: it is closed", store.ErrStore)

// ErrBehind is what calls get while so many keys wait to be written that there
// is no room for more.
var ErrBehind = fmt.Errorf("%w: the disk is too far behind", store.ErrStore)

// Open opens the file, or makes it, and loads what it keeps. The errors are an
// *InUseError, or a sentence that names the file and says what is wrong with it;
// nothing was changed then.
func Open(path string, c Config) (*Store, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	s := &Store{report: c.OnError, every: c.Every}
	if s.report == nil {
		s.report = func(error) {}
	}
	if c.Every == Each {
		s.every = 0
		s.state.Store(stateEach)
	}
	var err error
	if s.disk, err = openDisk(path); err != nil {
		return nil, err
	}
	s.path = s.disk.path
	if err = s.load(c); err != nil {
		if s.mem != nil {
			_ = s.mem.Close() // the other error says more
		}
		return nil, errors.Join(err, s.disk.close())
	}
	s.dirty.init(max(s.maxKeys(c), minBehind))
	s.keep.start(s)
	return s, nil
}

func (c *Config) check() error {
	if c.Every == 0 {
		c.Every = defaultEvery
	}
	if c.Every != Each && (c.Every < minEvery || c.Every > maxEvery) {
		return fmt.Errorf("filestore: Every: %v is not between %v and %v", c.Every, minEvery, maxEvery)
	}
	return nil
}

func (s *Store) maxKeys(c Config) int {
	if c.MaxKeys == 0 {
		return memory.DefaultMaxKeys
	}
	return c.MaxKeys
}

// Abilities returns what the store can do besides Apply. Keys lists the keys of
// any limit and Sweep deletes full rows from the file.
func (s *Store) Abilities() store.Abilities {
	return store.Abilities{
		Store: s, Limits: s.plan.cat, Keys: s.keys, Sweep: s.sweep, Now: s.mem.Now, Metrics: s.metrics, Quick: s.quick, InProcess: s.every != 0,
		Ready: func(context.Context) error { return s.why() },
	}
}

// Apply decides a batch in memory, and waits for the disk where it has to.
func (s *Store) Apply(ctx context.Context, b *store.Batch) error {
	state := s.state.Load()
	if state&^stateEach != 0 {
		return s.applyFailing(ctx, b)
	}
	last, err := s.apply(ctx, b)
	if err != nil || state&stateEach == 0 || last == nil {
		return err
	}
	select {
	case <-last.done:
		if last.err == nil {
			return nil
		}
		return fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, last.err)
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, ctx.Err())
	}
}

// apply decides in memory, marks what changed, and returns the last turn of the
// keeper that has some of it; nil when nothing changed.
func (s *Store) apply(ctx context.Context, b *store.Batch) (last *turn, err error) {
	if jointly(b) {
		s.together.RLock()
		defer s.together.RUnlock()
	}
	for i := range b.Groups {
		if g := &b.Groups[i]; g.Cancel {
			last = later(last, s.cancel(ctx, g))
		}
	}
	if len(b.Groups) == 1 && b.Groups[0].Cancel {
		return last, nil
	}
	return later(last, s.decide(ctx, b)), err
}

// decide is apply for all groups but cancellations.
func (s *Store) decide(ctx context.Context, b *store.Batch) (last *turn) {
	for i := range b.Groups {
		g := &b.Groups[i]
		if g.Cancel {
			continue
		}
		one := store.Batch{Groups: b.Groups[i : i+1]}
		if err := s.mem.Apply(ctx, &one); err != nil {
			g.Err = err
		}
		if g.Err != nil || !g.Allowed {
			continue
		}
		joint := len(g.Ops) > 1 || g.Reserved // see jointly
		for j := range g.Ops {
			op := &g.Ops[j]
			gave := op.Verb == store.VerbRefund || op.Verb == store.VerbReset
			if op.Granted == 0 && !gave {
				continue
			}
			m := mark{op.Def, op.Key, gave, op.Verb == store.VerbReset}
			last = later(last, s.dirty.put(m))
			if joint || op.Verb == store.VerbReset {
				s.join(m)
			}
		}
	}
	return last
}

// cancel gives a reservation back and marks the keys that had it.
func (s *Store) cancel(ctx context.Context, g *store.Group) (last *turn) {
	held, _ := s.mem.Reservation(g.ID)
	one := store.Batch{Groups: []store.Group{*g}}
	err := s.mem.Apply(ctx, &one)
	if *g = one.Groups[0]; err != nil {
		g.Err = err
	}
	if g.Err != nil {
		return nil
	}
	for _, p := range held.Parts {
		if d := s.mem.Registry().Lookup(p.Limit); d != nil {
			m := mark{def: d, key: p.Key, gave: true}
			last = later(last, s.dirty.put(m))
			s.join(m)
		}
	}
	return last
}

// join notes a key that changed together with something else.
func (s *Store) join(m mark) {
	s.jointMu.Lock()
	s.joint = append(s.joint, m)
	s.jointMu.Unlock()
}

// jointly reports whether the batch may change several things at once.
func jointly(b *store.Batch) bool {
	for i := range b.Groups {
		g := &b.Groups[i]
		if g.Cancel || len(g.Ops) != 1 || g.Ops[0].Verb == store.VerbReserve || g.Ops[0].Verb == store.VerbReset || g.Ops[0].Def.Rule.Leaky {
			return true
		}
	}
	return false
}

// applyFailing answers while the disk does not: limits that ask for it are
// decided in memory, and the answer says so; the rest fail.
func (s *Store) applyFailing(ctx context.Context, b *store.Batch) error {
	err := s.why()
	state := s.state.Load()
	for i := range b.Groups {
		g := &b.Groups[i]
		if g.Err = err; state&stateFailed == 0 || state&(stateClosed|stateBehind) != 0 || !local(g) {
			continue
		}
		one := store.Batch{Groups: b.Groups[i : i+1]}
		if _, g.Err = s.apply(ctx, &one); g.Err != nil {
			continue
		}
		for j := range g.Ops {
			g.Ops[j].Source = store.SourceFallbackLocal
		}
	}
	return nil
}

func local(g *store.Group) bool {
	for i := range g.Ops {
		if g.Ops[i].Def.OnStoreError != store.FailLocal {
			return false
		}
	}
	return !g.Cancel
}

// why is the error of calls that are not decided.
func (s *Store) why() error {
	state := s.state.Load()
	switch {
	case state&stateClosed != 0:
		return ErrClosed
	case state&stateFailed != 0:
		if err := s.failure.Load(); err != nil {
			return *err
		}
		return store.ErrStore
	case state&stateBehind != 0:
		return ErrBehind
	}
	return nil
}

// Close writes what is left to write and lets go of the file. The error says
// whether that failed. Calls should have ended before.
func (s *Store) Close() error {
	if old := s.state.Or(stateClosed); old&stateClosed != 0 {
		return nil
	}
	return errors.Join(s.keep.stop(), s.disk.close(), s.mem.Close())
}
