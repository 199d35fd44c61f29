package lease_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/lease"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
)

// BenchmarkHotKey compares a Take of one key from a lease with one of a store in memory.
func BenchmarkHotKey(b *testing.B) {
	for _, leased := range []bool{false, true} {
		b.Run(fmt.Sprintf("leased=%v", leased), func(b *testing.B) {
			inner, err := memstore.New(memstore.Config{})
			if err != nil {
				b.Fatal(err)
			}
			defer inner.Close()
			var s store.Store = inner
			if leased {
				l := open(b, inner, lease.Config{})
				defer l.Close()
				s = l
			}
			l, err := dipwell.New(s, dipwell.Limit{Name: "hot", Rate: 1e9, Period: time.Second, Burst: 1e9, Lease: 250 * time.Millisecond})
			if err != nil {
				b.Fatal(err)
			}
			for end := time.Now().Add(time.Second); time.Now().Before(end); {
				if _, err := l.Take(b.Context(), "hot", "user:7", 1); err != nil {
					b.Fatal(err)
				}
			}
			var fromLease int64
			b.ReportAllocs()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				n := int64(0)
				for pb.Next() {
					d, err := l.Take(b.Context(), "hot", "user:7", 1)
					if err != nil || !d.Allowed {
						b.Error(err, d)
						return
					}
					if d.Source == store.SourceLease {
						n++
					}
				}
				counted.Lock()
				fromLease += n
				counted.Unlock()
			})
			b.ReportMetric(float64(fromLease)/float64(b.N), "leased/op")
		})
	}
}

var counted sync.Mutex
