package main

import (
	"math/rand/v2"
	"strconv"
	"time"
)

// A workload describes the keys and costs of the calls.
type workload struct {
	keys  int // number of keys that exist before the run
	key   func(i int) string
	cost  func(i int) int
	drain int // number of keys that are emptied before the run
}

func key(i int) string { return "user:" + strconv.Itoa(i*7919) }

// visit returns element i of a permutation of 0 to n-1 without locality,
// the same for every contender.
func visit(i, n int) int { return int(uint64(i) * 2654435761 % uint64(n)) }

const drained = 100 // number of empty keys in the workload "refused"

// newWorkload also sets per and burst, so contenders must be created after it.
func newWorkload(kind string, keys int) *workload {
	w := &workload{keys: keys, cost: func(int) int { return 1 }}
	w.key = func(i int) string { return key(visit(i, keys)) }
	if keys >= 1_000_000 {
		manyKeys()
	}
	switch kind {
	case "costs":
		w.cost = func(i int) int { return 1 + i%5 }
	case "refused": // nine of ten calls go to empty keys
		per, burst, w.drain = time.Hour, 1000, drained
		w.key = func(i int) string {
			if i%10 != 0 {
				return key(visit(i, drained))
			}
			return key(drained + visit(i/10, keys))
		}
	case "zipf":
		z := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.1, 1, uint64(keys-1))
		w.key = func(int) string {
			drawn := z.Uint64()
			return key(int(drawn))
		}
	case "new":
		manyKeys()
		w.keys, w.key = 0, key
	}
	return w
}

// warm takes from each known key once, and empties some.
func (w *workload) warm(ask call) {
	for i := range w.keys {
		ask(key(i), 1)
	}
	for i := range w.drain {
		for n := 0; n <= burst && ask(key(i), 1); n++ {
		}
	}
}
