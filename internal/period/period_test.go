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

// FuzzParse checks that what is read is within bounds, and is read alike once it is
// written again.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"1h30m", "250ms", "1mo", "100y", "1µs", "0s", "106751d", "1.5h", "5m5mo"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if d, err := period.Parse(s); err == nil {
			if d == 0 || d < period.MaxMonths*period.Month || d > 0 && d%time.Microsecond != 0 {
				t.Fatalf("%q is %d", s, d)
			}
			if again, err := period.Parse(period.Format(d)); err != nil || again != d {
				t.Fatalf("%q is %d, and %q is %d, %v", s, d, period.Format(d), again, err)
			}
		}
		d, err := period.ParseDuration(s)
		if got, settingErr := period.ParseSetting(s); err == nil && (settingErr != nil || got != d || d < 0) || settingErr == nil && got < 0 {
			t.Fatalf("%q is %d, %v, and as a setting %d, %v", s, d, err, got, settingErr)
		}
	})
}
