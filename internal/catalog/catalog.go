package catalog

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dipwell/dipwell/internal/await"
	"github.com/dipwell/dipwell/internal/door"
	"github.com/dipwell/dipwell/internal/owner"
	"github.com/dipwell/dipwell/store"
)

// core is what package store has for this module alone.
var core = store.Core(door.Key{})

// A Backend is where limits are kept. A Catalog calls one method at a time, except that
// Revision and Install may run beside others.
type Backend interface {
	// Prepare runs before the limits are read for the first time, for example to check
	// the schema. It is called again until both succeed.
	Prepare(ctx context.Context) error
	// Read returns all limits, as they were at one instant.
	Read(ctx context.Context) (*Limits, error)
	// Revision returns a number that differs from the Revision of the Limits read last if
	// limits were changed since.
	Revision(ctx context.Context) (int64, error)
	// Install puts limits in force that were read: it sets the registry, and whatever
	// else the store keeps for the calls of a limit.
	Install(l *Limits) error
	// Put stores a limit that compiles, and Drop removes one. Their errors are those of
	// store.Definer. changed is false if the limits as read last are still right.
	Put(ctx context.Context, l store.Limit, owner string) (changed bool, err error)
	Drop(ctx context.Context, name, owner string) error
}

// Limits are all limits of a store, as they were read.
type Limits struct {
	Defs     []*store.Definition
	IDs      map[string]int32 // by name, if the back end numbers its limits
	Revision int64            // -1: unknown, so that they are read again at the next check
	Bad      map[string]error // limits that this program cannot read, such as those of a newer one
}

// Config configures how a Catalog uses its Backend.
type Config struct {
	// Lazy opens a catalog whose back end does not answer. Limits that are defined until
	// it answers are kept, and then stored.
	Lazy bool
	// WaitForAccess opens a lazy catalog even if access is denied.
	WaitForAccess bool
	// Report is called with errors that no caller gets.
	Report func(error)

	// Unread returns the error of calls until the limits have been read for the first
	// time. err is the error of the last attempt, or nil.
	Unread func(err error) error
	// Error wraps an error of reading as one of the store's.
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
	maxPending  = 10000           // limits kept for a back end that does not answer
	retryDenied = time.Minute     // between two attempts to store a limit for which access was denied
)

// A Catalog keeps the limits of one store. It is a store.Definer.
type Catalog struct {
	Config
	b   Backend
	reg *store.Registry

	gate    await.Gate  // one reading or change of b at a time
	pending []pending   // limits defined while b did not answer
	isRead  atomic.Bool // the limits have been read at least once
	unread  atomic.Pointer[error]
	denied  atomic.Pointer[map[string]error] // of pending limits, by name

	installs sync.Mutex   // never held while waiting for b
	revision atomic.Int64 // changed only with installs locked, as is bad
	unsure   atomic.Bool  // the limits of revision were read in a transaction that may roll back
	bad      atomic.Pointer[map[string]error]

	ctx  context.Context // for background work
	stop func()
	done sync.WaitGroup
}

var _ store.Definer = (*Catalog)(nil)

// A pending limit is stored when the back end answers.
type pending struct {
	limit  store.Limit
	owner  string
	denied error     // the error last reported, if access was denied
	tried  time.Time // when it was last tried, if access was denied
}

// due reports whether p should be tried at this check.
func (p pending) due() bool { return p.denied == nil || time.Since(p.tried) >= retryDenied }

