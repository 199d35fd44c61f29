package filestore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dipwell/dipwell/internal/catalog"
	"github.com/dipwell/dipwell/internal/memory"
	"github.com/dipwell/dipwell/store"
)

// Each, as Config.Every, answers each call only when its decision is on the disk.
const Each time.Duration = -1

// Defaults and bounds of Config.Every.
const (
	defaultEvery = 100 * time.Millisecond
	minEvery     = 10 * time.Millisecond
	maxEvery     = time.Hour
)

// Config configures a Store. The zero Config means the defaults.
type Config struct {
	// Every is how long a decision may be only in memory, where a crash loses it: 10 ms to 1
	// hour, or Each for no time. Default of Every: 100 ms.
	Every time.Duration
	// MaxKeys and the bounds below it are as in memstore.Config, with the same defaults. Calls
	// that would exceed one fail with store.ErrFull. Open fails if the file has more entries.
	MaxKeys         int
	MaxKeyBytes     int64 // of the texts of keys
	MaxReservations int
	MaxHolds        int
	MaxOverrides    int
	// Clock returns the time in µs since the Unix epoch. Default: the monotonic clock,
	// starting at the wall clock's time when the store is opened, or at the last time written
	// to the file if that is later.
	Clock func() int64
	// OnError is called when the disk begins to fail, which calls return as an error too, and
	// when a sweep fails. Default: none.
	OnError func(error)
}

// A Store decides in memory and writes buckets to a file. It is safe for concurrent
// use. Only one process at a time can open the file.
type Store struct {
	mem      *memory.Store
	memQuick func(def *store.Definition, key string, verb store.Verb, cost int64, checked bool) (store.QuickAnswer, *sync.Mutex, bool)
	path     string
	every    time.Duration // 0 if Config.Every is Each
	state    atomic.Uint32 // the bits below; 0: calls are answered from memory at once
	dirty    dirty
	disk     *disk
	limits   limits
	writer   writer
	fitting  sync.RWMutex // locked before multi, while a limit changes, and for reading while an override is set

	// Calls that change several keys, or reservations, lock multi for reading. The writer
	// locks it for writing, so that it sees all of such a call's changes or none.
	multi       sync.RWMutex
	multiKeys   []memory.Touched // keys changed by such calls since the last cycle; see writer.collect
	multiKeysMu sync.Mutex

	failure atomic.Pointer[error]
	report  func(error)
}

// Reasons why a call is not answered from memory at once.
const (
	stateEach   = 1 << iota // calls wait for the disk
	stateFailed             // the disk is failing
	stateBehind             // too many keys are dirty
	stateClosed
)

var _ store.Store = (*Store)(nil)

// errClosed is the error of calls after Close.
var errClosed = fmt.Errorf("%w: it is closed", store.ErrStore)

// errBehind is the error of calls while too many keys wait to be written.
var errBehind = fmt.Errorf("%w: the disk is too far behind", store.ErrStore)

// Open opens or creates the file and loads it into memory. Only one process can have
// the file open. The error names the file and what is wrong with it, or the process
// that has it open; the file was not changed then.
func Open(path string, c Config) (*Store, error) {
	c.Every = cmp.Or(c.Every, defaultEvery)
	if c.Every != Each && (c.Every < minEvery || c.Every > maxEvery) {
		return nil, fmt.Errorf("filestore: Every: %v is not between %v and %v", c.Every, minEvery, maxEvery)
	}
	s := &Store{report: c.OnError, every: max(c.Every, 0)}
	if s.report == nil {
		s.report = func(error) {}
	}
	if c.Every == Each {
		s.state.Store(stateEach)
	}
	var err error
	if s.disk, err = openDisk(path); err != nil {
		return nil, err
	}
	s.path = s.disk.path
	if err = s.load(c); err != nil {
		if s.mem != nil {
			_ = s.mem.Close() // err says more than a close error would
		}
		return nil, errors.Join(err, s.disk.close())
	}
	s.dirty.init(max(cmp.Or(c.MaxKeys, memory.DefaultMaxKeys), minMaxDirty))
	s.writer.start(s)
	return s, nil
}

// Abilities returns what the store can do besides Apply. Its Keys lists the keys of all
// limits, with or without ListKeys, because their text is in the file. Ready returns an
// error while the disk fails or is too far behind. There are no lanes, since a call waits
// for no connection.
func (s *Store) Abilities() store.Abilities {
	return store.Abilities{
		Store: s, Limits: &s.limits, Keys: s.keys, Overrides: overrides{s}, Audit: trail{s, &catalog.Changes}, TopKeys: trail{s, &catalog.TopHours}, Usage: usage{s}, Holds: s.mem.Holds, Sweep: s.sweep, Now: s.mem.Now, Metrics: s.metrics, Quick: s.quick, InProcess: s.every != 0,
		Ready: func(context.Context) error { return s.unavailable() },
	}
}

