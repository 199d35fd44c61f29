package store

import (
	"context"
	"errors"
)

// A HoldVerb is what a HoldCall does.
type HoldVerb uint8

const (
	MakeHold   HoldVerb = iota // take tokens, and keep a record of them until they are settled or the hold expires
	SettleHold                 // give back or charge the difference to the actual cost
	ExtendHold                 // move the expiry
)

// MaxHoldID is the length of the longest id of a hold, in bytes.
const MaxHoldID = 64

// A HoldCall makes a Group one about a hold. To make one, the ops of the group are
// VerbTake. To settle or extend one, the group has no ops; the store sets them: one
// for each part of the hold, with its Def, Key, Takes and Cost, with Granted, and with
// the present state of its row.
type HoldCall struct {
	Verb  HoldVerb
	ID    string  // 1 to 64 bytes of printable ASCII without spaces
	TTL   int64   // µs from now until it expires; of MakeHold and ExtendHold
	Costs []int64 // of SettleHold: tokens, one for each take of the hold; nil: as held

	// The store's answer.
	Expires  int64 // µs since the Unix epoch
	Repeated bool  // the same call was made before, and nothing was changed now
}

// Settles reports whether the group settles or extends a hold, so that the store sets
// its ops.
func (g *Group) Settles() bool { return g.Hold != nil && g.Hold.Verb != MakeHold }

var (
	// ErrUnknownHold: there is no hold with this id, or its record is gone.
	ErrUnknownHold = errors.New("unknown hold")
	// ErrHoldConflict: the hold has ended, was settled to other costs, or was made by another call.
	ErrHoldConflict = errors.New("the hold has ended, or was made or settled by another call")
)

// A Hold is what a store keeps under the id of a hold, until Forget. The zero Hold
// means that there is none. It never changes in place.
type Hold struct {
	Call    string // of the call that made it; a repeat has the same
	TTL     int64  // µs, of the call that made it
	Expires int64  // µs since the Unix epoch
	Forget  int64  // µs: the store may delete it from then on; until then settling again is answered
	Settled bool
	Costs   []int64 // what it was settled to: tokens, one for each part
	Parts   []HoldPart
}

// A HoldPart is what a hold took of one key. Its Record is on the row of the key, and
// has the id of the hold.
type HoldPart struct {
	Limit, Key   string
	Plan         string // that the call named
	Number, Mark int64  // of the Record; 0: it has none
	Cost         int64  // tokens
	Takes        uint16 // as in Op
	Free         bool   // it took nothing, because of an unlimited plan or in shadow mode; settling it charges nothing
	Keep         bool   // nothing is given back when it expires
	Reset        bool   // Reset ended it
}

// A KeyHold is a part of a live hold: what it holds of one key.
type KeyHold struct {
	ID      string
	Tokens  int64
	Expires int64 // µs since the Unix epoch
}

// An Overrider keeps overrides. Of the limits it uses the base definitions.
type Overrider interface {
	// SetOverride sets the override of a key from now on, in place of the present
	// one, and returns it with its ID and Version. The error is a *FieldError as
	// Definition.CheckOverride returns it, or wraps ErrStore or ErrUnknownLimit.
	SetOverride(ctx context.Context, d *Definition, o Override) (Override, error)
	// EndOverride ends the override of a key. ended is false if it had none.
	EndOverride(ctx context.Context, d *Definition, key string) (ended bool, err error)
	// Overrides returns at most n live overrides of a limit, in byte order of their
	// keys: those that begin with prefix and follow the key after, as Abilities.Keys
	// returns keys.
	Overrides(ctx context.Context, d *Definition, prefix, after string, n int) ([]Override, error)
}
