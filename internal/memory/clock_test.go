package memory

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell/store"
)

// now returns the ticker's time in ns since start, and reads the counter.
func (t *Ticker) now(start time.Time) int64 {
	count := counter()
	if us, ok := t.At(count); ok {
		return us * 1000
	}
	return t.Read(start, 0, count) * 1000
}

// The ticker's time is within its bound of the system clock, read before and
// after it.
func TestTickerKeepsTime(t *testing.T) {
	start := time.Now()
	var tick Ticker
	const off = int64(3 * time.Millisecond)
	for time.Since(start) < 50*time.Millisecond {
		before := int64(time.Since(start))
		now := tick.now(start)
		if after := int64(time.Since(start)); now < before-off || now > after+off {
			t.Fatalf("%d is not between %d and %d", now, before, after)
		}
	}
}

// If the counter jumps or changes its rate, the ticker's error stays within the
// bound.
func TestTickerDistrusts(t *testing.T) {
	start := time.Now()
	for _, lie := range []func(*Ticker){
		func(k *Ticker) { k.count += 1 << 50 },
		func(k *Ticker) { k.count -= 1 << 50 },
		func(k *Ticker) { k.count += 1 << 20 },
		func(k *Ticker) { k.pace *= 2 },
		func(k *Ticker) { k.pace = 0 },
	} {
		var tick Ticker
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

// A counter that stands still is not relied on.
func TestTickerStands(t *testing.T) {
	start := time.Now().Add(-time.Second)
	for range 1000 {
		count := counter()
		tick := Ticker{count: count, most: 1, nanos: int64(time.Since(start)) - reliance}
		if tick.Read(start, 0, count); tick.most != 0 {
			t.Fatalf("%+v", tick)
		}
	}
}

// In a bubble of testing/synctest, the store uses the bubble's time.
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

// In a bubble the counter is never used, because it advances while the bubble's
// time stands still.
func TestStoreInSynctestIgnoresTheCounter(t *testing.T) {
	spin := func(counts uint64) {
		for begun := counter(); counter() != 0 && counter()-begun < counts; {
		}
	}
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(2 * 366 * 24 * time.Hour) // the year does not matter
		s := open(t, Config{})
		l := limiter(t, s, store.Limit{Name: "api", Rate: 1, Period: time.Minute, Burst: 100})
		for range 20 { // 1 ms of the bubble for about 1 ms of the counter
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
