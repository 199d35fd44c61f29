package catalog

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dipwell/dipwell/internal/await"
	"github.com/dipwell/dipwell/internal/owner"
	"github.com/dipwell/dipwell/store"
)

// A Backend is where limits are kept. A Catalog calls one method at a time, but
// for Revision and Install.
type Backend interface {
	// Prepare runs before the limits are read for the first time, such as to look
	// at the schema, and again until it and the reading succeed.
	Prepare(ctx context.Context) error
	// Read returns all limits, as they were at one instant.
	Read(ctx context.Context) (*Limits, error)
	// Revision returns a number that differs from that of the Limits read last
	// if they were changed since.
	Revision(ctx context.Context) (int64, error)
	// Install puts limits that were read in force: it sets the registry, and what
	// the store keeps of each limit for its calls.
	Install(l *Limits) error
	// Put stores a limit that compiles, Drop removes one. Their errors are those
	// of store.Definer. changed is false if what was read last still holds.
	Put(ctx context.Context, l store.Limit, owner string) (changed bool, err error)
	Drop(ctx context.Context, name, owner string) error
}

// Limits are all limits of a store as they were read.
type Limits struct {
	Defs     []*store.Definition
	IDs      map[string]int32 // by name, if the back end has numbers for limits
	Revision int64            // -1: not known, so that they are read again at the next look
	Bad      map[string]error // limits that this program cannot read, such as those of a newer one
}

// Config is how a Catalog treats its Backend.
type Config struct {
	// Lazy opens a catalog whose back end is away. Limits that are defined until
	// it answers are kept, and stored then.
	Lazy bool
	// WaitForAccess opens a lazy catalog also where access is denied.
	WaitForAccess bool
	// Report hears errors that no caller gets.
	Report func(error)

	// Unread returns what calls get until the limits have been read for the first
	// time. err is why the last attempt failed, or nil.
	Unread func(err error) error
	// Error makes an error of reading one of the store's.
	Error func(err error) error
	// Unavailable reports whether an error says that the back end could not be asked, or
	// could not write for the time being, rather than that it refused.
	Unavailable func(err error) bool
	// Denied reports whether access was refused, so that waiting helps only if
	// somebody changes the rights.
	Denied func(err error) bool
	// Unfit reports whether the back end answers and can never be used.
	Unfit func(err error) bool
}

const (
	openTimeout = 2 * time.Second // the longest that a lazy Open waits for a back end that hangs
	maxPending  = 10000           // limits kept for a back end that is away
	retryDenied = time.Minute     // between two attempts to store a limit that was denied
)

// Catalog keeps the limits of one store. It is a store.Definer.
type Catalog struct {
	Config
	b   Backend
	reg *store.Registry

	gate    await.Gate  // one reading or change over b at a time
	pending []pending   // defined while b was away
	isRead  atomic.Bool // the limits have been read once
	unread  atomic.Pointer[error]
	denied  atomic.Pointer[map[string]error] // of pending limits, by name

	installs sync.Mutex   // held without asking b
	revision atomic.Int64 // changed under installs, as bad is
	unsure   atomic.Bool  // the transaction that has read the limits of revision may roll back
	bad      atomic.Pointer[map[string]error]

	ctx  context.Context // of what is done in the background
	stop func()
	done sync.WaitGroup
}

var _ store.Definer = (*Catalog)(nil)

// A pending limit is stored when the back end is there.
type pending struct {
	limit  store.Limit
	owner  string
	denied error     // as it was reported last; nil: access was not denied
	tried  time.Time // if denied
}

// due reports whether p is to be stored at this look.
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

// Close ends what is done in the background.
func (c *Catalog) Close() {
	c.stop()
	c.done.Wait()
}

// Go does something in the background. Close ends its context and waits for it.
func (c *Catalog) Go(do func(ctx context.Context)) { c.done.Go(func() { do(c.ctx) }) }

// IsRead reports whether the limits have been read once.
func (c *Catalog) IsRead() bool { return c.isRead.Load() }

// Revision returns the revision of the limits in force, or -1 if it is not known.
func (c *Catalog) Revision() int64 { return c.revision.Load() }

// LoadError returns why the limits of a lazy catalog have not been read yet, or
// nil if they have.
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

// failed notes why the limits could not be read, if they never were.
func (c *Catalog) failed(err error) {
	if c.Lazy && !c.isRead.Load() {
		why := c.Unread(err)
		c.unread.Store(&why)
	}
}

// Load reads all limits. Before, it stores those that are pending.
func (c *Catalog) Load(ctx context.Context) error {
	if err := c.gate.Enter(ctx); err != nil {
		return err
	}
	defer c.gate.Leave()
	return c.load(ctx)
}

// LoadForCall is Load for a call of a name that is not known. It fails fast
// until the limits have been read; reading them is the watcher's job.
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

// noteDenied sets denied to the pending limits that were denied.
func (c *Catalog) noteDenied() {
	why := map[string]error{}
	for _, p := range c.pending {
		if p.denied != nil {
			why[p.limit.Name] = p.denied
		}
	}
	c.denied.Store(&why)
}

// forget ends the wait of a pending limit.
func (c *Catalog) forget(name string) {
	c.pending = slices.DeleteFunc(c.pending, func(p pending) bool { return p.limit.Name == name })
	c.noteDenied()
}

// Install puts limits in force that were read in a caller's transaction, unless
// they are older than those in force. It waits for no reading. If they are newer, they
// are read again at the next look: the transaction may have changed them and roll back.
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

// installAfter puts limits in force if revision still is. Otherwise others were
// installed since they were read, and it returns false. A lower revision than the
// one in force is not an error: a back end that was made anew counts from 0.
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

// install is called under installs.
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

// Refresh reads the limits if they have changed or some are pending.
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

// Registry holds the limits as they were read last.
func (c *Catalog) Registry() *store.Registry { return c.reg }

// Define adds a limit or changes it, here at once and for other programs at
// their next look.
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
	return nil, c.reg.Missing(l.Name) // dropped by somebody else meanwhile, or it cannot be read
}

// checkParents checks the parent of a limit. If it is wrong, it reads the limits and
// looks again, because another program may have defined the parent.
func (c *Catalog) checkParents(ctx context.Context, l *store.Limit) error {
	err := c.reg.CheckParents(l)
	if err == nil || c.load(ctx) != nil {
		return err
	}
	return c.reg.CheckParents(l)
}

// pend keeps a limit that could not be stored, in a lazy catalog. Until it is
// stored it is known here only, so that calls get its failure mode.
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

// Drop ends a limit.
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
	if err := c.reg.CheckDrop(name); err != nil {
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
