package denycache_test

import (
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/denycache"
)

// TestNeverUnderAnotherCallSite checks what a call that can never be allowed is told is
// left, if another call site's definition, which gives back faster, has charged the row.
func TestNeverUnderAnotherCallSite(t *testing.T) {
	now := int64(1e15)
	clock := func() int64 { return now }
	l, err := dipwell.New(open(t, memory(t, clock), denycache.Config{MaxAge: time.Hour, Clock: func() int64 { return now - 1e15 }}),
		dipwell.Limit{Name: "site", Rate: 1, Period: time.Second, Burst: 20})
	if err != nil {
		t.Fatal(err)
	}
	take := func(rate, n int64) dipwell.Decision {
		t.Helper()
		d, err := l.TakeWith(t.Context(), dipwell.Limit{Name: "site", Rate: rate, Period: time.Second, Burst: 20}, "k", n)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	take(5, 20)
	for i := range int64(3) {
		now += 200_000
		if d := take(2, 30); d.Allowed || !d.Never || d.Remaining != i+1 {
			t.Errorf("after %d ms: %+v, want %d left", 200*(i+1), d, i+1)
		}
	}
}
