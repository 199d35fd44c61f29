package golden

import _ "embed"

// Calls is made by golden_calls_test.go of package store: histories of calls with plans,
// overrides, holds, concurrency limits, parents, floors and blocks, a History a line. Every store
// replays them.
//
//go:embed calls.jsonl
var Calls []byte

// A History is calls of keys that no other history has, in the order of time.
type History struct {
	Kind   string   `json:"kind"`   // plans, overrides, holds, concurrency, levels, floor, together or blocks
	Limits []string `json:"limits"` // in the form of dipwell.ParseLimit, parents first
	Steps  []Step   `json:"steps"`
}

// A Step is a call, or a change, at a time on the store's clock.
type Step struct {
	At    int64  `json:"at"` // µs since the Unix epoch
	Do    string `json:"do"` // a verb, hold, settle, extend, cancel, override, end_override or define
	Takes []Take `json:"takes,omitempty"`

	Hold  string  `json:"hold,omitempty"` // id
	TTL   int64   `json:"ttl,omitempty"`  // µs
	Costs []int64 `json:"costs,omitempty"`

	Of       int       `json:"of,omitempty"` // of cancel: the index of the step that reserved
	Limit    string    `json:"limit,omitempty"`
	Override *Override `json:"override,omitempty"`

	Want Want `json:"want"`
}

// A Take is a take of a caller, who does not name the parents of its limit.
type Take struct {
	Limit string `json:"limit"`
	Plan  string `json:"plan,omitempty"`
	Key   string `json:"key"`
	Cost  int64  `json:"cost"`
	Floor int64  `json:"floor,omitempty"`
}

// An Override is what is set, or ended, for a key.
type Override struct {
	Key   string `json:"key"`
	Plan  string `json:"plan,omitempty"`
	Rate  int64  `json:"rate,omitempty"`
	Burst int64  `json:"burst,omitempty"`
	Until int64  `json:"until,omitempty"`
}

// Want is the answer to a step.
type Want struct {
	Error    string `json:"error,omitempty"` // reservation, unknown hold, conflict or field
	Allowed  bool   `json:"allowed,omitempty"`
	Reserved bool   `json:"reserved,omitempty"`
	Repeated bool   `json:"repeated,omitempty"`
	Expires  int64  `json:"expires,omitempty"`
	Limits   []Part `json:"limits,omitempty"` // the takes, then the parents of their limits; of settle and extend, the parts of the hold
}

// A Part is the answer for one limit and key. A settle or an extend answers no retry.
type Part struct {
	Limit     string `json:"limit"`
	Key       string `json:"key"`
	Plan      string `json:"plan,omitempty"`
	Allowed   bool   `json:"allowed,omitempty"`
	Never     bool   `json:"never,omitempty"`
	Shadow    bool   `json:"shadow,omitempty"`
	Bound     bool   `json:"bound,omitempty"`
	Granted   int64  `json:"granted,omitempty"`
	Remaining int64  `json:"remaining,omitempty"`
	Retry     int64  `json:"retry,omitempty"`
	Reset     int64  `json:"reset,omitempty"`
	Delay     int64  `json:"delay,omitempty"`
	Blocked   int64  `json:"blocked,omitempty"` // when the override ends that blocks the key; not of settle and extend
	// Early: the key has holds that have expired and that the call need not give back.
	// Remaining and Reset are those of a store that has given all of them back; another
	// may answer fewer remaining tokens, and a later reset.
	Early bool `json:"early,omitempty"`
}
