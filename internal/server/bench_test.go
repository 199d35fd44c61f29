package server_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/server"
	"github.com/dipwell/dipwell/store"
)

// discard is a response that keeps nothing but its header map.
type discard struct{ h http.Header }

func (d *discard) Header() http.Header         { return d.h }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }
func (d *discard) WriteHeader(int)             {}

// BenchmarkTake is the handler alone, without net/http's own reading and writing.
func BenchmarkTake(b *testing.B) { benchmarkTake(b, func(*world) {}) }

// While somebody looks at GET /v1/top, keys are counted.
func BenchmarkTakeWatched(b *testing.B) {
	benchmarkTake(b, func(w *world) { w.do("GET", "/v1/top", "") })
}

func benchmarkTake(b *testing.B, before func(*world)) {
	w := newWorld(b, server.Config{}, local)
	before(w)
	if _, err := w.limiter.Define(b.Context(), dipwell.Limit{Name: "api", Rate: 100, Period: 1e9, Burst: 1e9}, store.OwnerCode); err != nil {
		b.Fatal(err)
	}
	body := strings.NewReader("")
	r := httptest.NewRequest(http.MethodPost, "http://localhost/v1/take", body)
	r.ContentLength = 1
	d := &discard{http.Header{}}
	b.ReportAllocs()
	for b.Loop() {
		body.Reset(`{"limit":"api","key":"user:123456","cost":1}`)
		w.api.ServeHTTP(d, r)
	}
}
