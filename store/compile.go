package store

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/dipwell/dipwell/internal/adaptive"
	"github.com/dipwell/dipwell/internal/algebra"
	"github.com/dipwell/dipwell/internal/period"
	"github.com/dipwell/dipwell/internal/terms"
)

// ticks are the possible lengths of a bucket's tick, in µs, finest first.
var ticks = [...]int64{1, 1e3, 1e6, 60e6}

// compile checks a limit and returns its rule. The error is a *FieldError. The
// warning is a sentence, or "": it says why a valid limit cannot reach its rate.
func (l Limit) compile() (r Rule, warning string, err error) {
	c := compiler{Limit: l}
	if err = inOrder(c.check, c.checkBlock, c.checkLease, c.checkShards, c.checkNumbers, c.checkAdaptive, c.compile, c.checkPlans); err != nil {
		return Rule{}, "", err
	}
	return c.r, c.warning(), nil
}

// inOrder calls functions until one returns an error, and returns that error.
func inOrder(calls ...func() error) error {
	for _, call := range calls {
		if err := call(); err != nil {
			return err
		}
	}
	return nil
}

// compile checks the limit and makes its rule. The order of the checks decides which of
// several mistakes is reported.
func (c *compiler) compile() error {
	switch {
	case c.Algorithm == Concurrency:
		c.concurrency()
		return nil
	case c.windowed():
		return c.window()
	}
	return c.bucket()
}

// compileVariant returns a limit with the settings of one of its plans, and the rule compiled
// from that. start replaces the limit's Start, unless it is "". every is the tick of the
// base. The error is a *FieldError about the base limit.
func (l Limit) compileVariant(p *Plan, start string, every int64) (Limit, Rule, error) {
	c := compiler{Limit: l.with(p), every: every, plan: p.Name}
	c.Plans, c.Start = Plans{}, cmp.Or(start, c.Start)
	if p.Name != "" && (p.Mode == Unlimited || p.Mode == Blocked) && (p.Rate != 0 || p.Period != 0 || p.Burst != 0 || p.MaxDebt != 0) {
		return c.Limit, Rule{}, c.bad("mode", "%s leaves the key to the base limit; leave out rate, per, burst and max_debt", planModes[p.Mode])
	}
	if p.Period != 0 && p.Period != l.Period && (l.windowed() || l.Algorithm == Concurrency) {
		return c.Limit, Rule{}, c.bad("per", "a plan of a window or an interval keeps the period of the limit")
	}
	err := inOrder(c.checkNumbers, c.compile)
	return c.Limit, c.r, err
}

// checkPlans checks the plans of a limit whose rule is compiled.
func (c *compiler) checkPlans() error {
	plans, err := c.Plans.parse()
	if err != nil {
		return c.bad("plans", "%v", err)
	}
	if len(plans) > maxPlans {
		return c.bad("plans", "there are %d; at most %d", len(plans), maxPlans)
	}
	for i := range plans {
		p := &plans[i]
		if i > 0 && p.Name == plans[i-1].Name {
			return c.bad("plans", "plan %s is there twice", p.Name)
		}
		if c.Shards > 1 && !p.OverrideOnly {
			return c.bad("plans", "plan %s: callable: is false in a limit with shards", p.Name)
		}
		if no := c.holdless(); p.Children && no != "" && c.Algorithm != LeakyBucket {
			return c.bad("plans", "plan %s: callable: children is not for %s, which is no parent", p.Name, no)
		}
		if _, _, err := c.compileVariant(p, "", c.r.Every); err != nil {
			return err
		}
	}
	return nil
}

// concurrency makes the rule of a limit whose tokens come back only when holds end: its
// first tick is later than any time that can be counted.
func (c *compiler) concurrency() {
	c.r = Rule{Unit: 1, Every: MaxInt, Add: MaxInt, Cap: c.burst, Burst: c.burst, Most: c.burst, MaxCharge: c.burst, MaxUsed: MaxInt, Enough: 1}
}

