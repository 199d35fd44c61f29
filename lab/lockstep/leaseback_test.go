package lockstep

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/stack"
	"github.com/dipwell/dipwell/store"
)

// TestLeaseIsGivenBack: a process that ends in order gives back the tokens that it has not
// used. On a slow machine they may expire first, so it is tried until it works.
func TestLeaseIsGivenBack(t *testing.T) {
	limit := dipwell.Limit{Name: "back", Rate: 1, Period: time.Second, Burst: 1_000_000, Lease: time.Second, MaxDebt: dipwell.NoDebt}
	for name, url := range map[string]string{"postgres": newDatabase(t), "redis": redisURL(t) + fmt.Sprint("&prefix=back", prefixes.Add(1))} {
		t.Run(name, func(t *testing.T) {
			l := openLimiter(t.Context(), url, limit)
			until, stop := context.WithTimeout(t.Context(), time.Minute)
			defer stop()
			for i := 0; ; i++ {
				remaining, want := takeAndClose(t, l, limit.Name, fmt.Sprint("k", i))
				if remaining >= want-10 {
					return
				}
				if until.Err() != nil {
					t.Fatalf("%d remain, of %d that were not used", remaining, want)
				}
			}
		})
	}
}

// takeAndClose takes from a key until leases have answered 100 calls, ends them, and returns
// how many tokens the key has, and how many were not used.
func takeAndClose(t *testing.T, l *dipwell.Limiter, limit, key string) (remaining, unused int64) {
	t.Helper()
	s, err := stack.New(t.Context(), l.Store(), stack.Options{DenyMaxAge: time.Second, Leases: true})
	ok(t, err)
	granted := int64(0)
	for leased := 0; leased < 100; {
		d, err := l.With(s.Store).Take(t.Context(), limit, key, 10)
		if ok(t, err); d.Source == store.SourceLease {
			leased++
		}
		granted += d.Granted
	}
	ok(t, s.Close())
	d, err := l.Check(t.Context(), limit, key, 0)
	ok(t, err)
	return d.Remaining, d.Capacity - granted
}
