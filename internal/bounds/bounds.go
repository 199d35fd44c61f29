// Package bounds has bounds of limits and holds that the stores share.
package bounds

const (
	MaxName   = 128 // bytes in the name of a limit
	MaxHoldID = 64  // bytes in the id of a hold
	// MaxLevels is the largest number of limits in a chain: a limit, its Parent, the parent
	// of that, and so on.
	MaxLevels = 4
)
