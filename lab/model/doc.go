// Package model tests all stores against a model of what a limit means. The model is in whole
// numbers, and was written from the contract alone: it shares no code with the stores, and
// keeps every row, record, override and version in plain structs. TestModel plays random
// histories on a store and on the model, and compares every answer. After each step it compares
// what is known of the keys that the step was about: what decides a call, the definition that the
// row is under, what is left, and the overrides.
//
// Where the contract leaves something open, histories avoid it:
//
// The clock does not step back beyond an instant at which a record, an override or a version
// ended or began, nor at which a row became full. A store that has worked it off keeps it so, and
// another one may not have looked at the key yet. For the same reason it does not step back to
// before a sweep, nor with a sliding window in use.
//
// While the clock is behind the time of a row that is full, nobody calls. A store that has deleted
// the row counts from the clock, and another one from the time of the row: nothing is minted by
// either, and no key waits longer than by what the clock stepped back.
//
// The clock is not behind the time of a row when its key is blocked or a temporary override of it
// ends: stores end an override when a call is decided, which is not before the time of the row.
//
// An override that ends at the very instant at which a version begins ends first. So a key that
// somebody looks at or sweeps at that instant, before the change, is like all others.
package model
