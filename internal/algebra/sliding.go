package algebra

// The units of a sliding window are two numbers in one: the tokens that were taken in the
// present window, and 2^26 times those of the window before.
const (
	halfBits = 26
	MaxHalf  = 1<<halfBits - 1 // the most tokens of one window
)

// Halves returns the tokens of the window before and of the present one.
func Halves(used int64) (prev, cur int64) { return used >> halfBits, used & MaxHalf }

// OfHalves is the inverse of Halves.
func OfHalves(prev, cur int64) int64 { return prev<<halfBits | cur }

// Slid returns the units of a sliding window after a number of ticks.
func Slid(used, ticks int64) int64 {
	switch {
	case ticks <= 0:
		return used
	case ticks == 1:
		return OfHalves(used&MaxHalf, 0)
	}
	return 0
}

// Weight returns how much the tokens of the window before count at t, in thousandths.
func Weight(t, origin, every int64) int64 {
	return 1000 - 1000*(t-origin-FloorDiv(t-origin, every)*every)/every
}

// Counted returns how many tokens count if those of the window before have a weight.
func Counted(used, weight int64, up bool) int64 {
	prev, cur := Halves(used)
	if up {
		return cur + (prev*weight+999)/1000
	}
	return cur + prev*weight/1000
}

// SlideTo returns the time from the beginning of the present window to the first instant,
// in it or in one of the next two, at which at most most tokens count, 0 or more.
func SlideTo(used, most, every int64) int64 {
	prev, cur := Halves(used)
	for begin := int64(0); begin <= every; begin += every {
		if cur <= most {
			weight := int64(1000) // the largest weight at which so few tokens count
			if prev > 0 {
				weight = min(weight, ((most-cur+1)*1000-1)/prev)
			}
			if after := ((1000-weight)*every + 999) / 1000; after < every { // a weight of 0 has no such time
				return begin + after
			}
		}
		prev, cur = cur, 0
	}
	return 2 * every
}
