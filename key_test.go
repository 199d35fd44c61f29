package dipwell

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// TestCheckKeyEachPosition checks keys of each length with each kind of byte in each
// position, because checkKey tests eight or four bytes at a time.
func TestCheckKeyEachPosition(t *testing.T) {
	for n := 1; n <= 20; n++ {
		for at := range n {
			for _, c := range []byte{0, 1, 0x7f, 0x80, 0xc3, 0xff} {
				b := []byte(strings.Repeat("k", n))
				b[at] = c
				key := string(b)
				want := utf8.ValidString(key) && c != 0
				got, err := checkKey(key)
				if key == Shared {
					want = true
					key = ""
				}
				if (err == nil) != want || want && got != key {
					t.Errorf("%q: %q, %v", key, got, err)
				}
			}
		}
	}
}

// Key joins parts as package keypath does; without parts the key is that of the shared
// bucket.
func TestKey(t *testing.T) {
	if got := Key(); got != Shared {
		t.Errorf("%q", got)
	}
	if got := Key("a/b", "50%"); got != "a%2Fb/50%25" {
		t.Errorf("%q", got)
	}
}
