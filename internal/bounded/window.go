package bounded

import (
	"cmp"
	"hash/maphash"
	"slices"
	"sync"
)

// WindowConfig sizes a Window. The zero WindowConfig means the defaults.
type WindowConfig struct {
	Counters int // counters of each slice, over all shards; default 1024
	Slices   int // number of slices of the window, the current one included; default 6
	Shards   int // number of shards, each with its own lock; default 8
	Uses     int // keys that AddUse counts one by one, over all shards; default 0
}

// A Window counts keys over a sliding window of slices: each Turn begins a new slice and
// drops the oldest. It also has the total of all slices since the last Restart, which
// costs an event nothing: a slice is added when it ends. A Window is safe for concurrent use.
//
// A key is always in the same shard, so that shards do not add to the error. Slices
// do add to it: a key without a counter in a slice may have had as many events
// there as the slice's smallest counter.
type Window struct {
	seed   maphash.Seed
	shards []shard
	per    int // number of counters in each summary
}

type shard struct {
	mu     sync.Mutex
	slices []*summary
	counts []uint64 // number of events in each slice
	now    int      // current slice
	total  Top      // total of the slices that have ended
	uses   uses
	_      [56]byte // padding to a cache line
}

// A Count is a key with its number of events: at least Count-Error, and at most Count.
type Count struct {
	Limit string `json:"limit"`
	Key   string `json:"key"`
	Count uint64 `json:"count"`
	Error uint64 `json:"error"`
}

// A Top has the busiest keys of a window, or of a total.
type Top struct {
	Keys     []Count `json:"keys"`             // the busiest keys, by descending Count
	Events   uint64  `json:"counted"`          // exact number of events
	Unlisted uint64  `json:"unlisted_at_most"` // the largest count that a key not in Keys can have
}

// NewWindow returns an empty window.
func NewWindow(c WindowConfig) *Window {
	c.Counters, c.Slices, c.Shards = cmp.Or(c.Counters, 1024), cmp.Or(c.Slices, 6), cmp.Or(c.Shards, 8)
	w := &Window{seed: maphash.MakeSeed(), shards: make([]shard, c.Shards), per: max(1, c.Counters/c.Shards)}
	for i := range w.shards {
		s := &w.shards[i]
		s.counts, s.uses.most = make([]uint64, c.Slices), c.Uses/c.Shards
		for range c.Slices {
			s.slices = append(s.slices, newSummary(w.per))
		}
	}
	return w
}

// Add counts an event of a key. Add keeps the string limit and copies key.
func (w *Window) Add(limit, key string) {
	s, _ := w.add(limit, key)
	s.mu.Unlock()
}

// add counts an event, and returns the counter of its key and the shard, locked.
func (w *Window) add(limit, key string) (*shard, *counter) {
	hash := maphash.String(w.seed, key) ^ maphash.String(w.seed, limit)*0x9e3779b97f4a7c15
	s := &w.shards[(hash>>32)%uint64(len(w.shards))]
	s.mu.Lock()
	s.counts[s.now]++
	return s, s.slices[s.now].add(hash, limit, key)
}

// Turn begins a new slice, which replaces the oldest.
func (w *Window) Turn() {
	w.each(func(s *shard) { s.turn(w.per) })
}

// Restart is Turn, and begins a new total. It returns the n busiest keys of the one that ends.
func (w *Window) Restart(n int) (t Top) {
	w.each(func(s *shard) {
		s.turn(w.per)
		t.add(s.total)
		s.total = Top{}
	})
	t.cut(n)
	return t
}

// Top returns the n busiest keys of the limits that may be listed, or of all if may is nil.
func (w *Window) Top(n int, may func(limit string) bool) (t Top) {
	w.each(func(s *shard) {
		var all []Top
		for i, of := range s.slices {
			all = append(all, of.top(s.counts[i], may))
		}
		t.add(join(all))
	})
	t.cut(n)
	return t
}

// each calls f for each shard while the shard is locked.
func (w *Window) each(f func(*shard)) {
	for i := range w.shards {
		s := &w.shards[i]
		s.mu.Lock()
		f(s)
		s.mu.Unlock()
	}
}

// turn adds the current slice to the total, and begins the next.
func (s *shard) turn(keys int) {
	s.total = Sum([]Top{s.total, s.slices[s.now].top(s.counts[s.now], nil)}, keys)
	s.now = (s.now + 1) % len(s.slices)
	s.slices[s.now].reset()
	s.counts[s.now] = 0
}

// cut sorts the keys, and keeps the first n.
func (t *Top) cut(n int) {
	slices.SortFunc(t.Keys, func(a, b Count) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Error, b.Error), cmp.Compare(a.Limit, b.Limit), cmp.Compare(a.Key, b.Key))
	})
	if t.Keys == nil {
		t.Keys = []Count{} // so that the JSON has a list
	}
	if len(t.Keys) > n {
		t.Unlisted = max(t.Unlisted, t.Keys[n].Count)
		t.Keys = slices.Clone(t.Keys[:n])
	}
}
