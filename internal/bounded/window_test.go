package bounded_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/dipwell/dipwell/internal/bounded"
)

type name struct{ limit, key string }

// exact is what a window estimates: counts of the last slices.
type exact struct {
	slices []map[name]uint64 // the present one last
	n      int
}

func (e *exact) turn() { e.slices = append(e.slices, map[name]uint64{}) }

func (e *exact) add(limit, key string) { e.slices[len(e.slices)-1][name{limit, key}]++ }

func (e *exact) counts() (all map[name]uint64, events uint64) {
	all = map[name]uint64{}
	for _, s := range e.slices[max(0, len(e.slices)-e.n):] {
		for k, c := range s {
			all[k] += c
			events += c
		}
	}
	return all, events
}

// only returns which limits to list: one, or all if limit is "".
func only(limit string) func(string) bool {
	if limit == "" {
		return nil
	}
	return func(l string) bool { return l == limit }
}

// objection says where a list breaks the promise of its bounds.
func objection(top bounded.Top, all map[name]uint64, events uint64, limit string) error {
	if top.Events != events {
		return fmt.Errorf("%d events counted, %d happened", top.Events, events)
	}
	listed := map[name]bool{}
	last := ^uint64(0)
	for _, k := range top.Keys {
		of := name{k.Limit, k.Key}
		switch came := all[of]; {
		case listed[of]:
			return fmt.Errorf("%v is listed twice", of)
		case k.Error > k.Count, came < k.Count-k.Error, came > k.Count:
			return fmt.Errorf("%v came %d times, not from %d-%d to %d", of, came, k.Count, k.Error, k.Count)
		case k.Count > last:
			return fmt.Errorf("%v: %d comes after %d", of, k.Count, last)
		case limit != "" && k.Limit != limit:
			return fmt.Errorf("%v is not of limit %s", of, limit)
		}
		listed[of] = true
		last = k.Count
	}
	for of, c := range all {
		if (limit == "" || of.limit == limit) && !listed[of] && c > top.Unlisted {
			return fmt.Errorf("%v came %d times and is not listed; at most %d was promised", of, c, top.Unlisted)
		}
	}
	return nil
}

// Whatever comes, in whatever slices: the estimate is never too low, and too
// high by no more than its error.
func TestBoundsHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := bounded.WindowConfig{Counters: rapid.IntRange(1, 40).Draw(t, "counters"), Slices: rapid.IntRange(1, 4).Draw(t, "slices"), Shards: rapid.IntRange(1, 3).Draw(t, "shards")}
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		keys := rapid.IntRange(1, 100).Draw(t, "keys")
		next := func() int { return r.IntN(keys) }
		if rapid.Bool().Draw(t, "zipf") {
			z := rand.NewZipf(r, 1.01+rapid.Float64Range(0, 1).Draw(t, "s"), 1, uint64(keys-1))
			next = func() int { return int(z.Uint64()) }
		}
		w, e := bounded.NewWindow(c), &exact{n: c.Slices}
		e.turn()
		for range rapid.IntRange(0, 7).Draw(t, "turns") {
			for range rapid.IntRange(0, 500).Draw(t, "events") {
				limit, key := string(rune('a'+r.IntN(2))), fmt.Sprint("k", next())
				w.Add(limit, key)
				e.add(limit, key)
			}
			all, events := e.counts()
			for _, limit := range []string{"", "a", "b", "none"} {
				if err := objection(w.Top(rapid.IntRange(0, 60).Draw(t, "n"), only(limit)), all, events, limit); err != nil {
					t.Fatal(err)
				}
			}
			w.Turn()
			e.turn()
		}
	})
}

// The same holds for the total of all slices since the last restart, and for the sum of
// totals of several windows.
func TestTotalBoundsHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := bounded.WindowConfig{Counters: rapid.IntRange(1, 40).Draw(t, "counters"), Slices: rapid.IntRange(1, 3).Draw(t, "slices"), Shards: rapid.IntRange(1, 3).Draw(t, "shards")}
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		z := rand.NewZipf(r, 1.01+rapid.Float64Range(0, 1).Draw(t, "s"), 1, uint64(rapid.IntRange(1, 100).Draw(t, "keys")))
		var tops []bounded.Top
		sum := &exact{n: 100}
		for range rapid.IntRange(1, 3).Draw(t, "windows") {
			w := bounded.NewWindow(c)
			for range rapid.IntRange(1, 2).Draw(t, "totals") {
				e := &exact{n: 1}
				e.turn()
				sum.turn()
				for range rapid.IntRange(0, 7).Draw(t, "turns") {
					for range rapid.IntRange(0, 300).Draw(t, "events") {
						limit, key := string(rune('a'+r.IntN(2))), fmt.Sprint("k", z.Uint64())
						w.Add(limit, key)
						e.add(limit, key)
						sum.add(limit, key)
					}
					w.Turn()
				}
				all, events := e.counts()
				top := w.Restart(rapid.IntRange(0, 60).Draw(t, "n"))
				if err := objection(top, all, events, ""); err != nil {
					t.Fatal(err)
				}
				tops = append(tops, top)
			}
		}
		all, events := sum.counts()
		if err := objection(bounded.Sum(tops, rapid.IntRange(0, 60).Draw(t, "n")), all, events, ""); err != nil {
			t.Fatal("the sum: ", err)
		}
	})
}

