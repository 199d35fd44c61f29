package redisstore_test

import (
	"testing"

	"github.com/dipwell/dipwell/internal/redistest"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
	"github.com/dipwell/dipwell/storetest"
)

// TestCluster runs the suite on a cluster of six nodes: with all buckets in one
// slot, so that every call is atomic, and with a slot for each key, so that
// calls of one key are; less of each case but the races of the first, unless DIPWELL_LONG=1,
// because the scripts are the same.
func TestCluster(t *testing.T) {
	t.Parallel()
	db := connect(t, redistest.SharedCluster(t).URL())
	for _, tag := range []string{"all", "key"} {
		t.Run(tag, func(t *testing.T) {
			storetest.Run(t, func(t testing.TB, now func() int64) store.Store {
				return newStore(t, db, redisstore.Config{Clock: now, Poll: -1, HashTag: tag})
			}, storetest.Options{Quick: tag == "all" || long(), Brief: !long(), OneKey: tag == "key", Parallel: true})
		})
	}
}
