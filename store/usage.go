package store

import "context"

// A UsageLine counts how the calls of a key of a limit were answered in an hour.
type UsageLine struct {
	Limit string // its name
	// Key is "" for the shared bucket. For a limit that is not shared, "" is all keys
	// together that a service could not count one by one.
	Key     string
	Hour    int64 // beginning of the hour, in µs since the Unix epoch
	Allowed int64 // calls
	Refused int64 // calls
	Tokens  int64 // tokens that were taken; for a hold, those that it was settled to
}

// Add adds the counts of another line to the line.
func (l *UsageLine) Add(o *UsageLine) {
	l.Allowed, l.Refused, l.Tokens = l.Allowed+o.Allowed, l.Refused+o.Refused, l.Tokens+o.Tokens
}

// A UsageError is returned by AddUsage if it may have added some of its lines, and has not
// added the rest.
type UsageError struct {
	Rest []int // indexes of lines that were not added, to be passed to another call
	Lost int   // number of lines of which it is not known whether they were added
	Err  error
}

func (e *UsageError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *UsageError) Unwrap() error { return e.Err }

// A UsageKeeper is a store that keeps what keys used in each hour: see Abilities.Usage.
type UsageKeeper interface {
	// AddUsage adds lines to those stored for the same limit, key and hour; no two of lines
	// have all three in common. Lines of limits that the store does not have are ignored. The
	// error wraps ErrStore, and ErrOutcomeUnknown if some of the lines may have been added; a
	// *UsageError says which were not.
	AddUsage(ctx context.Context, lines []UsageLine) error
	// Usage returns the lines of a key that begin at from or later and before to, in order
	// of time, one for each hour in which it was used. The error wraps ErrStore.
	Usage(ctx context.Context, d *Definition, key string, from, to int64) ([]UsageLine, error)
}
