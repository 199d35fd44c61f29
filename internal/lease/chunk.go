package lease

import (
	"sync"
	"sync/atomic"

	"github.com/dipwell/dipwell/internal/bounded"
	"github.com/dipwell/dipwell/store"
)

// A chunk is tokens that were taken from the store by one request. Calls take from its
// stripes, one for each processor, so that processors do not share a cache line. An empty
// stripe is filled from the pool, and when that is empty, from other stripes.
type chunk struct {
	def          *store.Definition // the definition that decided the request
	sent         int64             // ns on the monotonic clock, before the request was sent
	taken        int64             // when the store decided the request, in µs on the store's clock
	from, dies   int64             // from when and until when its tokens may be used, in ns on the monotonic clock
	early, late  int64             // from and dies in ns on the wall clock
	size, most   int64             // number of tokens taken, and the cost of the largest call that may use them
	whole        int64             // tokens that were taken or already held
	trip         int64             // ns from the request to its answer
	low          int64             // number of tokens left at which the next are requested: half, or as many as are used in a round trip
	remaining    int64             // tokens left in the store after the request
	fullAt       int64             // when the store's bucket is full, in ns on the monotonic clock
	keepsUnused  bool              // unused tokens must not be given back
	stripes      bounded.Copies[stripe]
	_            [64]byte
	mu           sync.Mutex
	pool         int64 // number of tokens that are in no stripe
	since        int64 // ns: when calls began to take from it; guarded by the key's lock, as empty is
	empty        bool  // a call found the chunk used up
	counted      int64 // spent tokens that the key's demand includes
	halved, gone bool
	begins       Gate // gate that opens at the time from; nil if no call waits for that; guarded as since
}

// A stripe has a pair of cache lines to itself.
type stripe struct {
	left atomic.Int64
	_    [120]byte
}

// alive reports whether the tokens may still be used. alive also checks the wall clock,
// because the monotonic clock of some machines stops while they are suspended.
func (c *chunk) alive(mono, wall int64) bool {
	return mono < c.dies && wall >= c.early && wall <= c.late
}

// take takes tokens from the caller's stripe. ok reports whether it did, half whether the
// chunk became half empty.
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

// fill moves tokens to a stripe that has fewer than cost. ok is false if there are fewer
// in the whole chunk.
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

// isHalf reports whether about half of the tokens, or more, are spent.
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

// end takes what is left in the chunk, so that no call gets tokens any more.
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
