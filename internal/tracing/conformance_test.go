package tracing_test

import (
	"net/http/httptest"
	"testing"

	"github.com/dipwell/dipwell/internal/tracing"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
	"github.com/dipwell/dipwell/storetest"
)

// TestStore runs the suite of all stores.
func TestStore(t *testing.T) {
	srv := httptest.NewServer(&collected{})
	defer srv.Close()
	tr, err := tracing.Start(t.Context(), tracing.Config{Endpoint: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tr.Stop() }()
	storetest.Run(t, func(t testing.TB, now func() int64) store.Store {
		inner, err := memstore.New(memstore.Config{Clock: now})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = inner.Close() })
		return tr.Store(inner)
	}, storetest.Options{Quick: true})
}