// New returns a catalog that has read nothing yet. Limits appear in reg.
func New(b Backend, reg *store.Registry, c Config) *Catalog {
	cat := &Catalog{Config: c, b: b, reg: reg, gate: make(await.Gate, 1)}
	cat.revision.Store(-1)
	cat.bad.Store(&map[string]error{})
	cat.denied.Store(&map[string]error{})
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

// unreadable is Registry.Unreadable.
func (c *Catalog) unreadable(name string) error {
	if why := c.LoadError(); why != nil {
		return why
	}
	if err := (*c.denied.Load())[name]; err != nil {
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

// Load stores the pending limits, and then reads all limits.
func (c *Catalog) Load(ctx context.Context) error {
	if err := c.gate.Enter(ctx); err != nil {
		return err
	}
	defer c.gate.Leave()
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
	if err := c.prepare(ctx); err != nil {
		c.failed(err)
		return err
	}
	for {
		revision := c.Revision()
		read, err := c.b.Read(ctx)
		if err != nil {
			return err
		}
		if done, err := c.installAfter(revision, read); done || err != nil {
			return err
		}
	}
}

func (c *Catalog) prepare(ctx context.Context) error {
	if !c.isRead.Load() {
		if err := c.b.Prepare(ctx); err != nil {
			return err
		}
	}
	denied := c.pending[:0]
	for i, p := range c.pending {
		if !p.due() {
			denied = append(denied, p)
			continue
		}
		_, err := c.b.Put(ctx, p.limit, p.owner)
		if err == nil {
			continue
		}
		if c.Unavailable(err) {
			c.pending = append(denied, c.pending[i:]...)
			return err
		}
		if p.denied == nil || p.denied.Error() != err.Error() {
			c.Report(err)
		}
		if c.WaitForAccess && c.Denied(err) {
			p.denied, p.tried = err, time.Now()
			denied = append(denied, p)
		}
	}
	c.pending = denied
	c.noteDenied()
	return nil
}

// noteDenied publishes the pending limits for which access was denied, in denied.
func (c *Catalog) noteDenied() {
	why := map[string]error{}
	for _, p := range c.pending {
		if p.denied != nil {
			why[p.limit.Name] = p.denied
		}
	}
	c.denied.Store(&why)
}

// forget removes a pending limit.
func (c *Catalog) forget(name string) {
	c.pending = slices.DeleteFunc(c.pending, func(p pending) bool { return p.limit.Name == name })
	c.noteDenied()
}

// Install puts limits in force that were read in a caller's transaction, unless they are
// older than those in force. It waits for no reader. If they are newer, they are read
// again at the next check, because the transaction may have changed them and may roll
// back.
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
// others were installed since these were read, and it returns false. A lower revision
// than the one in force is not an error, because a back end that was created anew counts
// from 0.
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
	c.bad.Store(&l.Bad)
	if err := c.b.Install(l); err != nil {
		return err
	}
	c.revision.Store(l.Revision)
	c.isRead.Store(true)
	c.unread.Store(nil)
	return nil
}

// Refresh reads the limits if they have changed or if some are pending.
func (c *Catalog) Refresh(ctx context.Context) error {
	if !c.isRead.Load() {
		return c.Load(ctx)
	}
	revision, err := c.b.Revision(ctx)
	if err != nil {
		return err
	}
	if err := c.gate.Enter(ctx); err != nil {
		return err
	}
	defer c.gate.Leave()
	if revision == c.Revision() && !c.unsure.Load() && !slices.ContainsFunc(c.pending, pending.due) {
		return nil
	}
	return c.load(ctx)
}

// Registry returns the limits as they were last read.
func (c *Catalog) Registry() *store.Registry { return c.reg }

// Define adds or changes a limit. In this process that takes effect at once, in others at
// their next check.
func (c *Catalog) Define(ctx context.Context, l store.Limit, owner string) (*store.Definition, error) {
	if _, err := store.NewDefinition(l); err != nil {
		return nil, err
	}
	if err := c.gate.Enter(ctx); err != nil {
		return nil, c.Error(err)
	}
	defer c.gate.Leave()
	if err := c.LoadError(); err != nil {
		return c.pend(l, owner, err)
	}
	if err := c.checkParents(ctx, &l); err != nil {
		return nil, err
	}
	changed, err := c.b.Put(ctx, l, owner)
	if err != nil {
		return c.pend(l, owner, err)
	}
	c.forget(l.Name)
	if changed {
		if err := c.load(ctx); err != nil {
			return nil, c.Error(err)
		}
	}
	if d := c.reg.Lookup(l.Name); d != nil {
		return d, nil
	}
	return nil, core.Missing(c.reg, l.Name) // somebody else has dropped it meanwhile, or it cannot be read
}

// checkParents checks the parent of a limit. If the check fails, it reads the limits and
// checks again, because another program may have defined the parent.
func (c *Catalog) checkParents(ctx context.Context, l *store.Limit) error {
	err := core.CheckParents(c.reg, l)
	if err == nil || c.load(ctx) != nil {
		return err
	}
	return core.CheckParents(c.reg, l)
}

// pend keeps a limit of a lazy catalog that could not be stored. Until it is stored, only
// this process knows it: its calls are answered by its failure mode.
func (c *Catalog) pend(l store.Limit, by string, why error) (*store.Definition, error) {
	waits := c.Lazy && (c.Unavailable(why) || c.WaitForAccess && c.Denied(why))
	if !waits || by == owner.API || len(c.pending) >= maxPending {
		return nil, why
	}
	d, err := c.reg.Define(time.Now().UnixMicro(), l, by)
	if err != nil {
		return nil, err
	}
	c.forget(l.Name)
	c.pending = append(c.pending, pending{limit: l, owner: by})
	return d, nil
}

// Drop drops a limit.
func (c *Catalog) Drop(ctx context.Context, name, by string) error {
	if err := c.gate.Enter(ctx); err != nil {
		return c.Error(err)
	}
	defer c.gate.Leave()
	if err := c.LoadError(); err != nil {
		return err
	}
	if err := c.prepare(ctx); err != nil {
		return c.Error(err)
	}
	if err := core.CheckDrop(c.reg, name); err != nil {
		return err
	}
	waits := slices.IndexFunc(c.pending, func(p pending) bool { return p.limit.Name == name })
	if waits >= 0 {
		if was := c.pending[waits].owner; owner.Name(was) != owner.Name(by) {
			return &owner.Error{Limit: name, Owner: was}
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
	return c.Error(c.load(ctx))
}
