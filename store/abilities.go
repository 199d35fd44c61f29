package store

import (
	"context"
	"reflect"
	"sync"
	"time"
)

// Abilities are what a store can do besides Apply. A nil field is something that
// it cannot do.
//
// A store that has any has a method
//
//	Abilities() store.Abilities
//
// A decorator returns those of the store that it wraps, changed where it differs:
//
//	func (s *Logged) Abilities() store.Abilities { return store.AbilitiesOf(s.inner) }
//
// AbilitiesOf clears Quick, Lanes and InProcess then, because Store is not the
// decorator. A decorator whose Apply waits for nothing itself keeps InProcess by
// setting Store to itself; it keeps Quick and Lanes only if passing its Apply by is right.
type Abilities struct {
	// Store is the store whose Apply Quick, Lanes and InProcess are about.
	Store Store

	// Limits keeps the limits, with their versions. If it is nil, the Limiter
	// keeps them in its own memory.
	Limits Definer

	// Keys returns at most n live keys of a limit with their rows, in byte order:
	// those that begin with prefix and follow the key after. The shared bucket is
	// the key "" and comes first: after "" is the beginning, and after Shared is
	// what follows the shared bucket. To page, pass the last key of a page as after.
	// The list is not one instant: a key that is taken from between two pages may be
	// missing. The error wraps ErrStore, or ErrNotSupported if the limit's keys cannot be
	// listed: see Limit.ListKeys.
	Keys func(ctx context.Context, d *Definition, prefix, after string, n int) ([]KeyState, error)

	// Overrides keeps overrides of keys. If it is nil, the store has none, and setting
	// one is ErrNotSupported. A store that has it reads the override of a key with the
	// key's row, in every call.
	Overrides Overrider

	// Audit keeps what people have changed: the last 10,000 entries, maybe a few more, and
	// none that is older than 400 days. The service records what its admin calls have
	// changed; a program that calls a Limiter records what it wants to. If it is nil,
	// nothing is recorded.
	Audit Auditor

	// TopKeys keeps which keys were the busiest in each hour, as the service counts them:
	// the last 5,376 entries, and none that is older than a week; a sweep deletes older
	// ones too. Only Who, the process, and What are kept. What is the JSON of the
	// column report of dipwell.top_hours in docs/reference/sql.md; its keys are those that
	// the store has. If it is nil, nothing is kept.
	TopKeys Auditor

	// CallSite returns the definition that a call site makes of a limit, as
	// Definition.CallSite does: rows may name it as long as they live. If it is nil,
	// or its error is ErrNotSupported, a call site must define a limit as it is in
	// force.
	CallSite func(ctx context.Context, d *Definition, l Limit) (*Definition, error)

	// Holds returns the live holds of a key, the one that expires first first. It is
	// also what says that the store decides Group.Hold: if it is nil, the Limiter
	// answers holds with ErrNotSupported. Definition.KeyHolds makes the list from a row.
	Holds func(ctx context.Context, d *Definition, key string) ([]KeyHold, error)

	// Observe adds what was seen of the calls behind an adaptive limit, at the present
	// instant of the store's clock, and moves its rate as Adaptive says. If it is nil,
	// the store cannot keep adaptive limits, and its Define refuses them.
	Observe func(ctx context.Context, d *Definition, o Observation) error

	// Sweep deletes rows that are full, at most n, and returns how many. Without it the
	// rows of keys that are no longer used stay for ever. It changes no decision.
	Sweep func(ctx context.Context, n int) (int, error)

	// Now returns the store's time, in µs since the Unix epoch: of a store with a
	// server, its server's. In the result of AbilitiesOf it is never nil: a store
	// without it has the time of this machine. A limit that the Limiter keeps itself is
	// defined at this time, so that the instant of a change is one of the store's clock.
	Now func(ctx context.Context) (int64, error)

	// Ready returns why no decision can be made now, or nil. It asks the server of
	// a store that has one. The service's /readyz calls it; without it the service
	// checks one bucket instead.
	Ready func(ctx context.Context) error

	// Metrics returns the store's counters and gauges with their present values.
	// The service calls it at each scrape of its /metrics. It returns the same
	// names each time, and within a second. /metrics leaves out those whose name is
	// not valid or that of another metric.
	Metrics func() []Metric

	// Quick decides one op as Apply would decide a batch of it, but without the
	// batch: it is for stores in memory, where the batch costs more than the decision.
	// A store without it is asked through Apply, and nothing else differs. cost is in
	// tokens. ok is false, without side effects, if Quick cannot decide the op; the caller
	// then uses Apply. It decides nothing that makes a reservation, and no refusal of
	// which the answer would be Never or Shadow. If checked is false, key and cost may
	// be anything: it then decides only an op on a key that has a row, since that key was
	// checked when the row was made.
	//
	// If held is not nil, the store has locked it, and the caller unlocks it as soon
	// as it has written the answer where it belongs. The unlock waits for these writes,
	// and a copy of them then does not, which makes a Take of one key 12 % faster.
	Quick func(d *Definition, key string, verb Verb, cost int64, checked bool) (a QuickAnswer, held *sync.Mutex, ok bool)

	// QuickSource is the Source of what Quick answers.
	QuickSource Source

	// Lanes opens n lanes and spare more, for calls that share batches: see Lanes.
	// It may return fewer. If it is nil, calls are not sent together.
	Lanes func(ctx context.Context, n, spare int) (Lanes, error)

	// InProcess is true if Apply waits for nothing outside this process: a limit's
	// Timeout is not needed then.
	InProcess bool
}

