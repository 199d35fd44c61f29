package redisstore_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
)

// TestManyChanges changes a limit a thousand times while keys that are rarely called are in
// use. Few versions are stored, and none of the keys gains a token or loses one: the rate of
// each version is a token in 600,000 minutes at most.
func TestManyChanges(t *testing.T) {
	for name, c := range map[string]struct {
		every time.Duration // between two changes
		most  int           // versions that are stored
	}{
		"once a minute":       {time.Minute, 48},
		"in rapid succession": {time.Millisecond, 256 + 32},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, now := client(t), int64(1767225600e6)
			s := newStore(t, db, redisstore.Config{Prefix: "changes" + fmt.Sprint(c.most), Clock: func() int64 { return now }, Poll: -1})
			l, err := dipwell.New(s)
			if err != nil {
				t.Fatal(err)
			}
			limit := store.Limit{Name: "api", Rate: 1, Period: 365 * 24 * time.Hour, Burst: 100}
			change := func(i int) {
				limit.Burst, limit.OnChange = 100+int64(i%7), store.Keep
				if _, err := l.Define(t.Context(), limit, store.OwnerCode); err != nil {
					t.Fatal(i, err)
				}
			}
			change(0)
			key := func(i int) string { return fmt.Sprint("k", i) }
			for i := range 50 {
				if d, err := l.Take(t.Context(), "api", key(i), 40); err != nil || !d.Allowed {
					t.Fatal(d, err)
				}
			}
			for i := range 400 { // some more than the versions that are stored
				now += c.every.Microseconds()
				change(i + 1)
				if text := db.HGet(t.Context(), "changes"+fmt.Sprint(c.most)+".limits", "api").Val(); strings.Count(text, `\n`) > c.most {
					t.Fatalf("%d older versions after %d changes: %s", strings.Count(text, `\n`), i+1, text)
				}
			}
			for i := range 50 {
				if d, err := l.Check(t.Context(), "api", key(i), 0); err != nil || d.Remaining != limit.Burst-40 {
					t.Fatalf("key %d: %+v, %v", i, d, err)
				}
			}
		})
	}
}

// TestStaleProgram: a program that has not heard of a hundred changes takes from new keys.
// What it took is not lost, because the version that it knows is kept for two minutes. After
// a minute it reads the limits before it decides.
func TestStaleProgram(t *testing.T) {
	db := client(t)
	open := func() (*redisstore.Store, *dipwell.Limiter) {
		s := newStore(t, db, redisstore.Config{Prefix: "stale", Poll: -1})
		l, err := dipwell.New(s)
		if err != nil {
			t.Fatal(err)
		}
		return s, l
	}
	_, changing := open()
	limit := store.Limit{Name: "api", Rate: 1, Period: 365 * 24 * time.Hour, Burst: 100}
	change := func(n int) {
		for range n {
			limit.Burst = 201 - limit.Burst
			if _, err := changing.Define(t.Context(), limit, store.OwnerCode); err != nil {
				t.Fatal(err)
			}
		}
	}
	change(1)
	s, stale := open()
	for i := range 100 {
		change(1)
		if d, err := stale.Take(t.Context(), "api", fmt.Sprint("k", i), 40); err != nil || d.Capacity != 101 {
			t.Fatalf("%+v, %v", d, err)
		}
	}
	for i := range 100 {
		if d, err := changing.Check(t.Context(), "api", fmt.Sprint("k", i), 0); err != nil || d.Remaining != limit.Burst-40 {
			t.Fatalf("key %d: %+v, %v", i, d, err)
		}
	}
	s.Forget()
	if d, err := stale.Take(t.Context(), "api", "new", 1); err != nil || d.Capacity != limit.Burst {
		t.Fatalf("%+v, %v; want a capacity of %d", d, err, limit.Burst)
	}
}
