package storetest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// keyCases test which keys are distinct, and listing and sweeping keys.
var keyCases = []testCase{
	{"keys-apart", keysApart},
	{"keys-unusual", keysUnusual},
	{"keys-many", keysMany},
	{"keys-list", keysList},
	{"sweep", sweepCase},
}

// Pairs of limit and key that are equal when concatenated are distinct.
func keysApart(e *env) {
	pairs := [][2]string{
		{"a", "b"}, {"a", "b/c"}, {"a/b", "c"}, {"a:b", "c"}, {"a", "b:c"}, {"a", ":b:c"}, {"a:", "b:c"}, {"a,b", "c"}, {"a", "b,c"},
		{"ab", "c"}, {"a", "bc"}, {"abc", dipwell.Shared}, {"a.b", "c"}, {"a", ".b.c"},
		{"a|b", "c"}, {"a", "b|c"}, {"a b", "c"}, {"a", "b c"}, {"a", " b c"}, {"a{b}", "c"}, {"a", "{b}c"}, {"a-b", "c"}, {"a", "-b-c"},
		{"A", "b"}, {"a", "B"}, {"a", "b "}, {"a", "\tb"}, {"a", "b\n"}, {"a", "\x01b"}, {"a", "0"}, {"a", "00"}, {"a", "null"}, {"a", "NULL"},
	}
	for i, p := range pairs {
		if e.l.Limit(p[0]) == nil {
			e.define(store.Limit{Name: p[0], Rate: 1, Period: time.Hour, Burst: 100, Shared: p[1] == dipwell.Shared})
		}
		e.allowed(p[0], p[1], int64(i+1), int64(99-i))
	}
	for i, p := range pairs {
		e.left(p[0], p[1], int64(99-i))
	}
	e.do(store.VerbReset, "a", "b", 0)
	for i, p := range pairs[1:] {
		e.left(p[0], p[1], int64(98-i))
	}
}

func keysUnusual(e *env) {
	e.bucket("k", 1, time.Hour, 1000)
	keys := []string{
		"é", "e\u0301", "É", "ключ", "鍵", "🔑", "👩‍👩‍👧", "\u200b", "\u00a0", "\ufeffx", "ß", "ss", "ı", "I", "i", "\U0010ffff",
		strings.Repeat("x", 512), strings.Repeat("x", 511) + "y", strings.Repeat("x", 511), strings.Repeat("鍵", 170) + "ab",
		"'", "''", "\"", "\\", "\\\\", "%", "_", "*", "?", "[a]", "{}", "{a}b", "$1", ";--", "a'); drop table x", "\r\n", "\x7f", "\x01",
		"0", "-1", "1e3", "true", "::1", "10.0.0.0/8", "user:7",
	}
	for i, key := range keys {
		e.allowed("k", key, int64(i+1), int64(999-i))
	}
	for i, key := range keys {
		if d := e.check("k", key, 0); d.Remaining != int64(999-i) || d.Key != key {
			e.Fatalf("key %q is returned as %q with %d remaining", key, d.Key, d.Remaining)
		}
	}
}

// Enough keys are used for a hash table to grow a few times.
func keysMany(e *env) {
	n := 100 * e.rounds
	e.bucket("many", 1, time.Hour, 3)
	name := func(i int) string {
		return "key:" + strings.Repeat("z", i%7) + string(rune('a'+i%26)) + time.Duration(i).String()
	}
	for i := range n {
		e.allowed("many", name(i), int64(1+i%3), int64(2-i%3))
	}
	e.sweep()
	for i := range n {
		e.left("many", name(i), int64(2-i%3))
	}
}

