package pgstore

import (
	"strings"
	"testing"
	"time"
)

// TestLanesOfTheURL: pool_max_conns is the number of lanes, spare ones included.
func TestLanesOfTheURL(t *testing.T) {
	const n, spare = 2, 4
	for url, want := range map[string][2]int{
		"postgres://u@h/d": {n, spare}, "postgres://u@h/d?pool_max_conns=1": {1, 0}, "postgres://u@h/d?pool_max_conns=2": {2, 0},
		"postgres://u@h/d?pool_max_conns=7": {n, 7 - n}, "postgres://u@h/d?pool_max_conns=700": {n, maxLanes - n},
	} {
		if n, spare := lanesOf(url, n, spare); n != want[0] || spare != want[1] {
			t.Errorf("%s: %d lanes and %d spare; want %v", url, n, spare, want)
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
