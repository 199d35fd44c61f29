package store

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/dipwell/dipwell/internal/adaptive"
	"github.com/dipwell/dipwell/internal/period"
	"github.com/dipwell/dipwell/internal/suggest"
)

// Adaptive is a target of latency and errors for what is behind a limit, and the bounds
// of the rate that is moved to meet it. For each window in which at least 20 calls were
// observed, the rate is multiplied by 4/5 if more of them were slow or failed than the
// target allows and chance explains, but at most once in two windows, and not while the
// share of such calls falls. It grows by 2 % of Ceiling if the target is met and 7/10 of
// the rate were used. If nothing is observed for ten windows, it moves back to Limit.Rate
// by 2 % of Ceiling a window. The rate is kept in 1/1024 of Ceiling. Plans, overrides and
// definitions of call sites have rates of their own, which stay as they are.
//
// The zero Adaptive is a fixed rate. This one keeps 95 % of the calls below 200 ms:
//
//	store.Limit{Name: "upstream", Rate: 250, Period: time.Second, Adaptive: store.Adaptive{
//		Floor: 50, Ceiling: 500, Latency: 200 * time.Millisecond}}
type Adaptive struct {
	// Floor and Ceiling bound the rate, in tokens per Limit.Period: 1 <= Floor <= Rate <=
	// Ceiling <= 1000 × Floor. Neither has a default. A window with fewer than 20 calls
	// does not change the rate, so if Floor allows fewer, a rate that has fallen to it
	// may stay there; Definition.Warning then says so.
	Floor, Ceiling int64

	// Latency is how long a call may take; those that take longer are slow. It is a whole
	// number of microseconds, at most 1 h. Default: latency is ignored. One of Latency and
	// Errors is needed.
	Latency time.Duration
	// Quantile is the share of the calls that should be faster than Latency, 0.5 to
	// 0.999999, in whole millionths. Default: 0.95.
	Quantile float64
	// Errors is the share of the calls that may fail, 0.000001 to 0.5, in whole millionths.
	// Default: errors are ignored.
	Errors float64
	// Window is how long calls are counted before the rate may change, 100 ms to 1 h. With a
	// longer one the rate changes later and is affected less by chance. Default: 1 s.
	Window time.Duration
}

// An Observation counts the calls behind an adaptive limit since the previous
// Observation. A Limiter gathers it in memory and passes it to Abilities.Observe at most
// four times in a window of the limit, not once for each call. The store adds up the
// observations of all processes that use the limit.
//
// Slow and Failed are counted apart: a call that took long and then failed is in both.
// Impossible numbers are corrected and are not an error: negative ones become 0, and Slow
// and Failed at most Count. Each number is at most 2^40.
type Observation struct {
	Count  int64 // calls that ended
	Slow   int64 // of them, those that took longer than Adaptive.Latency
	Failed int64 // of them, those that failed
	Taken  int64 // tokens of the limit that were granted, also to calls that have not ended
}

// Bounds and defaults of Adaptive.
const (
	defaultQuantile = 0.95
	defaultWindow   = time.Second
	minWindow       = 100 * time.Millisecond
	maxWindow       = time.Hour
	maxRatio        = 1000 // Ceiling / Floor at most, so that Floor is not below 1/1024 of Ceiling
	millionths      = 1e6
)

