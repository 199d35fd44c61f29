package store

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/dipwell/dipwell/internal/period"
)

// Adaptive is a target for the latency and the errors of what is behind a limit, and
// the lowest rate to which a process goes down to meet it. Limit.Rate is the highest rate.
//
// Each process uses a fraction of the rate, which begins at 1. At a fraction f a token costs
// 1/f as many units, also under plans and overrides, so that the process takes f·Rate, and one
// call whenever the bucket is full. The store does not know the fractions: Rate and Burst hold
// whatever processes do. SQL functions always charge the price of the full rate.
//
// After a window in which more calls were slow or failed than the target allows and chance
// explains, the fraction is multiplied by 4/5, but at most once in two windows. If the
// target was met, and at some time at most 3/10 of the capacity remained, the fraction
// grows by 2 % of the rate. A window with fewer than 20 calls goes on until it has them, at
// most ten times as long: then the target is met if no call was slow or failed, and if there
// was no call at all, the fraction grows by 2 %.
//
// The zero Adaptive means a fixed rate. The following Adaptive keeps 95 % of the calls below
// 200 ms:
//
//	store.Limit{Name: "upstream", Rate: 500, Period: time.Second, Adaptive: store.Adaptive{
//		Floor: 50, Latency: 200 * time.Millisecond}}
type Adaptive struct {
	// Floor is the lowest rate, in tokens per Limit.Period: 1 to Rate. Floor has no default.
	Floor int64

	// Latency is how long a call may take without being slow: a whole number of microseconds,
	// at most 1 h. Default: latency is ignored. Latency or Errors, or both, must be set.
	Latency time.Duration
	// Quantile is the share of the calls that should be faster than Latency, 0.5 to
	// 0.999999, in whole millionths. Default: 0.95.
	Quantile float64
	// Errors is the share of the calls that may fail, 0.000001 to 0.5, in whole millionths.
	// Default of Errors: errors are ignored.
	Errors float64
	// Window is how long calls are counted before the rate may change, 100 ms to 1 h: longer,
	// the rate changes later and is affected less by chance. Default: 1 s.
	Window time.Duration
}

// Bounds of Adaptive.
const (
	minWindow  = 100 * time.Millisecond
	maxWindow  = time.Hour
	millionths = 1e6
)

// adaptiveSettings convert the fields of an Adaptive from and to text, in the order in
// which String writes them.
var adaptiveSettings = []setting[Adaptive]{
	field("floor", func(a *Adaptive) *int64 { return &a.Floor }, parsePositive, numberText),
	field("latency", func(a *Adaptive) *time.Duration { return &a.Latency }, period.ParseDuration, period.Format),
	field("quantile", func(a *Adaptive) *float64 { return &a.Quantile }, parseShare, shareText),
	field("errors", func(a *Adaptive) *float64 { return &a.Errors }, parseShare, shareText),
	field("window", func(a *Adaptive) *time.Duration { return &a.Window }, period.ParseDuration, period.Format),
}

// parseShare reads a share such as 0.95 or 2%, in whole millionths.
func parseShare(s string) (float64, error) {
	digits, percent := strings.CutSuffix(s, "%")
	share, err := strconv.ParseFloat(digits, 64)
	if percent {
		share /= 100
	}
	rounded := math.Round(share*millionths) / millionths
	if err != nil || !(share > 0 && share < 1) || math.Abs(share-rounded) > 1e-12 {
		return 0, fmt.Errorf("%q is not a share between 0 and 1 with at most six decimals, such as 0.95 or 2%%", s)
	}
	return rounded, nil
}

// shareText writes a share as parseShare reads it: 0.95.
func shareText(share float64) string { return strconv.FormatFloat(share, 'f', -1, 64) }

// String writes a as Limit.Set reads it: "floor=50;latency=200ms". String
// returns "" for a fixed rate.
func (a Adaptive) String() string { return strings.Join(explicit(adaptiveSettings, &a), ";") }

// Set changes one setting, spelled as in a configuration file: a.Set("errors", "2%"). The
// settings are floor, latency, quantile, errors and window. Set checks the value
// alone; NewDefinition checks the whole. The error begins with the setting's name; for an
// unknown name it suggests the nearest known one.
func (a *Adaptive) Set(setting, value string) error {
	if err := change(adaptiveSettings, a, setting, value); err != nil {
		return fmt.Errorf("%s: %w", setting, err)
	}
	return nil
}

// parseAdaptive reads what Adaptive.String writes, with the settings in any order. Its
// error is that of Adaptive.Set.
func parseAdaptive(text string) (a Adaptive, err error) {
	for part := range strings.SplitSeq(text, ";") {
		name, value, found := strings.Cut(part, "=")
		if !found {
			return a, fmt.Errorf("%q is not a setting such as floor=50", part)
		}
		if err = a.Set(name, value); err != nil {
			return a, err
		}
	}
	return a, nil
}

// checkAdaptive checks the settings of an adaptive limit whose other numbers are valid.
func (c *compiler) checkAdaptive() error {
	a := &c.Adaptive
	if *a == (Adaptive{}) {
		return nil
	}
	inMillionths := func(share float64) bool { return share == math.Round(share*millionths)/millionths }
	bad := func(setting, format string, args ...any) error {
		return c.bad("adaptive", setting+": "+format, args...)
	}
	switch {
	case c.Algorithm != TokenBucket:
		return c.bad("adaptive", "is for token buckets, not for algorithm %s", c.Algorithm)
	case c.Lease != 0:
		return c.bad("adaptive", "is not for a limit with a lease")
	case c.Shards > 1:
		return c.bad("adaptive", "is not for a limit with shards")
	case c.Parent != "" || c.Parts != 0:
		return c.bad("adaptive", "is neither for a limit with a parent nor for the parent of others")
	case a.Floor < 1 || a.Floor > c.Rate:
		return bad("floor", "%d is not between 1 and the rate, %d", a.Floor, c.Rate)
	case a.Latency == 0 && a.Errors == 0:
		return bad("latency", "a target is missing: give latency, errors, or both")
	case a.Latency < 0 || a.Latency > maxWindow || a.Latency%time.Microsecond != 0:
		return bad("latency", "%s is not a whole number of microseconds from 1us to 1h", lengthText(a.Latency))
	case a.Quantile != 0 && a.Latency == 0:
		return bad("quantile", "needs a latency")
	case a.Quantile != 0 && !(a.Quantile >= 0.5 && a.Quantile < 1 && inMillionths(a.Quantile)):
		return bad("quantile", "%v is not between 0.5 and 0.999999, in whole millionths", a.Quantile)
	case a.Errors != 0 && !(a.Errors > 0 && a.Errors <= 0.5 && inMillionths(a.Errors)):
		return bad("errors", "%v is not between 0.000001 and 0.5, in whole millionths", a.Errors)
	case a.Window != 0 && (a.Window < minWindow || a.Window > maxWindow || a.Window%time.Microsecond != 0):
		return bad("window", "%s is not a whole number of microseconds from 100ms to 1h", lengthText(a.Window))
	}
	return nil
}

// lengthText writes a length of time as settings do, if it can be one.
func lengthText(d time.Duration) string {
	if d < 0 || d%time.Microsecond != 0 { // a negative period is a number of months
		return d.String()
	}
	return period.Format(d)
}
