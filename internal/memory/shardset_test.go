package memory

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// A shardSet lists what was added to it, in order, once.
func TestShardSet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s shardSet
		want := rapid.SliceOfN(rapid.Uint32Range(0, maxShards-1), 0, 20).Draw(t, "added")
		for _, i := range want {
			s.add(i)
		}
		slices.Sort(want)
		want = slices.Compact(want)
		var got []uint32
		for i := range s.all {
			got = append(got, uint32(i))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
		for i := range maxShards {
			if s.has(i) != slices.Contains(want, uint32(i)) {
				t.Errorf("has(%d) is %v", i, s.has(i))
			}
		}
	})
}

func TestDefaultShards(t *testing.T) {
	for _, c := range []struct{ keys, processors, want int }{
		{DefaultMaxKeys, 1, 64}, {DefaultMaxKeys, 16, 64}, {DefaultMaxKeys, 17, 128}, {DefaultMaxKeys, 64, 256},
		{DefaultMaxKeys, 500, 256}, {1, 64, 1}, {1000, 2, 2}, {32768, 2, 64}, {32767, 2, 64}, {16384, 2, 64}, {16383, 2, 32},
	} {
		if n := defaultShards(c.keys, c.processors); n != c.want {
			t.Errorf("%d keys, %d processors: %d shards, want %d", c.keys, c.processors, n, c.want)
		}
	}
}
