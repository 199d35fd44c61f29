// Package redisstore keeps buckets in Redis or Valkey: one server, one behind
// Sentinels, or a cluster. A decision is one call of a script that reads the
// server's clock; it writes one string for each bucket that it charges, and
// nothing when it refuses.
package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dipwell/dipwell/store"
)

// Hash tags: which buckets of a cluster share a slot, and so may be asked for
// in one call.
const (
	TagKey = "key" // those of one key, whatever the limit; and those whose keys begin with the same {tag}
	TagAll = "all" // all of them: every call may be all or nothing, on one master's shoulders
)

// Config is how a store behaves. The zero Config is ready for use.
type Config struct {
	Prefix  string // begins the names of all keys; at most 64 printable ASCII characters without braces; default "dipwell"
	HashTag string // TagKey (the default) or TagAll; the same for all programs on one prefix

	// AllowEviction opens a store whose server may evict buckets when its memory
	// is full: an evicted bucket is a full one. OnError hears it as a warning.
	// Without it such a server is an *EvictionError.
	AllowEviction bool

	// Poll is how often the store asks whether the limits were changed elsewhere,
	// beside being told. Default 900 ms, for a change to be known within a second;
	// negative: it never asks and never listens.
	Poll time.Duration

	// Lazy opens a store whose server does not answer yet: calls get ErrStore
	// until it does, limits that the program or its configuration file defines
	// are kept here and told to it then, and nothing has to be opened again.
	Lazy bool

	// WaitForAccess makes a lazy store open also when the server refuses the user
	// (WRONGPASS, NOAUTH, NOPERM), and ask again.
	WaitForAccess bool

	// OnError hears what goes wrong while nobody is calling, and warnings.
	// Default: nothing is done.
	OnError func(error)

	// Clock takes the place of the server's clock, in µs since the Unix epoch.
	// It is for tests: nothing expires then.
	Clock func() int64
}

const (
	defaultPrefix = "dipwell"
	maxPrefix     = 64
)

func (c *Config) check() error {
	if c.Prefix == "" {
		c.Prefix = defaultPrefix
	}
	if c.HashTag == "" {
		c.HashTag = TagKey
	}
	if c.OnError == nil {
		c.OnError = func(error) {}
	}
	if len(c.Prefix) > maxPrefix || strings.ContainsFunc(c.Prefix, func(r rune) bool { return r <= ' ' || r > '~' || r == '{' || r == '}' }) {
		return fmt.Errorf("redisstore: prefix %q: from 1 to %d printable ASCII characters without spaces and braces", c.Prefix, maxPrefix)
	}
	if c.HashTag != TagKey && c.HashTag != TagAll {
		return fmt.Errorf("redisstore: hash_tag %q: it is %s or %s", c.HashTag, TagKey, TagAll)
	}
	return nil
}

// Store decides in Redis. It is safe for concurrent use.
type Store struct {
	db      redis.UniversalClient
	names   names
	scripts *scripts
	clock   func() int64
	cat     *catalog
	ahead   atomic.Int64 // µs by which the server's clock was ahead of this machine's, when last seen
	owned   bool         // db was made by Open
}

var (
	_ store.Store   = (*Store)(nil)
	_ store.Definer = (*Store)(nil)
	_ store.Lister  = (*Store)(nil)
	_ store.Clock   = (*Store)(nil)
)

// New opens a store over a client and reads the limits that Redis holds. Close
// ends what it does in the background; the client stays the caller's, unless
// Open made it. The client should have ContextTimeoutEnabled, or calls outlive
// their contexts until its own timeouts.
func New(ctx context.Context, db redis.UniversalClient, c Config) (*Store, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	s := &Store{db: db, scripts: byServer, clock: c.Clock, names: newNames(c, clustered(db))}
	if c.Clock != nil {
		s.scripts = byCaller
	}
	s.cat = newCatalog(s, c)
	if err := s.cat.open(ctx); err != nil {
		return nil, err
	}
	s.cat.watch(c.Poll)
	return s, nil
}

func clustered(db redis.UniversalClient) bool {
	_, ok := db.(*redis.ClusterClient)
	return ok
}

