package store

import (
	"github.com/dipwell/dipwell/internal/algebra"
	"github.com/dipwell/dipwell/internal/terms"
)

// A Rule is a limit in whole numbers. Add units come back at each tick, ticks are
// Every µs apart and aligned to Origin, and at most Cap units may be in use. A
// token is Unit units. No number in a Rule is above MaxInt. NewDefinition makes a Rule.
//
// All algorithms are one rule. A bucket of 5 tokens a second with a burst of 10 has ticks of 1
// µs at which 1 unit comes back, and tokens of 200,000 units; Cap is 2,000,000. A window of
// 100 a minute has ticks of a minute, at which 100 units come back, and tokens of 1 unit. So
// fractions of tokens are whole units, and nothing is ever rounded while a definition lasts.
//
// A call first steps the row to t, the later of now and State.TS. Division rounds down,
// negative numbers too:
//
//	ticks = (t - Origin) / Every - (TS - Origin) / Every
//	used  = max(0, Used - ticks·Add)
//
// and then decides, with n = Cost·Unit:
//
//	Take, Check   allowed if used + n + Floor·Unit <= Cap; Take then uses n more
//	TakeUpTo      uses the most whole tokens that fit, up to Cost; refused if none fits
//	Reserve       allowed if used + n <= Cap + Debt; due once used + n - Cap are back
//	Charge        allowed if Cost <= MaxCharge; uses n more, up to MaxUsed
//	Refund        uses n less, but at least 0
//	Reset         uses 0
//
// A sliding window is another rule: see SlidingWindow.
//
// A call that is allowed and changes what is used makes the row {used, t}; any other
// writes nothing. docs/explanation/algebra.md shows the same in pictures.
//
// NewDefinition chooses the numbers. For windows and intervals Unit is 1, Add is
// Limit.Rate and Every is Limit.Period, or 0 if that is of months. For buckets Every is
// the finest of 1 µs, 1 ms, 1 s and 1 min that divides the Period and with which no number
// exceeds MaxInt; Rate and Period/Every, divided by their greatest common divisor, are Add
// and Unit. With Limit.Adaptive these two are multiplied until Unit is at least 1024. With
// Limit.Shards the Rule is that of one row: it has an equal part of the burst, and Rate
// tokens take as many times the Period as there are shards.
//
// A Rule belongs to one version of a limit. It is a value: a copy may be changed, for
// example to compute the answer with another cap.
type Rule struct {
	Unit   int64 `json:"unit"`   // units of one token; 1 for windows and concurrency limits
	Every  int64 `json:"every"`  // µs between ticks; 0: the ticks follow a calendar
	Add    int64 `json:"add"`    // units that come back at a tick
	Cap    int64 `json:"cap"`    // units that Take may use
	Origin int64 `json:"origin"` // µs since the Unix epoch; if Every is 0, µs after each boundary of the calendar; or FirstCall

	// Burst is Cap in tokens: the capacity in answers. Of a leased limit Burst is
	// less than Limit.Burst.
	Burst int64 `json:"burst"`
	// Debt is how many units a Reserve may use beyond Cap.
	Debt int64 `json:"debt"`
	// Most is the largest Reserve that can ever be allowed, in tokens.
	Most int64 `json:"most"`
	// MaxCharge is the largest Charge, in tokens, if no other definition of the limit allows
	// more: see Definition.MostCharge. A larger Charge is refused, and front ends return a
	// *FieldError for it.
	MaxCharge int64 `json:"max_charge"`
	// MaxUsed bounds the units in use, so that the time to full stays below MaxInt µs. A
	// Charge stops there, and nothing that was taken before can then be given back.
	MaxUsed int64 `json:"max_used"`

	// Leaky says that Take works as Reserve: it is allowed with a Delay.
	Leaky bool `json:"leaky,omitempty"`
	// Spread says that Origin depends on the key: see Op.RuleFor.
	Spread bool `json:"spread,omitempty"`
	// Sliding says that the units used are those of two windows: see SlidingWindow.
	Sliding bool `json:"sliding,omitempty"`

	Calendar *terms.Calendar `json:"-"` // calendar of the ticks, or nil
	Enough   int64           `json:"-"` // ticks after which everything has come back: it is MaxUsed / Add, rounded up
}

// FirstCall is the Origin of a rule whose windows begin with a call: see Limit.Start. The TS
// of a row is then the beginning of its window. A call that takes from a full bucket begins
// a window.
const FirstCall = -1

// BeginsWithCall reports whether Origin is FirstCall. If it does, a row must be stepped by
// Op.Step or DecideIn.
func (r *Rule) BeginsWithCall() bool { return r.Origin == FirstCall }