// AbilitiesOf returns what a store can do besides Apply. The result's Store is s,
// and its Now is never nil. A store without a method Abilities can do nothing else, and
// has the time of this machine. The result is computed at each call: keep it.
//
// Use it rather than the method: it clears Quick, Lanes and InProcess of a decorator
// that hands on those of another store, which would pass the decorator by.
func AbilitiesOf(s Store) Abilities {
	var ab Abilities
	if a, ok := s.(interface{ Abilities() Abilities }); ok {
		ab = a.Abilities()
	}
	if !reflect.ValueOf(s).Comparable() || ab.Store != s { // s has an Apply of its own: it embeds or wraps the other store
		ab.Store, ab.Quick, ab.QuickSource, ab.Lanes, ab.InProcess = s, nil, SourceStore, nil, false
	}
	if ab.Now == nil {
		ab.Now = machineTime
	}
	return ab
}

func machineTime(context.Context) (int64, error) { return time.Now().UnixMicro(), nil }

// AddMetrics makes Metrics return those of f as well, after those it has: for a
// decorator that counts. f may be nil.
func (ab *Abilities) AddMetrics(f func() []Metric) {
	inner := ab.Metrics
	if inner == nil {
		ab.Metrics = f
	} else if f != nil {
		ab.Metrics = func() []Metric { return append(inner(), f()...) }
	}
}

// QuickAnswer is the part of an Answer that Quick returns. Source is QuickSource,
// the other fields are zero, and Allowed is Retry == 0. It has four fields, so that
// it is kept and returned in registers.
type QuickAnswer struct {
	Granted   int64 // tokens taken
	Remaining int64 // whole tokens left
	Retry     int64 // µs until the same call would succeed; 0: the call was allowed
	Reset     int64 // µs until the bucket is full
}

// A Metric is a number about a store, in the form that Prometheus has for it.
type Metric struct {
	// Name is such as dipwell_store_bytes, with the base unit in it: bytes, seconds. A
	// counter's ends in _total. There are no labels: a metric is about the store.
	Name string
	// Help is one sentence for the page of metrics.
	Help string
	// Counter says that the number only grows while the store is open. Otherwise it is a
	// gauge.
	Counter bool
	// Value is the present one, in the unit that Name has.
	Value float64
}
