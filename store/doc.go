// Package store is for authors of stores and of decorators. It has the Store
// interface and the batches that a store decides, the definitions of limits with
// their versions, and the rule that decides a call.
//
// A store that keeps rows in a table of its own implements Table, and decides each
// group by Group.DecideIn under a lock. A store with statements of its own uses
// Op.Step or Group.Decide, and does the rest that DecideIn does.
//
// Users of a limiter need package dipwell alone.
package store
