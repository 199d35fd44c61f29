// Package bounded counts and remembers in bounded memory: the busiest keys of a stream,
// durations, the entries that were added last, and counters with a copy for each
// processor.
package bounded

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
	next         int32 // next counter in the chain of the hash
	at           int32 // index in the heap
	use          *use  // of the key, if it is known
}

// A summary counts keys by Space-Saving (A. Metwally, D. Agrawal, A. El Abbadi, "Efficient
// computation of frequent and top-k elements in data streams", ICDT 2005): m
// counters; a key without one takes over the smallest, with its count as its
// error. Of n events, every key's true count is at most its estimate and at least
// the estimate less its error, no error is above n/m, and every key with more
// than n/m events has a counter.
type summary struct {
	counters []counter
	heap     []int32
	chains   []int32 // first counter by hash; the length is a power of two
}

func newSummary(m int) *summary {
	s := &summary{counters: make([]counter, 0, m), heap: make([]int32, 0, m)}
	n := 1
	for n < 2*m {
		n *= 2
	}
	s.chains = make([]int32, n)
	s.reset()
	return s
}

// reset removes all counters, and keeps the buffers.
func (s *summary) reset() {
	s.counters, s.heap = s.counters[:0], s.heap[:0]
	for i := range s.chains {
		s.chains[i] = none
	}
}

// least returns the smallest count. A key without a counter has at most this count.
func (s *summary) least() uint64 {
	if len(s.counters) < cap(s.counters) {
		return 0
	}
	return s.counters[s.heap[0]].count
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
		i = s.take()
		c := &s.counters[i]
		c.limit, c.hash, c.key, c.use = limit, hash, append(c.key[:0], key...), nil
		chain := &s.chains[hash&uint64(len(s.chains)-1)]
		c.next, *chain = *chain, i
	}
	c := &s.counters[i]
	c.count++
	s.down(c.at)
	return c
}

// take returns a counter for a new key: an unused one, or the smallest.
func (s *summary) take() int32 {
	if n := len(s.counters); n < cap(s.counters) {
		s.counters = s.counters[:n+1]
		c := &s.counters[n]
		c.count, c.error, c.at = 0, 0, int32(n)
		s.heap = append(s.heap, int32(n))
		s.up(int32(n))
		return int32(n)
	}
	i := s.heap[0]
	s.unchain(i)
	c := &s.counters[i]
	c.error = c.count
	return i
}

func (s *summary) unchain(i int32) {
	at := &s.chains[s.counters[i].hash&uint64(len(s.chains)-1)]
	for *at != i {
		at = &s.counters[*at].next
	}
	*at = s.counters[i].next
}

func (s *summary) up(at int32) {
	for at > 0 {
		parent := (at - 1) / 2
		if s.counters[s.heap[parent]].count <= s.counters[s.heap[at]].count {
			return
		}
		s.swap(at, parent)
		at = parent
	}
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
		s.swap(at, child)
		at = child
	}
}

func (s *summary) swap(a, b int32) {
	s.heap[a], s.heap[b] = s.heap[b], s.heap[a]
	s.counters[s.heap[a]].at, s.counters[s.heap[b]].at = a, b
}
