package store

import (
	"context"
	"reflect"
	"sync"
	"time"
)

// Abilities are what a store can do besides Apply. If a field is nil, the store lacks
// that ability.
//
// A store with abilities has a method
//
//	Abilities() store.Abilities
//
// A decorator returns the abilities of the store that it wraps, replacing those that
// it changes:
//
//	func (s *Logged) Abilities() store.Abilities { return store.AbilitiesOf(s.inner) }
//
// AbilitiesOf then clears Quick, Lanes and InProcess, because Store is not the decorator.
// A decorator whose own Apply waits for nothing keeps InProcess by setting Store to
// itself; it may keep Quick and Lanes only if these may bypass its Apply.
type Abilities struct {
	// Store is the store to which Quick, Lanes and InProcess belong: they may be used in
	// place of its Apply.
	Store Store

	// Limits keeps the limits, with their versions. If Limits is nil, the
	// Limiter keeps the limits in its own memory.
	Limits Definer

	// Keys returns at most n live keys of a limit with their rows, in byte order: those that
	// begin with prefix and follow the key after. The shared bucket is the key "" and comes
	// first: with after "" the list begins there, and with after Shared it begins behind the
	// shared bucket. To page, pass the last key of a page as after. Pages are read at
	// different instants: a key that is taken from between two pages may be missing. The error
	// wraps ErrStore, or ErrNotSupported if the limit's keys cannot be listed: see
	// Limit.ListKeys.
	Keys func(ctx context.Context, d *Definition, prefix, after string, n int) ([]KeyState, error)

	// Overrides keeps overrides of keys. If Overrides is nil, the store has none, and
	// setting one is ErrNotSupported. A store with Overrides reads the override of a
	// key with the key's row, in every call.
	Overrides Overrider

	// Audit keeps what people have changed: the last 10,000 entries or a few more, and none
	// older than 400 days. The service records the changes made by its admin calls; other
	// programs record what they want to. If Audit is nil, nothing is recorded.
	Audit Auditor

	// TopKeys keeps which keys were the busiest in each hour, as the service counts them:
	// the last 5,376 entries, and none that is older than a week; a sweep deletes older
	// ones too. Of an entry only Who, the process, and What are kept. The text of What is the
	// JSON of the column report of dipwell.top_hours in docs/reference/sql.md; its keys are
	// those that the store has. If TopKeys is nil, nothing is kept.
	TopKeys Auditor

	// Minutes keeps what each process decided in each minute: the last 2,080 entries, and
	// none that is older than 65 minutes. Entries are as in TopKeys, with the member counts.
	// Minutes is nil if the store keeps nothing, or serves only one process, which knows its
	// own minutes.
	Minutes Auditor

	// Usage keeps what the keys of limits with Limit.Usage used in each hour, as services
	// count it, for 31 days. A sweep deletes older usage, and dropping a limit deletes the
	// limit's. If Usage is nil, nothing is kept.
	Usage UsageKeeper

	// Holds returns the live holds of a key, in the order in which they expire. If Holds is
	// nil, the store does not decide Group.Hold, and the Limiter answers holds with
	// ErrNotSupported. KeyHolds makes the list from the records of the key. The error wraps
	// ErrStore or ErrUnknownLimit.
	Holds func(ctx context.Context, d *Definition, key string) ([]KeyHold, error)

	// Sweep deletes at most n full rows, and returns how many it deleted. If Sweep is
	// nil, rows of keys that are no longer used expire, or stay for ever. Sweep changes no
	// decision. After an error some rows may have been deleted; call Sweep again.
	Sweep func(ctx context.Context, n int) (int, error)

	// Now returns the time of the store, or of its server, in µs since the Unix epoch: the
	// instant of a change of a limit that the Limiter keeps itself. In the result of
	// AbilitiesOf it is this machine's time if the store has no Now.
	Now func(ctx context.Context) (int64, error)

	// Ready returns an error if the store can make no decision now. A store with a server
	// asks the server. The service's /readyz calls Ready, or if it is nil checks one bucket.
	Ready func(ctx context.Context) error

	// Metrics returns the store's counters and gauges with their present values, for
	// /metrics: the same names each time, and within a second. /metrics leaves out metrics
	// whose name is not valid or already used.
	Metrics func() []Metric

	// Quick decides one op as Apply would, but without a batch: it is for stores in memory,
	// where the batch costs more than the decision. cost is in tokens. ok is false, without
	// side effects, if Quick cannot decide the op; the caller then uses Apply. Quick does not
	// decide an op that makes a reservation, or one whose answer would be Never or Shadow. If
	// checked is false, the caller has not checked key and cost: Quick then decides only an op
	// on a key that has a row, since that key was checked when the row was made.
	//
	// If held is not nil, the store has locked it, and the caller must unlock it once it has
	// written the answer to its destination. The unlock waits for these writes, so copying
	// the answer afterwards need not wait, which makes a Take of one key 12 % faster.
	Quick func(d *Definition, key string, verb Verb, cost int64, checked bool) (a QuickAnswer, held *sync.Mutex, ok bool)

	// QuickSource is the Source of the answers of Quick.
	QuickSource Source

	// Lanes opens n lanes for calls that share batches: see Lanes. Lanes may return fewer
	// than n lanes. If Lanes is nil, calls are not sent together.
	Lanes func(ctx context.Context, n int) (Lanes, error)

	// InProcess is true if Apply waits for nothing outside this process: a limit's
	// Timeout is not needed then.
	InProcess bool
}

