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

// nullResponse is a response writer that keeps only its header.
type nullResponse struct{ h http.Header }

func (d *nullResponse) Header() http.Header         { return d.h }
func (d *nullResponse) Write(b []byte) (int, error) { return len(b), nil }
func (d *nullResponse) WriteHeader(int)             {}

// BenchmarkTake measures the handler without the reading and writing of net/http.
func BenchmarkTake(b *testing.B) { benchmarkTake(b, func(*fixture) {}) }

// BenchmarkTakeWatched counts keys too, as after a GET /v1/top.
func BenchmarkTakeWatched(b *testing.B) {
	benchmarkTake(b, func(w *fixture) { w.do("GET", "/v1/top", "") })
}

func benchmarkTake(b *testing.B, before func(*fixture)) {
	w := newFixture(b, server.Config{}, local)
	before(w)
	if _, err := w.limiter.Define(b.Context(), dipwell.Limit{Name: "api", Rate: 100, Period: 1e9, Burst: 1e9}, store.OwnerCode); err != nil {
		b.Fatal(err)
	}
	body := strings.NewReader("")
	r := httptest.NewRequest(http.MethodPost, "http://localhost/v1/take", body)
	r.ContentLength = 1
	d := &nullResponse{http.Header{}}
	b.ReportAllocs()
	for b.Loop() {
		body.Reset(`{"limit":"api","key":"user:123456","cost":1}`)
		w.api.ServeHTTP(d, r)
	}
}
