package storetest_test

import (
	"testing"

	"github.com/dipwell/dipwell/store"
	"github.com/dipwell/dipwell/storetest"
)

func TestReference(t *testing.T) {
	storetest.Run(t, openRef(bug{}), storetest.Options{Lacks: []string{"overrides", "holds", "concurrency"}})
}

// TestExampleStore tests the store of the package's example.
func TestExampleStore(t *testing.T) {
	storetest.Run(t, func(_ testing.TB, now func() int64) store.Store { return newMapStore(now) }, storetest.Options{})
}
