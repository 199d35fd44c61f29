package limittest

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// SeedSetting is the environment variable that sets the seed, to repeat a failure. CI sets
// it, so that a run depends only on the commit.
const SeedSetting = "DIPWELL_SEED"

// NewSeed returns a seed of 64 bits, not 0: the one in the environment, or else a random one.
// It logs the seed, which is shown when the test fails.
func NewSeed(t testing.TB) uint64 {
	t.Helper()
	n := max(1, rand.Uint64())
	if text := os.Getenv(SeedSetting); text != "" {
		var err error
		if n, err = strconv.ParseUint(text, 10, 64); err != nil || n == 0 {
			t.Fatalf("%s is %q, not a number from 1 to 18446744073709551615", SeedSetting, text)
		}
	}
	t.Logf("%s=%d", SeedSetting, n)
	return n
}

// SeedIsSet reports whether NewSeed returns the seed of the environment.
func SeedIsSet() bool { return os.Getenv(SeedSetting) != "" }
