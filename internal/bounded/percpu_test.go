package bounded_test

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/dipwell/dipwell/internal/bounded"
)

type line struct {
	n atomic.Int64
	_ [56]byte
}

// Nothing is lost, however many goroutines write and whatever processors they run on.
func TestSum(t *testing.T) {
	for _, procs := range []int{1, 2, 3, 200} {
		before := runtime.GOMAXPROCS(procs)
		c := bounded.NewCopies[line]()
		if n := len(c); n < min(procs, 64) || n > 64 || n&(n-1) != 0 {
			t.Errorf("%d processors: %d copies", procs, n)
		}
		runtime.GOMAXPROCS(before + 3) // more than the copies were made for
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for i := range 10_000 {
					c.Mine().n.Add(1)
					if i%100 == 0 {
						runtime.Gosched()
					}
				}
			})
		}
		wg.Wait()
		runtime.GOMAXPROCS(before)
		var sum int64
		for i := range c {
			sum += c[i].n.Load()
		}
		if sum != 80_000 {
			t.Errorf("%d processors: %d, want 80000", procs, sum)
		}
	}
}

func BenchmarkAdd(b *testing.B) {
	b.Run("shared", func(b *testing.B) {
		var n line
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				n.n.Add(1)
			}
		})
	})
	b.Run("percpu", func(b *testing.B) {
		c := bounded.NewCopies[line]()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				c.Mine().n.Add(1)
			}
		})
	})
}
