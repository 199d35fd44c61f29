package catalog

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/dipwell/dipwell/store"
)

const day = 24 * 3600 * int64(1_000_000) // µs

// A Log is a log that a store keeps for a store.Auditor. Recording an entry deletes the
// entries beyond the log's bounds.
type EntryLog struct {
	Name    string // name of the log's table or key
	Entries int
	Age     int64 // µs
}

// These are the logs of a store.
var (
	Changes = EntryLog{"audit", 10_000, 400 * day}
	// As many entries as 32 processes make in a week. An entry has about 3 kB.
	TopHours = EntryLog{"top_hours", 32 * 7 * 24, 7 * day}
	// As many entries as 32 processes make in an hour, and some minutes more for clocks that
	// differ.
	Minutes = EntryLog{"minutes", 32 * 65, 65 * 60 * 1_000_000}
)

// Oldest returns the smallest ID of an entry that is still kept at now.
func (l *EntryLog) Oldest(now int64) string { return FirstEntry(now - l.Age) }

const (
	timeDigits  = 14             // 56 bits of µs: until the year 4253
	EntryDigits = timeDigits + 8 // number of digits in an ID
)

// EntryID returns the ID of an entry, in hexadecimal digits: the store's time in µs, and a
// number that distinguishes entries of the same time. Later entries have greater IDs.
func EntryID(at int64, n uint32) string { return fmt.Sprintf("%0*x%08x", timeDigits, at, n) }

// FirstEntry returns the smallest ID that an entry of a given time can have.
func FirstEntry(at int64) string { return EntryID(max(at, 0), 0) }

// EntryTime returns the time in an ID.
func EntryTime(id string) (at int64, err error) {
	if len(id) != EntryDigits || strings.Trim(id, "0123456789abcdef") != "" {
		return 0, fmt.Errorf("audit: %q is not the ID of an entry", id)
	}
	return strconv.ParseInt(id[:timeDigits], 16, 64)
}

// CheckBefore returns an error if before is neither the ID of an entry nor empty.
func CheckBefore(before string) error {
	if before == "" {
		return nil
	}
	if _, err := EntryTime(before); err != nil {
		return &store.FieldError{Field: "before", Reason: "is not the id of an entry of this store"}
	}
	return nil
}

// UsageAge is how long the usage of a key is kept, in µs.
const UsageAge = 31 * day
