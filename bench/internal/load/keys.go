package load

import (
	"math/rand/v2"
	"strconv"
	"sync/atomic"
)

// A Draw makes the source of keys of one client.
type Draw func(*rand.Rand) func() string

// Uniform draws from n keys with equal probability.
func Uniform(n int) Draw {
	return func(r *rand.Rand) func() string {
		return func() string { return Key(r.IntN(n)) }
	}
}

// Zipf draws from n keys by a Zipf distribution, whose exponent must be above
// 1.
func Zipf(exponent float64, n int) Draw {
	return func(r *rand.Rand) func() string {
		z := rand.NewZipf(r, exponent, 1, uint64(n-1))
		return func() string { return Key(int(z.Uint64())) }
	}
}

var seen atomic.Int64

// Fresh returns keys that this process has not used before.
func Fresh(*rand.Rand) func() string {
	return func() string { return "new:" + strconv.FormatInt(seen.Add(1), 10) }
}

// Gone is the prefix of keys whose bucket is empty.
const Gone = "gone:"

// Refused draws uniformly from n keys. A share of these keys has the prefix Gone.
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

// Names of keys are made once, so that contenders do not spend time on it;
// those of large tables are made when needed.
var keyNames, goneNames []string

// NameKeys makes the names of the first n keys.
func NameKeys(n int) {
	for i := len(keyNames); i < n; i++ {
		key := "user:" + strconv.Itoa(i)
		keyNames, goneNames = append(keyNames, key), append(goneNames, Gone+key)
	}
}

// Key returns the name of key i.
func Key(i int) string {
	if i < len(keyNames) {
		return keyNames[i]
	}
	return "user:" + strconv.Itoa(i)
}
