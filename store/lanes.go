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

	// Spare is how many of Stores, counted from the end, take lone calls while the store
	// is far from busy. No call waits for them. It is at least 0 and less than
	// len(Stores).
	Spare int

	// Connected reports whether Stores[i], a spare lane, can decide without opening a
	// connection first. If it cannot, calls wait for another lane. Nil means that all
	// can.
	Connected func(i int) bool

	// Sorter and Quarantine keep lanes free of rows that other transactions have locked;
	// both are nil where there are no such rows. Each is over a connection of its own. A
	// lane gives up waiting for a lock after LockWait (default 10 ms), with ErrLocked for
	// the groups that need the locked row, or for all groups of its statement. Sorter
	// decides the groups of such a batch again: it gives up after 1 to 2 ms, and only the
	// groups that need a locked row get ErrLocked. Quarantine is Apply for calls of locked
	// rows, whose statements wait for a lock at most as long as it is told.
	Sorter     Store
	Quarantine func(ctx context.Context, b *Batch, lockWait time.Duration) error
	LockWait   time.Duration

	// Close closes what was opened for the lanes, once no batch is in flight. Nil means
	// that nothing has to be closed.
	Close func() error
}
