package memory

import "math/bits"

// A shardSet is a set of shard numbers.
type shardSet [maxShards / 64]uint64

func (s *shardSet) add(i uint32)   { s[i/64] |= 1 << (i % 64) }
func (s *shardSet) has(i int) bool { return s[uint(i)/64]>>(uint(i)%64)&1 != 0 }

// all yields the numbers in ascending order. Calls lock shards in this order, so that
// no two of them wait for each other.
func (s *shardSet) all(yield func(int) bool) {
	for w, left := range s {
		for ; left != 0; left &= left - 1 {
			if !yield(w*64 + bits.TrailingZeros64(left)) {
				return
			}
		}
	}
}
