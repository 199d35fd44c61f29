package redisstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dipwell/dipwell/internal/await"
	"github.com/dipwell/dipwell/internal/owner"
	"github.com/dipwell/dipwell/store"
)

// catalog is the limits of one Redis, as read last.
type catalog struct {
	s       *Store
	config  Config
	reg     store.Registry
	entries atomic.Pointer[map[string]*entry]

	mu       await.Gate // one reading or change at a time
	revision int64
	known    map[string]string // the fields as read last
	pending  []pendingLimit    // defined while the server was away
	isRead   atomic.Bool       // the limits have been read once
	why      atomic.Pointer[error]

	ctx  context.Context // of what is done in the background
	stop func()
	done sync.WaitGroup
}

// entry is a limit with what its calls always say.
type entry struct {
	constArgs
	def   *store.Definition
	names *names
	begin string // of its buckets' names
	even  bool   // its windows are as long as one another, and a take takes
}

func (e *entry) row(key string) string { return e.names.key(e.begin, key) }

// A pendingLimit waits to be told to the server.
type pendingLimit struct {
	limit store.Limit
	owner string
}

const maxPending = 10000 // limits kept for a server that is away

func newCatalog(s *Store, c Config) *catalog {
	cat := &catalog{s: s, config: c, mu: make(await.Gate, 1), known: map[string]string{}}
	cat.entries.Store(&map[string]*entry{})
	cat.ctx, cat.stop = context.WithCancel(context.Background())
	return cat
}

func (c *catalog) close() {
	c.stop()
	c.done.Wait()
}

func (c *catalog) entry(name string) *entry { return (*c.entries.Load())[name] }

// resolve finds the entries of a group's limits. Definitions of another store,
// or older ones, are replaced by what this one holds.
func (c *catalog) resolve(ctx context.Context, g *store.Group, out []*entry) error {
	for i := range g.Ops {
		op := &g.Ops[i]
		e := c.entry(op.Def.Name)
		if e == nil {
			if err := c.loadForCall(ctx); err != nil {
				return err
			}
			if e = c.entry(op.Def.Name); e == nil {
				return fmt.Errorf("%w %q", store.ErrUnknownLimit, op.Def.Name)
			}
		}
		op.Def, out[i] = e.def, e
	}
	return nil
}

// loadForCall reads the limits for a call of a name that is not known here. It
// fails fast until the limits are loaded; loading is the background goroutine's
// job.
func (c *catalog) loadForCall(ctx context.Context) error {
	if err := c.unread(); err != nil {
		return err
	}
	return storeError(c.load(ctx), false)
}

// load reads all limits.
func (c *catalog) load(ctx context.Context) error {
	if err := c.mu.Enter(ctx); err != nil {
		return err
	}
	defer c.mu.Leave()
	return c.loadLocked(ctx)
}

func (c *catalog) loadLocked(ctx context.Context) error {
	if err := c.prepare(ctx); err != nil {
		c.unreadBecause(err)
		return err
	}
	fields, err := c.read(ctx)
	if err != nil {
		return err
	}
	c.install(fields)
	c.isRead.Store(true)
	c.why.Store(nil)
	c.reg.SetLoadError(nil)
	return nil
}

// read reads the hash of limits. Where it has gone back, because the server
// lost what it had not saved or replicated, this program tells it what it
// knows: rows may name those versions.
func (c *catalog) read(ctx context.Context) (map[string]string, error) {
	for {
		fields, err := c.s.db.HGetAll(ctx, c.s.names.limits).Result()
		if err != nil {
			return nil, err
		}
		revision, _ := strconv.ParseInt(fields[""], 10, 64)
		delete(fields, "")
		if revision >= c.revision {
			c.revision = revision
			return fields, nil
		}
		lost := false
		for name, text := range c.known {
			if numberOf(text) <= numberOf(fields[name]) {
				continue
			}
			lost = true
			if _, err = c.put(ctx, name, fields[name], text); err != nil {
				return nil, err
			}
		}
		if c.revision = revision; !lost {
			return fields, nil
		}
	}
}

func numberOf(text string) uint32 {
	var l struct {
		Version uint32
		Dropped uint32
	}
	_ = json.Unmarshal([]byte(text), &l) // nothing is version 0
	return max(l.Version, l.Dropped)
}

// install makes entries of the fields that have changed. Calls of a limit that
// this program cannot read get the error, which is reported once.
func (c *catalog) install(fields map[string]string) {
	old := *c.entries.Load()
	entries, bad := map[string]*entry{}, map[string]error{}
	defs := make([]*store.Definition, 0, len(fields))
	for name, text := range fields {
		e := old[name]
		if e == nil || c.known[name] != text {
			d, err := decodeDefinition(name, text)
			if err != nil {
				if bad[name] = err; c.known[name] != text && c.config.OnError != nil {
					c.config.OnError(err)
				}
			}
			if d == nil { // or it was dropped
				continue
			}
			e = c.newEntry(d)
		}
		entries[name], defs = e, append(defs, e.def)
	}
	c.known = fields
	c.reg.Install(defs)
	c.reg.Unreadable(bad)
	c.entries.Store(&entries)
}

func (c *catalog) newEntry(d *store.Definition) *entry {
	return &entry{constArgs: newConstArgs(d), def: d, names: &c.s.names, begin: c.s.names.bucketPrefix(d.Name), even: d.Rule.Every > 0 && !d.Rule.Leaky}
}

