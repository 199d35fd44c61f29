package pgstore

import (
	"strings"
	"testing"
	"time"
)

// TestLanesOfTheURL: pool_max_conns is the most lanes.
func TestLanesOfTheURL(t *testing.T) {
	for url, want := range map[string]int{"postgres://u@h/d": 2, "postgres://u@h/d?pool_max_conns=1": 1, "postgres://u@h/d?pool_max_conns=7": 2} {
		if n := lanesOf(url, 2); n != want {
			t.Errorf("%s: %d lanes; want %d", url, n, want)
		}
	}
}

// TestLockTimeoutOfTheURL: the URL may give the lanes another wait, or none.
func TestLockTimeoutOfTheURL(t *testing.T) {
	for value, want := range map[string]string{"50": "50ms", "50ms": "50ms", "1s": "1s", "0": "0", "soon": "lock_timeout", "-1s": "lock_timeout"} {
		config, err := ParseURL("postgres://127.0.0.1/x?lock_timeout=" + value)
		if err != nil {
			t.Fatal(err)
		}
		wait, err := lockWaitOf(config)
		wanted, perr := time.ParseDuration(want)
		if (err == nil) != (perr == nil) || wait != wanted || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v", value, wait, err)
		}
	}
}
