package denycache_test

import (
	"testing"

	"github.com/dipwell/dipwell/internal/denycache"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
	"github.com/dipwell/dipwell/storetest"
)

func TestStore(t *testing.T) {
	for name, keys := range map[string]int{"roomy": 0, "one set": 8} {
		t.Run(name, func(t *testing.T) {
			storetest.Run(t, func(t testing.TB, now func() int64) store.Store {
				return open(t, memory(t, now), denycache.Config{Keys: keys, Clock: now})
			}, storetest.Options{Quick: true})
		})
	}
}

func memory(t testing.TB, now func() int64) *memstore.Store {
	t.Helper()
	s, err := memstore.New(memstore.Config{Clock: now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func open(t testing.TB, inner store.Store, c denycache.Config) *denycache.Store {
	t.Helper()
	s, err := denycache.New(inner, c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
