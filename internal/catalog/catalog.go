package catalog

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dipwell/dipwell/internal/background"
	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

// A Backend is where limits are kept. A Catalog runs one reading at a time (Prepare, Read) and
// one change at a time (Put, Drop). Revision, Install, a reading and a change may run at the
// same time: calls whose limit has changed wait for a reading, and a change may take long.
type Backend interface {
	// Prepare runs before the limits are read for the first time, for example to check
	// the schema. Prepare is called again until it and the first reading succeed.
	Prepare(ctx context.Context) error
	// Read returns all limits, as they were at one instant, or if only is not empty, the one
	// of this name.
	Read(ctx context.Context, only string) (*Limits, error)
	// Revision returns a number that differs from the Revision of the Limits read last if
	// limits were changed since.
	Revision(ctx context.Context) (int64, error)
	// Install puts limits in force that were read: it sets the registry, and whatever
	// else the store keeps for the calls of a limit. Limits that were read alone are put
	// beside the other limits.
	Install(l *Limits) error
	// Put stores a limit that compiles, and Drop removes one. The errors of Put and Drop are
	// those of store.Definer. Put and Drop hardly wait for another transaction that has
	// locked the limit; the error then wraps store.ErrLocked. Put returns by how much it has
	// changed the revision, or 0 if it has changed nothing.
	Put(ctx context.Context, l store.Limit, owner string) (change int64, err error)
	Drop(ctx context.Context, name, owner string) error
}

// Limits are the limits of a store, as they were read.
type Limits struct {
	Only     string // if not empty, the limit that was read alone
	Defs     []*store.Definition
	IDs      map[string]int32 // ids by name, if the back end numbers its limits
	Revision int64            // revision that was read; -1: unknown, so the limits are read again at the next check
	Bad      map[string]error // limits that this program cannot read, such as those of a newer one
}

// Config configures how a Catalog uses its Backend.
type Config struct {
	// Lazy opens a catalog whose back end does not answer. Limits that are defined until
	// it answers are kept, and then stored. Later changes of limits that somebody else
	// has locked are kept too: until they are stored, the limits in the store decide.
	Lazy bool
	// WaitForAccess opens a lazy catalog even if access is denied.
	WaitForAccess bool
	// Report is called with errors that no caller gets.
	Report func(error)

	// Unread returns the error of calls until the limits have been read for the first
	// time. err is the error of the last attempt, or nil.
	Unread func(err error) error
	// Error wraps an error of reading as an error of the store.
	Error func(err error) error
	// Unavailable reports whether an error means that the back end could not be reached,
	// or temporarily cannot write, rather than that it rejected the change.
	Unavailable func(err error) bool
	// Denied reports whether access was denied. Waiting then helps only if somebody
	// changes the privileges.
	Denied func(err error) bool
	// Unfit reports whether the back end answers but can never be used.
	Unfit func(err error) bool
}

const (
	openTimeout = 2 * time.Second // how long a lazy Open waits for a back end that hangs
	maxPending  = 10000           // most limits kept for a back end that does not answer
	retryDenied = time.Minute     // time between two attempts to store a limit for which access was denied

	// maxLocked is how many locked limits are tried in a row. A program that starts, or
	// changes another limit, waits for all.
	maxLocked = 10

	// A change of a locked limit is tried again for this time. Between two tries, others
	// can make changes.
	lockedPause    = 50 * time.Millisecond
	lockedPatience = 5 * time.Second        // after this time the caller gets the error
	lazyPatience   = 100 * time.Millisecond // the same in a lazy catalog, which keeps a definition for later, if nobody waits for the answer
)

// A Catalog keeps the limits of one store. A Catalog is a store.Definer.
type Catalog struct {
	Config
	b   Backend
	reg *store.Registry

	reading  background.Gate // held during a reading of b, so that there is one at a time
	changing background.Gate // held during a change of b, so that there is one at a time; its holder may enter reading, but not the reverse
	pending  []pending       // limits to be stored later; used with changing entered
	isRead   atomic.Bool     // the limits have been read at least once
	unread   atomic.Pointer[error]
	waiting  atomic.Pointer[map[string]error] // why pending limits are not stored, by name

	Started time.Time    // heard is counted from here
	heard   atomic.Int64 // when the limits in force were last known to be those of b

	installs sync.Mutex   // never held while b is waited for
	revision atomic.Int64 // changed only with installs locked, and so is bad
	unsure   atomic.Bool  // the limits of revision were read in a transaction that may roll back
	bad      atomic.Pointer[map[string]error]

	ctx  context.Context // context of background work
	stop func()
	done sync.WaitGroup
}