// KeyParts returns how many parts the keys of a limit have if they are paths and it has
// no Parent.
func (l *Limit) KeyParts() int64 {
	if l.Shared {
		return 0
	}
	return max(l.Parts, 1)
}

// windowed reports whether a limit's tokens come back at the boundaries of windows.
func (l *Limit) windowed() bool {
	return l.Algorithm == FixedWindow || l.Algorithm == Interval || l.Algorithm == SlidingWindow
}

// A compiler makes the rule of a limit, with the defaults filled in.
type compiler struct {
	Limit
	r                   Rule
	burst, debt, charge int64 // tokens
	carved              int64 // by how many tokens the bucket of a leased limit is smaller than its burst
	unlimited           bool
	every               int64  // the tick of the base, if a bucket's plan is compiled; 0: any tick
	plan                string // the plan whose rule is made; "" is the base
}

// bad returns the error for a wrong setting. If a plan is being compiled, the error names it.
func (c *compiler) bad(field, format string, args ...any) error {
	reason := fmt.Sprintf(format, args...)
	if c.plan != "" {
		field, reason = "plans", fmt.Sprintf("plan %s: %s: %s", c.plan, field, reason)
	}
	return &FieldError{Limit: c.Name, Field: field, Reason: reason}
}

// check checks those settings that plans cannot change and that most limits may have.
func (c *compiler) check() error {
	switch {
	case checkName(c.Name) != "":
		return &FieldError{Field: "name", Reason: checkName(c.Name)}
	case int(c.Algorithm) >= len(algorithms):
		return c.bad("algorithm", "unknown; it is one of %s", strings.Join(algorithms, ", "))
	case int(c.OnChange) >= len(policies):
		return c.bad("on_change", "unknown; it is one of keep, proportional, reset")
	case c.Mode > Shadow:
		return c.bad("mode", "unknown; it is one of enforce, shadow; unlimited and blocked are for plans")
	case int(c.OnStoreError) >= len(failures):
		return c.bad("on_store_error", "unknown; it is one of closed, open, local")
	case c.RetryJitter < 0 || c.RetryJitter > 100:
		return c.bad("retry_jitter", "%d%% is not between 0%% and 100%%", c.RetryJitter)
	case c.Timeout < 0:
		return c.bad("timeout", "%v is negative", c.Timeout)
	case c.Parent != "" && checkName(c.Parent) != "":
		return c.bad("parent", "%s", checkName(c.Parent))
	case c.Parent == c.Name:
		return c.bad("parent", "a limit cannot be its own parent")
	case c.Parts < 0 || c.Parts > maxParts:
		return c.bad("parts", "%d is not between 1 and %d", c.Parts, maxParts)
	case c.Parent != "" && c.Parts != 0:
		return c.bad("parts", "is for a limit without a parent; the keys of this one have one part more than those of %s", c.Parent)
	case c.Shared && c.Parent != "":
		return c.bad("shared", "is for a limit without a parent")
	case c.Shared && c.Parts != 0:
		return c.bad("shared", "is for a limit without parts: its calls have no key")
	case c.TTL != 0 && (c.TTL < terms.MinHoldTTL || c.TTL > maxTTL):
		return c.bad("ttl", "%v is not between 1ms and 31d", c.TTL)
	case c.Shards < 0 || c.Shards > maxShards:
		return c.bad("shards", "%d is not between 1 and %d", c.Shards, maxShards)
	case c.TTL != 0 && c.holdless() != "":
		return c.bad("ttl", "is not for %s, which has no holds", c.holdless())
	case c.KeepExpired && c.holdless() != "":
		return c.bad("on_expire", "is not for %s, which has no holds", c.holdless())
	}
	return nil
}

