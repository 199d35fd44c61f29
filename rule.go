package dipwell

import "math/bits"

// A Rule is a limit in whole numbers: Add units come back at each tick, ticks
// are Every microseconds apart and aligned to Origin, and at most Cap units may
// be used. A token is Unit units. Every number stays at or below MaxInt.
type Rule struct {
	Unit   int64 // units in a token
	Every  int64 // µs between ticks; 0: the ticks follow a calendar
	Add    int64 // units given back at a tick
	Cap    int64 // units that Take may use
	Origin int64 // µs since the Unix epoch; for a calendar, µs after each of its boundaries

	Burst     int64 // tokens: Cap / Unit
	Debt      int64 // units that Reserve may use beyond Cap
	Most      int64 // tokens: the largest Reserve that could ever be granted
	MaxCharge int64 // tokens: the largest Charge
	MaxUsed   int64 // units: where used stops growing, so that it and its time to full stay exact

	Leaky  bool // Take means Reserve
	Spread bool // Origin depends on the key: see Definition.RuleFor

	cal   *calendar
	plain bool    // TakePlain may decide a Take
	inv   float64 // 1 / Unit, for TakePlain
}

// State is what a store keeps of a key. The zero State, a missing row, is a full bucket.
type State struct {
	Used    int64  // units taken and not yet given back
	TS      int64  // µs since the Unix epoch, on the store's clock
	Version uint32 // of the definition it was last stepped under
	Lows    *Lows  // nil where no record of the row lives; never changed in place
}

// Verb is what is asked of a bucket.
type Verb uint8

const (
	VerbTake Verb = iota
	VerbCheck
	VerbTakeUpTo
	VerbReserve
	VerbCharge
	VerbRefund
	VerbReset
)

var verbs = []string{"take", "check", "take_up_to", "reserve", "charge", "refund", "reset"}

func (v Verb) String() string { return nameOf(verbs, int(v)) }

// Outcome is what Apply decided. When Allowed, the new state is {After, TS};
// it differs from the old one only where After differs from what Before was stored as.
type Outcome struct {
	Allowed bool
	Never   bool  // the cost is more than the limit could ever hold
	Granted int64 // tokens taken
	Before  int64 // units used at TS, before this call
	After   int64 // units used at TS, after it
	TS      int64 // the instant of the decision: the later of now and the state's own
	Retry   int64 // µs from now to the first instant at which the same call would succeed
	Delay   int64 // µs from now until a reservation is due
}

// Apply decides one call: the whole algebra, side-effect free. now is in µs on
// the store's clock, cost in tokens from 0 to MaxInt. A refusal leaves After at Before.
func (r *Rule) Apply(s State, now int64, verb Verb, cost int64) (o Outcome) {
	r.apply(&o, s, now, verb, cost)
	return o
}

// apply fills a zero Outcome in place: by value it would be copied.
func (r *Rule) apply(o *Outcome, s State, now int64, verb Verb, cost int64) {
	o.TS = max(now, s.TS)
	o.Before = r.usedAt(s, o.TS)
	o.After = o.Before
	if r.Leaky && (verb == VerbTake || verb == VerbCheck) {
		r.reserve(o, now, verb, cost)
		return
	}
	switch verb {
	case VerbTake, VerbCheck:
		r.take(o, now, verb, cost)
	case VerbTakeUpTo:
		r.takeUpTo(o, now, cost)
	case VerbReserve:
		if cost == 0 && !r.Leaky { // a check of 0, which knows no debt
			r.take(o, now, VerbCheck, 0)
			return
		}
		r.reserve(o, now, verb, cost)
	case VerbCharge:
		o.Allowed = cost <= r.MaxCharge
		if o.Never = !o.Allowed; o.Allowed {
			o.Granted = cost
			o.After = min(o.Before+cost*r.Unit, max(r.MaxUsed, o.Before))
		}
	case VerbRefund:
		o.Allowed = true
		o.After = max(0, o.Before-r.unitsOf(cost))
	case VerbReset:
		o.Allowed, o.After = true, 0
	}
}

func (r *Rule) take(o *Outcome, now int64, verb Verb, cost int64) {
	if cost > r.Burst {
		o.Never = true
		return
	}
	used := o.Before + cost*r.Unit
	if used > r.Cap {
		o.Retry = r.wait(used-r.Cap, o.TS, now)
		return
	}
	o.Allowed = true
	if verb == VerbTake {
		o.Granted, o.After = cost, used
	}
}

func (r *Rule) takeUpTo(o *Outcome, now, cost int64) {
	if cost == 0 {
		r.take(o, now, VerbCheck, 0)
		return
	}
	if r.Burst == 0 {
		o.Never = true
		return
	}
	if free := r.Cap - o.Before; free >= r.Unit {
		o.Allowed = true
		o.Granted = min(cost, quo(free, r.Unit))
		o.After = o.Before + o.Granted*r.Unit
		return
	}
	o.Retry = r.wait(o.Before+r.Unit-r.Cap, o.TS, now)
}