var _ store.Definer = (*Catalog)(nil)

// A pending limit is stored when the back end answers and nobody else has locked it.
type pending struct {
	limit store.Limit
	owner string
	why   error     // the error that was reported last; nil if the back end did not answer
	after time.Time // when to try again to store it
}

// due reports whether p should be tried at this check.
func (p pending) due() bool { return !time.Now().Before(p.after) }

func (p pending) locked() bool { return errors.Is(p.why, store.ErrLocked) }

// New returns a catalog that has read nothing yet. The limits that it reads appear in reg.
func New(b Backend, reg *store.Registry, c Config) *Catalog {
	cat := &Catalog{Config: c, b: b, reg: reg, reading: make(background.Gate, 1), changing: make(background.Gate, 1), Started: time.Now()}
	cat.revision.Store(-1)
	cat.bad.Store(&map[string]error{})
	cat.waiting.Store(&map[string]error{})
	reg.Unreadable = cat.unreadable
	cat.ctx, cat.stop = context.WithCancel(context.Background())
	return cat
}

// Open reads the limits. A lazy catalog opens without them, unless the back end
// is unfit or denies access.
func (c *Catalog) Open(ctx context.Context) error {
	if !c.Lazy {
		return c.Load(ctx)
	}
	c.failed(nil)
	bound, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	err := c.Load(bound)
	if err == nil {
		return nil
	}
	if c.Unfit(err) || ctx.Err() != nil || c.Denied(err) && !c.WaitForAccess {
		return err
	}
	c.failed(err)
	c.Report(err)
	return nil
}

// Close ends the background work.
func (c *Catalog) Close() {
	c.stop()
	c.done.Wait()
}

// Go runs a function in the background. Close ends its context and waits for it.
func (c *Catalog) Go(do func(ctx context.Context)) { c.done.Go(func() { do(c.ctx) }) }

// IsRead reports whether the limits have been read at least once.
func (c *Catalog) IsRead() bool { return c.isRead.Load() }

// Revision returns the revision of the limits in force, or -1 if it is not known.
func (c *Catalog) Revision() int64 { return c.revision.Load() }

// LoadError returns the error for calls if the limits of a lazy catalog have not been
// read yet, and nil if they have.
func (c *Catalog) LoadError() error {
	if why := c.unread.Load(); why != nil {
		return *why
	}
	return nil
}

// unreadable is the function for Registry.Unreadable.
func (c *Catalog) unreadable(name string) error {
	if why := c.LoadError(); why != nil {
		return why
	}
	if err := c.Waiting(name); err != nil {
		return c.Error(err)
	}
	return (*c.bad.Load())[name]
}

// failed records the error of reading the limits, if they were never read.
func (c *Catalog) failed(err error) {
	if c.Lazy && !c.isRead.Load() {
		why := c.Unread(err)
		c.unread.Store(&why)
	}
}

// Load reads all limits.
func (c *Catalog) Load(ctx context.Context) error {
	if !c.isRead.Load() {
		return c.loadFirst(ctx)
	}
	return c.load(ctx)
}

// loadFirst stores the pending limits before it reads all limits for the first time, so
// that a service is not ready before its own limits are there.
func (c *Catalog) loadFirst(ctx context.Context) error {
	if err := c.changing.Enter(ctx); err != nil {
		return err
	}
	defer c.changing.Leave()
	err := c.b.Prepare(ctx)
	if err == nil {
		_, err = c.storePending(ctx)
	}
	if err != nil {
		c.failed(err)
		return err
	}
	return c.load(ctx)
}

// LoadForCall is Load for a call that names an unknown limit. Until the limits have been
// read for the first time it fails at once, because reading them is the watcher's job.
func (c *Catalog) LoadForCall(ctx context.Context) error {
	if err := c.LoadError(); err != nil {
		return err
	}
	return c.Error(c.Load(ctx))
}

func (c *Catalog) load(ctx context.Context) error {
	if err := c.reading.Enter(ctx); err != nil {
		return err
	}
	defer c.reading.Leave()
	for {
		revision, asked := c.Revision(), time.Since(c.Started)
		read, err := c.b.Read(ctx, "")
		if err != nil {
			return err
		}
		if done, err := c.installAfter(revision, read); done || err != nil {
			c.hear(asked, err == nil)
			return err
		}
	}
}

