package memory

import (
	"testing"

	"github.com/dipwell/dipwell/store"
	"github.com/dipwell/dipwell/storetest"
)

func TestStore(t *testing.T) {
	storetest.Run(t, func(t testing.TB, now func() int64) store.Store {
		return open(t, Config{Clock: now})
	})
}

// TestOneShard runs the suite with all keys in one shard, which share a lock
// and a sequence of slots.
func TestOneShard(t *testing.T) {
	storetest.Run(t, func(t testing.TB, now func() int64) store.Store {
		return open(t, Config{Clock: now, Shards: 1})
	})
}
