package store

import "context"

// An AuditEntry is an entry of a store's audit: a change of a limit, an override or a
// bucket that somebody made by hand.
type AuditEntry struct {
	ID     string `json:"-"`              // given by the store; a later entry has a greater one, compared as text
	At     int64  `json:"-"`              // µs since the Unix epoch, on the store's clock; set by the store
	Who    string `json:"who"`            // who made the change, as far as known: an address, or the user of a database
	Action string `json:"action"`         // override, end-override, reset, refund, define or drop; of top keys: top
	Limit  string `json:"limit"`          // name of the limit; "" in an entry of top keys
	Key    string `json:"key,omitempty"`  // "" for the shared bucket, and for a change of the limit itself
	What   string `json:"what,omitempty"` // what was set, for people
	Note   string `json:"note,omitempty"` // the reason that was given; "" if there was none
	Role   string `json:"-"`              // the database role that wrote the entry, because whoever writes can put any name into Who; set by the store, "" if it has no roles
}

// An Auditor keeps a log of entries. See Abilities.Audit and Abilities.TopKeys for what
// it keeps, and how long.
type Auditor interface {
	// Record adds an entry at the present instant of the store's clock. e.ID, e.At and
	// e.Role are ignored. The error wraps ErrStore.
	Record(ctx context.Context, e AuditEntry) error
	// Audit returns up to n entries, the newest first: those older than the entry with the
	// ID before, or all if before is "". The error wraps ErrStore, or is a *FieldError of
	// "before" if that is not an ID of this store.
	Audit(ctx context.Context, before string, n int) ([]AuditEntry, error)
}