// storePending stores the pending limits whose time has come, and reports whether any is
// stored or was rejected, so that the limits must be read. After maxLocked that are locked it
// leaves the others to the next check, which tries these last.
func (c *Catalog) storePending(ctx context.Context) (done bool, err error) {
	defer c.noteWaiting()
	todo, locked := c.pending, []pending(nil)
	c.pending = nil
	for i, p := range todo {
		parent := func(q pending) bool { return q.limit.Name == p.limit.Parent }
		if !p.due() || len(locked) == maxLocked || slices.ContainsFunc(slices.Concat(c.pending, locked, todo[i+1:]), parent) {
			c.pending = append(c.pending, p)
			continue
		}
		_, err := c.b.Put(ctx, p.limit, p.owner)
		switch {
		case err == nil:
			done = true
		case c.Unavailable(err):
			c.pending = slices.Concat(c.pending, todo[i:], locked)
			return done, err
		case errors.Is(err, store.ErrLocked):
			locked = append(locked, c.locked(p, err))
		default:
			if p.why == nil || p.why.Error() != err.Error() {
				c.Report(err)
			}
			if c.WaitForAccess && c.Denied(err) {
				p.why, p.after = err, time.Now().Add(retryDenied)
				c.pending = append(c.pending, p)
			} else {
				done = true
			}
		}
	}
	c.pending = append(c.pending, locked...)
	return done, nil
}

// locked returns a limit that remains pending because somebody else has locked it.
func (c *Catalog) locked(p pending, why error) pending {
	if !p.locked() {
		c.Report(fmt.Errorf("limit %s is not stored yet, and will be tried again: %w", p.limit.Name, why))
	}
	p.why = why
	return p
}

// noteWaiting publishes why limits are pending.
func (c *Catalog) noteWaiting() {
	why := map[string]error{}
	for _, p := range c.pending {
		if why[p.limit.Name] = p.why; p.why == nil {
			why[p.limit.Name] = fmt.Errorf("limit %s is not stored yet", p.limit.Name)
		}
	}
	c.waiting.Store(&why)
}

// forget removes a pending limit.
func (c *Catalog) forget(name string) {
	c.pending = slices.DeleteFunc(c.pending, func(p pending) bool { return p.limit.Name == name })
	c.noteWaiting()
}

// Install puts limits in force that were read in a caller's transaction, unless they are older
// than those in force. Install waits for no reader. If the new limits are newer, they are read
// again at the next check, because the transaction may have changed them and may roll back.
func (c *Catalog) Install(l *Limits) error {
	c.installs.Lock()
	defer c.installs.Unlock()
	was := c.Revision()
	if l.Revision >= 0 && l.Revision < was {
		return nil
	}
	err := c.install(l)
	if l.Revision != was {
		c.unsure.Store(true)
	}
	return err
}

// installAfter puts limits in force if the revision in force is still revision. Otherwise
// other limits were installed since these were read, and installAfter returns false. A
// lower revision than the one in force is not an error, because a back end that was
// created anew counts from 0.
func (c *Catalog) installAfter(revision int64, l *Limits) (done bool, err error) {
	c.installs.Lock()
	defer c.installs.Unlock()
	if c.Revision() != revision {
		return false, nil
	}
	if err = c.install(l); err == nil {
		c.unsure.Store(false)
	}
	return true, err
}

// install puts limits in force. The caller has locked installs.
func (c *Catalog) install(l *Limits) error {
	before := *c.bad.Load()
	for name, err := range l.Bad {
		if known := before[name]; known == nil || known.Error() != err.Error() {
			c.Report(err)
		}
	}
	bad := l.Bad
	if l.Only != "" {
		bad = map[string]error{}
		maps.Copy(bad, before)
		delete(bad, l.Only)
		maps.Copy(bad, l.Bad)
	}
	c.bad.Store(&bad)
	if err := c.b.Install(l); err != nil {
		return err
	}
	c.revision.Store(l.Revision)
	c.isRead.Store(true)
	c.unread.Store(nil)
	return nil
}

