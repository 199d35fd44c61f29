// Package lockstep tests all stores together: the suite on every store under
// every decorator, one random history that all stores play in lockstep, and
// concurrent histories that are checked for linearizability.
package lockstep

import (
	"cmp"
	"context"
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

// stepsSetting is the number of calls in the lockstep history.
const stepsSetting = "DIPWELL_STEPS"

// setting reads a number from the environment.
func setting(t testing.TB, name string, otherwise int) int {
	t.Helper()
	text := cmp.Or(os.Getenv(name), strconv.Itoa(otherwise))
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		t.Fatalf("%s %q is not a number of calls", name, text)
	}
	return n
}
