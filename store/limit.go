package store

import (
	"time"

	"github.com/dipwell/dipwell/internal/period"
)

// An Algorithm says how a limit gives back what was taken. Registry.Define can change a limit
// to another algorithm, and then converts its rows; to or from Concurrency is an error.
type Algorithm uint8

const (
	// TokenBucket refills continuously, exact to the tick: in a bucket of 60 an hour a token
	// comes back each minute. In any time t VerbTake grants at most Burst + Rate·t/Period
	// tokens. Choose TokenBucket unless a contract requires windows.
	TokenBucket Algorithm = iota
	// FixedWindow gives Rate tokens at the beginning of each window; unused tokens are kept,
	// up to Burst, by default none. Around the boundary of two windows twice Rate may be
	// granted in a short time. Period may be months, and Start a time of day.
	FixedWindow
	// Interval adds Rate tokens at the end of each Period, up to Burst: for example 5 tokens
	// each 10 s, up to 20.
	Interval
	// LeakyBucket spaces calls evenly: one token at a time, Rate in a Period. MaxDebt is the
	// length of its queue. Take works like Reserve: it is allowed with a Delay, after which
	// the caller acts. A LeakyBucket has no holds and no shards, and its Burst is 1.
	LeakyBucket
	// Concurrency bounds how many tokens are held at a time: at most Burst, which come back
	// when holds end, never by time. A Concurrency limit has neither Rate nor Period, and
	// only Check, Reset and holds.
	Concurrency
	// SlidingWindow counts the tokens of the present window, and a part of those of the window
	// before, prev: the part that a window of length Period ending now still covers, in
	// thousandths w. prev·w/1000 rounded down and the tokens of the present window are together
	// at most Rate. This is an estimate: in one Period up to twice Rate may be granted, which a
	// TokenBucket does only after a pause. Rate is at most 2^26-1, and Period at most 100 days;
	// Start is an offset. A SlidingWindow has no Burst, debt, holds, floor or parent, and is no
	// parent.
	SlidingWindow
)

// Shared is the key in calls of a shared limit; for any other limit that key is an error,
// and the empty key is an error for all limits. In an Op the shared bucket has the key "".
const Shared = "\x00"

// These values of Limit fields are needed because zero means the default. Configuration files
// write 0, 0 and "unlimited" for them, because there an omitted setting is the default.
const (
	NoBurst       = -1 // for Burst: nothing may be taken ahead; needs MaxDebt
	NoDebt        = -1 // for MaxDebt: Reserve never goes into debt
	UnlimitedDebt = -2 // for MaxDebt: as far into debt as can be counted exactly
)

// Month is a calendar period, for windows and intervals. It is a marker, not a length:
// a month is as long as its calendar says. Multiples of Month work: 3*Month is a quarter,
// 12*Month a year; at most 1200 months. Month is negative: do not compare it with other
// durations, nor add to it.
const Month = period.Month

// Bounds. MaxInt is the largest number that int64, SQL's bigint and a double all hold exactly.
const (
	MaxInt   = 1<<53 - 1 // the largest number any store holds
	MaxKey   = 512       // largest number of bytes in a key
	MaxTakes = 16        // most ops in one group: the takes of a call, and the parents of their limits
)

// A ChangePolicy says what happens to the tokens in use when a limit is redefined. The
// policy of the new definition counts, and applies to each row at its next call, as of
// the instant of the change. Used tokens are rounded up, so that no change creates
// tokens. A change to or from a plan or an override is always Keep.
type ChangePolicy uint8

const (
	// Keep keeps the same number of tokens used: 8 of 10 become 8 of 100. If more tokens are
	// used than the new burst, calls are refused until enough have come back.
	Keep ChangePolicy = iota
	// Proportional keeps the same fraction of the capacity used: 8 of 10 become 80 of
	// 100. For a key with live reservations or holds, Proportional works like Keep.
	Proportional
	// StartOver makes every bucket full, and ends the reservations and holds of each key
	// as a Reset does.
	StartOver
)

// A Mode says whether a limit refuses. A Limit has Enforce or Shadow; the others are for
// a Plan, where zero means the mode of its limit.
type Mode uint8

const (
	// Enforce refuses calls above the limit.
	Enforce Mode = iota
	// Shadow allows every call. Answer.Shadow marks calls that Enforce would refuse; they
	// are not charged, so the bucket is as it would be with Enforce.
	Shadow
	// Unlimited is for a Plan: every call is allowed and nothing is charged, also by
	// a Charge. The row of an Unlimited key stays under the base limit, and refills.
	Unlimited
	// Blocked is for a Plan: it refuses VerbTake, VerbCheck, VerbTakeUpTo, VerbReserve and
	// holds, with Never, or with the end of the override that gives the plan as Retry. Charge,
	// Refund, Reset and the end of a hold are decided under the base limit.
	Blocked
	// Enforced is for a Plan: it means Enforce, whatever the base limit's mode is.
	Enforced
)

