package tracing_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/internal/tracing"
	"github.com/dipwell/dipwell/store"
)

// traced makes each call one of a traced request.
type traced struct {
	store.Store
	tr *tracing.Tracer
}

func (s traced) Abilities() store.Abilities { return store.AbilitiesOf(s.Store) }

func (s traced) Apply(_ context.Context, b *store.Batch) (err error) {
	s.tr.HTTP(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		err = s.Store.Apply(r.Context(), b)
	})).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/v1/take", http.NoBody))
	return err
}

func TestEveryFieldCrosses(t *testing.T) {
	srv := httptest.NewServer(&collected{})
	defer srv.Close()
	tr, err := tracing.Start(t.Context(), tracing.Config{Endpoint: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tr.Stop() }()
	limittest.Crossing{Wrap: func(inner store.Store) store.Store { return traced{tr.Store(inner), tr} }}.Run(t)
}