// reserve may go into debt; under a leaky bucket it also answers Take and Check.
func (r *Rule) reserve(o *Outcome, now int64, verb Verb, cost int64) {
	if cost > r.Most {
		o.Never = true
		return
	}
	used := o.Before + cost*r.Unit
	if over := used - r.Cap - r.Debt; over > 0 {
		o.Retry = r.wait(over, o.TS, now)
		return
	}
	o.Allowed = true
	if used > r.Cap {
		o.Delay = r.wait(used-r.Cap, o.TS, now)
	}
	if verb != VerbCheck {
		o.Granted, o.After = cost, used
	}
}

// Plain reports whether TakePlain may decide a Take of this rule: a bucket
// counted in µs, which is what most limits are.
func (r *Rule) Plain() bool { return r.plain }

// TakePlain is Apply for a Take of at most Burst tokens, and what there is to
// say of it, in registers alone: it is the call that everybody makes. t is the
// instant decided at, after what is used then; the rest is an Answer's.
func (r *Rule) TakePlain(used, ts, now, cost int64) (after, t, remaining, retry, reset int64, allowed bool) {
	if t = max(now, ts); used != 0 {
		if ticks := t - ts; r.Add == 1 {
			used = max(0, used-ticks)
		} else {
			used = r.after(used, ticks)
		}
	}
	after = used + cost*r.Unit
	if over := after - r.Cap; over > 0 {
		after, retry = used, t+quoUp(over, r.Add)-now
	} else {
		allowed = true
	}
	if free := r.Cap - after; free > 0 {
		remaining = int64(float64(free) * r.inv)
		for remaining*r.Unit > free { // a product of rounded factors may be off by one or two
			remaining--
		}
		for (remaining+1)*r.Unit <= free {
			remaining++
		}
	}
	if reset = after; r.Add != 1 {
		reset = quoUp(after, r.Add)
	}
	if after != 0 {
		reset += t - now
	}
	return after, t, remaining, retry, reset, allowed
}

// Remaining is the number of whole tokens free when used units are in use.
func (r *Rule) Remaining(used int64) int64 {
	if used >= r.Cap {
		return 0
	}
	if used == 0 {
		return r.Burst
	}
	return quo(r.Cap-used, r.Unit)
}

// FullIn is the time in µs from now until nothing is used, for a row that was stepped to t.
func (r *Rule) FullIn(used, t, now int64) int64 {
	if used == 0 {
		return 0
	}
	return r.wait(used, t, now)
}

// usedAt steps a row to t, which must not lie before its own instant.
func (r *Rule) usedAt(s State, t int64) int64 {
	if s.Used == 0 || t == s.TS {
		return s.Used
	}
	return r.after(s.Used, r.tick(t)-r.tick(s.TS))
}

// mostUsedAt is usedAt for a key that is not known: an origin of its own moves
// each boundary later by less than a window, so one fewer may have passed.
func (r *Rule) mostUsedAt(s State, t int64) int64 {
	if !r.Spread || s.Used == 0 {
		return r.usedAt(s, t)
	}
	return r.after(s.Used, max(0, r.tick(t)-r.tick(s.TS)-1))
}

// after is what stays used after a number of ticks.
func (r *Rule) after(used, ticks int64) int64 {
	hi, back := bits.Mul64(uint64(ticks), uint64(r.Add))
	if hi != 0 || back >= uint64(used) {
		return 0
	}
	return used - int64(back)
}

// wait is the time in µs from now to the tick at which units will have come back.
func (r *Rule) wait(units, t, now int64) int64 {
	ticks := quoUp(units, r.Add)
	if r.Every == 1 {
		return t + ticks - now
	}
	return r.boundary(r.tick(t)+ticks) - now
}

// unitsOf is a number of tokens in units, at most MaxInt.
func (r *Rule) unitsOf(tokens int64) int64 {
	hi, lo := bits.Mul64(uint64(tokens), uint64(r.Unit))
	if hi != 0 || lo > MaxInt {
		return MaxInt
	}
	return int64(lo)
}

// tick is the number of the last tick at or before x.
func (r *Rule) tick(x int64) int64 {
	if r.Every == 1 { // any origin gives the same differences
		return x
	}
	if r.cal != nil {
		return r.cal.tick(x - r.Origin)
	}
	return floorDiv(x-r.Origin, r.Every)
}

// boundary is the instant of a tick.
func (r *Rule) boundary(tick int64) int64 {
	if r.cal != nil {
		return r.cal.boundary(tick) + r.Origin
	}
	return r.Origin + tick*r.Every
}

// Window returns the tick at or before now and the next one, in µs: the bounds
// of the present window. For a bucket they are one tick apart.
func (r *Rule) Window(now int64) (start, end int64) {
	k := r.tick(now)
	if r.Every == 1 {
		return now, now + 1
	}
	return r.boundary(k), r.boundary(k + 1)
}