// AbilitiesOf returns what a store can do besides Apply. The result's Store is s, and its Now
// is never nil. The result is computed at each call: keep it.
//
// Use AbilitiesOf rather than the method: if a decorator returns Quick, Lanes and InProcess of
// another store, AbilitiesOf clears them, because they would bypass the decorator.
func AbilitiesOf(s Store) Abilities {
	var ab Abilities
	if a, ok := s.(interface{ Abilities() Abilities }); ok {
		ab = a.Abilities()
	}
	if !reflect.ValueOf(s).Comparable() || ab.Store != s { // s has an Apply of its own, because it embeds or wraps the other store
		ab.Store, ab.Quick, ab.QuickSource, ab.Lanes, ab.InProcess = s, nil, SourceStore, nil, false
	}
	if ab.Now == nil {
		ab.Now = machineTime
	}
	return ab
}

// machineTime is Now for a store that has no clock of its own.
func machineTime(context.Context) (int64, error) { return time.Now().UnixMicro(), nil }

// AddMetrics makes Metrics also return the metrics of f, which may be nil.
func (ab *Abilities) AddMetrics(f func() []Metric) {
	inner := ab.Metrics
	if inner == nil {
		ab.Metrics = f
	} else if f != nil {
		ab.Metrics = func() []Metric { return append(inner(), f()...) }
	}
}

// QuickAnswer is the part of an Answer that Quick returns, few enough fields for registers.
// Source is QuickSource, the other fields are zero, and Allowed is Retry == 0.
type QuickAnswer struct {
	Granted   int64 // tokens taken
	Remaining int64 // whole tokens left
	Retry     int64 // µs until the same call would succeed; 0: the call was allowed
	Reset     int64 // µs until the bucket is full
}

// A Metric is a number about a store, as Prometheus reads it.
//
//	store.Metric{Name: "dipwell_store_full_total", Help: "Calls that failed because the store was full.",
//		Counter: true, Value: float64(s.refused.Load())}
type Metric struct {
	// Name is a name such as dipwell_store_bytes, with the base unit in it: bytes, seconds.
	// The Name of a counter ends in _total. A Metric has no labels.
	Name string
	// Help is one sentence that explains the metric on /metrics.
	Help string
	// Counter is set if the value only grows while the store is open; otherwise it is a gauge.
	Counter bool
	// Value is the present value, in the unit in Name.
	Value float64
}
