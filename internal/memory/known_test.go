package memory

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// A Take of a key that has a row is decided before the key and the cost are
// checked. Invalid calls must still be rejected, change nothing, and leave the
// Decision zero.
func TestTakeChecksKeyAndCost(t *testing.T) {
	s := open(t, Config{})
	l := limiter(t, s, store.Limit{Name: "api", Rate: 1, Period: time.Hour, Burst: 10})
	for _, key := range []string{"j", "k", "user:7"} {
		take(t, l, "api", key, 1)
	}
	for _, key := range []string{"", dipwell.Shared, "\x00\x00", "user:7\x00", "\xff\xfe", "user:\xc3", strings.Repeat("k", store.MaxKey+1)} {
		if d, err := l.Take(ctx, "api", key, 1); err == nil || d.Definition != nil || d.Key != "" || d.Cost != 0 {
			t.Errorf("key %q: %+v, %v", key, d, err)
		}
	}
	for _, key := range []string{"j", "k", "user:7"} {
		for _, n := range []int64{-1, math.MinInt64, store.MaxInt + 1} {
			if d, err := l.Take(ctx, "api", key, n); err == nil || d.Definition != nil || d.Key != "" || d.Cost != 0 {
				t.Errorf("key %q, cost %d: %+v, %v", key, n, d, err)
			}
		}
		for _, n := range []int64{0, 11, store.MaxInt} {
			if d, err := l.Take(ctx, "api", key, n); err != nil || d.Never != (n > 10) || d.Granted != 0 {
				t.Errorf("key %q, cost %d: %+v, %v", key, n, d, err)
			}
		}
		if d := take(t, l, "api", key, 1); d.Remaining != 8 || d.Key != key {
			t.Errorf("key %q: %+v", key, d)
		}
	}
	if n := s.Stats().Keys; n != 3 {
		t.Errorf("%d keys", n)
	}
}
