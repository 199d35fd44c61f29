// Package bounds has bounds of limits and holds that the stores share.
package bounds

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
)

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
