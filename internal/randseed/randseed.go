// Package randseed chooses the seeds of the random histories in tests.
package randseed

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// Setting is the environment variable with the seed to use, for repeating a failure. CI
// sets it, so that a run depends on the commit alone.
const Setting = "DIPWELL_SEED"

// New returns a seed of 64 bits, not 0: that of the environment, or else a random one. It
// logs the seed, which is shown when the test fails.
func New(t testing.TB) uint64 {
	t.Helper()
	n := max(1, rand.Uint64())
	if text := os.Getenv(Setting); text != "" {
		var err error
		if n, err = strconv.ParseUint(text, 10, 64); err != nil || n == 0 {
			t.Fatalf("%s is %q, not a number from 1 to 18446744073709551615", Setting, text)
		}
	}
	t.Logf("%s=%d", Setting, n)
	return n
}

// IsSet reports whether New returns the seed of the environment.
func IsSet() bool { return os.Getenv(Setting) != "" }