func keysList(e *env) {
	list := store.AbilitiesOf(e.store).Keys
	if list == nil {
		return
	}
	d := e.define(store.Limit{Name: "list", Rate: 1, Period: time.Hour, Burst: 5, ListKeys: true})
	e.define(store.Limit{Name: "other", Rate: 1, Period: time.Hour, Burst: 5, ListKeys: true})
	keys := []string{"A", "B", "a", "a b", "a%", "a'", "a*", "a1", "a10", "a2", "a\\", "a\\b", "a_", "ab", "b", "ba", "user:1", "user:10", "user:2", "z", "é", "ключ", "鍵", "🔑"}
	for i, key := range keys {
		e.take("list", key, int64(1+i%3))
		e.take("other", fmt.Sprint("of other ", i), 1)
		e.check("list", fmt.Sprint("only checked ", i), 1)
	}
	e.take("list", "gone", 1)
	e.do(store.VerbReset, "list", "gone", 0)
	page := func(prefix, after string, n int) []string {
		e.Helper()
		rows, err := list(e.ctx, d, prefix, after, n)
		e.must(rows, err)
		out := []string{}
		for _, r := range rows {
			if out = append(out, r.Key); r.Used <= 0 || r.Version != d.Number {
				e.Fatalf("key %q is listed with state %+v", r.Key, r.State)
			}
		}
		return out
	}
	slices.Sort(keys)
	with := func(prefix, after string, n int) []string {
		out := []string{}
		for _, k := range keys {
			if strings.HasPrefix(k, prefix) && (k > after || after == "") && len(out) < n {
				out = append(out, k)
			}
		}
		return out
	}
	for _, q := range []struct {
		prefix, after string
		n             int
	}{
		{"", "", 100}, {"", "", 3}, {"", "a", 3}, {"a", "", 100}, {"a", "a1", 2}, {"a%", "", 9}, {"a_", "", 9}, {"a\\", "", 9}, {"a*", "", 9},
		{"user:", "", 9}, {"user:1", "user:1", 9}, {"", "z", 9}, {"", "🔑", 9}, {"nosuch", "", 9}, {"к", "", 9}, {"", "not a key", 2}, {"b", "a", 9},
	} {
		if got, want := page(q.prefix, q.after, q.n), with(q.prefix, q.after, q.n); !slices.Equal(got, want) {
			e.Fatalf("%d keys with prefix %q after %q:\n  got  %q\n  want %q", q.n, q.prefix, q.after, got, want)
		}
	}
	for _, n := range []int{1, 4} {
		var all []string
		for after := ""; len(all) <= len(keys); {
			next := page("", after, n)
			if all = append(all, next...); len(next) < n {
				break
			}
			after = next[len(next)-1]
		}
		if !slices.Equal(all, keys) {
			e.Fatalf("pages of %d keys:\n  got  %q\n  want %q", n, all, keys)
		}
	}
}

// A sweep deletes only full rows, and returns how many.
func sweepCase(e *env) {
	sweep := store.AbilitiesOf(e.store).Sweep
	if sweep == nil {
		return
	}
	e.define(store.Limit{Name: "s", Rate: 1, Period: time.Second, Burst: 10, ListKeys: true})
	e.define(store.Limit{Name: "w", Algorithm: store.FixedWindow, Rate: 10, Period: time.Minute, Start: "0s", ListKeys: true})
	for i := range int64(10) {
		key := string(rune('a' + i))
		e.allowed("s", key, i+1, 9-i)
		e.allowed("w", key, i+1, 9-i)
	}
	e.advance(5 * time.Second)
	for range 3 {
		n, err := sweep(e.ctx, 1000)
		if e.must(n, err); n > 5 {
			e.Fatalf("a sweep returned %d deleted rows; 5 were full", n)
		}
	}
	for i := range int64(10) {
		key := string(rune('a' + i))
		e.left("s", key, min(10, 14-i))
		e.left("w", key, 9-i)
	}
	if _, err := sweep(e.ctx, 0); err != nil {
		e.Fatalf("a sweep of no rows: %v", err)
	}
	e.at(time.Minute)
	e.sweep()
	for i := range int64(10) {
		e.allowed("s", string(rune('a'+i)), 10, 0)
		e.allowed("w", string(rune('a'+i)), 10, 0)
	}
}
