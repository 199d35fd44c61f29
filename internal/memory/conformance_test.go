package memory

import (
	"os"
	"strconv"
	"testing"

	"github.com/dipwell/dipwell/store"
	"github.com/dipwell/dipwell/storetest"
)

func TestStore(t *testing.T) {
	storetest.Run(t, func(t testing.TB, now func() int64) store.Store {
		return open(t, Config{Clock: now})
	}, storetest.Options{})
}

// TestShards runs the suite with all keys in one shard, which share a lock and a
// sequence of slots, and with the most shards; less of each case, unless DIPWELL_LONG=1,
// because TestStore has all of it.
func TestShards(t *testing.T) {
	for _, n := range []int{1, maxShards} {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			storetest.Run(t, func(t testing.TB, now func() int64) store.Store {
				return open(t, Config{Clock: now, Shards: n})
			}, storetest.Options{Quick: os.Getenv("DIPWELL_LONG") == ""})
		})
	}
}
