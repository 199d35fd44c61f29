package server_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
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

// BenchmarkTakeParallel has a caller on each processor, each with a key of its own.
func BenchmarkTakeParallel(b *testing.B) {
	w := newBenchmark(b)
	var keys atomic.Int64
	b.RunParallel(func(pb *testing.PB) {
		text := fmt.Sprintf(`{"limit":"api","key":"user:%d","cost":1}`, keys.Add(1))
		body, r := newCall()
		d := &nullResponse{http.Header{}}
		for pb.Next() {
			body.Reset(text)
			w.api.ServeHTTP(d, r)
		}
	})
}

func benchmarkTake(b *testing.B, before func(*fixture)) {
	w := newBenchmark(b)
	before(w)
	body, r := newCall()
	d := &nullResponse{http.Header{}}
	b.ReportAllocs()
	for b.Loop() {
		body.Reset(`{"limit":"api","key":"user:123456","cost":1}`)
		w.api.ServeHTTP(d, r)
	}
}

func newBenchmark(b *testing.B) *fixture {
	w := newFixture(b, server.Config{}, local)
	if _, err := w.limiter.Define(b.Context(), dipwell.Limit{Name: "api", Rate: 100, Period: 1e9, Burst: 1e9}, store.OwnerCode); err != nil {
		b.Fatal(err)
	}
	return w
}

// newCall returns a request to take, and its body, which is to be reset before each call.
func newCall() (*strings.Reader, *http.Request) {
	body := strings.NewReader("")
	r := httptest.NewRequest(http.MethodPost, "http://localhost/v1/take", body)
	r.ContentLength = 1
	return body, r
}

// BenchmarkTakeUsage counts keys, as the service always does, and what they use.
func BenchmarkTakeUsage(b *testing.B) {
	for _, usage := range []bool{false, true} {
		b.Run(fmt.Sprintf("usage=%v", usage), func(b *testing.B) {
			benchmarkTake(b, func(w *fixture) {
				ctx, end := context.WithCancel(b.Context())
				wait := w.server.CountKeys(ctx, "host:1", 0)
				b.Cleanup(func() { end(); wait() })
				if _, err := w.limiter.Define(b.Context(), dipwell.Limit{Name: "api", Rate: 100, Period: 1e9, Burst: 1e9, Usage: usage}, store.OwnerCode); err != nil {
					b.Fatal(err)
				}
			})
		})
	}
}
