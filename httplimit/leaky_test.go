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

// TestLeakyBucket checks that requests of a leaky bucket reach the handler at even
// distances, and that those whose clients leave the queue give their places back.
func TestLeakyBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := memstore.New(memstore.Config{Clock: func() int64 { return time.Now().UnixMicro() }})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		l, err := dipwell.New(s, dipwell.Limit{Name: "even", Algorithm: dipwell.LeakyBucket, Rate: 1, Period: time.Second, MaxDebt: 4},
			dipwell.Limit{Name: "all", Rate: 9, Period: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		limit, err := httplimit.New(l, httplimit.Config{Limits: []httplimit.Limit{{Name: "even"}, {Name: "all"}}})
		if err != nil {
			t.Fatal(err)
		}
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
	synctest.Test(t, func(t *testing.T) {
		s, err := memstore.New(memstore.Config{Clock: func() int64 { return time.Now().UnixMicro() }})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		l, err := dipwell.New(s,
			dipwell.Limit{Name: "tried", Algorithm: dipwell.LeakyBucket, Rate: 1, Period: time.Minute, MaxDebt: 9, Mode: dipwell.Shadow},
			dipwell.Limit{Name: "even", Algorithm: dipwell.LeakyBucket, Rate: 1, Period: time.Second, MaxDebt: 9})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			limits []httplimit.Limit
			waits  time.Duration // of the fourth request
		}{{[]httplimit.Limit{{Name: "tried"}}, 0}, {[]httplimit.Limit{{Name: "tried"}, {Name: "even"}}, time.Second}} {
			limit, err := httplimit.New(l, httplimit.Config{Limits: c.limits})
			if err != nil {
				t.Fatal(err)
			}
			h := limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			for range 4 {
				began := time.Now()
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
				if waited := time.Since(began); w.Code != http.StatusOK || waited > c.waits {
					t.Errorf("%v: %d after %v, want at most %v", c.limits, w.Code, waited, c.waits)
				}
			}
		}
	})
}
