package dipwell

import (
	"time"

	"github.com/dipwell/dipwell/store"
)

// A Store decides calls and keeps the buckets: memstore, filestore, pgstore or
// redisstore, or one of these behind a decorator. Package store says what a
// store must do.
type Store = store.Store

// A Limit is the definition of one rate limit. A zero field means the default
// that its comment names. New and Define check the whole and return a
// *LimitError for what cannot be.
type Limit = store.Limit

// A Definition is a limit as a store keeps it: the Limit, its owner and its
// versions. It is immutable.
type Definition = store.Definition

// An Algorithm says how a limit gives back what was taken.
type Algorithm = store.Algorithm

const (
	TokenBucket = store.TokenBucket // refills continuously, exact to the tick; the default
	FixedWindow = store.FixedWindow // Rate per window; unused tokens roll over up to Burst
	Interval    = store.Interval    // Rate tokens at each interval, up to Burst
	LeakyBucket = store.LeakyBucket // smooth output: one token at a time, a queue of MaxDebt; Take reserves
)

// Values for fields of a Limit whose zero means the default.
const (
	NoBurst       = store.NoBurst       // Burst: nothing may be taken ahead; needs MaxDebt
	NoDebt        = store.NoDebt        // MaxDebt: Reserve never goes into debt
	UnlimitedDebt = store.UnlimitedDebt // MaxDebt: as far into debt as can be counted exactly
)

// Calendar periods, for windows and intervals. They are markers, not lengths:
// a month is as long as its calendar says. Multiples work: 3*Month is a quarter.
const (
	Month = store.Month
	Year  = store.Year
)

// Shared is the key of a limit's one shared bucket. An empty key is an error:
// it would merge everyone by accident.
const Shared = store.Shared

// A ChangePolicy says what becomes of the tokens in use when a limit is redefined.
type ChangePolicy = store.ChangePolicy

const (
	Keep         = store.Keep         // the same number of tokens stays used; the default
	Proportional = store.Proportional // the same fraction of the capacity stays used
	StartOver    = store.StartOver    // every bucket is full again
)

// A Mode says whether a limit refuses.
type Mode = store.Mode

const (
	Enforce = store.Enforce // the default
	Shadow  = store.Shadow  // never refuses; the answer says when enforcing would have
)

// A FailureMode says what a caller is told when the store cannot decide.
type FailureMode = store.FailureMode

const (
	FailClosed = store.FailClosed // refused, with the error; the default
	FailOpen   = store.FailOpen   // allowed, and the answer says so
	FailLocal  = store.FailLocal  // decided from this process's own memory, and the answer says so
)

// A Source says how an answer was made.
type Source = store.Source

// A Reservation names tokens that were taken ahead of time, for Cancel.
type Reservation = store.Reservation

// ParseReservation reads what Reservation.String writes.
func ParseReservation(s string) (Reservation, error) { return store.ParseReservation(s) }

// ParseLimit reads a limit as command lines write it: NAME=RATE/PER and more
// settings after commas, as in "login=5/1m,burst=20".
func ParseLimit(s string) (Limit, error) { return store.ParseLimit(s) }

// BurstCredit returns a token bucket that lets a caller spend at once what it
// did not use during the last credit: burst = rate × credit / per, at least 1.
// 100 a second with five minutes of credit is a burst of 30,000.
func BurstCredit(name string, rate int64, per, credit time.Duration) Limit {
	return store.BurstCredit(name, rate, per, credit)
}
