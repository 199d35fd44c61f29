// Package redisstore is a store in Redis or Valkey: one server, a primary behind
// Sentinels, or a cluster.
//
// A decision is one call of a Lua script, which reads the server's clock. The
// script writes one string for each bucket that it charges, and nothing if it
// refuses. A bucket expires when it is full. A batch is one pipeline of such calls.
//
// Four scripts decide in one call: take_one.lua a take of one bucket, set.lua a group or a
// batch, both for buckets that refill continuously or in windows of equal length; hold.lua
// and settle.lua make and settle holds, and take from buckets with holds. All other calls
// are decided in Go, with two calls of scripts, one that reads and one that writes if
// nothing has changed in between.
//
// In a cluster, the buckets of a group must be in one slot: see [Config].HashTag.
package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dipwell/dipwell/internal/background"
	"github.com/dipwell/dipwell/internal/catalog"
	"github.com/dipwell/dipwell/store"
)

// These are the values of Config.HashTag.
const (
	tagKey = "key"
	tagAll = "all"
)

// Config has the options of a store. The zero Config is ready for use.
type Config struct {
	Prefix string // beginning of the names of all keys; at most 64 printable ASCII characters without spaces and braces; default "dipwell"

	// HashTag says which buckets of a cluster share a slot, and so can be decided in one
	// call. With "key", the default, buckets with the same key, under any limit, share a
	// slot, and those whose keys start with the same {tag}. With "all" all buckets do: any
	// call can be all or nothing, but one master has all the load. HashTag must be the
	// same for all programs with one prefix.
	HashTag string

	// AllowEviction opens a store whose server may evict buckets when its memory is full, and
	// warns OnError. An evicted bucket is full again. Otherwise New fails for such a server.
	AllowEviction bool

	// Poll is the interval at which the store checks whether limits were changed
	// elsewhere, in addition to notifications. Default of Poll: 900 ms, so that a change
	// is known within a second; negative: no checks and no notifications.
	Poll time.Duration

	// Lazy opens a store whose server does not answer yet. Until it does, calls return
	// ErrStore, and limits that are defined are kept in memory and stored later.
	Lazy bool

	// WaitForAccess lets a lazy store open even if the server rejects the user (WRONGPASS,
	// NOAUTH, NOPERM); it then keeps trying.
	WaitForAccess bool

	OnError func(error)  // called with warnings and with errors in the background; default: none
	Clock   func() int64 // for tests: replaces the server's clock, in µs since the Unix epoch; nothing expires
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
		c.HashTag = tagKey
	}
	if c.OnError == nil {
		c.OnError = func(error) {}
	}
	if len(c.Prefix) > maxPrefix || strings.ContainsFunc(c.Prefix, func(r rune) bool { return r <= ' ' || r > '~' || r == '{' || r == '}' }) {
		return fmt.Errorf("redisstore: prefix %q: from 1 to %d printable ASCII characters without spaces and braces", c.Prefix, maxPrefix)
	}
	if c.HashTag != tagKey && c.HashTag != tagAll {
		return fmt.Errorf("redisstore: hash_tag %q: it is %s or %s", c.HashTag, tagKey, tagAll)
	}
	return nil
}

// Store is a store.Store in Redis. It is safe for concurrent use.
type Store struct {
	db        redis.UniversalClient
	names     names
	scripts   *scripts
	overrides knownOverrides
	holds     knownHolds
	turns     turns
	clock     func() int64
	limits    *limits
	cat       *catalog.Catalog
	rows      background.Cached
	owned     bool // db was opened by Open
}

var _ store.Store = (*Store)(nil)

