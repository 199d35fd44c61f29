package store

import "context"

// A UsageLine is what a key of a limit was answered in an hour.
type UsageLine struct {
	Limit string // its name
	// Key is "" for the shared bucket. For a limit that is not shared, "" is all keys
	// together that a service could not count one by one.
	Key     string
	Hour    int64 // when it began, in µs since the Unix epoch
	Allowed int64 // calls
	Refused int64 // calls
	Tokens  int64 // that were taken; of a hold, those that it was settled to
}

// Add adds the counts of another line.
func (l *UsageLine) Add(o *UsageLine) {
	l.Allowed, l.Refused, l.Tokens = l.Allowed+o.Allowed, l.Refused+o.Refused, l.Tokens+o.Tokens
}

// A UsageError is the error of a call of AddUsage that may have added some of its lines, and has
// not added the rest.
type UsageError struct {
	Rest []int // indexes of lines that were not added, for another call
	Lost int   // number of lines of which it is not known whether they were added
	Err  error
}

func (e *UsageError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *UsageError) Unwrap() error { return e.Err }

// A UsageKeeper keeps what keys used in each hour: see Abilities.Usage.
type UsageKeeper interface {
	// AddUsage adds lines to those of the same limit, key and hour; no two of lines are of
	// the same. Lines of limits that the store does not have are ignored. The error wraps
	// ErrStore, and ErrOutcomeUnknown if some of the lines may have been added; a *UsageError
	// says which were not.
	AddUsage(ctx context.Context, lines []UsageLine) error
	// Usage returns the lines of a key that begin at from or later and before to, in order
	// of time, one for each hour in which it was used. The error wraps ErrStore.
	Usage(ctx context.Context, d *Definition, key string, from, to int64) ([]UsageLine, error)
}
