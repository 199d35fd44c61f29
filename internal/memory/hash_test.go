package memory

import (
	"strings"
	"testing"

	"github.com/dipwell/dipwell/store"
)

// TestHashReadsEachByte checks that keys that differ in one byte or in length
// have different hashes.
func TestHashReadsEachByte(t *testing.T) {
	s := open(t, Config{})
	b := &binding{def: &store.Definition{}}
	seen := map[uint64]string{}
	add := func(key string) {
		id, _ := s.hash(key, b)
		if other, ok := seen[id]; ok && other != key {
			t.Errorf("%q and %q have one hash", key, other)
		}
		seen[id] = key
	}
	for n := range 40 {
		for _, fill := range []string{"k", "\x00"} {
			key := strings.Repeat(fill, n)
			add(key)
			for i := range n {
				for _, c := range []string{"a", "\x01", "\xff"} {
					add(key[:i] + c + key[i+1:])
				}
			}
		}
	}
}
