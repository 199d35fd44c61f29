package algebra

import "math/bits"

// maxInt is store.MaxInt.
const maxInt = 1<<53 - 1

// Quo returns a / b rounded down, for 0 <= a <= maxInt and 0 < b <= maxInt. It
// divides doubles, which hold both exactly, because that is several times faster
// than dividing integers, and corrects the rounding.
func Quo(a, b int64) int64 {
	if a < b {
		return 0
	}
	q := int64(float64(a) / float64(b))
	if q*b > a {
		q--
	}
	return q
}

// QuoUp returns a / b rounded up, within the bounds of Quo.
func QuoUp(a, b int64) int64 {
	if b == 1 {
		return a
	}
	q := Quo(a, b)
	if q*b < a {
		q++
	}
	return q
}

// FloorDiv returns a / b rounded toward minus infinity, for b > 0.
func FloorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// MulDiv returns a × b / c, rounded up or down, without overflow, for a, b >= 0 and
// c > 0. A result above maxInt is maxInt.
func MulDiv(a, b, c int64, up bool) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi >= uint64(c) {
		return maxInt
	}
	q, rem := bits.Div64(hi, lo, uint64(c))
	if up && rem > 0 {
		q++
	}
	return int64(min(q, maxInt))
}

// GCD returns the greatest common divisor.
func GCD(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// MulCap returns a × b, or most if that is less.
func MulCap(a, b, most int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi != 0 || lo > uint64(most) {
		return most
	}
	return int64(lo)
}