// No error is above the events of a shard over its counters, slice by slice; and
// on a Zipf stream the busiest keys are the true ones.
func TestErrorIsSmall(t *testing.T) {
	for _, stream := range []string{"zipf", "uniform"} {
		t.Run(stream, func(t *testing.T) {
			r := rand.New(rand.NewPCG(7, 7))
			z := rand.NewZipf(r, 1.1, 1, 99999)
			w, e := bounded.NewWindow(bounded.WindowConfig{Shards: 1}), &exact{n: 6}
			e.turn()
			for i := range 400000 {
				key := fmt.Sprint("user:", r.IntN(100000))
				if stream == "zipf" {
					key = fmt.Sprint("user:", z.Uint64())
				}
				w.Add("api", key)
				e.add("api", key)
				if i%100000 == 99999 {
					w.Turn()
					e.turn()
				}
			}
			all, events := e.counts()
			top := w.Top(1024, nil)
			if err := objection(top, all, events, ""); err != nil {
				t.Fatal(err)
			}
			for _, k := range top.Keys {
				if k.Error > events/1024 {
					t.Fatalf("%v: the error is above %d", k, events/1024)
				}
			}
			if stream == "uniform" {
				return
			}
			for i := range 20 { // Zipf: the first keys are the busiest
				if want := fmt.Sprint("user:", i); top.Keys[i].Count-top.Keys[i].Error <= top.Unlisted || all[name{"api", want}] < 1000 {
					t.Errorf("place %d: %v; %s came %d times, unlisted at most %d", i, top.Keys[i], want, all[name{"api", want}], top.Unlisted)
				}
			}
		})
	}
}

func TestConcurrent(t *testing.T) {
	w := bounded.NewWindow(bounded.WindowConfig{})
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 20000 {
				w.Add("api", fmt.Sprint((g+i)%100))
				if i%1000 == 0 {
					w.Top(10, nil)
				}
			}
		})
	}
	wg.Wait()
	top := w.Top(200, nil)
	if len(top.Keys) != 100 || top.Events != 80000 || top.Unlisted != 0 {
		t.Fatal(len(top.Keys), top.Events, top.Unlisted)
	}
	for _, k := range top.Keys {
		if k.Count != 800 || k.Error != 0 {
			t.Error(k)
		}
	}
}

// Memory has the bound that is stated, with the longest keys, all of them new.
func TestMemoryIsBounded(t *testing.T) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	w := bounded.NewWindow(bounded.WindowConfig{})
	long := strings.Repeat("x", 2*bounded.MaxKey)
	fill := func() {
		for i := range 6 * 8192 {
			w.Add("api", fmt.Sprint(i)+long)
			if i%8192 == 0 {
				w.Turn()
			}
		}
	}
	fill()
	fill()
	runtime.GC()
	runtime.ReadMemStats(&after)
	used := int(after.HeapAlloc) - int(before.HeapAlloc)
	if used > 4.8e6 {
		t.Errorf("%d bytes in use", used)
	}
	if n := testing.AllocsPerRun(1000, func() { w.Add("api", long) }); n != 0 {
		t.Error(n, "allocations for an event")
	}
	runtime.KeepAlive(w)
}

func BenchmarkWindowAdd(b *testing.B) {
	r := rand.New(rand.NewPCG(7, 7))
	z := rand.NewZipf(r, 1.1, 1, 99999)
	keys := make([]string, 1<<16)
	for _, stream := range []string{"zipf", "uniform"} {
		for i := range keys {
			keys[i] = fmt.Sprint("user:", r.IntN(100000))
			if stream == "zipf" {
				keys[i] = fmt.Sprint("user:", z.Uint64())
			}
		}
		b.Run(stream, func(b *testing.B) {
			w := bounded.NewWindow(bounded.WindowConfig{})
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				w.Add("api", keys[i&(1<<16-1)])
				i++
			}
		})
	}
}
