// Package bounded counts and remembers in bounded memory: the busiest keys of a stream,
// durations, recent entries, and counters with a copy for each processor.
package bounded

import "github.com/dipwell/dipwell/store"

// MaxKey is the number of bytes that are kept of a key.
const MaxKey = 512

// none ends a chain, and is the index of a key without a counter.
const none = -1

// counter counts one key. The next key of the counter reuses the buffer of the text,
// so that new keys do not allocate.
type counter struct {
	limit        string
	key          []byte
	hash         uint64
	count, error uint64
	next         int32            // index of the next counter in the chain of its hash
	at           int32            // index of the counter in the heap
	use          *store.UsageLine // usage of the key, if it is known
}

// A summary counts keys by Space-Saving (A. Metwally, D. Agrawal, A. El Abbadi, "Efficient
// computation of frequent and top-k elements in data streams", ICDT 2005): m counters; a
// key without one takes over the smallest, with its count as its error. Of n events, every
// key's true count is at most its estimate and at least the estimate less its error, no
// error is above n/m, and every key with more than n/m events has a counter.
type summary struct {
	counters []counter
	heap     []int32
	chains   []int32 // index of the first counter by hash; the length is a power of two
}

func newSummary(m int) *summary {
	n := 1
	for n < 2*m {
		n *= 2
	}
	s := &summary{counters: make([]counter, m), heap: make([]int32, m), chains: make([]int32, n)}
	s.reset()
	return s
}

// reset makes all counters unused, with a count of 0, and keeps the buffers.
func (s *summary) reset() {
	for i := range s.counters {
		s.counters[i] = counter{key: s.counters[i].key[:0], at: int32(i)}
		s.heap[i] = int32(i)
	}
	for i := range s.chains {
		s.chains[i] = none
	}
}

// top returns the keys of the limits that may be listed, or of all if may is nil, in no order.
func (s *summary) top(events uint64, may func(limit string) bool) Top {
	t := Top{Keys: make([]Count, 0, len(s.counters)), Events: events, Unlisted: s.counters[s.heap[0]].count}
	for i := range s.counters {
		if c := &s.counters[i]; c.count > 0 && (may == nil || may(c.limit)) {
			t.Keys = append(t.Keys, Count{c.limit, string(c.key), c.count, c.error})
		}
	}
	return t
}

func (s *summary) find(hash uint64, limit, key string) int32 {
	i := s.chains[hash&uint64(len(s.chains)-1)]
	for i != none {
		c := &s.counters[i]
		if c.hash == hash && string(c.key) == key && c.limit == limit {
			break
		}
		i = c.next
	}
	return i
}

// add counts one event, and returns the counter of its key.
func (s *summary) add(hash uint64, limit, key string) *counter {
	key = key[:min(len(key), MaxKey)]
	i := s.find(hash, limit, key)
	if i == none {
		i = s.heap[0] // take over an unused counter, or the smallest
		c := &s.counters[i]
		if c.error = c.count; c.count > 0 {
			at := &s.chains[c.hash&uint64(len(s.chains)-1)]
			for *at != i {
				at = &s.counters[*at].next
			}
			*at = c.next
		}
		c.limit, c.hash, c.key, c.use = limit, hash, append(c.key[:0], key...), nil
		chain := &s.chains[hash&uint64(len(s.chains)-1)]
		c.next, *chain = *chain, i
	}
	c := &s.counters[i]
	c.count++
	s.down(c.at)
	return c
}

func (s *summary) down(at int32) {
	for {
		child := 2*at + 1
		if int(child) >= len(s.heap) {
			return
		}
		if right := child + 1; int(right) < len(s.heap) && s.counters[s.heap[right]].count < s.counters[s.heap[child]].count {
			child = right
		}
		if s.counters[s.heap[at]].count <= s.counters[s.heap[child]].count {
			return
		}
		s.heap[at], s.heap[child] = s.heap[child], s.heap[at]
		s.counters[s.heap[at]].at, s.counters[s.heap[child]].at = at, child
		at = child
	}
}
