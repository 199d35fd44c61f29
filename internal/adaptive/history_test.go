package adaptive

import (
	"math/rand/v2"
	"testing"
)

// A History gives the ticks that adding up its levels gives, and Boundary is its inverse.
func TestHistory(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	for range 200 {
		floor := 1 + rng.Int64N(100)
		h := NewHistory(floor, floor+rng.Int64N(Full-floor), 0)
		const end = 2000
		want := make([]int64, end+1) // Tick of each µs
		level := h.LevelAt(0)
		for now := int64(0); now <= end; now++ {
			if now > 0 {
				want[now] = want[now-1] + level
			}
			if rng.IntN(50) == 0 {
				level = floor + rng.Int64N(Full-floor)
				h = h.set(now, level, 1<<40)
			}
			if got := h.LevelAt(now); got != level {
				t.Fatalf("level %d at %d; want %d", got, now, level)
			}
		}
		for at, k := range want {
			if got := h.Tick(int64(at)); got != k {
				t.Fatalf("tick %d at %d; want %d", got, at, k)
			}
			if got := h.Boundary(k); got != int64(at) {
				t.Fatalf("tick %d is at %d; want %d", k, got, at)
			}
			if at > 0 && h.Boundary(want[at-1]+1) != int64(at) {
				t.Fatalf("tick %d is at %d; want %d", want[at-1]+1, h.Boundary(want[at-1]+1), at)
			}
		}
	}
}

// A row older than the oldest change that is kept gets the floor up to it: never more than
// the whole history would give, and the same for a row that is younger than keep.
func TestForget(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 8))
	const floor, keep = 10, 500
	whole, short := NewHistory(floor, 100, 0), NewHistory(floor, 100, 0)
	for now := int64(1); now < 100_000; now++ {
		if rng.IntN(20) == 0 {
			level := floor + rng.Int64N(Full-floor)
			whole, short = History{floor, append(whole.changes, Change{now, level, whole.Tick(now)})}, short.set(now, level, keep)
			if len(short.changes) > maxChanges+1 {
				t.Fatalf("%d changes are kept", len(short.changes))
			}
		}
		for _, age := range []int64{1, keep - 1, keep, 2 * keep, 50 * keep} {
			from := now - age
			if from < 0 {
				continue
			}
			all, got := whole.Tick(now)-whole.Tick(from), short.Tick(now)-short.Tick(from)
			if got > all || age <= keep && got != all || got < floor*age {
				t.Fatalf("%d ticks in the last %d µs; the whole history has %d", got, age, all)
			}
		}
	}
}

// At most 256 changes are kept, however long keep is.
func TestForgetMany(t *testing.T) {
	h := NewHistory(1, 2, 0)
	for now := range int64(10_000) {
		h = h.set(now+1, 2+now%2, 1<<60)
	}
	if n := len(h.Changes()); n != maxChanges {
		t.Errorf("%d changes", n)
	}
	if got := h.Tick(10_000) - h.Tick(0); got < 10_000 || got > 30_000 {
		t.Errorf("%d ticks", got)
	}
}

// The clock may step back: a change then replaces those that are later.
func TestClockBack(t *testing.T) {
	h := NewHistory(10, 100, 0).set(50, 200, 1<<40).set(60, 300, 1<<40).set(55, 400, 1<<40)
	if h.LevelAt(54) != 200 || h.LevelAt(55) != 400 || h.LevelAt(60) != 400 || h.Tick(60)-h.Tick(50) != 5*200+5*400 {
		t.Errorf("%v", h)
	}
	h = NewHistory(10, 100, 50).set(20, 200, 1<<40)
	if h.LevelAt(40) != 10 || h.LevelAt(50) != 200 || h.Tick(50)-h.Tick(20) != 300 {
		t.Errorf("before the first change: %v", h)
	}
}
