package coalesce_test

import (
	"testing"

	"github.com/dipwell/dipwell/internal/coalesce"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
	"github.com/dipwell/dipwell/storetest"
)

func TestStore(t *testing.T) {
	for _, lanes := range []int{1, 3} {
		t.Run(map[int]string{1: "one lane", 3: "three lanes"}[lanes], func(t *testing.T) {
			storetest.Run(t, func(t testing.TB, now func() int64) store.Store { return open(t, now, lanes) }, storetest.Options{Quick: true})
		})
	}
}

// open returns a Store with lanes over one memstore.
func open(t testing.TB, now func() int64, lanes int) store.Store {
	inner, err := memstore.New(memstore.Config{Clock: now})
	if err != nil {
		t.Fatal(err)
	}
	all := make([]store.Store, lanes)
	for i := range all {
		all[i] = inner
	}
	s, err := coalesce.New(store.Lanes{Stores: all}, coalesce.Config{MaxBatch: 8})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := inner.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}
