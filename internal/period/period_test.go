package period_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dipwell/dipwell/internal/period"
)

func TestParse(t *testing.T) {
	for s, want := range map[string]time.Duration{
		"250ms": 250 * time.Millisecond, "1s": time.Second, "1m": time.Minute, "1h": time.Hour, "1d": 24 * time.Hour, "1w": 7 * 24 * time.Hour,
		"1h30m": 90 * time.Minute, "1mo": period.Month, "3mo": 3 * period.Month, "1y": period.Year, "7us": 7 * time.Microsecond,
	} {
		if got, err := period.Parse(s); got != want || err != nil {
			t.Errorf("%s: %v, %v; want %v", s, got, err, want)
		}
	}
	for _, s := range []string{"", "0s", "1", "s", "-1s", "1.5s", "1x", "1s ", " 1s", "0mo", "1201mo", "101y", "999999999999d", "99999999999999999999s", "mo", "+1s"} {
		if d, err := period.Parse(s); err == nil {
			t.Errorf("%q was read as %v", s, d)
		}
	}
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := rapid.OneOf(
			rapid.Map(rapid.Int64Range(1, 1<<50), func(n int64) time.Duration { return time.Duration(n) * time.Microsecond }),
			rapid.Map(rapid.Int64Range(1, 5000), func(n int64) time.Duration { return time.Duration(n) * time.Hour }),
			rapid.Map(rapid.Int64Range(1, 1200), func(n int64) time.Duration { return time.Duration(n) * period.Month }),
		).Draw(t, "period")
		if got, err := period.Parse(period.Format(d)); err != nil || got != d {
			t.Fatalf("%d as %q: %d, %v", d, period.Format(d), got, err)
		}
	})
}
