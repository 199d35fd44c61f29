package store

import "math/bits"

// quo returns a / b rounded down, for 0 <= a <= MaxInt and 0 < b <= MaxInt. It
// divides doubles, which hold both exactly, because that is several times faster
// than dividing integers, and corrects the rounding.
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

// quoUp returns a / b rounded up, within the bounds of quo.
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

// floorDiv returns a / b rounded toward minus infinity, for b > 0.
func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// mulDiv returns a × b / c, rounded up or down, without overflow, for a, b >= 0 and
// c > 0. A result above MaxInt is MaxInt.
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

// gcd returns the greatest common divisor.
func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// floorMod returns the remainder of floorDiv, from 0 to b-1.
func floorMod(a, b int64) int64 { return a - floorDiv(a, b)*b }

// mulCap returns a × b, or most if that is less.
func mulCap(a, b, most int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi != 0 || lo > uint64(most) {
		return most
	}
	return int64(lo)
}
