package store

import "math/bits"

// quo is a / b for 0 <= a <= MaxInt and 0 < b <= MaxInt, rounded down. Both are
// exact as doubles, and a double's division is several times faster than the
// integer unit's; the correction makes the rounded quotient exact.
func quo(a, b int64) int64 {
	if a < b {
		return 0
	}
	q := int64(float64(a) / float64(b))
	if q*b > a {
		q--
	}
	return q
}

// quoUp is a / b rounded up, within the bounds of quo.
func quoUp(a, b int64) int64 {
	if b == 1 {
		return a
	}
	q := quo(a, b)
	if q*b < a {
		q++
	}
	return q
}

// floorDiv is a / b rounded toward minus infinity, for b > 0.
func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// mulDiv is a × b / c without overflow for non-negative numbers and c > 0,
// rounded up or down; a result that does not fit is MaxInt.
func mulDiv(a, b, c int64, up bool) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi >= uint64(c) {
		return MaxInt
	}
	q, rem := bits.Div64(hi, lo, uint64(c))
	if up && rem > 0 {
		q++
	}
	return int64(min(q, MaxInt))
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// floorMod is what floorDiv leaves: from 0 up to b, not included.
func floorMod(a, b int64) int64 { return a - floorDiv(a, b)*b }

// mulCap is a × b, or most where it is more than that.
func mulCap(a, b, most int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi != 0 || lo > uint64(most) {
		return most
	}
	return int64(lo)
}
