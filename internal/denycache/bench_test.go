package denycache_test

import (
	"context"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/denycache"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
)

// BenchmarkTake measures refusals from the cache, and the cost that it adds to grants.
func BenchmarkTake(b *testing.B) {
	hour := store.Limit{Name: "hour", Rate: 1, Period: time.Hour}
	much := store.Limit{Name: "much", Rate: 1e6, Period: time.Microsecond}
	for _, limit := range []store.Limit{hour, much} {
		inner, err := memstore.New(memstore.Config{})
		if err != nil {
			b.Fatal(err)
		}
		defer inner.Close()
		for name, s := range map[string]store.Store{"direct": inner, "cached": open(b, inner, denycache.Config{MaxAge: time.Hour})} {
			l, err := dipwell.New(s, limit)
			if err != nil {
				b.Fatal(err)
			}
			b.Run(limit.Name+"/"+name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, err := l.Take(context.Background(), limit.Name, "k", 1); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
