// Package model tests all stores against a model of what a limit means. The model computes in
// whole numbers, and was written from the contract alone: it shares no code with the stores,
// and keeps every row, record, override and version in plain structs. TestModel plays random
// histories on a store and on the model, and compares every answer. After each step it
// compares the state of the step's keys: what decides a call, the definition that the row is
// under, what is left, and the overrides.
//
// Where the contract leaves a choice to stores, histories avoid it:
//
// The clock does not step back beyond an instant at which a record, an override or a version
// ended or began, nor at which a row became full. A store that has applied such an end keeps
// it so, and another store may not have looked at the key yet. For the same reason the clock
// does not step back to before a sweep, nor with a sliding window in use.
//
// No calls are made while the clock is behind the time of a full row. A store that has deleted
// that row counts from the clock, and another one from the time of the row: neither mints
// tokens, and no key waits longer than by what the clock stepped back.
//
// The clock is not behind the time of a row when its key is blocked or a temporary override of it
// ends: stores end an override when a call is decided, which is not before the time of the row.
//
// An override that ends at the exact instant at which a version begins ends first. Therefore a
// key that somebody looks at or sweeps at that instant, before the change, is like all others.
package model
