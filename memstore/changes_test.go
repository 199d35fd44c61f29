package memstore_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
)

// TestYearOfChanges changes a limit once a minute for a year, while 1,000 of its keys are
// in use. Some of them were drained when the year began and are rarely called, so that
// their rows are of old versions. The memory that the limit takes stays below a megabyte.
func TestYearOfChanges(t *testing.T) {
	changes := 365 * 24 * 60
	if testing.Short() {
		changes /= 20
	}
	now := int64(1e15)
	s := open(t, memstore.Config{MaxKeys: 4096, Clock: func() int64 { return now }})
	l, err := dipwell.New(s)
	if err != nil {
		t.Fatal(err)
	}
	take := func(key string, cost int64) {
		if d, err := l.Take(t.Context(), "api", key, cost); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
	}
	limit := dipwell.Limit{Name: "api", Rate: 60, Period: time.Hour, Burst: 1 << 20}
	change := func(i int) {
		limit.Rate, limit.OnChange = int64(60+i%7), []store.ChangePolicy{store.Keep, store.Proportional}[i%2]
		if _, err := l.Define(t.Context(), limit, store.OwnerCode); err != nil {
			t.Fatal(i, err)
		}
	}
	change(0)
	for i := range 20 {
		take(fmt.Sprint("drained ", i), 1<<20)
	}
	before := heap()
	for i := range changes {
		now += 60e6
		change(i + 1)
		take(fmt.Sprint("key ", i%1000), 30)
		if i%1000 == 0 {
			take(fmt.Sprint("drained ", i/1000%20), 0)
		}
		if i == changes/2 || i == changes-1 {
			if n := int64(heap() - before); n > 1<<20 {
				t.Errorf("after %d changes the limit takes %d bytes", i+1, n)
			}
		}
	}
	if n := len(l.Limit("api").Past); n > 64 {
		t.Errorf("%d versions are kept", n)
	}
}

// BenchmarkChange changes a limit while 1,000 drained keys are in use, after it was changed
// a number of times. Most changes take microseconds; every 32nd converts the rows.
func BenchmarkChange(b *testing.B) {
	for _, before := range []int{0, 100_000} {
		b.Run(fmt.Sprint("after=", before), func(b *testing.B) {
			now := int64(1e15)
			l, err := dipwell.New(open(b, memstore.Config{MaxKeys: 4096, Clock: func() int64 { return now }}))
			if err != nil {
				b.Fatal(err)
			}
			limit := dipwell.Limit{Name: "api", Rate: 1, Period: 24 * time.Hour, Burst: 1000}
			change := func() {
				now += 60e6
				limit.Rate = 1 + limit.Rate%7
				if _, err := l.Define(b.Context(), limit, store.OwnerCode); err != nil {
					b.Fatal(err)
				}
			}
			drain := func() {
				for i := range 1000 {
					if _, err := l.TakeUpTo(b.Context(), "api", fmt.Sprint("key ", i), 1000); err != nil {
						b.Fatal(err)
					}
				}
			}
			change()
			drain()
			for range before {
				change()
			}
			drain() // what has come back meanwhile
			bytes := heap()
			for b.Loop() {
				change()
			}
			b.ReportMetric(float64(int64(heap()-bytes)), "B-more")
		})
	}
}

// heap returns the bytes of the heap that are in use.
func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