// adaptiveSettings are the fields of an Adaptive as text, in the order in which String
// writes them.
var adaptiveSettings = []struct {
	name  string
	set   func(a *Adaptive, value string) error
	value func(a *Adaptive) string // "" is the default
}{
	{"floor", func(a *Adaptive, v string) (err error) { a.Floor, err = parsePositive(v); return },
		func(a *Adaptive) string { return textUnless(a.Floor == 0, strconv.FormatInt(a.Floor, 10)) }},
	{"ceiling", func(a *Adaptive, v string) (err error) { a.Ceiling, err = parsePositive(v); return },
		func(a *Adaptive) string { return textUnless(a.Ceiling == 0, strconv.FormatInt(a.Ceiling, 10)) }},
	{"latency", func(a *Adaptive, v string) (err error) { a.Latency, err = period.ParseDuration(v); return },
		func(a *Adaptive) string { return textUnless(a.Latency == 0, period.Format(a.Latency)) }},
	{"quantile", func(a *Adaptive, v string) (err error) { a.Quantile, err = parseShare(v); return },
		func(a *Adaptive) string { return textUnless(a.Quantile == 0, shareText(a.Quantile)) }},
	{"errors", func(a *Adaptive, v string) (err error) { a.Errors, err = parseShare(v); return },
		func(a *Adaptive) string { return textUnless(a.Errors == 0, shareText(a.Errors)) }},
	{"window", func(a *Adaptive, v string) (err error) { a.Window, err = period.ParseDuration(v); return },
		func(a *Adaptive) string { return textUnless(a.Window == 0, period.Format(a.Window)) }},
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

// String writes a as Limit.Set reads it: "floor=50;ceiling=500;latency=200ms". It is ""
// for a fixed rate.
func (a Adaptive) String() string {
	var b strings.Builder
	for _, s := range adaptiveSettings {
		if v := s.value(&a); v != "" {
			if b.Len() > 0 {
				b.WriteByte(';')
			}
			b.WriteString(s.name + "=" + v)
		}
	}
	return b.String()
}

// Set changes one setting, spelled as in a configuration file: a.Set("errors", "2%"). The
// settings are floor, ceiling, latency, quantile, errors and window. Set checks the value
// alone; NewDefinition checks the whole. The error begins with the setting; an unknown one
// comes with the nearest known name.
func (a *Adaptive) Set(setting, value string) error {
	var names []string
	for i := range adaptiveSettings {
		s := &adaptiveSettings[i]
		if s.name == setting {
			if err := s.set(a, value); err != nil {
				return fmt.Errorf("%s: %w", setting, err)
			}
			return nil
		}
		names = append(names, s.name)
	}
	return fmt.Errorf("%s: unknown setting%s", setting, suggest.Name(setting, names))
}

// parseAdaptive reads what Adaptive.String writes, with the settings in any order. The
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
	case a.Floor < 1 || a.Floor > c.Rate:
		return bad("floor", "%d is not between 1 and the rate, %d", a.Floor, c.Rate)
	case a.Ceiling < c.Rate || a.Ceiling > MaxInt:
		return bad("ceiling", "%d is not between the rate, %d, and 2^53-1", a.Ceiling, c.Rate)
	case (a.Ceiling-1)/maxRatio >= a.Floor:
		return bad("ceiling", "%d is more than %d times the floor, %d", a.Ceiling, maxRatio, a.Floor)
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

// adaptive makes the rule of an adaptive limit. At the ceiling its ticks are 1/1024 µs
// long; at a lower rate they are longer.
func (c *compiler) adaptive() error {
	a, length := &c.Adaptive, c.Period.Microseconds()
	if length > MaxInt/adaptive.Full {
		return c.bad("per", "%s is too long for an adaptive limit", period.Format(c.Period))
	}
	g := gcd(a.Ceiling, adaptive.Full*length)
	unit, add := adaptive.Full*length/g, a.Ceiling/g
	target := adaptive.Config{
		Floor: mulDiv(a.Floor, adaptive.Full, a.Ceiling, true), Base: mulDiv(c.Rate, adaptive.Full, a.Ceiling, false),
		Window: orDefault(a.Window, defaultWindow).Microseconds(), Slow: -1, Failed: -1, Unit: unit, Tick: add,
	}
	target.Base = max(target.Base, target.Floor)
	if a.Latency > 0 {
		target.Slow = int64(math.Round((1 - orDefault(a.Quantile, defaultQuantile)) * millionths))
	}
	if a.Errors > 0 {
		target.Failed = int64(math.Round(a.Errors * millionths))
	}
	debt, charge := c.debt, c.charge
	if c.MaxCharge == 0 {
		charge = 0
	}
	if c.MaxDebt == 0 {
		debt = 0
	}
	most := mulDiv(MaxInt-1, mulDiv(target.Floor, add, 1, false), 1, false)
	if room := most/unit - debt - charge; room < c.burst {
		return c.bad("burst", "%d at a ceiling of %d per %s is too large to count exactly; at most %d", c.burst, a.Ceiling, period.Format(c.Period), max(0, room))
	}
	c.r = Rule{Unit: unit, Add: add}
	c.fill(most, charge)
	target.Keep = mulDiv(c.r.Cap+c.r.Debt, 1, target.Floor*add, true)
	c.r.Pace = adaptive.NewPace(target)
	return nil
}

// orDefault returns v, or otherwise if v is zero.
func orDefault[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

// adaptiveWarning returns a warning if the floor is so low that a window may have too few
// calls to change the rate.
func (c *compiler) adaptiveWarning() string {
	a := &c.Adaptive
	window := orDefault(a.Window, defaultWindow)
	calls := float64(a.Floor) * window.Seconds() / c.Period.Seconds()
	if calls >= adaptive.MinSamples {
		return ""
	}
	return fmt.Sprintf("limit %s: at its floor of %d per %s a window of %s has %.3g calls, and the rate changes only after a window with %d: it may stay at the floor; make window longer",
		c.Name, a.Floor, period.Format(c.Period), period.Format(window), calls, adaptive.MinSamples)
}

// Observe is Abilities.Observe for stores whose limits are kept by a Registry. now is the
// time of the store's clock, in µs. If the limit is no longer adaptive, nothing happens.
// The error wraps ErrUnknownLimit.
func (r *Registry) Observe(now int64, limit string, o Observation) error {
	d := r.Lookup(limit)
	if d == nil {
		return r.missing(limit)
	}
	if d.Rule.Pace != nil {
		d.Rule.Pace.Add(now, adaptive.Sample(o))
	}
	return nil
}

// CurrentRate returns the rate of an adaptive limit at the time now, in µs on the store's
// clock. rate is in tokens per Period, rounded down. reason says why it last changed:
// "defined", "latency", "errors", "used" or "unobserved". changed is the time of that, in
// µs. For any other definition it returns its Rate, "" and 0. If the store is shared,
// another process may have changed the rate since this one last read it.
func (d *Definition) CurrentRate(now int64) (rate int64, reason string, changed int64) {
	if d.Rule.Pace == nil {
		return d.Rate, "", 0
	}
	s := d.Rule.Pace.State()
	why, changed := s.Last(now)
	return mulDiv(s.History.LevelAt(now), d.Adaptive.Ceiling, adaptive.Full, false), why.String(), changed
}
