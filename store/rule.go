package store

// A Rule is a limit in whole numbers: Add units come back at each tick, ticks
// are Every microseconds apart and aligned to Origin, and at most Cap units may
// be used. A token is Unit units. Every number stays at or below MaxInt. Compile
// makes it; one that was made by hand needs Ready.
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

	cal    *calendar
	enough int64 // enoughTicks
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
	var short, ahead int64
	switch { // as decide does, without its call
	case verb >= VerbCharge:
		o.Allowed, o.Never, o.Granted, o.After, short, ahead = decideAnyway(int64(verb), o.Before, cost, r.Unit, r.MaxCharge, r.MaxUsed)
	case verb == VerbTakeUpTo && cost > 0:
		o.Allowed, o.Never, o.Granted, o.After, short, ahead = decideUpTo(o.Before, cost, r.Unit, r.Cap)
	default:
		o.Allowed, o.Never, o.Granted, o.After, short, ahead = decideTake(int64(verb), r.Leaky, o.Before, cost, r.Unit, r.Cap, r.Debt)
	}
	if short > 0 {
		o.Retry = r.wait(short, o.TS, now)
	}
	if ahead > 0 {
		o.Delay = r.wait(ahead, o.TS, now)
	}
}

// Remaining is the number of whole tokens free when used units are in use.
func (r *Rule) Remaining(used int64) int64 {
	if used == 0 {
		return r.Burst
	}
	return tokensLeft(used, r.Unit, r.Cap)
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
	if r.cal != nil {
		return r.after(s.Used, r.tick(t)-r.tick(s.TS))
	}
	return r.after(s.Used, ticksUpTo(s.TS, t, r.Origin, r.Every))
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
func (r *Rule) after(used, ticks int64) int64 { return leftAfter(used, ticks, r.Add, r.enough) }

// wait is the time in µs from now to the tick at which units will have come back.
func (r *Rule) wait(units, t, now int64) int64 {
	if r.cal != nil {
		return r.boundary(r.tick(t)+ticksFor(units, r.Add)) - now
	}
	return wait(units, t, now, r.Origin, r.Every, r.Add)
}

// tick is the number of the last tick at or before x.
func (r *Rule) tick(x int64) int64 {
	if r.cal != nil {
		return r.cal.tick(x - r.Origin)
	}
	return tickOf(x, r.Origin, r.Every)
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
