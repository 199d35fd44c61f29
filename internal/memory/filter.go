package memory

import "math/bits"

// A filter knows of most keys without an override that they have none. A large map of
// overrides takes several cache misses to say so, which doubles the time of a take that
// finds no row. A key has up to six bits of one word. No bit is cleared, but the filter is made
// anew when filterKeys keys were added for each word: then about 1 in 250 keys without an
// override passes.
type filter struct {
	words []uint64 // the words; their number is a power of two, or 0
	added int
}

const filterKeys = 4

// at returns the word of a key, or nil if there are no words.
func (f *filter) at(tag uint32) *uint64 {
	if len(f.words) == 0 {
		return nil
	}
	return &f.words[int(tag)&(len(f.words)-1)]
}

func bitsOf(id uint64) uint64 {
	id >>= 8 // the lower bits choose the shard
	return 1<<(id&63) | 1<<(id>>6&63) | 1<<(id>>12&63) | 1<<(id>>18&63) | 1<<(id>>24&63) | 1<<(id>>30&63)
}

// passes reports whether a key may have an override.
func (f *filter) passes(id uint64, tag uint32) bool {
	word := f.at(tag)
	return word != nil && ^*word&bitsOf(id) == 0
}

func (f *filter) add(k *keyExtras) {
	f.added++
	*f.at(k.tag) |= bitsOf(k.id)
}

// filterOverride adds a key with an override, which is among the extras.
func (sh *shard) filterOverride(k *keyExtras) {
	f := &sh.filter
	if f.added < filterKeys*len(f.words) {
		f.add(k)
		return
	}
	*f = filter{words: make([]uint64, 1<<bits.Len(uint(sh.due.Len()/2)))} // has room for twice as many keys
	for _, k := range sh.due.items {
		if k.override != nil {
			f.add(k)
		}
	}
	if len(sh.ext) > 0 {
		sh.publishView()
	}
}