// holdless says why calls of a limit cannot hold tokens, or returns "".
func (c *compiler) holdless() string {
	switch {
	case c.Algorithm == LeakyBucket:
		return "a leaky bucket"
	case c.Algorithm == SlidingWindow:
		return "a sliding window"
	case c.Shards > 1:
		return "a limit with shards"
	case c.Adaptive != (Adaptive{}):
		return "an adaptive limit"
	}
	return ""
}

// checkShards checks those settings of a limit with shards that its plans cannot change.
func (c *compiler) checkShards() error {
	switch {
	case c.Shards < 2:
		return nil
	case c.Algorithm != TokenBucket:
		return c.bad("shards", "is for token buckets")
	case c.Parent != "":
		return c.bad("shards", "is not for a limit with a parent")
	case c.Parts != 0:
		return c.bad("shards", "is not for a limit whose keys are paths")
	}
	return nil
}

// checkNumbers checks the settings that a plan may change, and those that they
// depend on, and fills in their defaults.
func (c *compiler) checkNumbers() error {
	switch {
	case c.Algorithm == Concurrency:
		return c.checkConcurrency()
	case c.Rate == 0:
		return c.bad("rate", "is missing; it is the number of tokens that come back in each per")
	case c.Algorithm == SlidingWindow && (c.Rate < 1 || c.Rate > algebra.MaxHalf):
		return c.bad("rate", "%d is not between 1 and 2^26-1, the most of a sliding window", c.Rate)
	case c.Rate < 1 || c.Rate > MaxInt:
		return c.bad("rate", "%d is not between 1 and 2^53-1", c.Rate)
	case c.Period < 0 && !c.windowed():
		return c.bad("per", "months and years are for windows and intervals; a bucket needs a fixed length such as 30d")
	case c.Period == 0:
		return c.bad("per", missingPeriod)
	case c.Period < -period.MaxMonths:
		return c.bad("per", "%d months are more than %d", -int64(c.Period), period.MaxMonths)
	case c.Period > 0 && c.Period%time.Microsecond != 0:
		return c.bad("per", "%v is not a whole number of microseconds", c.Period)
	case c.Burst < NoBurst || c.Burst > MaxInt:
		return c.bad("burst", "%d is not between 0 and 2^53-1", c.Burst)
	case c.MaxDebt < UnlimitedDebt || c.MaxDebt > MaxInt:
		return c.bad("max_debt", "%d is not between 0 and 2^53-1, or unlimited", c.MaxDebt)
	case c.MaxCharge < 0 || c.MaxCharge > MaxInt:
		return c.bad("max_charge", "%d is not between 1 and 2^53-1", c.MaxCharge)
	case c.Start != "" && !c.windowed():
		return c.bad("start", "is for windows and intervals; a bucket refills all the time")
	case c.Algorithm == LeakyBucket && c.Burst != 0 && c.Burst != 1:
		return c.bad("burst", "a leaky bucket lets out one at a time; its queue is max_debt")
	case c.Algorithm == SlidingWindow:
		if err := c.checkSliding(); err != nil {
			return err
		}
	}
	return c.defaults()
}

// checkSliding is the part of checkNumbers for sliding windows.
func (c *compiler) checkSliding() error {
	_, err := period.ParseDuration(c.Start)
	switch {
	case c.Period < 0 || c.Period > maxSliding:
		return c.bad("per", "%s is longer than 100d, the longest sliding window", period.Format(c.Period))
	case c.Burst != 0:
		return c.bad("burst", "is not for a sliding window, which has its rate")
	case c.MaxDebt != 0 && c.MaxDebt != NoDebt:
		return c.bad("max_debt", "is 0 for a sliding window")
	case c.Start != "" && err != nil:
		return c.bad("start", "of a sliding window is an offset such as 0s")
	case c.Parent != "":
		return c.bad("parent", "is not for a sliding window")
	case c.Parts != 0:
		return c.bad("parts", "is not for a sliding window, which is no parent")
	}
	c.MaxDebt = NoDebt
	return nil
}

