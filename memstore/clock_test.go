package memstore

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell"
)

// The ticker's time lies within its bound of the system's, read before and
// after, for as long as the two are compared.
func TestTickerKeepsTime(t *testing.T) {
	start := time.Now()
	var tick ticker
	const off = int64(3 * time.Millisecond)
	for time.Since(start) < 50*time.Millisecond {
		before := int64(time.Since(start))
		now := tick.now(start)
		if after := int64(time.Since(start)); now < before-off || now > after+off {
			t.Fatalf("%d is not between %d and %d", now, before, after)
		}
	}
}

// A counter that jumps or changes its pace is not believed beyond the bound.
func TestTickerDistrusts(t *testing.T) {
	start := time.Now()
	for _, lie := range []func(*ticker){
		func(k *ticker) { k.count += 1 << 50 },
		func(k *ticker) { k.count -= 1 << 50 },
		func(k *ticker) { k.count += 1 << 20 },
		func(k *ticker) { k.pace *= 2 },
		func(k *ticker) { k.pace = 0 },
	} {
		var tick ticker
		for tick.most == 0 && counter() != 0 {
			tick.now(start)
		}
		lie(&tick)
		begun := time.Now()
		for time.Since(begun) < 5*time.Millisecond {
			tick.now(start)
		}
		before := int64(time.Since(start))
		now := tick.now(start)
		if after := int64(time.Since(start)); now < before-int64(3*time.Millisecond) || now > after+int64(3*time.Millisecond) {
			t.Fatalf("%d is not between %d and %d", now, before, after)
		}
	}
}

// In a bubble of testing/synctest, time is the bubble's.
func TestStoreInSynctest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, open(t, Config{}), dipwell.Limit{Name: "api", Rate: 1, Period: time.Minute})
		for range 3 {
			if d, err := l.Take(ctx, "api", "k", 1); err != nil || !d.Allowed {
				t.Fatal(d, err)
			}
			d, err := l.Take(ctx, "api", "k", 1)
			if err != nil || d.Allowed || d.RetryAfter != time.Minute {
				t.Fatal(d, err)
			}
			time.Sleep(d.RetryAfter)
		}
	})
}
