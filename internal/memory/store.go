// Package memory is the in-process table of memstore, filestore and fallback. It
// is bounded, and outside the Go heap, so the garbage collector does not scan it.
package memory

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dipwell/dipwell/internal/catalog"
	"github.com/dipwell/dipwell/store"
)

// Defaults and bounds of Config.
const (
	DefaultMaxKeys         = 10 << 20 // 10 million keys take at most about 450 MB
	DefaultMaxReservations = 50_000   // 50,000 reservations take at most about 80 MB
	DefaultMaxHolds        = 50_000   // 50,000 holds take at most about 90 MB
	DefaultMaxOverrides    = 1 << 17  // 131,072 overrides take at most about 140 MB, and as much more with the longest notes
	maxKeys                = int64(1) << 36
	bytesPerKey            = 64        // part of MaxKeyBytes for each key; keys of up to 54 bytes take that much
	defaultMaxKeyBytes     = 256 << 20 // upper bound of the default, so that all defaults together stay below 2 GB
	minKeyBytes            = 1 << 10   // room for any one key
	maxKeyBytes            = maxKeys * bytesPerKey
	maxReservations        = 1 << 28
	maxShards              = 256
)

// Config sets up a Store. The zero Config means the defaults. Fields without a comment are
// those of memstore.Config.
type Config struct {
	MaxKeys         int
	MaxKeyBytes     int64
	MaxReservations int
	MaxHolds        int
	// MaxOverrides bounds the overrides, over all limits. As many keys again may have a block
	// that a refusal began: at about that number a new one ends the oldest of its shard.
	MaxOverrides int
	Clock        func() int64
	// NotBefore is the earliest time, in µs, that the default clock starts at. NotBefore
	// is for rows that were kept somewhere else and are later than the machine's clock.
	NotBefore int64
	Shards    int
}

// A Store keeps buckets in memory. It is safe for concurrent use. In the table
// a key is identified by a hash of 96 bits, seeded per store.
type Store struct {
	clock        func() int64
	start        time.Time
	epoch        int64     // the wall clock at start, in µs
	secret       [4]uint64 // for the hash of keys
	max, maxText int64
	limits       limits
	reg          store.Registry
	fitting      sync.RWMutex // locked while a limit changes, and for reading while an override is set
	shards       []shard
	mask         uint32 // mask of the hash bits that give the shard's number
	arena        arena
	reservations ledger[store.Reservation, store.Pending]
	holds        ledger[string, store.Hold]
	free         freeParts
	maxOverrides int
	trail        trail
	topKeys      trail
	usage        usage

	watched atomic.Bool
	sweptMu sync.Mutex
	swept   []Touched

	_         [64]byte
	keys      atomic.Int64
	textBytes atomic.Int64 // memory of the texts of keys
	records   atomic.Int64 // number of records of reservations
	overrides atomic.Int64
	refused   atomic.Int64
	hand      atomic.Uint32 // the shard that is swept next while the store is full
}

var _ store.Store = (*Store)(nil)

// ErrClosed is the error of calls after Close.
var ErrClosed = fmt.Errorf("%w: it is closed", store.ErrStore)

// New makes an empty store. Close frees its memory.
func New(c Config) (*Store, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	s := &Store{clock: c.Clock, start: time.Now(), max: int64(c.MaxKeys), maxText: c.MaxKeyBytes, shards: make([]shard, c.Shards)}
	s.epoch = max(s.start.UnixMicro(), c.NotBefore)
	s.secret = [4]uint64{rand.Uint64(), rand.Uint64(), rand.Uint64(), rand.Uint64()}
	if s.clock == nil && !Monotonic(s.start) {
		s.clock = s.wall
	}
	s.trail.log, s.trail.now = &catalog.Changes, s.now
	s.topKeys.log, s.topKeys.now = &catalog.TopHours, s.now
	s.usage.Store, s.usage.lines = s, map[usageName]*store.UsageLine{}
	s.limits.init()
	s.reg.EachOverride = s.EachOverride
	s.mask = uint32(c.Shards - 1)
	s.reservations.init(c.MaxReservations, measurePending)
	s.free = freeParts{}
	s.holds.init(c.MaxHolds, measureHold)
	s.holds.live = s.free.add
	s.maxOverrides = c.MaxOverrides
	for i := range s.shards {
		s.shards[i].init(s)
	}
	return s, nil
}

// defaultShards returns a number of shards at which calls on different keys rarely wait
// for the same lock, and each shard has at least 256 keys.
func defaultShards(maxKeys, processors int) int {
	n := 1
	for n < maxShards && n < max(64, 4*processors) && maxKeys/n >= 512 {
		n *= 2
	}
	return n
}

func (c *Config) check() error {
	c.MaxKeys = cmp.Or(c.MaxKeys, DefaultMaxKeys)
	c.MaxKeyBytes = cmp.Or(c.MaxKeyBytes, max(minKeyBytes, min(defaultMaxKeyBytes, bytesPerKey*min(int64(c.MaxKeys), maxKeys))))
	c.MaxReservations = cmp.Or(c.MaxReservations, DefaultMaxReservations)
	c.MaxHolds = cmp.Or(c.MaxHolds, DefaultMaxHolds)
	c.MaxOverrides = cmp.Or(c.MaxOverrides, DefaultMaxOverrides)
	for _, f := range []struct {
		name               string
		value, least, most int64
	}{
		{"MaxKeys", int64(c.MaxKeys), 1, maxKeys}, {"MaxKeyBytes", c.MaxKeyBytes, minKeyBytes, maxKeyBytes},
		{"MaxReservations", int64(c.MaxReservations), 1, maxReservations}, {"MaxHolds", int64(c.MaxHolds), 1, maxReservations},
		{"MaxOverrides", int64(c.MaxOverrides), 1, maxReservations},
	} {
		if f.value < f.least || f.value > f.most {
			return fmt.Errorf("memstore: %s: %d is not between %d and %d", f.name, f.value, f.least, f.most)
		}
	}
	if c.Shards == 0 {
		c.Shards = defaultShards(c.MaxKeys, runtime.GOMAXPROCS(0))
	}
	if c.Shards < 1 || c.Shards > maxShards || c.Shards&(c.Shards-1) != 0 {
		return fmt.Errorf("memstore: Shards: %d is not a power of two from 1 to %d", c.Shards, maxShards)
	}
	return nil
}