// put changes one field of the hash unless somebody else has: then ok is false.
func (c *catalog) put(ctx context.Context, name, old, text string) (ok bool, err error) {
	args := []any{nil, nil, 1, c.s.names.limits, name, old, text, c.s.names.limits}
	v, err := c.s.run(ctx, newCall(ctx, c.s.scripts.define, true, c.s.withClock(args)))
	return err == nil && v[0] >= 0, err
}

// Registry holds the limits as they were read last.
func (s *Store) Registry() *store.Registry { return &s.cat.reg }

// Define adds a limit or changes it, for every program on this Redis at their
// next look, at most Config.Poll later; for this one at once. Before a slower
// version is published the expiry of all buckets of the limit is lengthened.
func (s *Store) Define(ctx context.Context, l store.Limit, owner string) (*store.Definition, error) {
	if _, _, err := l.Compile(); err != nil {
		return nil, err
	}
	c := s.cat
	if err := c.mu.Enter(ctx); err != nil {
		return nil, storeError(err, false)
	}
	defer c.mu.Leave()
	if err := c.unread(); err != nil {
		return c.pend(l, owner, err)
	}
	if err := c.define(ctx, l, owner); err != nil {
		return c.pend(l, owner, err)
	}
	if err := c.loadLocked(ctx); err != nil {
		return nil, storeError(err, false)
	}
	if d := c.reg.Lookup(l.Name); d != nil {
		return d, nil
	}
	return nil, fmt.Errorf("%w %q", store.ErrUnknownLimit, l.Name) // dropped by somebody else meanwhile
}

// maxRaces bounds how often a change is made anew because somebody else made one.
const maxRaces = 100

// define stores one limit as the version after what the server has.
func (c *catalog) define(ctx context.Context, l store.Limit, owner string) error {
	for range maxRaces {
		text, err := c.field(ctx, l.Name)
		if err != nil {
			return err
		}
		now, err := c.s.Now(ctx)
		if err != nil {
			return err
		}
		old, err := decodeDefinition(l.Name, text)
		if err != nil {
			return err
		}
		d, err := successor(old, numberOf(text), now, l, owner)
		if err != nil || d == old {
			return err
		}
		slower := old != nil && d.Number != old.Number && c.config.Clock == nil && slower(&old.Rule, &d.Rule, d.Policy)
		if slower {
			if err = c.s.lengthenExpiry(ctx, d); err != nil {
				return err
			}
		}
		if old != nil && len(d.Past) > maxPast {
			if err = c.s.retire(ctx, d); err != nil {
				return err
			}
		}
		if ok, err := c.put(ctx, l.Name, text, encodeDefinition(d)); ok || err != nil {
			if slower && err == nil {
				c.lengthenExpiryLater(d)
			}
			return err
		}
	}
	return fmt.Errorf("%w: limit %s is being changed over and over", store.ErrStore, l.Name)
}

// field reads one limit; none is "".
func (c *catalog) field(ctx context.Context, name string) (string, error) {
	text, err := c.s.db.HGet(ctx, c.s.names.limits, name).Result()
	if errors.Is(err, redis.Nil) {
		return "", nil
	}
	return text, storeError(err, false)
}

// successor is the definition after old, which is nil for a limit that is not
// there; last is the highest version the name has had.
func successor(old *store.Definition, last uint32, now int64, l store.Limit, owner string) (*store.Definition, error) {
	var reg store.Registry
	if old != nil {
		reg.Install([]*store.Definition{old})
	}
	d, err := reg.Define(now, l, owner)
	if err == nil && old == nil {
		d.Number = last + 1
	}
	return d, err
}

// Drop ends a limit. Its buckets expire.
func (s *Store) Drop(ctx context.Context, name, owner string) error {
	c := s.cat
	if err := c.mu.Enter(ctx); err != nil {
		return storeError(err, false)
	}
	defer c.mu.Leave()
	if err := c.drop(ctx, name, owner); err != nil {
		return storeErrorOf(err)
	}
	return storeError(c.loadLocked(ctx), false)
}

func (c *catalog) drop(ctx context.Context, name, by string) error {
	if err := c.unread(); err != nil {
		return err
	}
	for range maxRaces {
		text, err := c.field(ctx, name)
		if err != nil {
			return err
		}
		old, err := decodeDefinition(name, text)
		switch {
		case err != nil:
			return err
		case old == nil:
			return fmt.Errorf("%w %q", store.ErrUnknownLimit, name)
		case owner.Name(old.Owner) != owner.Name(by):
			return &owner.Error{Limit: name, Owner: old.Owner}
		}
		if ok, err := c.put(ctx, name, text, encodeDropped(old.Number)); ok || err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: limit %s is being changed over and over", store.ErrStore, name)
}

// storeErrorOf leaves errors about the caller's own doing as they are.
func storeErrorOf(err error) error {
	var limit *store.LimitError
	if errors.Is(err, store.ErrOwner) || errors.Is(err, store.ErrUnknownLimit) || errors.As(err, &limit) {
		return err
	}
	return storeError(err, true)
}

// pend keeps a limit that the server could not be told, for a lazy store. Until
// it is told it is known here only, so that calls get its failure mode.
func (c *catalog) pend(l store.Limit, by string, why error) (*store.Definition, error) {
	waits := unavailable(why) || c.config.WaitForAccess && noAccess(why)
	if !c.config.Lazy || !waits || by == owner.API || len(c.pending) >= maxPending {
		return nil, storeErrorOf(why)
	}
	d, err := c.reg.Define(time.Now().UnixMicro(), l, by)
	if err != nil {
		return nil, err
	}
	c.pending = slices.DeleteFunc(c.pending, func(p pendingLimit) bool { return p.limit.Name == l.Name })
	c.pending = append(c.pending, pendingLimit{l, by})
	return d, nil
}
