package memory

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

// windows are limits whose windows begin at times that depend on the key.
var windows = []store.Limit{
	{Name: "w", Algorithm: store.FixedWindow, Rate: 5, Period: time.Hour, Burst: 50, OnChange: store.Keep},
	{Name: "listed", Algorithm: store.Interval, Rate: 3, Period: 7 * time.Minute, Burst: 20, ListKeys: true},
}

// row returns the place of a key's row.
func (s *Store) row(t testing.TB, limit, key string) (sh *shard, i int, found bool) {
	t.Helper()
	var p place
	if err := s.place(&p, s.reg.Lookup(limit), key); err != nil {
		t.Fatal(err)
	}
	sh = &s.shards[p.shard]
	i, found = sh.find(p.id, p.tag)
	return sh, i, found
}

// TestPhaseIsRemembered changes the phases of rows and checks that each kind of
// call uses the row's phase and does not compute it.
func TestPhaseIsRemembered(t *testing.T) {
	clock := &fake{1e15}
	s := open(t, Config{Clock: clock.now, Shards: 1})
	l := limiter(t, s, windows...)
	take(t, l, "w", "k", 1)
	sh, i, _ := s.row(t, "w", "k")
	if got := sh.phases.get(i); got != terms.PhaseOf("w", "k") {
		t.Fatalf("phase %d, want %d", got, terms.PhaseOf("w", "k"))
	}
	sh.phases.set(i, 1+7e6)
	const hour = int64(3600e6)
	want := time.Duration(hour-clock.us%hour+7e6) * time.Microsecond
	for verb := store.VerbTake; verb <= store.VerbRefund; verb++ {
		d, err := dipwell.Decision{}, error(nil)
		if err = l.Do(ctx, &d, verb, dipwell.Take{Limit: "w", Key: "k", Cost: 1}); err != nil || d.ResetAfter%time.Hour != want%time.Hour || d.ResetAfter == 0 {
			t.Errorf("%s: full in %v, want %v, %v", verb, d.ResetAfter, want, err)
		}
	}
	d, err := l.TakeAll(ctx, dipwell.Take{Limit: "w", Key: "k", Cost: 1}, dipwell.Take{Limit: "listed", Key: "k", Cost: 1})
	if err != nil || d.Limits[0].ResetAfter%time.Hour != want%time.Hour {
		t.Errorf("in a group full in %v, want %v, %v", d.Limits[0].ResetAfter, want, err)
	}
}

// TestPhases moves rows in every possible way. The phase of a row must be that
// of its key, or 0 if no call needed it yet.
func TestPhases(t *testing.T) {
	clock := &fake{1e15}
	s := open(t, Config{Clock: clock.now, Shards: 2, MaxKeys: 3000})
	l := limiter(t, s, windows...)
	for _, name := range []string{"x", "y"} { // without windows
		if _, err := l.Define(ctx, store.Limit{Name: name, Rate: 1, Period: time.Minute, Burst: 9}, store.OwnerCode); err != nil {
			t.Fatal(err)
		}
	}
	rnd := rand.New(rand.NewPCG(5, 6))
	names := []string{"w", "listed", "x", "y"}
	check := func() (known int) {
		for _, name := range names {
			for k := range 4000 {
				key := fmt.Sprint(k)
				if sh, i, found := s.row(t, name, key); found {
					if got := sh.phases.get(i); got != 0 && got != terms.PhaseOf(name, key) {
						t.Fatalf("%s of %s has the phase of another: %d", key, name, got)
					} else if got != 0 {
						known++
					}
				}
			}
		}
		return known
	}
	changed, known := windows[0], 0
	for n := range 60_000 {
		name, key := names[rnd.IntN(len(names))], fmt.Sprint(rnd.IntN(1+rnd.IntN(4000)))
		verb := store.Verb(rnd.IntN(int(store.VerbReset) + 1))
		var d dipwell.Decision
		var err error
		switch at := rnd.IntN(100); {
		case at < 3:
			_, err = l.TakeAll(ctx, dipwell.Take{Limit: "w", Key: key, Cost: 1}, dipwell.Take{Limit: "x", Key: key, Cost: 1})
		case at < 5:
			def := s.reg.Lookup(name)
			err = s.Put(def, key, store.State{Used: def.Rule.Unit, TS: clock.us, Version: def.Number})
		case n%6000 == 7:
			clock.add(3 * time.Hour)
			_, err = s.Sweep(ctx, 100_000)
		case n%7000 == 9: // changes to a bucket, then to windows of another length
			if changed.Algorithm++; changed.Algorithm > store.Interval {
				changed.Algorithm, changed.Period = store.TokenBucket, changed.Period+time.Minute
			}
			_, err = l.Define(ctx, changed, store.OwnerCode)
		default:
			err = l.Do(ctx, &d, verb, dipwell.Take{Limit: name, Key: key, Cost: 1})
		}
		if err != nil && s.Stats().Keys < 2900 {
			t.Fatal(err)
		}
		clock.add(time.Duration(rnd.IntN(20)) * time.Second)
		if n%3000 == 0 {
			known += check()
		}
	}
	if known += check(); known < 1000 {
		t.Errorf("only %d rows have their phase", known)
	}
}

