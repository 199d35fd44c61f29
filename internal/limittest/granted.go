package limittest

import (
	"math"
	"slices"
)

// A Grant is a token that was granted between the times Asked and Answered, in µs.
type Grant struct{ Asked, Answered int64 }

// MostGranted returns the largest number of tokens granted between two instants, less
// perMicro for each µs between them. A grant counts if it was requested after the
// first instant and answered before the second.
func MostGranted(grants []Grant, perMicro float64) (most float64) {
	byAsked := slices.SortedFunc(slices.Values(grants), func(a, b Grant) int { return int(a.Asked - b.Asked) })
	begin := byAsked[0].Asked
	// A tree over the possible first instants, which are the times at which grants were
	// requested: sums[i] was added to all instants below i, and best[i] is the largest sum of
	// them.
	size := 1
	for size < len(byAsked) {
		size *= 2
	}
	best, sums := make([]float64, 2*size), make([]float64, 2*size)
	for i := range best {
		best[i] = math.Inf(-1)
	}
	byAnswered := slices.SortedFunc(slices.Values(grants), func(a, b Grant) int { return int(a.Answered - b.Answered) })
	for _, g := range byAnswered {
		// This adds one token in all intervals that begin at or before Asked.
		last, _ := slices.BinarySearchFunc(byAsked, g.Asked+1, func(a Grant, at int64) int { return int(a.Asked - at) })
		at := size + last - 1
		sums[at]++
		best[at] = sums[at] + perMicro*float64(g.Asked-begin)
		for ; at > 1; at /= 2 {
			if at%2 == 1 {
				best[at-1], sums[at-1] = best[at-1]+1, sums[at-1]+1
			}
			best[at/2] = max(best[at/2*2], best[at/2*2+1]) + sums[at/2]
		}
		most = max(most, best[1]-perMicro*float64(g.Answered-begin))
	}
	return most
}