// checkConcurrency is checkNumbers for a concurrency limit.
func (c *compiler) checkConcurrency() error {
	switch {
	case c.Rate != 0:
		return c.bad("rate", "is not for a concurrency limit; its tokens come back when holds end")
	case c.Period != 0:
		return c.bad("per", "is not for a concurrency limit; its tokens come back when holds end")
	case c.Burst == 0:
		return c.bad("burst", "is missing; it is the number of tokens that may be held at once")
	case c.Burst < 1 || c.Burst > MaxInt:
		return c.bad("burst", "%d is not between 1 and 2^53-1", max(c.Burst, 0))
	case c.MaxDebt != 0 && c.MaxDebt != NoDebt:
		return c.bad("max_debt", "is not for a concurrency limit")
	case c.MaxCharge != 0:
		return c.bad("max_charge", "is not for a concurrency limit")
	case c.Start != "":
		return c.bad("start", "is for windows and intervals")
	case c.OnChange != Keep:
		return c.bad("on_change", "is keep for a concurrency limit")
	case c.KeepExpired:
		return c.bad("on_expire", "is give_back for a concurrency limit")
	}
	c.burst = c.Burst
	return nil
}

// Bounds of sliding windows, holds, parents and shards.
const (
	maxSliding = 100 * 24 * time.Hour // 1000 times this is below 2^53 µs
	maxShards  = 64                   // a refusal reads all rows of a key, so their number is bounded
	maxTTL     = 31 * 24 * time.Hour
	maxParts   = 16
)

// defaults fills in the defaults of the settings that depend on others.
func (c *compiler) defaults() error {
	switch c.burst = c.Burst; {
	case c.Algorithm == LeakyBucket:
		c.burst = 1
	case c.Burst == NoBurst:
		c.burst = 0
	case c.Burst == 0:
		c.burst = c.Rate
	}
	switch c.debt = c.MaxDebt; c.MaxDebt {
	case 0:
		c.debt = c.burst
	case NoDebt:
		c.debt = 0
	case UnlimitedDebt:
		c.unlimited, c.debt = true, 0
	}
	if c.Shards > 1 {
		if err := c.share(); err != nil {
			return err
		}
	}
	if c.Adaptive != (Adaptive{}) {
		if c.MaxDebt != 0 && c.MaxDebt != NoDebt {
			return c.bad("max_debt", "is 0 for an adaptive limit")
		}
		c.MaxDebt, c.debt = NoDebt, 0
	}
	if c.burst == 0 && c.debt == 0 && !c.unlimited {
		return c.bad("burst", "0 grants nothing unless max_debt lets work be scheduled ahead")
	}
	c.charge = cmp.Or(c.MaxCharge, min(10*max(c.burst, 1), MaxInt))
	return nil
}

// share gives each row of a key with shards an equal part of the burst, and no debt. The
// burst of a plan or an override is first cut down to a multiple of the shards.
func (c *compiler) share() error {
	switch left := c.burst % c.Shards; {
	case c.MaxDebt != 0 && c.MaxDebt != NoDebt:
		return c.bad("max_debt", "is 0 for a limit with shards")
	case c.burst < c.Shards:
		return c.bad("burst", "%d is too small for %d shards; at least %d", c.burst, c.Shards, c.Shards)
	case left != 0 && c.every == 0:
		return c.bad("burst", "%d is not a multiple of %d shards; %d is", c.burst, c.Shards, c.burst-left)
	}
	c.burst /= c.Shards
	c.MaxDebt, c.debt = NoDebt, 0
	return nil
}

// rows returns how many rows a key has.
func (c *compiler) rows() int64 { return max(c.Shards, 1) }

