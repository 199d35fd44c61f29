package terms

// Every row stores the number of the definition under which it is. A number has 32 bits:
// the version of the limit in the lowest 20, and above them the index of a plan among the
// limit's plans, 0 for the base definition. A row that an override decides has the
// highest bit, and the id of the override in the other 31. Tables keep a number as a
// signed integer of 32 bits, so that those of overrides are negative.
const (
	MaxVersion = 1<<20 - 1 // the highest version of a limit
	override   = 1 << 31
)

// PlanNumber returns the number of the plan with an index at a version.
func PlanNumber(index int, version uint32) uint32 { return uint32(index)<<20 | version }

// OverrideNumber returns the number of rows that the override with an id decides.
func OverrideNumber(id uint32) uint32 { return override | id }

// IsOverride reports whether an override decides rows with this number.
func IsOverride(n uint32) bool { return n >= override }

// OverrideOf returns the id of the override of a number.
func OverrideOf(n uint32) uint32 { return n &^ override }

// IndexOf returns the index of the plan in a number that is not an override's.
func IndexOf(n uint32) int { return int(n >> 20) }

// VersionOf returns the version in a number that is not an override's.
func VersionOf(n uint32) uint32 { return n & MaxVersion }
