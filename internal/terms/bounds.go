// Package terms has facts about limits that the root, the stores and the front ends share:
// the bounds of their settings, the numbers of their versions, who owns them, and windows
// that follow a calendar.
package terms

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	MaxNote   = 1024 // bytes in the note of an override or a change
	MaxName   = 128  // bytes in the name of a limit
	MaxHoldID = 64   // bytes in the id of a hold
	// MaxLevels is the largest number of limits in a chain: a limit, its Parent, the parent
	// of that, and so on.
	MaxLevels = 4

	// MinHoldTTL is the shortest life of a hold, and DefaultHoldTTL the longest that a
	// limit without a TTL allows.
	MinHoldTTL     = time.Millisecond
	DefaultHoldTTL = 24 * time.Hour

	// MaxRecords bounds the live records of a key: its delayed reservations, and the parts of
	// live holds on it, also those that took nothing. Without this bound one key could fill a
	// store. MaxWaiting bounds the delayed reservations among them, because giving a record
	// back looks at each of them. The SQL and Lua of the stores have the same numbers.
	MaxRecords = 10_000
	MaxWaiting = 4096
)

// OneKey says what is wrong with the key of an override that has a *.
const OneKey = "has a *, but an override is for one key: there are no patterns; a plan is for many"

// WrongNote says what is wrong with a note, or "". PostgreSQL keeps no NUL in text.
func WrongNote(note string) string {
	switch {
	case len(note) > MaxNote:
		return fmt.Sprintf("has %d bytes; at most %d", len(note), MaxNote)
	case strings.IndexByte(note, 0) >= 0 || !utf8.ValidString(note):
		return "is not UTF-8 without NUL"
	}
	return ""
}
