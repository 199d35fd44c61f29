package algebra

import (
	"math/big"
	"math/rand/v2"
	"testing"
)

// edges returns numbers for which division as doubles could be off by one.
func edges() (out []int64) {
	for _, n := range []int64{1, 2, 3, 5, 7, 10, 999983, 1e6, 1 << 26, 1 << 27, 94906265, 94906266, 1 << 31, 1 << 32, 1 << 52, maxInt / 3, maxInt / 2, maxInt} {
		for d := int64(-2); d <= 2; d++ {
			if n+d > 0 && n+d <= maxInt {
				out = append(out, n+d)
			}
		}
	}
	return out
}

func TestQuo(t *testing.T) {
	check := func(a, b int64) {
		if got := Quo(a, b); got != a/b {
			t.Fatalf("Quo(%d, %d) = %d, want %d", a, b, got, a/b)
		}
		up := a / b
		if a%b > 0 {
			up++
		}
		if got := QuoUp(a, b); got != up {
			t.Fatalf("QuoUp(%d, %d) = %d, want %d", a, b, got, up)
		}
	}
	for a := range int64(500) {
		for b := int64(1); b < 500; b++ {
			check(a, b)
		}
	}
	for _, a := range edges() {
		for _, b := range edges() {
			check(a, b)
			if m := maxInt / b * b; m > 0 { // multiples, and their neighbours
				check(m, b)
				check(m-1, b)
				check(min(m+1, maxInt), b)
			}
		}
	}
	for range 300_000 {
		b := 1 + rand.Int64N(maxInt)>>rand.IntN(53)
		k := rand.Int64N(maxInt/b + 1)
		check(max(0, min(maxInt, k*b+rand.Int64N(3)-1)), b)
	}
}

func TestMulDiv(t *testing.T) {
	check := func(a, b, c int64) {
		q, rem := new(big.Int).QuoRem(new(big.Int).Mul(big.NewInt(a), big.NewInt(b)), big.NewInt(c), new(big.Int))
		for _, up := range []bool{false, true} {
			want := new(big.Int).Set(q)
			if up && rem.Sign() > 0 {
				want.Add(want, big.NewInt(1))
			}
			if most := big.NewInt(maxInt); want.Cmp(most) > 0 {
				want = most
			}
			if got := MulDiv(a, b, c, up); got != want.Int64() {
				t.Fatalf("MulDiv(%d, %d, %d, %v) = %d, want %v", a, b, c, up, got, want)
			}
		}
	}
	e := append(edges(), 0)
	for _, a := range e {
		for _, b := range e {
			for _, c := range edges() {
				check(a, b, c)
			}
		}
	}
}

func TestFloorDiv(t *testing.T) {
	for a := int64(-300); a <= 300; a++ {
		for b := int64(1); b < 50; b++ {
			want := new(big.Int).Div(big.NewInt(a), big.NewInt(b)).Int64() // Euclidean: b is positive
			if got := FloorDiv(a, b); got != want {
				t.Fatalf("FloorDiv(%d, %d) = %d, want %d", a, b, got, want)
			}
		}
	}
}