// Apply decides each group of a batch at one instant of the store's clock. Apply waits
// only for other calls that use the same shards.
func (s *Store) Apply(_ context.Context, b *store.Batch) error {
	for i := range b.Groups {
		if g := &b.Groups[i]; !s.applyPlain(g) {
			_, g.Err = s.group(g)
		}
	}
	return nil
}

// applyPlain decides a group of one op, or of takes, that needs only its rows. If the group
// needs more, it returns false and does nothing.
func (s *Store) applyPlain(g *store.Group) bool {
	switch {
	case g.Cancel || g.Hold != nil:
		return false
	case len(g.Ops) > 1:
		return s.takeAll(g)
	case len(g.Ops) == 0 || g.Ops[0].Verb == store.VerbReset || !s.single(&g.Ops[0], false):
		return false
	}
	g.Allowed, g.Reserved, g.Err = g.Ops[0].Allowed, false, nil
	return true
}

func (s *Store) now() int64 {
	if s.clock != nil {
		return s.clock()
	}
	return s.wall()
}

// Monotonic reports whether t has a monotonic reading. In a bubble of testing/synctest it has none,
// and the time may stand still or jump while the counter runs, so the counter is not used.
func Monotonic(t time.Time) bool { return t != t.Round(0) }

// wall returns the time of the default clock, from the system's clock.
func (s *Store) wall() int64 { return s.epoch + time.Since(s.start).Microseconds() }

// The caller of nowIn has the shard's lock, and has just read count from the counter.
func (s *Store) nowIn(sh *shard, count uint64) int64 {
	if now, ok := sh.ticker.At(count); ok {
		return now
	}
	return s.readClock(sh, count)
}

// readClock is nowIn without the shard's ticker, for example if Config.Clock is set.
func (s *Store) readClock(sh *shard, count uint64) int64 {
	if s.clock != nil {
		return s.clock()
	}
	return sh.ticker.Read(s.start, s.epoch, count)
}

func (s *Store) Now(context.Context) (int64, error) { return s.now(), nil }

// Abilities returns what the store can do besides Apply.
func (s *Store) Abilities() store.Abilities {
	return store.Abilities{Store: s, Limits: s, Keys: s.Keys, Overrides: s, Audit: &s.trail, TopKeys: &s.topKeys, Usage: &s.usage, Holds: s.Holds, Sweep: s.Sweep,
		Now: s.Now, Metrics: s.metrics, Quick: s.Quick(), InProcess: true}
}

func (s *Store) metrics() []store.Metric {
	st := s.Stats()
	return []store.Metric{
		{Name: "dipwell_keys", Help: "Keys that the store holds.", Value: float64(st.Keys)},
		{Name: "dipwell_reservations", Help: "Reservations that the store holds.", Value: float64(st.Reservations)},
		{Name: "dipwell_holds", Help: "Holds that the store has, among them those that have ended.", Value: float64(st.Holds)},
		{Name: "dipwell_overrides", Help: "Overrides that the store has, without the blocks that refusals began.", Value: float64(st.Overrides)},
		{Name: "dipwell_store_bytes", Help: "Memory that keys take.", Value: float64(st.Bytes)},
		{Name: "dipwell_store_full_total", Help: "Calls for a new key, reservation, hold or override for which the store had no room, also those that their limit then allowed.", Counter: true, Value: float64(st.Refused)},
	}
}

func (s *Store) Registry() *store.Registry { return &s.reg }

// Stats are counts of a store at one moment.
type Stats struct {
	Keys         int64 // keys, also those whose buckets have become full and were not reclaimed yet
	Refused      int64 // groups that failed because the store was full
	Reservations int   // reservations, also some that are already due
	Holds        int   // holds, also ended ones that are still kept for repeated calls
	Overrides    int64
	Bytes        int64 // memory of the table and of the texts of keys
}

func (s *Store) Stats() Stats {
	return Stats{s.keys.Load(), s.refused.Load(), s.reservations.len(), s.holds.len(), s.overrides.Load(), s.arena.bytes()}
}

// Close frees the memory. Later calls fail with ErrClosed.
func (s *Store) Close() error {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		defer sh.mu.Unlock()
		sh.close()
	}
	s.keys.Store(0)
	s.textBytes.Store(0)
	return s.arena.close()
}

func (s *Store) isClosed() bool {
	sh := &s.shards[0]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.closed
}

// noRoom is fullError for a group whose rows do not fit.
func (s *Store) noRoom(n room) error {
	err := s.fullError()
	if n.text > 0 && s.textBytes.Load()+n.text > s.maxText {
		err = fmt.Errorf("%w: the texts of keys take %d bytes, which is MaxKeyBytes", err, s.maxText)
	}
	return err
}

// fullError counts a group for which there was no room, and returns the error for it.
func (s *Store) fullError() error {
	s.refused.Add(1)
	return store.ErrFull
}
