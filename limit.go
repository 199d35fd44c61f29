package dipwell

import (
	"crypto/rand"
	"encoding/binary"
	"slices"
	"time"

	"github.com/dipwell/dipwell/store"
)

// A Limit defines one rate limit, in the numbers of its owner: Rate tokens in each Period,
// and up to Burst of them at once. A zero field means the default that its comment names;
// Name, Rate and Period have no default. New and Define check the whole limit, and return
// a *FieldError that names the first setting that is out of bounds or contradicts another.
type Limit = store.Limit

// Algorithms of a Limit. The default is a token bucket, which refills continuously: Rate
// tokens in each Period, up to Burst.
const (
	// FixedWindow gives Rate tokens at the start of each window of length Period.
	// Tokens left over are kept, up to Burst. With the default Burst, which is
	// Rate, no tokens are kept.
	FixedWindow = store.FixedWindow
	// Interval adds Rate tokens at the end of each Period, up to Burst.
	Interval = store.Interval
	// LeakyBucket lets out one token at a time, spaced by Period / Rate. Take
	// queues like Reserve, up to MaxDebt tokens; Burst must be 1 or left out.
	LeakyBucket = store.LeakyBucket
	// Concurrency lets at most Burst tokens be held at a time, without Rate and Period:
	// they come back when holds end. A Concurrency limit has only Hold, Check and Reset.
	Concurrency = store.Concurrency
	// SlidingWindow allows about Rate tokens in any Period. SlidingWindow estimates, from
	// the tokens of the present window and of the one before, and has no Burst.
	SlidingWindow = store.SlidingWindow
)

// Adaptive is a target of latency and errors for what is behind a limit: Limit.Adaptive.
// To meet it, a process uses between Floor and all of the limit's rate. Limiter.Observe
// reports the latency and errors of calls.
type Adaptive = store.Adaptive

// A Plan is a named variant of a limit: Limit.Plans. A zero field of a Plan means the
// setting of the limit. A call is under a plan if Take.Plan names it, or if the key has
// an override with it; tokens that the key used under another plan stay used.
type Plan = store.Plan

// NewPlans returns a list of plans for Limit.Plans, sorted by name. New and Define check
// them: a limit has at most 100, whose names differ. A bucket's plan may have another Rate,
// Period, Burst, MaxDebt and Mode than the limit, a window's or interval's plan not another
// Period.
func NewPlans(plans ...Plan) store.Plans { return store.NewPlans(plans...) }

// These values of Limit fields are needed because zero means the default.
const (
	// NoBurst, as Burst, lets no tokens be taken ahead of time. NoBurst needs MaxDebt.
	NoBurst = store.NoBurst
	// NoDebt, as MaxDebt, refuses every Reserve that would have to wait.
	NoDebt = store.NoDebt
	// UnlimitedDebt, as MaxDebt, allows as much debt as can be counted exactly.
	UnlimitedDebt = store.UnlimitedDebt
)

// Month is a calendar period, for FixedWindow and Interval. Month is a marker, not a
// length: a month is as long as its calendar says. 3*Month is a quarter, 12*Month a year.
const Month = store.Month

// Shared is the key in calls of a shared limit: all of them take from one bucket. For any
// other limit Shared is an error, and the empty key is one for all limits: nobody merges
// all callers by a variable without a value.
const Shared = store.Shared

// Key returns the key for a limit that has a Parent or is one: a path made of the parts.
// Each part may be user input, since '/' and '%' inside a part are escaped. Without
// parts Key returns Shared. If a part is empty or has a NUL byte, calls with the key
// return a *FieldError.
func Key(parts ...string) string {
	switch {
	case len(parts) == 0:
		return Shared
	case len(parts) == 1 && parts[0] == Shared: // one part is text of a user, which must not name the shared bucket
		return Shared + Shared
	case slices.Contains(parts, ""):
		return "" // which no limit accepts, with parents or without
	}
	key := escapes.Replace(parts[0])
	for _, part := range parts[1:] {
		key += "/" + escapes.Replace(part)
	}
	return key
}

// These values say what happens to the tokens in use when a limit is redefined:
// Limit.OnChange. By default the same number of tokens stays used.
const (
	Proportional = store.Proportional // the same fraction of Burst stays used
	StartOver    = store.StartOver    // every bucket is full again
)

// These values say whether a limit refuses: Limit.Mode. By default it does. A change of
// the mode begins no new version: what is used stays used.
const (
	Shadow = store.Shadow // allows every call; Decision.Shadow marks those that would be refused

	Unlimited = store.Unlimited // for a Plan: allows every call and charges nothing
	Blocked   = store.Blocked   // for a Plan: refuses every call
)

// These values say what a caller is told if the store cannot decide: Limit.OnStoreError.
// By default the call returns the error, and a Decision that refuses. Invalid input is an
// error in each mode. Calls that are allowed while the store fails are not charged later.
const (
	FailOpen  = store.FailOpen  // the Decision allows the call, with Source fallback-open
	FailLocal = store.FailLocal // this process's own memory decides, with Source fallback-local
)

// A Reservation identifies tokens that were taken ahead of time. Pass a
// Reservation to Cancel to give the tokens back. The text of a Reservation is a UUID.
type Reservation = store.Reservation

// newID returns a UUID made of the time in ms and 74 random bits (version 7). The UUID
// cannot be guessed, so that only those who were told it can cancel the reservation or settle
// the hold. UUIDs made one after the other are neighbours in a store's index. Random UUIDs
// would each change a page of their own, which a database then writes in full after each
// checkpoint.
func (c *call) newID() (r Reservation) {
	if len(c.random) == 0 { // reading the bytes of many ids at once is 5 times as fast
		rand.Read(c.randoms[:])
		c.random = c.randoms[:]
	}
	c.random = c.random[copy(r[6:], c.random):]
	ms := time.Now().UnixMilli()
	binary.BigEndian.PutUint16(r[:], uint16(ms>>32))
	binary.BigEndian.PutUint32(r[2:], uint32(ms))
	r[6] = r[6]&0x0f | 0x70
	r[8] = r[8]&0x3f | 0x80
	return r
}