// Refresh reads the limits if they have changed, and then stores those that are pending.
func (c *Catalog) Refresh(ctx context.Context) error {
	unread, err := c.isStale(ctx)
	if err != nil {
		return err
	}
	if unread && c.isRead.Load() {
		// The newer revision may be a change of this program, which is about to install what
		// it has changed.
		bound, cancel := context.WithTimeout(ctx, lockedPause)
		defer cancel()
		if c.changing.Enter(bound) == nil {
			unread, err = c.isStale(ctx)
			c.changing.Leave()
		}
		if err != nil {
			return err
		}
	}
	if unread {
		if err := c.Load(ctx); err != nil {
			return err
		}
	}
	if len(*c.waiting.Load()) == 0 {
		return nil
	}
	if err := c.changing.Enter(ctx); err != nil {
		return err
	}
	defer c.changing.Leave()
	done, err := c.storePending(ctx)
	if done {
		if lerr := c.Load(ctx); err == nil {
			err = lerr
		}
	}
	return err
}

// isStale reports whether the limits in force may not be the store's.
func (c *Catalog) isStale(ctx context.Context) (bool, error) {
	if !c.isRead.Load() {
		return true, nil
	}
	asked := time.Since(c.Started)
	revision, err := c.b.Revision(ctx)
	c.hear(asked, err == nil && revision == c.Revision())
	return err == nil && (revision != c.Revision() || c.unsure.Load()), err
}

// MaxUnheard is how long a program may decide without checking whether the limits have
// changed.
const MaxUnheard = time.Minute

// Heard reports whether the limits in force were those of the store at most MaxUnheard ago, or
// were never read. Usually the watcher sees to that, but it may be turned off or disconnected:
// a call must then Refresh the limits before it is decided.
func (c *Catalog) Heard() bool {
	return !c.isRead.Load() || time.Since(c.Started)-time.Duration(c.heard.Load()) < MaxUnheard
}

// hear notes that the limits in force were those of the store at a time, if they were.
func (c *Catalog) hear(asked time.Duration, current bool) {
	if current {
		c.heard.Store(int64(asked))
	}
}

// Registry returns the limits as they were last read.
func (c *Catalog) Registry() *store.Registry { return c.reg }

// patience is how long a change of an owner is tried if the limit is locked.
func (c *Catalog) patience(by string) time.Duration {
	if c.Lazy && by != terms.OwnerAPI {
		return lazyPatience
	}
	return lockedPatience
}

// change makes a change, one at a time. While the limit is locked it is tried again.
func (c *Catalog) change(ctx context.Context, patience time.Duration, try func() error) error {
	patient, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		if err := c.changing.Enter(ctx); err != nil {
			return c.Error(err)
		}
		err := try()
		c.changing.Leave()
		if !errors.Is(err, store.ErrLocked) || background.Sleep(patient, lockedPause) != nil {
			return err
		}
	}
}

// Define adds or changes a limit. In this process a definition takes effect at once, in
// others at their next check.
func (c *Catalog) Define(ctx context.Context, l store.Limit, by string) (d *store.Definition, err error) {
	if _, err := store.NewDefinition(l); err != nil {
		return nil, err
	}
	err = c.change(ctx, c.patience(by), func() error { d, err = c.define(ctx, l, by); return err })
	if errors.Is(err, store.ErrLocked) {
		err = c.change(ctx, 0, func() (why error) { d, why = c.pend(l, by, err); return why })
	}
	return d, err
}

func (c *Catalog) define(ctx context.Context, l store.Limit, by string) (*store.Definition, error) {
	if err := c.LoadError(); err != nil {
		return c.pend(l, by, err)
	}
	if why := c.lockedBefore(&l); why != nil && c.Lazy && by != terms.OwnerAPI {
		return c.pend(l, by, why)
	}
	if err := c.checkParents(ctx, &l); err != nil {
		return nil, err
	}
	before, alone := c.Revision(), c.isAlone(&l)
	change, err := c.b.Put(ctx, l, by)
	if errors.Is(err, store.ErrLocked) {
		return nil, err
	} else if err != nil {
		return c.pend(l, by, err)
	}
	if c.forget(l.Name); alone {
		alone, err = c.loadOne(ctx, l.Name, before, before+change)
	}
	if !alone && err == nil {
		err = c.Load(ctx)
	}
	if err != nil {
		return nil, c.Error(err)
	}
	if d := c.reg.Lookup(l.Name); d != nil {
		return d, nil
	}
	return nil, c.reg.Missing(l.Name) // somebody else has dropped the limit meanwhile, or it cannot be read
}