// New opens a store on a client and reads the limits in Redis. Set ContextTimeoutEnabled in
// the options of the client: otherwise calls continue after their context has ended, until
// the client's own timeouts. New returns an error if the configuration is invalid, if the
// server does not answer (unless c.Lazy), if it may evict buckets (see AllowEviction), or if
// the client reads from replicas.
func New(ctx context.Context, db redis.UniversalClient, c Config) (*Store, error) {
	if db == nil {
		return nil, errors.New("redisstore: the client is nil")
	}
	nodes, cluster := db.(*redis.ClusterClient)
	if cluster && nodes.Options().ReadOnly {
		return nil, errors.New("redisstore: the client reads from replicas (ReadOnly), which may not have a row yet")
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	s := &Store{db: db, turns: newTurns(), scripts: serverClockScripts, clock: c.Clock, names: newNames(c, cluster)}
	s.holds.slots.Most, s.holds.live.Most, s.overrides.Most = maxHolds, maxHolds, maxKnown
	if c.Clock != nil {
		s.scripts = givenClockScripts
	}
	s.limits = newLimits(s, c)
	if s.names.cluster {
		s.names.parts = func(limit string) int {
			if e := s.limits.entry(limit); e != nil {
				return e.parts
			}
			return wholeKey
		}
	}
	s.cat = s.limits.catalog()
	if err := s.cat.Open(ctx); err != nil && c.Lazy {
		return nil, err
	} else if err != nil {
		return nil, changeError(err, false)
	}
	s.cat.Watch(&watcher{limits: s.limits}, c.Poll, defaultPoll, lookTimeout)
	return s, nil
}

// Close stops the background work, and closes the client if Open made it. After a change
// of a limit to a slower version Close may take a second, until all programs know of the
// change.
func (s *Store) Close() error {
	s.cat.Close()
	if s.owned {
		return s.db.Close()
	}
	return nil
}

// maxRounds bounds the attempts to decide a group whose limit changes in between.
const maxRounds = 16

// Apply decides a batch, of which several groups are sent as one pipeline. It returns nil;
// errors are in the groups. Each wraps store.ErrStore if the server did not answer, and
// store.ErrOutcomeUnknown if it may have decided the group.
func (s *Store) Apply(ctx context.Context, b *store.Batch) error {
	if !s.cat.Heard() {
		if err := s.cat.Refresh(ctx); err != nil {
			for i := range b.Groups {
				b.Groups[i].Err = storeError(err, false)
			}
			return nil
		}
	}
	if len(b.Groups) == 1 {
		b.Groups[0].Err = s.group(ctx, &b.Groups[0])
		return nil
	}
	s.decideBatch(ctx, b)
	return nil
}

// group decides a group on its own.
func (s *Store) group(ctx context.Context, g *store.Group) error {
	for range maxRounds {
		if err := s.tryGroup(ctx, g); !errors.Is(err, store.ErrStaleDefinition) {
			return err
		}
		if err := s.cat.Load(ctx); err != nil {
			return storeError(err, false)
		}
	}
	return fmt.Errorf("%w: gave up after %d attempts, because a limit changed in between; nothing was charged or given back", store.ErrStore, maxRounds)
}

// tryGroup calls the script that can decide the group, if there is one.
func (s *Store) tryGroup(ctx context.Context, g *store.Group) error {
	if g.Cancel {
		return s.cancel(ctx, g)
	}
	var known [store.MaxTakes]*entry
	if err := s.limits.resolve(ctx, g, known[:]); err != nil {
		return err
	}
	entries, done, err := known[:len(g.Ops)], false, s.names.oneSlot(g, known[:])
	switch {
	case err != nil:
	case canHold(g, entries):
		done, err = s.makeHold(ctx, g, entries)
	case g.Hold != nil && g.Hold.Verb == store.SettleHold:
		done, err = s.settleHold(ctx, g)
	case g.Hold != nil:
	case len(g.Ops) == 1 && entries[0].canTakeOne(&g.Ops[0]):
		done, err = s.take(ctx, g, entries[0])
	case canUseSet(g, entries):
		done, err = s.decideBySet(ctx, g, entries)
	}
	if done || err != nil {
		return err
	}
	return s.decideInGo(ctx, g, nil)
}

// now returns the time of the server that has the limits, in µs since the Unix epoch.
func (s *Store) now(ctx context.Context) (int64, error) {
	if s.clock != nil {
		return s.clock(), nil
	}
	v, err := s.run(ctx, s.call(ctx, s.scripts.now, false, []any{nil, nil, 1, s.names.limits}))
	if err != nil {
		return 0, err
	}
	return v[0], nil
}

// Abilities returns what the store can do besides Apply. Nothing needs a sweep, because all
// keys but those of limits and overrides expire. All lanes are the store itself: its client
// has a pool.
func (s *Store) Abilities() store.Abilities {
	return store.Abilities{
		Store: s, Limits: s.cat, Keys: s.keys, Now: s.now, Ready: s.ready, Metrics: s.metrics,
		Overrides: overrides{s}, Audit: trail{s, &catalog.Changes}, TopKeys: trail{s, &catalog.TopHours}, Minutes: trail{s, &catalog.Minutes}, Usage: usage{s}, Holds: s.keyHolds,
		Lanes: func(_ context.Context, n int) (store.Lanes, error) {
			return store.Lanes{Stores: slices.Repeat([]store.Store{s}, n)}, nil
		},
	}
}

func (s *Store) metrics() []store.Metric {
	return []store.Metric{
		{Name: "dipwell_keys", Help: "Keys that the store holds, as it estimates; those of others in the same table or database too.", Value: s.rows.Get(s.count)},
		{Name: "dipwell_store_connections", Help: "Open connections to the store.", Value: float64(s.db.PoolStats().TotalConns)},
	}
}

// count returns the number of keys in the database without reading them. That includes
// keys of other programs in the same database.
func (s *Store) count(ctx context.Context) (int64, error) { return s.db.DBSize(ctx).Result() }

// ready returns an error if a server does not answer, is not a master, or the
// limits were not read yet.
func (s *Store) ready(ctx context.Context) error {
	if err := s.cat.LoadError(); err != nil {
		return err
	}
	return storeError(s.eachMaster(ctx, func(ctx context.Context, node redis.UniversalClient) error {
		role, err := node.Do(ctx, "role").Slice()
		if err == nil && len(role) > 0 && role[0] != "master" {
			err = fmt.Errorf("%w: connected to a %v instead of a primary: use the addresses of the Sentinels or of the cluster", store.ErrStore, role[0])
		}
		return err
	}), false)
}

// eachMaster calls do for every master, concurrently in a cluster.
func (s *Store) eachMaster(ctx context.Context, do func(ctx context.Context, node redis.UniversalClient) error) error {
	if cluster, ok := s.db.(*redis.ClusterClient); ok {
		return cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error { return do(ctx, node) })
	}
	return do(ctx, s.db)
}