// Apply decides a batch in memory. With Each it then waits for the disk; the error wraps
// store.ErrOutcomeUnknown if the disk fails or ctx ends meanwhile.
//
// While the disk fails, groups whose limits all have FailLocal are decided in memory, with
// store.SourceFallbackLocal as their Source; all others, and all groups of a closed store,
// get an Err that wraps store.ErrStore, and are not charged.
func (s *Store) Apply(ctx context.Context, b *store.Batch) error {
	state := s.state.Load()
	if state&^stateEach != 0 {
		return s.applyFailing(b)
	}
	last := s.apply(b)
	if state&stateEach == 0 || last == nil {
		return nil
	}
	select {
	case <-last.done:
		if last.err == nil {
			return nil
		}
		return unknownOutcome(last.err)
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, ctx.Err())
	}
}

// unknownOutcome returns the error of a call whose change is in memory and could not be
// written. It must not wrap ErrNoSpace, which says that nothing was changed.
func unknownOutcome(err error) error {
	return fmt.Errorf("%w: %s", store.ErrOutcomeUnknown, err.Error())
}

// apply decides in memory, adds the changed keys to dirty, and returns their last cycle, or nil.
func (s *Store) apply(b *store.Batch) (last *cycle) {
	multi := isMulti(b)
	if multi {
		s.multi.RLock()
		defer s.multi.RUnlock()
	}
	var touched [store.MaxTakes]memory.Touched
	for i := range b.Groups {
		for _, k := range s.mem.ApplyWatched(&b.Groups[i], touched[:0]) {
			if last = laterOf(last, s.dirty.addTo(k)); multi {
				s.multiKeysMu.Lock()
				s.multiKeys = append(s.multiKeys, k)
				s.multiKeysMu.Unlock()
			}
		}
		last = laterOf(last, s.holdCycle(&b.Groups[i]))
	}
	return last
}

// holdCycle returns a cycle after which the hold of a call is on the disk, or nil without
// Each. The call may have changed no row: its hold may be free, or repeat one that still
// waits.
func (s *Store) holdCycle(g *store.Group) (last *cycle) {
	if s.every != 0 || g.Hold == nil || g.Err != nil || !g.Allowed {
		return nil
	}
	for i := range g.Ops {
		last = laterOf(last, s.dirty.addTo(memory.Touched{Def: g.Ops[i].Def.Base(), Key: g.Ops[i].Key}))
	}
	return last
}

// isMulti reports whether the batch may change several keys or reservations.
func isMulti(b *store.Batch) bool {
	for i := range b.Groups {
		g := &b.Groups[i]
		if g.Cancel || g.Hold != nil || len(g.Ops) != 1 || g.Ops[0].Verb == store.VerbReserve || g.Ops[0].Verb == store.VerbReset || g.Ops[0].Def.Rule.Leaky {
			return true
		}
	}
	return false
}

// applyFailing is Apply while the store is failing, behind or closed.
func (s *Store) applyFailing(b *store.Batch) error {
	err := s.unavailable()
	state := s.state.Load()
	for i := range b.Groups {
		g := &b.Groups[i]
		fails := g.Cancel || g.Settles() || slices.ContainsFunc(g.Ops, func(op store.Op) bool { return op.Def.OnStoreError != store.FailLocal })
		if g.Err = err; fails || state&stateFailed == 0 || state&(stateClosed|stateBehind) != 0 {
			continue
		}
		one := store.Batch{Groups: b.Groups[i : i+1]}
		g.Err = nil
		if s.apply(&one); g.Err != nil {
			continue
		}
		for j := range g.Ops {
			g.Ops[j].Source = store.SourceFallbackLocal
		}
	}
	return nil
}

// unavailable returns the error for calls that are not decided, or nil.
func (s *Store) unavailable() error {
	state := s.state.Load()
	switch {
	case state&stateClosed != 0:
		return errClosed
	case state&stateFailed != 0:
		if err := s.failure.Load(); err != nil {
			return *err
		}
		return store.ErrStore
	case state&stateBehind != 0:
		return errBehind
	}
	return nil
}

// Close writes the remaining changes, closes the file and unlocks it. Call it after all
// calls have returned. Close returns the error of the last write or of closing.
func (s *Store) Close() error {
	if old := s.state.Or(stateClosed); old&stateClosed != 0 {
		return nil
	}
	return errors.Join(s.writer.stop(), s.disk.close(), s.mem.Close())
}

// quick decides in memory, unless the answer has to wait for the disk.
func (s *Store) quick(def *store.Definition, key string, verb store.Verb, cost int64, checked bool) (a store.QuickAnswer, held *sync.Mutex, ok bool) {
	if s.state.Load() != 0 || verb >= store.VerbReserve && verb != store.VerbCharge {
		return a, nil, false
	}
	a, held, ok = s.memQuick(def, key, verb, cost, checked)
	if held != nil {
		held.Unlock() // unlocked before add, which may wait
	}
	if ok && a.Granted > 0 {
		s.dirty.add(def, key)
	}
	return a, nil, ok
}
