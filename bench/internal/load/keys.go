package load

import (
	"math/rand/v2"
	"strconv"
	"sync/atomic"
)

// A Draw makes one client's source of keys.
type Draw func(*rand.Rand) func() string

// Uniform draws each of n keys as often as any other.
func Uniform(n int) Draw {
	return func(r *rand.Rand) func() string {
		return func() string { return Key(r.IntN(n)) }
	}
}

// Zipf draws from n keys with an exponent above 1: few keys get most of the
// calls.
func Zipf(exponent float64, n int) Draw {
	return func(r *rand.Rand) func() string {
		z := rand.NewZipf(r, exponent, 1, uint64(n-1))
		return func() string { return Key(int(z.Uint64())) }
	}
}

var seen atomic.Int64

// Fresh gives each call a key that nobody has used in this process.
func Fresh(*rand.Rand) func() string {
	return func() string { return "new:" + strconv.FormatInt(seen.Add(1), 10) }
}

// Gone begins the name of a key whose bucket is empty.
const Gone = "gone:"

// Refused draws uniformly from n keys, a share of the calls on keys that begin
// with Gone.
func Refused(share float64, n int) Draw {
	return func(r *rand.Rand) func() string {
		return func() string {
			k := r.IntN(n)
			if r.Float64() < share {
				return goneNames[k]
			}
			return Key(k)
		}
	}
}

// Names are made once, so that no contender pays for making them; those of
// large tables are made when they are needed.
var keyNames, goneNames []string

// NameKeys makes sure of the names of the first n keys.
func NameKeys(n int) {
	for i := len(keyNames); i < n; i++ {
		key := "user:" + strconv.Itoa(i)
		keyNames, goneNames = append(keyNames, key), append(goneNames, Gone+key)
	}
}

// Key is the name of key i.
func Key(i int) string {
	if i < len(keyNames) {
		return keyNames[i]
	}
	return "user:" + strconv.Itoa(i)
}