// A FailureMode says how a call is answered if the store cannot decide it. It does not
// apply to invalid input: a *FieldError is an error in each mode.
type FailureMode uint8

const (
	// FailClosed returns the error, with an answer that is not allowed. A limit in Shadow
	// mode works as with FailOpen for calls that can be refused; the answer has Shadow.
	FailClosed FailureMode = iota
	// FailOpen allows the call without an error; the answer's Source says so. In a call of
	// several limits, all of them must have FailOpen.
	FailOpen
	// FailLocal decides from this process's own memory; the answer's Source says so. It needs
	// a decorator that keeps a copy of the rows, as package stack builds it, or a store that
	// does so itself, as filestore, and works like FailClosed without.
	FailLocal
)

// A Limit defines one rate limit. The zero value of a field means the default that its
// comment names; Name, Rate and Period have no default. NewDefinition checks the limit. A
// Limit is comparable: equal limits mean the same.
//
//	store.Limit{Name: "login", Rate: 5, Period: time.Minute}
//	store.Limit{Name: "quota", Algorithm: store.FixedWindow, Rate: 100000, Period: store.Month,
//		Start: "00:00 Europe/Rome"}
//	store.Limit{Name: "exports", Algorithm: store.Concurrency, Burst: 4}
type Limit struct {
	// Name is 1 to 128 bytes of printable ASCII, without spaces at its ends. It must not come
	// from a request, because a store keeps every limit.
	Name      string
	Algorithm Algorithm // default TokenBucket
	// Rate is how many tokens come back each Period, 1 to MaxInt. A Concurrency limit
	// has no Rate.
	Rate int64
	// Period is the time in which Rate tokens come back: a whole number of microseconds,
	// at least one; for windows and intervals n*Month is possible too, and 12 of these are
	// a year. How long a Period may be depends on Rate and Burst: the error names the
	// largest Burst that can be counted exactly. A Concurrency limit has no Period.
	Period time.Duration
	// Burst is how many tokens may be taken at once, and how many a full bucket has. Default:
	// Rate, for a LeakyBucket 1, for a Concurrency limit none. NoBurst means a burst of 0:
	// every token is taken ahead of time, which needs a MaxDebt. If a Burst is too large to be
	// counted exactly at the Rate, the error names the largest possible one. If it is so small
	// that fractions of tokens are lost, Definition.Warning says so.
	Burst int64
	// MaxDebt is how many tokens Reserve may take beyond those that are free. Default of
	// MaxDebt: one burst, or less if no more can be counted exactly. NoDebt means 0, and then
	// waits retry instead of queueing; UnlimitedDebt means as much as can be counted.
	MaxDebt int64
	// MaxCharge is the largest Charge, in tokens: it bounds the debt that one call can make.
	// Default: ten bursts, 10 if Burst is NoBurst, and less if no more can be counted exactly.
	MaxCharge int64

	// Start places the boundaries of windows and intervals: an offset from the Unix epoch
	// ("0s"), or a time of day with an IANA zone ("06:00 Europe/Rome") for days, weeks, two
	// weeks and months. Weeks begin on Monday, two-week windows with that of 1970-01-05, and
	// months on the 1st, unless a day stands before the time ("17 00:00 UTC"), or a date if
	// Period is several months ("05-17 00:00 UTC"). A window of a month with fewer days begins
	// on its last day. "first_call", for a Period of a fixed length: the call that takes from
	// a full bucket begins a window, and the next ones follow it until the bucket is full
	// again. Default of Start: different for each key, so that not all windows begin at once.
	Start string

	OnChange ChangePolicy // default Keep
	Mode     Mode         // Enforce or Shadow; default Enforce
	// Auth allows calls of the limit through the service's forward-auth endpoint, where the
	// clients of a proxy choose the key. By default forward-auth calls of a limit are refused.
	Auth bool
	// RetryJitter lengthens Retry-After of refusals by a random part of at most this many
	// percent, 0 to 100, so that clients refused together do not return together.
	// RetryAfter of a Decision stays exact. Default: none.
	RetryJitter  int
	OnStoreError FailureMode // default FailClosed
	// Timeout is how long a call waits for the store, before OnStoreError decides; a
	// negative one is an error. In a call of several limits the shortest Timeout counts.
	// Stores in this process need no Timeout and ignore it. Default of Timeout: as long as
	// the context allows.
	Timeout time.Duration
	// ListKeys keeps the text of keys, for Abilities.Keys, in stores that otherwise keep only a
	// hash of it, such as a store in memory.
	ListKeys bool
	// Usage makes a service count what each key of the limit uses in each hour, for
	// Abilities.Usage. Default of Usage: nothing is counted.
	Usage bool

	// Plans are named variants of the limit; see NewPlans. Default: none.
	Plans Plans

	// Parent is another limit, from which each call of this limit takes as well,
	// all or nothing. Keys of a limit with a Parent are paths: the parent's key is
	// the key without its last part. Default: none.
	Parent string
	// Parts is how many parts, separated by '/', the keys of a limit without a Parent have,
	// 1 to 16. Parts is for limits that are the Parent of others. Default 1.
	Parts int64
	// Shared gives the limit one bucket for everybody. Calls of a shared limit have no key:
	// in Go their key is the constant Shared. A shared limit has no Parent; it may be the
	// Parent of limits whose keys have one part. Default: each key has its own bucket.
	Shared bool

	// Adaptive makes a process take less from a token bucket than its rate when calls behind
	// the limit are slow or fail. An Adaptive limit has only Take, Check, Wait and Reset.
	// Adaptive is not possible with a Parent, Shards or Lease. Default of Adaptive: the rate
	// is fixed.
	Adaptive Adaptive

	// TTL is the longest time that a hold may ask for, 1 ms to 31 days. A hold that asks for
	// more than TTL is a *FieldError. A LeakyBucket, a SlidingWindow and limits with Shards or
	// Adaptive have no holds, and neither TTL nor KeepExpired. Default of TTL: 1 day.
	TTL time.Duration
	// KeepExpired keeps what a hold took when the hold expires; in configuration files it is
	// on_expire: keep. A late settle, until the hold is forgotten, then works like one in time.
	// A Concurrency limit cannot have KeepExpired. Default: an expired hold gives everything
	// back, and a late settle charges its cost.
	KeepExpired bool

	// Lease lets a process take tokens of a token bucket ahead of its calls, and decide from
	// them without the store, for this long after it has requested them, 10ms to 1s; see package
	// stack. The tokens that come back during a Lease, Rate·Lease/Period, must be at most half
	// of the burst. The bucket is smaller by those tokens for all callers: its capacity,
	// Rule.Burst, is Burst - ceil(1.002·Rate·Lease/Period). A Lease is not possible with a
	// Parent, Shards or Adaptive, or in Shadow mode. Default: none.
	Lease time.Duration

	// Block is for how long a key is refused once it ran out, up to 366 days: a Take,
	// TakeUpTo, Reserve or hold that is refused because its tokens are missing begins a
	// temporary override of the key, whose kind is AutomaticOverride. No block begins by a
	// Check, an attempt of a wait, a refusal by another limit of the call, or one that only a
	// floor makes. Block is not for shared limits, nor those with children or with plans that
	// callers may name, and not possible with a Lease, Shards or Adaptive, nor with the
	// algorithms Concurrency and SlidingWindow. Default: none.
	Block time.Duration

	// Shards is the number of rows, 1 to 64, that each key of a token bucket has, so that
	// many transactions can take from it at the same time. The Burst must be a multiple of
	// Shards. A call takes all of its tokens from one row, which has an equal part of the
	// burst and of the rate: a larger cost is Never allowed. With 2 or more Shards there
	// are only Take, TakeUpTo, Check and Reset, without a debt or a floor; see
	// docs/how-to/shards.md. Default 1.
	Shards int64
}

