package store

import (
	"time"

	"github.com/dipwell/dipwell/internal/period"
)

// An Algorithm says how a limit gives back what was taken. Registry.Define changes a
// limit to another algorithm, and its rows are converted, except to or from Concurrency,
// which is an error.
type Algorithm uint8

const (
	TokenBucket Algorithm = iota // refills continuously, exact to the tick
	FixedWindow                  // Rate per window; unused tokens roll over up to Burst
	Interval                     // Rate tokens at each interval, up to Burst
	LeakyBucket                  // smooth output: one token at a time, a queue of MaxDebt; Take reserves
	Concurrency                  // at most Burst tokens are held at a time; they come back when holds end
)

// Shared is the key of the one bucket that all callers of a limit share. The empty
// key is an error, because it could merge all callers by accident. In an Op the
// shared bucket has the key "".
const Shared = "\x00"

// Values for Limit fields whose zero means the default.
const (
	NoBurst       = -1 // Burst: nothing may be taken ahead; needs MaxDebt
	NoDebt        = -1 // MaxDebt: Reserve never goes into debt
	UnlimitedDebt = -2 // MaxDebt: as far into debt as can be counted exactly
)

// Month is a calendar period, for windows and intervals. It is a marker, not a length:
// a month is as long as its calendar says. Multiples work: 3*Month is a quarter, 12*Month
// a year.
const Month = period.Month

// Bounds. MaxInt is the largest that int64, SQL's bigint and a double all hold exactly.
const (
	MaxInt   = 1<<53 - 1 // the largest number any store holds
	MaxKey   = 512       // bytes in a key
	MaxTakes = 16        // takes in one call
)

// A ChangePolicy says what happens to the tokens in use when a limit is redefined. It is
// the policy of the new definition, and applies to each row at its next call, as of the
// instant of the change.
type ChangePolicy uint8

const (
	Keep         ChangePolicy = iota // the same number of tokens stays used
	Proportional                     // the same fraction of the capacity stays used
	StartOver                        // every bucket is full again
)

// A Mode says whether a limit refuses. A Limit has Enforce or Shadow; the others are for
// a Plan, whose zero Mode is that of its limit.
type Mode uint8

const (
	Enforce   Mode = iota // refuses
	Shadow                // allows every call; Answer.Shadow marks those that Enforce would refuse
	Unlimited             // of a Plan: allows every call and charges nothing
	Blocked               // of a Plan: refuses every call
	Enforced              // of a Plan: Enforce, whatever the base limit's mode is
)

// An ExpiryPolicy says what happens to what a hold took when the hold expires. Settle
// gives back or charges the difference to the actual cost whatever the policy is.
type ExpiryPolicy uint8

const (
	GiveBack  ExpiryPolicy = iota // all of it is given back
	KeepTaken                     // nothing is given back
)

// A FailureMode says what a caller is told if the store cannot decide. It never concerns
// a caller's mistakes: a *FieldError is an error in each mode.
type FailureMode uint8

const (
	FailClosed FailureMode = iota // refused, with the error
	FailOpen                      // allowed, and the answer says so
	FailLocal                     // decided from this process's own memory, and the answer says so
)

// A Limit defines one rate limit. The zero value of a field is the default that its
// comment names; Name, Rate and Period have none. NewDefinition checks the limit.
type Limit struct {
	Name      string        // 1 to 128 bytes of printable ASCII
	Algorithm Algorithm     // default TokenBucket
	Rate      int64         // tokens given back each Period, at least 1
	Period    time.Duration // whole microseconds; windows and intervals also n*Month, of which 12 are a year
	Burst     int64         // tokens that may be taken at once; default Rate; NoBurst is 0
	MaxDebt   int64         // tokens Reserve may go below empty; default one burst; NoDebt is 0; UnlimitedDebt
	MaxCharge int64         // the largest Charge, in tokens; default ten bursts

	// Start places the boundaries of windows and intervals: an offset from the
	// Unix epoch ("0s"), or a wall clock with an IANA zone ("06:00 Europe/Rome";
	// weeks begin on Monday, months on the 1st, years on January 1).
	// Default: spread by key, so that not all windows turn at once.
	Start string

	OnChange     ChangePolicy  // default Keep
	Mode         Mode          // default Enforce
	Auth         bool          // may be asked through the forward-auth endpoint
	RetryJitter  int           // percent, 0 to 100: widens Retry-After upward; RetryAfter stays exact
	OnStoreError FailureMode   // default FailClosed
	Timeout      time.Duration // how long to wait for the store; default: as long as the context allows
	ListKeys     bool          // keep the text of keys in stores that would otherwise forget it

	// Plans are named variants of the limit; see NewPlans. Default: none.
	Plans Plans

	// Parent is another limit, from which each call of this one takes as well, all
	// or nothing. Keys are paths: the parent's key is the key without its last
	// part. Default: none.
	Parent string
	// Parts is how many parts, separated by '/', the keys of a limit without a
	// Parent have, 0 to 16. It is for limits that are the Parent of others.
	// Default: they use its shared bucket.
	Parts int64

	// Adaptive makes the rate of a token bucket follow what is observed behind the
	// limit. Rate is then where it begins. Default: the rate is fixed.
	Adaptive Adaptive

	TTL      time.Duration // the longest time that a hold may ask for, at most 31 days; default 1 day
	OnExpire ExpiryPolicy  // default GiveBack

	// Lease lets a process take tokens of a token bucket ahead of its calls, and
	// decide from them without the store, for so long after it asked for them; see
	// package stack. From 10ms to 1s. What comes back in it, Rate·Lease/Period, must
	// be at most half of the burst. Whether or not processes lease, everybody has
	// that much less: Rule.Burst is Burst - ceil(1.002·Rate·Lease/Period), and it is
	// the capacity in answers. Not with a Parent, Shards or Adaptive, or in Shadow
	// mode. Default: none.
	Lease time.Duration

	// Shards is the number of rows, 1 to 64, over which PostgreSQL spreads a key that
	// many connections take from at the same time; other stores use one row. The burst
	// must be at least 2 for each, and of windows and intervals the rate 1 for each.
	// With 2 or more there is no debt: MaxDebt is 0 or NoDebt, and Reserve, holds and
	// waits are refused. Default 1.
	Shards int64
}

func (a Algorithm) String() string    { return nameOf(algorithms, int(a)) }
func (p ChangePolicy) String() string { return nameOf(policies, int(p)) }
func (m Mode) String() string         { return nameOf(modes, int(m)) }
func (f FailureMode) String() string  { return nameOf(failures, int(f)) }
func (e ExpiryPolicy) String() string { return nameOf(expiries, int(e)) }

var (
	algorithms = []string{"token_bucket", "fixed_window", "interval", "leaky_bucket", "concurrency"}
	policies   = []string{"keep", "proportional", "reset"}
	modes      = []string{"enforce", "shadow"}
	planModes  = []string{"", "shadow", "unlimited", "blocked", "enforce"}
	failures   = []string{"closed", "open", "local"}
	expiries   = []string{"give_back", "keep"}
)

func nameOf(names []string, i int) string {
	if i < len(names) {
		return names[i]
	}
	return "unknown"
}
