// Package memstore keeps the buckets of a process in its own memory: a bounded
// table outside the Go heap, which the garbage collector does not scan.
package memstore

import (
	"context"

	"github.com/dipwell/dipwell/internal/memory"
	"github.com/dipwell/dipwell/store"
)

// Config sets up a Store. The zero Config means the defaults.
type Config struct {
	// MaxKeys bounds the number of keys, over all limits. Keys whose buckets are full do not
	// count. When MaxKeys is reached no key is evicted: calls of a new key fail with
	// store.ErrFull. A key takes about 45 bytes. Default of MaxKeys: 10<<20, at most 1<<36.
	MaxKeys int
	// MaxKeyBytes bounds the memory for the texts of keys of limits with ListKeys: 32 bytes
	// for each 28 of a key and the two of its length. When MaxKeyBytes is reached, calls of a
	// new key of such a limit fail with store.ErrFull, and a key that the store has may be
	// missing in the list of a limit that was given ListKeys later. Default of MaxKeyBytes:
	// 64 for each of MaxKeys, at least 1,024 and at most 256 MiB.
	MaxKeyBytes int64
	// MaxReservations bounds the reservations that are not yet due, and cancelled ones whose
	// tokens cannot be given back yet; a reservation of several keys counts once for each
	// key. When MaxReservations is reached, calls that would make one more fail with
	// store.ErrFull. A reservation takes 300 to 1,600 bytes. Default of MaxReservations:
	// 50,000, at most 1<<28.
	MaxReservations int
	// MaxHolds bounds the holds; a hold of several keys counts once for each key. Ended
	// holds are kept to answer repeated calls, and the oldest of them are forgotten when a
	// new one needs the room. If MaxHolds holds are live, calls that would make one more
	// fail with store.ErrFull. Default of MaxHolds: 50,000, at most 1<<28.
	MaxHolds int
	// MaxOverrides bounds the overrides, over all limits. When MaxOverrides is reached,
	// setting one more fails with store.ErrFull. An override takes 300 to 1,100 bytes,
	// and its note. Default of MaxOverrides: 1<<17, at most 1<<28.
	MaxOverrides int
	// Clock returns the time in µs since the Unix epoch, for tests. Default of Clock: the
	// wall clock's time at New, advanced by the monotonic clock, so that setting the
	// machine's clock has no effect.
	Clock func() int64
	// Shards is the number of locks, a power of two up to 256. Default of Shards: at least 64
	// and four for each processor of GOMAXPROCS, but fewer for a MaxKeys below 32,768.
	Shards int
}

// A Store keeps buckets in memory. It is safe for concurrent use. In memory a
// key is stored as a 96-bit hash, seeded at start, not as text, unless the
// limit's ListKeys asks for the text as well.
type Store struct{ mem *memory.Store }

var _ store.Store = (*Store)(nil)

// New makes an empty store, or names a field of c that is out of bounds. Close frees its memory.
func New(c Config) (*Store, error) {
	mem, err := memory.New(memory.Config{MaxKeys: c.MaxKeys, MaxKeyBytes: c.MaxKeyBytes, MaxReservations: c.MaxReservations, MaxHolds: c.MaxHolds, MaxOverrides: c.MaxOverrides, Clock: c.Clock, Shards: c.Shards})
	if err != nil {
		return nil, err
	}
	return &Store{mem}, nil
}

// Apply decides a batch at one instant of the store's clock. Apply waits only
// for other calls that use the same shards, never for ctx.
func (s *Store) Apply(ctx context.Context, b *store.Batch) error { return s.mem.Apply(ctx, b) }

// Abilities returns what the store can do besides Apply. It lists the keys of limits with
// ListKeys; for others Keys fails with store.ErrNotSupported. memstore needs no sweep: the
// room of full rows is used for new keys. Metrics has the numbers of keys, reservations, holds
// and overrides, the calls that failed with store.ErrFull, and the bytes of memory.
func (s *Store) Abilities() store.Abilities {
	ab := s.mem.Abilities()
	ab.Store = s
	return ab
}

// Close frees the memory. Later calls fail with an error that wraps store.ErrStore.
func (s *Store) Close() error { return s.mem.Close() }
