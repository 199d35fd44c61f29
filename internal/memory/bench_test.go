package memory

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

var api = store.Limit{Name: "api", Rate: 1000, Period: time.Second, Burst: 1000}

// BenchmarkTake measures Limiter.Take. With 10M keys it needs a gigabyte and
// runs only if DIPWELL_BENCH_KEYS=10000000.
func BenchmarkTake(b *testing.B) {
	sizes := []int{1, 10_000, 1_000_000}
	if n, _ := strconv.Atoi(os.Getenv("DIPWELL_BENCH_KEYS")); n > 0 {
		sizes = append(sizes, n)
	}
	for _, n := range sizes {
		b.Run(fmt.Sprintf("keys=%d", n), func(b *testing.B) {
			l, keys := filled(b, n)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				d, err := l.Take(ctx, "api", keys[i], 1)
				if err != nil || !d.Allowed {
					b.Fatal(d, err)
				}
				if i++; i == len(keys) {
					i = 0
				}
			}
		})
	}
}

// BenchmarkVerbs measures calls of one key by the verbs without a fast path,
// and a Take into a reused Decision.
func BenchmarkVerbs(b *testing.B) {
	for _, verb := range []store.Verb{store.VerbTake, store.VerbCheck, store.VerbTakeUpTo} {
		b.Run(verb.String(), func(b *testing.B) {
			l, keys := filled(b, 1)
			var d dipwell.Decision
			b.ReportAllocs()
			for b.Loop() {
				if err := l.Do(ctx, &d, verb, dipwell.Take{Limit: "api", Key: keys[0], Cost: 1}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkTakeWith measures calls with a definition: the current one, an equal
// one with defaults written out, and a different one.
func BenchmarkTakeWith(b *testing.B) {
	spelled, other := api, api
	spelled.MaxDebt = 1000
	other.Rate = 5
	for _, tc := range []struct {
		name string
		with []store.Limit
	}{{"equal", []store.Limit{api, api}}, {"other words", []store.Limit{spelled, spelled}}, {"two rates", []store.Limit{api, other}}} {
		b.Run(tc.name, func(b *testing.B) {
			l := limiter(b, open(b, Config{}), api)
			b.ReportAllocs()
			failed := 0
			for i := 0; b.Loop(); i++ {
				if _, err := l.TakeWith(ctx, tc.with[i%2], "user:7", 1); err != nil {
					failed++
				}
			}
			b.ReportMetric(float64(failed)/float64(b.N), "errors/op")
		})
	}
}

// BenchmarkTwo compares one and two goroutines. ns/op is elapsed time per call,
// so with two goroutines half of it is ideal.
func BenchmarkTwo(b *testing.B) {
	for _, n := range []int{10_000, 1_000_000} {
		b.Run(fmt.Sprintf("keys=%d", n), func(b *testing.B) {
			l, keys := filled(b, n)
			var wg sync.WaitGroup
			b.ResetTimer()
			for g := range 2 {
				wg.Go(func() {
					i := g * len(keys) / 2
					for range b.N / 2 {
						if _, err := l.Take(ctx, "api", keys[i], 1); err != nil {
							b.Error(err)
							return
						}
						if i++; i == len(keys) {
							i = 0
						}
					}
				})
			}
			wg.Wait()
		})
	}
}

// BenchmarkGroups measures TakeAll of two and four keys that are allowed, the same into a
// reused Decision, and a Take of a limit with a parent.
func BenchmarkGroups(b *testing.B) {
	for _, n := range []int{2, 4} {
		l, keys := filled(b, n)
		takes := make([]dipwell.Take, n)
		for i := range takes {
			takes[i] = dipwell.Take{Limit: "api", Key: keys[i], Cost: 1}
		}
		var d dipwell.Decision
		benchAllowed(b, strconv.Itoa(n), func() (bool, error) {
			d, err := l.TakeAll(ctx, takes...)
			return d.Allowed, err
		})
		benchAllowed(b, fmt.Sprintf("reused%d", n), func() (bool, error) {
			err := l.DoAll(ctx, &d, store.VerbTake, takes)
			return d.Allowed, err
		})
	}
	tenant := store.Limit{Name: "tenant", Rate: 10, Period: time.Hour, Burst: 10_000_000}
	user := tenant
	user.Name, user.Parent = "user", "tenant"
	l := limiter(b, open(b, Config{}), tenant, user)
	var d dipwell.Decision
	benchAllowed(b, "parent", func() (bool, error) {
		d, err := l.Take(ctx, "user", "acme/ann", 1)
		return d.Allowed, err
	})
	benchAllowed(b, "reusedParent", func() (bool, error) {
		err := l.Do(ctx, &d, store.VerbTake, dipwell.Take{Limit: "user", Key: "acme/ann", Cost: 1})
		return d.Allowed, err
	})
}

// benchAllowed measures a call that is always allowed.
func benchAllowed(b *testing.B, name string, call func() (allowed bool, err error)) {
	b.Run(name, func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if allowed, err := call(); err != nil || !allowed {
				b.Fatal(allowed, err)
			}
		}
	})
}

// filled returns a limiter from which each key was taken once, and the keys in
// random order.
func filled(b *testing.B, n int) (*dipwell.Limiter, []string) {
	s := open(b, Config{})
	slow := store.Limit{Name: "api", Rate: 10, Period: time.Hour, Burst: 10_000_000}
	l := limiter(b, s, slow)
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("user:%d", i)
	}
	rand.Shuffle(n, func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	for _, k := range keys {
		take(b, l, "api", k, 1)
	}
	return l, keys
}

// BenchmarkInsert takes from a new key in each call.
func BenchmarkInsert(b *testing.B) {
	s := open(b, Config{MaxKeys: 1 << 26})
	l := limiter(b, s, store.Limit{Name: "api", Rate: 1, Period: time.Hour, Burst: 5})
	var buf [16]byte
	i := uint64(0)
	for b.Loop() {
		i++
		key := strconv.AppendUint(buf[:0], i, 10)
		if _, err := l.Take(ctx, "api", string(key), 1); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkAlgorithms measures calls of one key of each kind of limit.
func BenchmarkAlgorithms(b *testing.B) {
	for _, l := range []store.Limit{
		{Name: "bucket", Rate: 1000, Period: time.Hour, Burst: 1000},
		{Name: "window", Algorithm: store.FixedWindow, Rate: 1000, Period: time.Hour},
		{Name: "window with start", Algorithm: store.FixedWindow, Rate: 1000, Period: time.Hour, Start: "0s"},
		{Name: "month", Algorithm: store.FixedWindow, Rate: 1000, Period: -1},
	} {
		b.Run(l.Name, func(b *testing.B) {
			lim := limiter(b, open(b, Config{}), l)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := lim.Take(ctx, l.Name, "user:7", 1); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkHeld measures calls of keys that have live holds.
func BenchmarkHeld(b *testing.B) {
	for _, keys := range []int{1, 10_000} {
		for _, n := range []int{0, 1, 1000} {
			if keys*n > 100_000 {
				continue
			}
			b.Run(fmt.Sprintf("keys=%d/holds=%d", keys, n), func(b *testing.B) {
				l := limiter(b, open(b, Config{}), store.Limit{Name: "api", Rate: 1e6, Period: time.Second, Burst: 1e9})
				names := make([]string, keys)
				for i := range names {
					names[i] = fmt.Sprintf("user:%d", i)
					take(b, l, "api", names[i], 1e7)
					for j := range n {
						if _, err := l.Hold(ctx, time.Hour, fmt.Sprintf("%d:%d", i, j), dipwell.Take{Limit: "api", Key: names[i], Cost: 1}); err != nil {
							b.Fatal(err)
						}
					}
				}
				i := 0
				b.ReportAllocs()
				for b.Loop() {
					if d, err := l.Take(ctx, "api", names[i], 1); err != nil || !d.Allowed {
						b.Fatal(d, err)
					}
					if i++; i == keys {
						i = 0
					}
				}
			})
		}
	}
}

// BenchmarkSlot measures a hold and its settlement of a concurrency limit.
func BenchmarkSlot(b *testing.B) {
	l := limiter(b, open(b, Config{}), store.Limit{Name: "slots", Algorithm: store.Concurrency, Burst: 10})
	benchAllowed(b, "free", func() (bool, error) {
		d, err := l.Hold(ctx, time.Minute, "", dipwell.Take{Limit: "slots", Key: "user:7", Cost: 1})
		if err == nil {
			_, err = l.Settle(ctx, d.Hold)
		}
		return d.Allowed, err
	})
}

// BenchmarkSettle measures a hold and its settlement beside live holds of the key.
func BenchmarkSettle(b *testing.B) {
	for _, n := range []int{0, 1000} {
		b.Run(fmt.Sprintf("holds=%d", n), func(b *testing.B) {
			l := limiter(b, open(b, Config{}), store.Limit{Name: "api", Rate: 1, Period: time.Hour, Burst: 1e6})
			item := dipwell.Take{Limit: "api", Key: "user:7", Cost: 2}
			for j := range n {
				if _, err := l.Hold(ctx, time.Hour, fmt.Sprint(j), item); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				d, err := l.Hold(ctx, time.Hour, "", item)
				if err == nil {
					_, err = l.Settle(ctx, d.Hold, 1)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkBlocks begins the block of a new key in each step, below the bound of blocks and
// at it.
func BenchmarkBlocks(b *testing.B) {
	for _, full := range []bool{false, true} {
		b.Run(fmt.Sprintf("full=%v", full), func(b *testing.B) {
			most := 1 << 20
			if full {
				most = 1 << 14
			}
			l := limiter(b, open(b, Config{MaxOverrides: most, Shards: 1}), store.Limit{Name: "api", Rate: 1, Period: time.Hour, Block: time.Hour})
			i := 0
			block := func() {
				key := strconv.Itoa(i)
				take(b, l, "api", key, 1)
				take(b, l, "api", key, 1)
				i++
			}
			for i <= 1<<14 {
				block()
			}
			for b.Loop() {
				block()
			}
		})
	}
}

// BenchmarkNew takes from keys that have no row, of a limit of which other keys have overrides.
func BenchmarkNew(b *testing.B) {
	for _, n := range []int{0, 1_000_000} {
		b.Run(fmt.Sprintf("overrides=%d", n), func(b *testing.B) {
			s := open(b, Config{MaxKeys: 1 << 26, MaxOverrides: 1 << 20})
			l := limiter(b, s, store.Limit{Name: "api", Rate: 1000, Period: time.Minute, Burst: 10_000_000})
			for i := range n {
				override(b, s, store.Override{Key: strconv.Itoa(i), Rate: 1200, Period: time.Minute, Burst: 10_000_000})
			}
			keys := make([]string, 1_000_000)
			for i := range keys {
				keys[i] = fmt.Sprintf("new:%d", i)
			}
			b.ReportAllocs()
			for i := 0; b.Loop() && i < len(keys); i++ {
				if d, err := l.Take(ctx, "api", keys[i], 1); err != nil || !d.Allowed {
					b.Fatal(d, err)
				}
			}
		})
	}
}
