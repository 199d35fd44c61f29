package store

import (
	"context"
	"time"
)

// Lanes are stores that decide on the same rows, each over its own connection.
// Abilities.Lanes opens them. Package stack sends calls that wait for a lane together in
// its next batch, so that a connection has one batch in flight.
type Lanes struct {
	// Stores are the lanes. Batches of different lanes run at the same time: a store that
	// locks rows must lock those of a batch in one order.
	Stores []Store

	// LockWait is how long a lane waits for a row that another transaction has locked. Then
	// it gives up, with ErrLocked for the groups that need the row, or for all groups of its
	// statement. Default 10 ms.
	LockWait time.Duration
	// Sorter decides the groups of such a batch again, to find those that need a locked row:
	// it waits for 1 to 2 ms, and only these get ErrLocked. It has a connection of its own.
	// It is nil, as Quarantine is, if nobody but the lanes locks rows.
	Sorter Store
	// Quarantine is Apply for calls of locked rows, so that they delay no others. Its
	// statements wait for a lock at most for lockWait. It has a connection of its own.
	Quarantine func(ctx context.Context, b *Batch, lockWait time.Duration) error

	// Close closes what was opened for the lanes, once no batch is in flight. Nil means
	// that nothing has to be closed.
	Close func() error
}