// A State is the row that a store keeps for a key. The zero State means that there is no
// row, which is a full bucket. A store passes Used, TS, Version and Lows to the next call
// unchanged; Op.Step computes what has come back since TS.
type State struct {
	// Used is how many units were taken and had not come back at TS, 0 to Rule.MaxUsed of
	// the definition that Version names. Used is above Rule.Cap while the bucket is in debt.
	// For a sliding window Used is the tokens of the window of TS, plus 2^26 times those of
	// the one before.
	Used int64
	// TS is the time of the last call that wrote the row, in µs since the Unix epoch on the
	// store's clock, or the beginning of its window if that begins with a call. TS never moves
	// back, even if the clock does.
	TS int64
	// Version is the Definition.Number that Used and TS were computed under; all 32 bits count.
	Version uint32
	// Lows is nil if the row has no records, and never changed in place.
	Lows *Lows

	// Override is the override of the key, or nil, stored separately from the row: see
	// Table.SetOverride. A key may have one without a row, or one that has ended, whose end
	// Op.Step needs to convert the row.
	Override *Override
}

// A Verb is an operation on a bucket. Its text is the name of its HTTP call. Take and
// Check may have a Floor. The verbs up to Reserve may be in a group of several ops;
// TakeUpTo only if these are one take with its parents.
type Verb uint8

const (
	// VerbTake takes Cost tokens if these and Floor more are free, and otherwise none.
	// On a leaky bucket it reserves, as VerbReserve does.
	VerbTake Verb = iota
	// VerbCheck answers as VerbTake would, and changes nothing.
	VerbCheck
	// VerbTakeUpTo takes as many whole free tokens as there are, up to Cost, and is refused
	// if there is none. From a limit and its parents VerbTakeUpTo takes the same number each.
	VerbTakeUpTo
	// VerbReserve takes Cost tokens ahead of time, up to Rule.Debt beyond Cap. The answer
	// has a Delay if they were not all free.
	VerbReserve
	// VerbCharge takes Cost tokens, even if fewer are free, for a cost that is known only
	// afterwards, also in shadow mode. It is refused if Cost is more than
	// Definition.MostCharge, and does not change the definition that a row is under.
	VerbCharge
	// VerbRefund gives Cost tokens back, up to a full bucket, and is always allowed.
	VerbRefund
	// VerbReset makes the bucket full, and ends its reservations and holds and a block, but no
	// other override of the key. It is always allowed.
	VerbReset
)

var verbs = []string{"take", "check", "take_up_to", "reserve", "charge", "refund", "reset"}

// String returns the name of the verb's HTTP call: "take", "check", "take_up_to",
// "reserve", "charge", "refund" or "reset". Any other value is "unknown".
func (v Verb) String() string { return nameOf(verbs, int(v)) }

// An outcome is the result of Rule.apply. If it is Allowed, the row becomes
// State{Used: After, TS: TS}; the row needs to be written only if After is not Before.
type outcome struct {
	Allowed bool
	Never   bool  // refused, and the cost is more than the limit can ever hold
	Granted int64 // number of tokens taken; 0 if refused
	Before  int64 // units used at TS before this call
	After   int64 // units used at TS after this call
	TS      int64 // µs: the time of the decision, the later of now and the state's TS; or as the method stepped returns it
	Retry   int64 // µs until the first instant at which the same call would be allowed; 0 if Allowed or Never
	Delay   int64 // µs until the reservation is due; 0 if the tokens were free
}

// apply decides one call on a row of this rule's version, into a zero outcome. apply has
// no other effect. now is the time of the store's clock, in µs; cost is in tokens, from 0
// to MaxInt, and parts is Op.Fraction. If the call is refused, After is Before.
func (r *Rule) apply(o *outcome, s *State, now int64, verb Verb, cost, parts int64) {
	o.Before, o.TS = r.stepped(s, max(now, s.TS))
	if r.Sliding {
		r.slide(o, now, verb, cost)
		return
	}
	var short, ahead int64
	o.Allowed, o.Never, o.Granted, o.After, short, ahead = r.decide(verb, o.Before, cost, parts)
	if short > 0 {
		o.Retry = r.wait(short, o.TS, now)
	}
	if ahead > 0 {
		o.Delay = r.wait(ahead, o.TS, now)
	}
}

// Remaining returns the number of whole free tokens if used units are in use at t.
func (r *Rule) Remaining(used, t int64) int64 {
	if used == 0 {
		return r.Burst
	}
	return algebra.TokensLeft(r.Counted(used, t), r.Unit, r.Cap)
}

// Counted returns how many of the units in use at t count against Cap: all, except that a
// sliding window counts only a part of those of the window before.
func (r *Rule) Counted(used, t int64) int64 {
	if r.Sliding {
		return algebra.Counted(used, algebra.Weight(t, r.Origin, r.Every), false)
	}
	return used
}

