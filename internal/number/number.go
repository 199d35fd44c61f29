// Package number encodes the numbers of definitions, which are stored in rows. A number
// has 32 bits: the version of the limit in the lowest 20, and above them the index of a
// plan among the limit's plans, 0 for the base definition. A row that an override decides
// has the highest bit, and the id of the override in the other 31. Tables keep a number
// as a signed integer of 32 bits, so that those of overrides are negative.
package number

import "time"

const (
	// MaxVersion is the highest version of a limit.
	MaxVersion = 1<<20 - 1
	// FirstCallSite is the index of the first definition that a call site made;
	// those of plans with a name are lower.
	FirstCallSite = 1024
	// MaxCallSites is the number of definitions of call sites that a limit may have.
	// 3_callsite.sql of pgstore has it too.
	MaxCallSites = 256
	// MaxIndex is the highest index.
	MaxIndex = 1<<11 - 1

	override = 1 << 31
)

// Of returns the number of the plan with an index at a version.
func Of(index int, version uint32) uint32 { return uint32(index)<<20 | version }

// OfOverride returns the number of rows that the override with an id decides.
func OfOverride(id uint32) uint32 { return override | id }

// IsOverride reports whether an override decides rows with this number.
func IsOverride(n uint32) bool { return n >= override }

// Override returns the id of the override of a number.
func Override(n uint32) uint32 { return n &^ override }

// Index returns the index of the plan of a number that is not an override's.
func Index(n uint32) int { return int(n >> 20) }

// Version returns the version of a number that is not an override's.
func Version(n uint32) uint32 { return n & MaxVersion }

// SearchRest returns how long, in µs, the rows of a limit are not searched again for call
// sites' definitions, after a search of the duration took. It is at least a second, and
// so long that a caller who makes definitions without end keeps one processor busy for at
// most a tenth of the time.
func SearchRest(took time.Duration) int64 { return max(1e6, 10*took.Microseconds()) }