// isAlone reports whether a new definition of a limit changes that of no other, such as of its
// parent. A limit that could not be read may have children.
func (c *Catalog) isAlone(l *store.Limit) bool {
	if (*c.bad.Load())[l.Name] != nil {
		return false
	}
	if old := c.reg.Lookup(l.Name); old != nil {
		return old.Parent == l.Parent && old.Parts == l.Parts
	}
	parent := c.reg.Lookup(l.Parent)
	return l.Parent == "" || parent != nil && parent.Paths
}

// loadOne reads a limit that this program has changed, and no others, since a change of one of
// many limits would otherwise take as long as reading all. before and after are the revisions
// around the change if nobody else has made one. If somebody else has made a change, loadOne
// returns false, and all limits must be read.
func (c *Catalog) loadOne(ctx context.Context, name string, before, after int64) (done bool, err error) {
	if err := c.reading.Enter(ctx); err != nil {
		return false, err
	}
	defer c.reading.Leave()
	read, err := c.b.Read(ctx, name)
	if err != nil || read.Revision != after {
		return false, err
	}
	c.installs.Lock()
	defer c.installs.Unlock()
	if now := c.Revision(); now != before && now != after || before < 0 || c.unsure.Load() {
		return false, nil
	}
	return true, c.install(read)
}

// lockedBefore returns why a limit is not tried now: its parent is pending because it is
// locked, or so are many others, and a program that starts must not wait for all of them.
func (c *Catalog) lockedBefore(l *store.Limit) (why error) {
	locked := 0
	for _, p := range c.pending {
		if p.locked() {
			if locked++; p.limit.Name == l.Parent || locked == maxLocked {
				return p.why
			}
		}
	}
	return nil
}

// checkParents checks the parent of a limit. If the check fails, it reads the limits and
// checks again, because another program may have defined the parent.
func (c *Catalog) checkParents(ctx context.Context, l *store.Limit) error {
	err := c.reg.CheckParents(l)
	if err == nil || c.Load(ctx) != nil {
		return err
	}
	return c.reg.CheckParents(l)
}

// pend keeps a limit of a lazy catalog that could not be stored. If the back end did not
// answer, only this process knows the limit until it is stored: its calls are answered by
// its failure mode. If the limit is locked, the definition in the store stays in force.
func (c *Catalog) pend(l store.Limit, by string, why error) (d *store.Definition, err error) {
	p := pending{limit: l, owner: by}
	isLocked := errors.Is(why, store.ErrLocked)
	waits := c.Lazy && (isLocked || c.Unavailable(why) || c.WaitForAccess && c.Denied(why))
	if !waits || by == terms.OwnerAPI || len(c.pending) >= maxPending {
		return nil, why
	}
	if isLocked {
		d, err = store.NewDefinition(l)
		p = c.locked(p, why)
	} else {
		d, err = c.reg.Define(time.Now().UnixMicro(), l, by)
	}
	if err != nil {
		return nil, err
	}
	c.forget(l.Name)
	c.pending = append(c.pending, p)
	c.noteWaiting()
	return d, nil
}

// Waiting returns why a limit that was defined is not stored yet, or nil.
func (c *Catalog) Waiting(name string) error { return (*c.waiting.Load())[name] }

// Drop drops a limit.
func (c *Catalog) Drop(ctx context.Context, name, by string) error {
	return c.change(ctx, c.patience(by), func() error { return c.drop(ctx, name, by) })
}

func (c *Catalog) drop(ctx context.Context, name, by string) error {
	if err := c.LoadError(); err != nil {
		return err
	}
	if len(c.pending) > 0 {
		if _, err := c.storePending(ctx); err != nil {
			return c.Error(err)
		}
	}
	if err := c.reg.CheckDrop(name); err != nil {
		return err
	}
	waits := slices.IndexFunc(c.pending, func(p pending) bool { return p.limit.Name == name })
	if waits >= 0 {
		if was := c.pending[waits].owner; terms.OwnerName(was) != terms.OwnerName(by) {
			return &terms.OwnerError{Limit: name, Owner: was}
		}
	}
	err := c.b.Drop(ctx, name, by)
	unstored := err != nil && waits >= 0 && c.reg.Lookup(name) == nil && (errors.Is(err, store.ErrUnknownLimit) || c.Denied(err))
	if err != nil && !unstored {
		return err
	}
	if c.forget(name); unstored {
		return nil
	}
	return c.Error(c.Load(ctx))
}