// TimeToFree returns the time in µs from now until a number of tokens, at most Burst, is
// free, if used units are in use at t and fewer tokens are free.
func (r *Rule) TimeToFree(tokens, used, t, now int64) int64 {
	if r.Sliding {
		return r.boundary(r.tick(t)) + algebra.SlideTo(used, r.Cap-tokens, r.Every) - now
	}
	return r.wait(used-(r.Cap-tokens*r.Unit), t, now)
}

// TimeToFull returns the time in µs from now until nothing is used, if used units are in
// use at t. If windows begin with a call, t is the TS of the row.
func (r *Rule) TimeToFull(used, t, now int64) int64 {
	switch {
	case used == 0:
		return 0
	case r.Sliding && used&algebra.MaxHalf == 0:
		return r.boundary(r.tick(t)+1) - now
	case r.Sliding:
		return r.boundary(r.tick(t)+2) - now
	}
	return r.wait(used, t, now)
}

// usedAt returns the units in use at t, which must not be before s.TS.
func (r *Rule) usedAt(s *State, t int64) int64 {
	if s.Used == 0 || t == s.TS {
		return s.Used
	}
	if r.Every == 0 {
		return r.after(s.Used, r.tick(t)-r.tick(s.TS))
	}
	return r.after(s.Used, algebra.TicksUpTo(s.TS, t, r.origin(s.TS), r.Every))
}

// origin returns the origin of the windows of a row with a TS.
func (r *Rule) origin(ts int64) int64 {
	if r.BeginsWithCall() {
		return ts
	}
	return r.Origin
}

// stepped returns the row at t, which must not be before s.TS: the used units, and t or, if
// windows begin with a call, the beginning of the window at t.
func (r *Rule) stepped(s *State, t int64) (used, ts int64) {
	if used = r.usedAt(s, t); used != 0 && r.BeginsWithCall() {
		t -= (t - s.TS) % r.Every
	}
	return used, t
}

// Used returns the units of a row of this rule's version that are in use at now, or at its
// TS if that is later.
func (r *Rule) Used(row State, now int64) int64 { return r.usedAt(&row, max(now, row.TS)) }

// Window returns the bounds of the window at now, in µs: the last tick at or before
// now, and the next one. A bucket's ticks are the bounds of its windows. If windows begin
// with a call, it is the window of a call at now on a full bucket.
func (r *Rule) Window(now int64) (start, end int64) {
	if r.Every == 1 || r.BeginsWithCall() {
		return now, now + r.Every
	}
	k := r.tick(now)
	return r.boundary(k), r.boundary(k + 1)
}

// mostUsedAt returns at least what usedAt returns for any key. A spread key's origin
// moves each boundary later by less than a window, so one tick fewer may have passed.
func (r *Rule) mostUsedAt(s *State, t int64) int64 {
	if !r.Spread || s.Used == 0 {
		return r.usedAt(s, t)
	}
	return r.after(s.Used, max(0, r.tick(t)-r.tick(s.TS)-1))
}

// earliest returns a time at or before t: what mostUsedAt returns counts at that time, for
// any key, at least as much as at t.
func (r *Rule) earliest(t int64) int64 {
	if r.Spread && r.Sliding {
		return r.boundary(r.tick(t))
	}
	return t
}

// after returns the units in use after a number of ticks.
func (r *Rule) after(used, ticks int64) int64 {
	if r.Sliding {
		return algebra.Slid(used, ticks)
	}
	return algebra.LeftAfter(used, ticks, r.Add, r.Enough)
}

// wait returns the time in µs from now to the tick at which the given units have
// come back since t, which the method stepped has returned.
func (r *Rule) wait(units, t, now int64) int64 {
	if r.Every == 0 {
		return r.boundary(r.tick(t)+algebra.QuoUp(units, r.Add)) - now
	}
	return algebra.Wait(units, t, now, r.origin(t), r.Every, r.Add)
}

// tick returns the number of the last tick at or before x.
func (r *Rule) tick(x int64) int64 {
	if r.Calendar != nil {
		return r.Calendar.Tick(x - r.Origin)
	}
	return algebra.TickOf(x, r.Origin, r.Every)
}

// boundary returns the time of a tick.
func (r *Rule) boundary(tick int64) int64 {
	if r.Calendar != nil {
		return r.Calendar.Boundary(tick) + r.Origin
	}
	return r.Origin + tick*r.Every
}

// soonest returns the smallest delay that a Reserve of the given units can have, in µs.
func (r *Rule) soonest(units int64) int64 { return algebra.Soonest(units, r.Cap, r.shortest(), r.Add) }