// Close stops listening for changed limits, and closes the client that Open made.
func (s *Store) Close() error {
	s.cat.close()
	if s.owned {
		return s.db.Close()
	}
	return nil
}

// maxRounds bounds how often a group is asked again because a row had to be
// converted, or a window or a version turned meanwhile.
const maxRounds = 16

// Apply decides a batch. Several groups go as one pipeline.
func (s *Store) Apply(ctx context.Context, b *store.Batch) error {
	if len(b.Groups) == 1 {
		b.Groups[0].Err = s.group(ctx, &b.Groups[0])
		return nil
	}
	s.many(ctx, b)
	return nil
}

// group decides one group by itself.
func (s *Store) group(ctx context.Context, g *store.Group) error {
	if g.Cancel {
		return s.cancel(ctx, g.ID)
	}
	for range maxRounds {
		err := s.ask(ctx, g)
		switch {
		case errors.Is(err, store.ErrStaleDefinition):
			if err = s.cat.load(ctx); err != nil {
				return storeError(err, false)
			}
		case err != errAgain: //nolint:errorlint // never wrapped
			return err
		}
	}
	return fmt.Errorf("%w: the row was converted over and over; nothing was charged", store.ErrStore)
}

// ask asks the script that is for such a group, and where that leaves it alone, decide.lua.
func (s *Store) ask(ctx context.Context, g *store.Group) error {
	var known [store.MaxTakes]*entry
	if err := s.cat.resolve(ctx, g, known[:]); err != nil {
		return err
	}
	entries := known[:len(g.Ops)]
	switch {
	case len(g.Ops) == 1 && entries[0].single(&g.Ops[0]):
		return s.take(ctx, g, entries[0])
	case together(g, entries):
		if done, err := s.takeAll(ctx, g, entries); done || err != nil {
			return err
		}
		return s.decide(ctx, g, entries, true)
	case settable(g, entries):
		if done, err := s.one(ctx, g, entries); done || err != nil {
			return err
		}
		return s.decide(ctx, g, entries, true)
	}
	return s.decide(ctx, g, entries, false)
}

// errAgain: nothing was done yet, and the group is to be asked again.
var errAgain = errors.New("again")

// Now is the time of the server that keeps the limits, in µs since the Unix epoch.
func (s *Store) Now(ctx context.Context) (int64, error) {
	if s.clock != nil {
		return s.clock(), nil
	}
	v, err := s.run(ctx, newCall(ctx, s.scripts.now, false, []any{nil, nil, 1, s.names.limits}))
	if err != nil {
		return 0, err
	}
	return v[0], nil
}

// Ready asks whether the server answers and can be written to.
func (s *Store) Ready(ctx context.Context) error {
	if err := s.cat.unread(); err != nil {
		return err
	}
	return storeError(s.each(ctx, func(ctx context.Context, node redis.UniversalClient) error {
		role, err := node.Do(ctx, "role").Slice()
		if err == nil && len(role) > 0 && role[0] != "master" {
			err = fmt.Errorf("it is a %v: name the Sentinels or the cluster instead, and the primary is found", role[0])
		}
		return err
	}), false)
}

// Connections are open ones, in use or not.
func (s *Store) Connections() int { return int(s.db.PoolStats().TotalConns) }

// each does something with every master.
func (s *Store) each(ctx context.Context, do func(ctx context.Context, node redis.UniversalClient) error) error {
	if cluster, ok := s.db.(*redis.ClusterClient); ok {
		return cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error { return do(ctx, node) })
	}
	return do(ctx, s.db)
}

// withClock appends the time that a test sets.
func (s *Store) withClock(args []any) []any {
	if s.clock != nil {
		args = append(args, s.clock())
	}
	return args
}

// guess is about what the server's clock shows.
func (s *Store) guess() int64 {
	if s.clock != nil {
		return s.clock()
	}
	return time.Now().UnixMicro() + s.ahead.Load()
}

func (s *Store) saw(now int64) {
	if s.clock == nil {
		s.ahead.Store(now - time.Now().UnixMicro())
	}
}