// TestWindowBytesPerKey bounds the memory of rows with a phase, and checks the
// phases after the table has grown.
func TestWindowBytesPerKey(t *testing.T) {
	s := open(t, Config{Clock: (&fake{1e15}).now})
	l := limiter(t, s, store.Limit{Name: "w", Algorithm: store.FixedWindow, Rate: 5, Period: 24 * time.Hour})
	const keys = 300_000
	for i := range keys {
		take(t, l, "w", fmt.Sprint(i), 1)
	}
	if each := float64(s.Stats().Bytes) / keys; each > 58 {
		t.Errorf("%.1f bytes a key", each)
	}
	for i := range keys {
		key := fmt.Sprint(i)
		if sh, i, found := s.row(t, "w", key); !found || sh.phases.get(i) != terms.PhaseOf("w", key) {
			t.Fatalf("key %s: phase %d, found %v", key, sh.phases.get(i), found)
		}
	}
}

// TestNoMemoryForMore checks that if a shard gets no memory for the phase of
// its first window or the name of its first listed key, that call fails and
// buckets of the shard still work.
func TestNoMemoryForMore(t *testing.T) {
	for _, more := range []store.Limit{windows[0], {Name: "listed", Rate: 1, Period: time.Hour, ListKeys: true}} {
		s := open(t, Config{Clock: (&fake{1e15}).now, Shards: 1})
		l := limiter(t, s, store.Limit{Name: "b", Rate: 1, Period: time.Hour, Burst: 5}, more)
		for i := range 20 {
			take(t, l, "b", fmt.Sprint(i), 1)
		}
		s.arena.mu.Lock()
		s.arena.free, s.arena.closed = nil, true
		s.arena.mu.Unlock()
		for range 2 {
			if _, err := l.Take(ctx, more.Name, "k", 1); err == nil {
				t.Errorf("%s: a key was kept without memory", more.Name)
			}
		}
		for i := range 20 {
			if d := take(t, l, "b", fmt.Sprint(i), 1); d.Remaining != 3 {
				t.Errorf("%s: key %d: %d remaining", more.Name, i, d.Remaining)
			}
			if _, err := l.Reset(ctx, "b", fmt.Sprint(i)); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestRowOlderThanItsWindows changes a limit more often than it may have versions, while a
// row lies idle of which the table does not know when its windows begin: it is from before
// the limit had windows. The changes go on, and the row gains nothing by them.
func TestRowOlderThanItsWindows(t *testing.T) {
	clock := &fake{1e15}
	s := open(t, Config{Clock: clock.now})
	w := store.Limit{Name: "w", Rate: 10, Period: 30 * 24 * time.Hour, OnChange: store.Keep}
	l := limiter(t, s, w)
	take(t, l, "w", "k", 9)
	w.Algorithm = store.FixedWindow
	for i := range int64(3000) {
		clock.us += 1e6
		w.Rate = 10 + i%2
		if _, err := s.Define(ctx, w, terms.OwnerCode); err != nil {
			t.Fatal(i, err)
		}
	}
	if n := len(s.reg.Lookup("w").Past); n > 600 {
		t.Errorf("%d versions are kept", n)
	}
	d, err := l.Check(ctx, "w", "k", 0)
	if err != nil || d.Remaining > 2 && d.ResetAfter > 0 {
		t.Errorf("%d tokens are left, %v", d.Remaining, err)
	}
	clock.us += d.ResetAfter.Microseconds()
	if d, err = l.Check(ctx, "w", "k", 0); err != nil || d.Remaining != 11 {
		t.Errorf("%d tokens are left once it is full, %v", d.Remaining, err)
	}
}