// bucket chooses the finest tick with which all numbers fit. If no tick fits the defaults
// of max_charge and max_debt, it lowers them, in that order.
func (c *compiler) bucket() error {
	length := c.Period.Microseconds() * c.rows()
	if c.Lease != 0 {
		if err := c.carve(); err != nil {
			return err
		}
	}
	debt, charge := c.given()
	for _, need := range [...]int64{c.burst + c.debt + c.charge, c.burst + c.debt + charge, c.burst + debt + charge} {
		for _, every := range ticks {
			if length%every != 0 || c.every != 0 && every != c.every {
				continue
			}
			unit, add := c.perTick(length, every)
			if most := mostUnits(every, add); most/unit >= need {
				if c.Lease != 0 && every > mostLeasedTick {
					return c.bad("lease", "a bucket of this size counts in ticks of %s; a lease needs ticks of at most 1ms", period.Format(time.Duration(every)*time.Microsecond))
				}
				c.r = Rule{Unit: unit, Every: every, Add: add, Leaky: c.Algorithm == LeakyBucket}
				c.fill(most, charge)
				return nil
			}
		}
	}
	return c.tooLarge(length, debt+charge)
}

// given returns max_debt and max_charge, or 0 where one is a default, which may be lowered.
func (c *compiler) given() (debt, charge int64) {
	if c.MaxDebt != 0 {
		debt = c.debt
	}
	if c.MaxCharge != 0 {
		charge = c.charge
	}
	return debt, charge
}

// perTick returns the units of a bucket's token, and the units that come back at a tick.
// Both are larger for an adaptive limit, whose tokens have at least 1024 units for its
// fractions.
func (c *compiler) perTick(length, every int64) (unit, add int64) {
	g := algebra.GCD(c.Rate, length/every)
	unit, add = length/every/g, c.Rate/g
	if c.Adaptive == (Adaptive{}) {
		return unit, add
	}
	scale := algebra.QuoUp(adaptive.Full, unit)
	return unit * scale, add * scale
}

// tooLarge returns the error for a bucket whose numbers cannot be counted at any tick.
// The error names the largest burst that fits, if there is one.
func (c *compiler) tooLarge(length, others int64) error {
	var room int64
	for _, every := range ticks {
		if length%every == 0 && (c.every == 0 || every == c.every) {
			unit, add := c.perTick(length, every)
			room = max(room, mostUnits(every, add)/unit-others)
		}
	}
	return c.largerThan(room * c.rows())
}

// largerThan returns the error for a burst that does not fit into room.
func (c *compiler) largerThan(room int64) error {
	if room < 1 {
		return c.bad("rate", "%d per %s is too slow, or max_debt and max_charge too large, to count exactly with any burst", c.Rate, period.Format(c.Period))
	}
	return c.bad("burst", "%d at %d per %s is too large to count exactly; at most %d", c.burst*c.rows(), c.Rate, period.Format(c.Period), room)
}

// window makes the rule of a window or an interval: Rate tokens come back at each tick.
func (c *compiler) window() error {
	r := &c.r
	r.Unit, r.Add = 1, c.Rate
	if c.Period > 0 {
		r.Every = c.Period.Microseconds()
	}
	longest := r.Every
	if err := c.start(); err != nil {
		return err
	}
	if r.Calendar != nil {
		longest = r.Calendar.Longest()
	}
	debt, charge := c.given()
	most := mostUnits(longest, r.Add)
	if r.Sliding = c.Algorithm == SlidingWindow; r.Sliding {
		most, c.MaxCharge = algebra.MaxHalf, c.charge // any charge fits, because used stops at the bound
	} else if most < c.burst+debt+charge {
		return c.largerThan(most - debt - charge)
	}
	c.fill(most, charge)
	return nil
}

// firstCall is the text of a Start by which windows begin with a call.
const firstCall = "first_call"

