// Package lockstep tests all stores together: the suite on every store under
// every decorator, one random history that all stores play in lockstep, and
// concurrent histories that are checked for linearizability.
package lockstep

import (
	"cmp"
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/internal/redistest"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(holderSetting); url != "" {
		holdAndRelease(url)
	}
	if url := os.Getenv(losingSetting); url != "" {
		holdLease(url, os.Getenv(losingLimit))
		return
	}
	if url := os.Getenv(leaserSetting); url != "" {
		takeLeased(url)
	}
	redis.SetLogger(silent{})
	os.Exit(pgtest.Main(run(func() int { return redistest.Main(m) })))
}

type run func() int

func (r run) Run() int { return r() }

// silent drops the client's log lines about connections that the tests cut.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// Settings of these tests. A failure prints the seed that repeats it.
const (
	seedSetting  = "DIPWELL_SEED"  // of the one history to run, or of the concurrent ones
	stepsSetting = "DIPWELL_STEPS" // calls in the lockstep history
)

// setting reads a number from the environment.
func setting[T int | uint64](t testing.TB, name string, otherwise T) T {
	t.Helper()
	text := os.Getenv(name)
	n, err := strconv.ParseUint(cmp.Or(text, "0"), 10, 63)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if text == "" {
		return otherwise
	}
	return T(n)
}

func newSeed() uint64 { return rand.Uint64()>>1 + 1 }
