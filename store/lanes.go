package store

import (
	"context"
	"time"
)

// Lanes are stores that decide on the same rows, each over a connection of its own.
// Abilities.Lanes opens them. Package stack sends calls that wait for a lane together in
// its next batch, so that a connection has one batch in flight.
type Lanes struct {
	// Stores are the lanes. Batches of different lanes run at the same time: a store that
	// locks rows must lock the rows of each batch in one order.
	Stores []Store

	// LockWait is how long a lane waits for a row that another transaction has locked. After
	// LockWait the lane gives up, with ErrLocked for the groups that need the row, or for
	// all groups of its statement. The default is 10 ms.
	LockWait time.Duration
	// Sorter decides the groups of a batch that gave up again, to find those that need a
	// locked row: it waits for 1 to 2 ms, and only those groups get ErrLocked. Sorter has a
	// connection of its own. Sorter and Quarantine are nil if nobody but the lanes locks rows.
	Sorter Store
	// Quarantine is a store for calls of locked rows, so that they delay no other calls. Its
	// statements wait for a lock at most for lockWait. Quarantine has a connection of its own.
	Quarantine func(ctx context.Context, b *Batch, lockWait time.Duration) error

	// Close closes what was opened for the lanes, once no batch is in flight. Nil means
	// that nothing has to be closed.
	Close func() error
}
