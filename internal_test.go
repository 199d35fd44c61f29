package dipwell

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/dipwell/dipwell/store"
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
	for _, parts := range [][]string{{Shared}, {"acme", Shared}} { // text of a user, who must not take from the bucket of all
		if _, err := checkKey(Key(parts...)); err == nil {
			t.Errorf("%q is a key", parts)
		}
	}
}

func TestCheckPath(t *testing.T) {
	for _, c := range []struct {
		key   string
		parts int
		bad   string // in the reason; "" is valid
	}{
		{"a", 1, ""},
		{"a/b", 2, ""},
		{"a%2Fb", 1, ""},
		{"", 1, "part 1 of"},
		{"a", 2, "has 1 part; "},
		{"a/b/c", 2, "has 3 parts"},
		{"/", 2, "part 1 of"},
		{"a/", 2, "part 2 of"},
		{"/a", 2, "part 1 of"},
		{"a//b", 3, "part 2 of"},
	} {
		err := checkPath("user", c.key, c.parts)
		var field *FieldError
		switch {
		case c.bad == "" && err != nil:
			t.Errorf("%q of %d: %v", c.key, c.parts, err)
		case c.bad != "" && (!errors.As(err, &field) || field.Field != "key" || !strings.Contains(field.Reason, c.bad)):
			t.Errorf("%q of %d: %v, want %q", c.key, c.parts, err, c.bad)
		}
	}
}

// FuzzKey checks that the parts of a key can be told from it, so that no text of a user
// names the bucket of somebody else, and that calls accept it only if each part is valid.
func FuzzKey(f *testing.F) {
	for _, parts := range [][2]string{{"acme", "u7"}, {"a/b", "50%"}, {"%2F", "/"}, {"", "a"}, {Shared, ""}, {"é", "\xff"}} {
		f.Add(parts[0], parts[1])
	}
	unescape := strings.NewReplacer("%2F", "/", "%25", "%")
	f.Fuzz(func(t *testing.T, a, b string) {
		for _, parts := range [][]string{{a}, {a, b}} {
			key := Key(parts...)
			stored, err := checkKey(key)
			if err == nil {
				err = checkPath("limit", stored, len(parts))
			}
			valid := len(key) <= 512
			for _, part := range parts {
				valid = valid && part != "" && utf8.ValidString(part) && !strings.Contains(part, "\x00")
			}
			if (err == nil) != valid {
				t.Fatalf("%q is %q: %v", parts, key, err)
			}
			if err != nil {
				continue
			}
			split := strings.Split(key, "/")
			for i := range split {
				split[i] = unescape.Replace(split[i])
			}
			if !slices.Equal(split, parts) {
				t.Fatalf("%q is %q, which is read as %q", parts, key, split)
			}
		}
	})
}

func TestPartsOfKey(t *testing.T) {
	for _, c := range []struct {
		parts []string
		want  string
	}{
		{[]string{"acme"}, "acme"},
		{[]string{"acme", "u7"}, "acme/u7"},
		{[]string{"a/b", "50%", "c"}, "a%2Fb/50%25/c"},
		{[]string{"%2F"}, "%252F"},
		{[]string{""}, ""}, // no key: a variable without a value would merge all callers into one bucket
		{[]string{"acme", ""}, ""},
		{[]string{"", "u7"}, ""},
	} {
		if got := Key(c.parts...); got != c.want {
			t.Errorf("%q is %q, want %q", c.parts, got, c.want)
		}
	}
}

func TestParentKey(t *testing.T) {
	for key, want := range map[string]string{"a/b/c": "a/b", "a/b": "a", "a": "", "": "", "a%2Fb": ""} {
		if got := parentKey(key); got != want {
			t.Errorf("the parent's key of %q is %q, want %q", key, got, want)
		}
	}
}

// The floor of an adaptive limit is a fraction of 1024 that is not below its rate.
func TestTarget(t *testing.T) {
	for _, l := range []Limit{
		{Rate: 250, Adaptive: Adaptive{Floor: 50}},
		{Rate: 7, Adaptive: Adaptive{Floor: 1}},
		{Rate: 300_000, Adaptive: Adaptive{Floor: 1}},
		{Rate: store.MaxInt / 2048, Adaptive: Adaptive{Floor: store.MaxInt / 2048}},
	} {
		if c := target(&l); c.Floor < 1 || c.Floor > 1024 || float64(c.Floor)/1024 < float64(l.Adaptive.Floor)/float64(l.Rate) {
			t.Errorf("%+v: %+v", l, c)
		}
	}
}
