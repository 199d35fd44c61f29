package lease

import (
	"sync"
	"sync/atomic"

	"github.com/dipwell/dipwell/internal/percpu"
	"github.com/dipwell/dipwell/store"
)

// A chunk is tokens that were taken from the store with one request. Calls take from
// stripes, one a processor, so that processors do not share a cache line; a stripe that
// is empty is filled from the pool, and at the end from other stripes.
type chunk struct {
	def          *store.Definition // that decided the request
	sent         int64             // ns on the monotonic clock, before the request was sent
	from, dies   int64             // ns on the monotonic clock: may be used from, and no longer
	early, late  int64             // ns on the wall clock: may be used between
	size, most   int64             // tokens taken, and of the largest call that may use them
	whole        int64             // tokens taken, and what was held before
	trip         int64             // ns: how long the request and its answer took
	low          int64             // tokens left when the next are asked for: half, or what is used in a round trip
	remaining    int64             // in the store, after the request
	fullAt       int64             // ns on the monotonic clock
	keepsUnused  bool              // what is left at the end must not be given back
	stripes      percpu.Copies[stripe]
	_            [64]byte
	mu           sync.Mutex
	pool         int64 // in no stripe
	since        int64 // ns: when calls began to be decided from it; of the key, as empty
	empty        bool  // it was found used up
	counted      int64 // spent tokens that the key's demand has
	halved, gone bool
	begins       Gate // opens at from; nil: no call waits for that. Of the key, as since
}

// A stripe is alone in its pair of cache lines.
type stripe struct {
	left atomic.Int64
	_    [120]byte
}

// alive reports whether the tokens have not died. The wall clock is asked as well,
// because the monotonic clock stands still while some machines are suspended.
func (c *chunk) alive(mono, wall int64) bool {
	return mono < c.dies && wall >= c.early && wall <= c.late
}

// take takes tokens. It reports whether it did, and whether the chunk became half empty.
func (c *chunk) take(cost int64) (ok, half bool) {
	st := c.stripes.Mine()
	for {
		for left := st.left.Load(); left >= cost; left = st.left.Load() {
			if st.left.CompareAndSwap(left, left-cost) {
				return true, half
			}
		}
		filled, now := c.fill(st, cost)
		if half = half || now; !filled {
			return false, half
		}
	}
}

// fill moves tokens to a stripe that has fewer than cost. It returns false if there
// are fewer in all.
func (c *chunk) fill(st *stripe, cost int64) (ok, half bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone {
		return false, false
	}
	n := min(c.pool, max(cost, c.pool/int64(2*len(c.stripes))+1))
	c.pool -= n
	has := st.left.Add(n)
	for i := 0; has < cost && i < len(c.stripes); i++ {
		if other := &c.stripes[i]; other != st {
			has = st.left.Add(other.left.Swap(0))
		}
	}
	half = !c.halved && c.pool <= c.low
	c.halved = c.halved || half
	return has >= cost, half
}

// isHalf reports whether at least about half of the tokens are spent.
func (c *chunk) isHalf() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.halved
}

// left returns the tokens that are not spent.
func (c *chunk) left() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.pool
	for i := range c.stripes {
		n += c.stripes[i].left.Load()
	}
	return n
}

// spent returns how many tokens were spent since the last call of spent.
func (c *chunk) spent() int64 {
	all := c.size - c.left()
	n := all - c.counted
	c.counted = all
	return n
}

// end takes what is left, and no call gets any more.
func (c *chunk) end() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.pool
	c.pool, c.gone = 0, true
	for i := range c.stripes {
		n += c.stripes[i].left.Swap(0)
	}
	return n
}
