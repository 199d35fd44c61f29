package memory

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell/store"
)

// now is the ticker's time in ns since start, with the counter read now.
func (t *ticker) now(start time.Time) int64 {
	count := counter()
	if us, ok := t.at(count); ok {
		return us * 1000
	}
	return t.read(start, 0, count) * 1000
}

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
		l := limiter(t, open(t, Config{}), store.Limit{Name: "api", Rate: 1, Period: time.Minute})
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

// The counter goes on while the time of a bubble stands still, so it is never
// used in one, whatever the pace at which the bubble's sleeps pass.
func TestStoreInSynctestIgnoresTheCounter(t *testing.T) {
	spin := func(counts uint64) {
		for begun := counter(); counter() != 0 && counter()-begun < counts; {
		}
	}
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(2 * 366 * 24 * time.Hour) // no year is a sign of a bubble
		s := open(t, Config{})
		l := limiter(t, s, store.Limit{Name: "api", Rate: 1, Period: time.Minute, Burst: 100})
		for range 20 { // a millisecond of the bubble for about as long a time of the counter
			time.Sleep(time.Millisecond)
			spin(3_000_000)
			take(t, l, "api", "k", 1)
		}
		before, err := l.Check(ctx, "api", "k", 1)
		if err != nil {
			t.Fatal(err)
		}
		spin(1_000_000)
		after, err := l.Check(ctx, "api", "k", 1)
		if err != nil {
			t.Fatal(err)
		}
		if before.ResetAfter != after.ResetAfter {
			t.Errorf("full in %v, then in %v; the bubble's time stood still", before.ResetAfter, after.ResetAfter)
		}
	})
}
