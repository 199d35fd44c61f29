package period_test

import (
	"strings"
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

func TestRewrite(t *testing.T) {
	for s, want := range map[string]string{
		"hour": "1h", "1 hour": "1h", "15 minutes": "15m", "60": "60s", "1day": "1d", "2 Days": "2d", "1min": "1m", "0.5s": "500ms", "1.5 hours": "90m",
		"month": "1mo", "3-months": "3mo", "1 yr": "1y", "5 secs": "5s", "100 msec": "100ms", "ms": "1ms",
		"": "", "0": "", "x": "", "0.5mo": "", "1201mo": "", "1201 months": "", "1e9h": "", "999999999999999999999s": "", "9999999999d": "", "0.0000001s": "", "1..5s": "", "ss": "1s",
	} {
		if got := period.Rewrite(s); got != want {
			t.Errorf("%q: %q, want %q", s, got, want)
		}
	}
	for s, want := range map[string]string{
		"100/hour": "100/1h", "5 per 15 minutes": "5/15m", "5 requests per minute": "5/1m", "10k/s": "10000/1s", "1.5k/1s": "1500/1s", "0.5/1s": "1/2s", "2.5/1mo": "5/2mo",
		"10,000 / day": "10000/1d", "5 every 10 seconds": "5/10s", "5rps": "5/1s", "300 rpm": "300/1m", "10r/s": "10/1s", "5 a day": "5/1d", "0.1/300d": "1/3000d",
		"": "", "/": "", "5": "", "x/s": "", "0/s": "", "5/": "", "5/x": "", "0.000000001/100y": "", "9e9/1s": "", "5kk/s": "", "9999999999999g/s": "", "0.001/100y": "",
	} {
		if got := period.RewriteRate(s); got != want {
			t.Errorf("%q: %q, want %q", s, got, want)
		}
	}
}

// FuzzRewrite checks that what is written instead can be read.
func FuzzRewrite(f *testing.F) {
	for _, s := range []string{"15 minutes", "0.5h", "1201 months", "60", "5 per 15 minutes", "0.5/1s", "10k/month"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if text := period.Rewrite(s); text != "" {
			if _, err := period.Parse(text); err != nil {
				t.Fatalf("%q: %v", s, err)
			}
		}
		if text := period.RewriteRate(s); text != "" {
			_, per, _ := strings.Cut(text, "/")
			if _, err := period.Parse(per); err != nil || period.RewriteRate(text) != text {
				t.Fatalf("%q is %q: %v", s, text, err)
			}
		}
	})
}