// String returns the name in configuration files: "token_bucket", "fixed_window",
// "interval", "leaky_bucket", "concurrency" or "sliding_window". Any other value is "unknown".
func (a Algorithm) String() string { return nameOf(algorithms, int(a)) }

// String returns the name in configuration files: "keep", "proportional" or "reset", which
// is StartOver. Any other value is "unknown".
func (p ChangePolicy) String() string { return nameOf(policies, int(p)) }

// String returns the name in configuration files, for the modes of a Limit: "enforce" or
// "shadow". Any other value is "unknown"; Plans.String has the names of a plan's modes.
func (m Mode) String() string { return nameOf(modes, int(m)) }

// String returns the name in configuration files: "closed", "open" or "local". Any other
// value is "unknown".
func (f FailureMode) String() string { return nameOf(failures, int(f)) }

var (
	algorithms = []string{"token_bucket", "fixed_window", "interval", "leaky_bucket", "concurrency", "sliding_window"}
	policies   = []string{"keep", "proportional", "reset"}
	modes      = []string{"enforce", "shadow"}
	planModes  = []string{"", "shadow", "unlimited", "blocked", "enforce"}
	failures   = []string{"closed", "open", "local"}
)

// nameOf returns names[i], or "unknown" if there is no such name.
func nameOf(names []string, i int) string {
	if i < len(names) {
		return names[i]
	}
	return "unknown"
}