// start sets where windows begin.
func (c *compiler) start() error {
	r := &c.r
	if c.Period < 0 {
		r.Every, r.Calendar = 0, &terms.Calendar{Location: time.UTC, Months: -int64(c.Period)}
	}
	switch {
	case c.Start == "":
		r.Spread = true
		return nil
	case c.Start == firstCall && c.Period < 0:
		return c.bad("start", "%s needs a per of a fixed length such as 30d, not %s", firstCall, period.Format(c.Period))
	case c.Start == firstCall:
		r.Origin = FirstCall
		return nil
	}
	if offset, err := period.ParseDuration(c.Start); err == nil {
		if us := offset.Microseconds(); us < r.shortest() {
			r.Origin = us
			return nil
		}
		return c.bad("start", "%s is not shorter than the period; start is when windows begin, such as 0s or '00:00 UTC', and per how long they are", c.Start)
	}
	cal := r.Calendar
	if cal == nil {
		cal = &terms.Calendar{Days: int64(c.Period / (24 * time.Hour))}
	}
	if err := cal.ParseStart(c.Start); err != nil {
		return c.bad("start", "%v", err)
	}
	if c.Period > 0 && (c.Period%(24*time.Hour) != 0 || cal.Days != 1 && cal.Days != 7 && cal.Days != 14) {
		return c.bad("start", "a wall clock needs per to be 1d, 1w, 2w, 1mo, 3mo, 6mo or 1y, not %s", period.Format(c.Period))
	}
	r.Every, r.Calendar = 0, cal
	return nil
}

// fill completes a rule whose ticks are known. charge is the explicit max_charge, or 0.
// Default values share what is left of most; max_debt is served first.
func (c *compiler) fill(most, charge int64) {
	r := &c.r
	room := most/r.Unit - c.burst
	if c.MaxDebt == 0 {
		c.debt = min(c.debt, room-charge)
	}
	if c.MaxCharge == 0 {
		c.charge = max(1, min(c.charge, room-c.debt))
	}
	c.burst -= c.carved
	r.Burst, r.MaxCharge, r.MaxUsed = c.burst, c.charge, most
	r.Cap, r.Debt = c.burst*r.Unit, c.debt*r.Unit
	if c.unlimited {
		r.Debt = most - r.Cap
	}
	r.Most = (r.Cap + r.Debt) / r.Unit
	r.Enough = algebra.QuoUp(r.MaxUsed, r.Add)
}

// mostUnits returns the largest number of units that comes back within MaxInt µs.
func mostUnits(every, add int64) int64 {
	ticks := MaxInt/every - 1
	if ticks < 1 {
		return 0
	}
	return algebra.MulDiv(ticks, add, 1, false)
}

// warning returns a warning if the cap is so small that it cuts off fractions of
// tokens: a caller who calls at every retry time then gets less than the rate.
func (c *compiler) warning() string {
	r := &c.r
	if c.Algorithm == Concurrency || r.Cap == 0 || r.Cap >= r.Unit+r.Add-1 {
		return ""
	}
	perTick := min(float64(r.Burst), float64(r.Add)/float64(r.Unit))
	if r.Burst == 1 {
		perTick = 1 / float64(algebra.QuoUp(r.Unit, r.Add))
	}
	reach := perTick
	if !c.windowed() {
		reach *= float64(c.Period.Microseconds()) / float64(r.Every)
	}
	n := c.rows()
	return fmt.Sprintf("limit %s: a burst of %d is too small for %d per %s: at most %.6g can be reached",
		c.Name, r.Burst*n, c.Rate, period.Format(c.Period), reach*float64(n))
}

// checkName returns what is wrong with the name of a limit, or "".
func checkName(name string) string {
	if name == "" {
		return "is missing"
	}
	if len(name) > terms.MaxName {
		return fmt.Sprintf("has %d bytes; at most %d", len(name), terms.MaxName)
	}
	for i := range len(name) {
		if name[i] <= ' ' && (name[i] != ' ' || i == 0 || i == len(name)-1) || name[i] > '~' {
			return fmt.Sprintf("%q is not printable ASCII without spaces at its ends", name)
		}
	}
	return ""
}
