package httplimit_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/httplimit"
	"github.com/dipwell/dipwell/memstore"
)

// limitedBy returns middleware that takes from all limits, in memory.
func limitedBy(t *testing.T, limits ...dipwell.Limit) func(http.Handler) http.Handler {
	t.Helper()
	s, err := memstore.New(memstore.Config{Clock: func() int64 { return time.Now().UnixMicro() }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	l, err := dipwell.New(s, limits...)
	if err != nil {
		t.Fatal(err)
	}
	var c httplimit.Config
	for _, limit := range limits {
		c.Limits = append(c.Limits, httplimit.Limit{Name: limit.Name})
	}
	limit, err := httplimit.New(l, c)
	if err != nil {
		t.Fatal(err)
	}
	return limit
}

// TestLeakyBucket checks that requests of a leaky bucket reach the handler at even
// distances, and that those whose clients leave the queue give their places back.
func TestLeakyBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := limitedBy(t, dipwell.Limit{Name: "even", Algorithm: dipwell.LeakyBucket, Rate: 1, Period: time.Second, MaxDebt: 4, Shared: true},
			dipwell.Limit{Name: "all", Rate: 9, Period: time.Hour, Shared: true})
		began := time.Now()
		var mu sync.Mutex
		var at []time.Duration
		h := limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			at = append(at, time.Since(began))
		}))
		get := func(ctx context.Context) *httptest.ResponseRecorder {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil))
			return w
		}

		leaves, leave := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range 5 {
			ctx := t.Context()
			if i == 4 {
				ctx = leaves
			}
			wg.Go(func() { get(ctx) })
			synctest.Wait() // so that they come in order
		}
		if w := get(t.Context()); w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "1" {
			t.Errorf("a sixth request: %d, %v", w.Code, w.Header())
		}
		leave()
		synctest.Wait()
		if w := get(t.Context()); w.Code != http.StatusOK || w.Header().Get("RateLimit") != `"even";r=0;t=1, "all";r=4;t=1600` {
			t.Errorf("in the place of the one that left: %d, %v", w.Code, w.Header())
		}
		wg.Wait()
		if want := []time.Duration{0, time.Second, 2 * time.Second, 3 * time.Second, 4 * time.Second}; !slices.Equal(at, want) {
			t.Errorf("the handler ran after %v", at)
		}
	})
}

// TestLeakyBucketInShadowMode checks that requests do not wait for a leaky bucket in shadow
// mode, and that they wait for another one beside it.
func TestLeakyBucketInShadowMode(t *testing.T) {
	tried := dipwell.Limit{Name: "tried", Algorithm: dipwell.LeakyBucket, Rate: 1, Period: time.Minute, MaxDebt: 9, Mode: dipwell.Shadow, Shared: true}
	even := dipwell.Limit{Name: "even", Algorithm: dipwell.LeakyBucket, Rate: 1, Period: time.Second, MaxDebt: 9, Shared: true}
	for _, c := range []struct {
		limits []dipwell.Limit
		wait   time.Duration // of each request after the first
	}{{[]dipwell.Limit{tried}, 0}, {[]dipwell.Limit{tried, even}, time.Second}} {
		synctest.Test(t, func(t *testing.T) {
			h := limitedBy(t, c.limits...)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			for i := range 4 {
				began, want := time.Now(), c.wait
				if i == 0 {
					want = 0
				}
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
				if waited := time.Since(began); w.Code != http.StatusOK || waited != want {
					t.Errorf("%d limits, request %d: %d after %v, want %v", len(c.limits), i, w.Code, waited, want)
				}
			}
		})
	}
}
