package httpclient_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/httpclient"
	"github.com/dipwell/dipwell/httplimit"
	"github.com/dipwell/dipwell/memstore"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// service is a RoundTripper that calls a handler without a network, so that time
// can be virtual.
type service func(http.ResponseWriter, *http.Request)

func (s service) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		defer r.Body.Close()
	}
	w := httptest.NewRecorder()
	s(w, r)
	return w.Result(), r.Context().Err()
}

func newTransport(t testing.TB, c httpclient.Config) *httpclient.Transport {
	t.Helper()
	rt, err := httpclient.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return rt
}

func request(ctx context.Context, method, url, body string) *http.Request {
	var b io.Reader
	if body != "" {
		b = strings.NewReader(body)
	}
	r, err := http.NewRequestWithContext(ctx, method, url, b)
	if err != nil {
		panic(err)
	}
	return r
}

// get returns the status of the response or of the error.
func get(rt http.RoundTripper, ctx context.Context, url string) (int, error) { //nolint:revive // the test's own order
	resp, err := rt.RoundTrip(request(ctx, "GET", url, ""))
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	return resp.StatusCode, nil
}

type answer struct {
	status int
	header string
}

func (a answer) write(w http.ResponseWriter) {
	for line := range strings.Lines(a.header) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		w.Header().Set(name, value)
	}
	w.WriteHeader(a.status)
}

func TestRetries(t *testing.T) {
	ok, second := answer{200, ""}, time.Second
	for _, c := range []struct {
		name     string
		config   httpclient.Config
		method   string
		body     string
		deadline time.Duration
		answers  []answer
		status   int // 0: a LimitedError
		calls    int
		min, max time.Duration
	}{
		{"granted", httpclient.Config{}, "GET", "", 0, []answer{ok}, 200, 1, 0, 0},
		{"429 with a wait", httpclient.Config{}, "GET", "", 0, []answer{{429, "Retry-After: 7"}, ok}, 200, 2, 7 * second, 8 * second},
		{"POST with a body", httpclient.Config{}, "POST", "hello", 0, []answer{{429, "Retry-After: 7"}, {503, "Retry-After: 1"}, ok}, 200, 3, 8 * second, 9 * second},
		{"429 without a wait, idempotent", httpclient.Config{}, "GET", "", 0, []answer{{429, ""}, {429, ""}, ok}, 200, 3, 1500 * time.Millisecond, 3500 * time.Millisecond},
		{"429 without a wait, POST", httpclient.Config{}, "POST", "", 0, []answer{{429, ""}}, 429, 1, 0, 0},
		{"429, reset of a used-up quota", httpclient.Config{}, "POST", "", 0, []answer{{429, "RateLimit: \"a\";r=0;t=9"}, ok}, 200, 2, 9 * second, 10 * second},
		{"503 with a wait", httpclient.Config{}, "POST", "", 0, []answer{{503, "Retry-After: 2"}, ok}, 200, 2, 2 * second, 3 * second},
		{"503 without", httpclient.Config{}, "GET", "", 0, []answer{{503, ""}}, 503, 1, 0, 0},
		{"500", httpclient.Config{}, "GET", "", 0, []answer{{500, "Retry-After: 2"}}, 500, 1, 0, 0},
		{"403 of GitHub", httpclient.Config{}, "GET", "", 0, []answer{{403, "X-RateLimit-Resource: core\nX-RateLimit-Remaining: 0\nX-RateLimit-Reset: 30"}, ok}, 200, 2, 30 * second, 32 * second},
		{"403 of GitHub, secondary", httpclient.Config{}, "GET", "", 0, []answer{{403, "X-RateLimit-Resource: core\nX-RateLimit-Remaining: 9\nRetry-After: 20"}, ok}, 200, 2, 20 * second, 22 * second},
		{"429 of GitHub that says nothing", httpclient.Config{MaxWait: time.Hour}, "GET", "", 0, []answer{{429, "X-GitHub-Request-Id: 1"}, ok}, 200, 2, 60 * second, 62 * second},
		{"403", httpclient.Config{}, "GET", "", 0, []answer{{403, ""}}, 403, 1, 0, 0},
		{"deadline", httpclient.Config{}, "GET", "", 6 * second, []answer{{429, "Retry-After: 7"}}, 0, 1, 0, 0},
		{"max wait", httpclient.Config{MaxWait: 6 * second}, "GET", "", 0, []answer{{429, "Retry-After: 7"}}, 0, 1, 0, 0},
		{"waits add up", httpclient.Config{MaxWait: 6 * second}, "GET", "", 0, []answer{{429, "Retry-After: 4"}, {429, "Retry-After: 4"}}, 0, 2, 4 * second, 5 * second},
		{"attempts", httpclient.Config{MaxAttempts: 2}, "GET", "", 0, []answer{{429, "Retry-After: 1"}, {429, "Retry-After: 1"}}, 429, 2, second, 2 * second},
		{"one attempt", httpclient.Config{MaxAttempts: 1}, "GET", "", 0, []answer{{429, "Retry-After: 1"}}, 429, 1, 0, 0},
		{"fail fast", httpclient.Config{FailFast: true}, "GET", "", 0, []answer{{429, "Retry-After: 1"}}, 0, 1, 0, 0},
		{"at once", httpclient.Config{}, "GET", "", 0, []answer{{429, "Retry-After: 0"}, ok}, 200, 2, second / 2, 1100 * time.Millisecond},
		{"negative", httpclient.Config{}, "GET", "", 0, []answer{{429, "Retry-After: -100"}, ok}, 200, 2, second / 2, 1100 * time.Millisecond},
		{"thousands of years", httpclient.Config{MaxWait: 2 * time.Hour}, "GET", "", 0, []answer{{429, "Retry-After: Fri, 31 Dec 9999 23:59:59 GMT"}, ok}, 200, 2, time.Hour, time.Hour + second},
		{"429 for tokens of an unknown cost", httpclient.Config{}, "POST", "", 0, slices.Repeat([]answer{{429, "x-ratelimit-limit-tokens: 150000\nx-ratelimit-remaining-tokens: 0\nx-ratelimit-reset-tokens: 6m0s"}}, 4),
			429, 4, 7 * second, 8 * second}, // 1, 2 and 4 s; the share of a token is 2.4 ms
		{"429 for tokens, backoff beyond the longest block", httpclient.Config{Backoff: 9 * second, MaxBlock: 3 * second}, "POST", "", 0,
			[]answer{{429, "x-ratelimit-limit-tokens: 150000\nx-ratelimit-remaining-tokens: 0\nx-ratelimit-reset-tokens: 6m0s"}, ok}, 200, 2, 3 * second, 3300 * time.Millisecond},
		{"429 for tokens, cost known", httpclient.Config{Tokens: func(*http.Request) int64 { return 1000 }}, "POST", "", 0,
			[]answer{{429, "x-ratelimit-limit-tokens: 6000\nx-ratelimit-remaining-tokens: 500\nx-ratelimit-reset-tokens: 55s"}, ok}, 200, 2, 5 * second, 6 * second},
		{"a share of a day", httpclient.Config{MaxWait: time.Hour}, "POST", "", 0,
			[]answer{{429, "x-ratelimit-limit-requests: 200\nx-ratelimit-remaining-requests: 0\nx-ratelimit-reset-requests: 24h0m0s"}, ok}, 200, 2, 432 * second, 434 * second},
		{"a day", httpclient.Config{MaxWait: 2 * time.Hour}, "POST", "", 0, []answer{{429, "RateLimit: \"day\";r=0;t=86400"}, ok}, 200, 2, time.Hour, time.Hour + 2*second},
		{"Retry-After before the reset", httpclient.Config{}, "POST", "", 0, []answer{{429, "Retry-After: 30\nRateLimit: \"a\";r=0;t=60"}, ok}, 200, 2, 30 * second, 32 * second},
		{"Retry-After of 0 before the reset", httpclient.Config{}, "POST", "", 0, []answer{{429, "Retry-After: 0\nRateLimit: \"a\";r=0;t=60"}, ok}, 200, 2, second / 2, 1100 * time.Millisecond},
		{"Retry-After before a refill", httpclient.Config{Tokens: func(*http.Request) int64 { return 30000 }}, "POST", "", 0,
			[]answer{{429, "Retry-After: 30\nanthropic-ratelimit-input-tokens-limit: 40000\nanthropic-ratelimit-input-tokens-remaining: 0\nanthropic-ratelimit-input-tokens-reset: 60"}, ok}, 200, 2, 30 * second, 32 * second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				if c.deadline > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, c.deadline)
					defer cancel()
				}
				calls := 0
				c.config.Base = service(func(w http.ResponseWriter, r *http.Request) {
					var body []byte
					if r.Body != nil {
						body, _ = io.ReadAll(r.Body)
					}
					if string(body) != c.body {
						t.Errorf("call %d has body %q", calls, body)
					}
					c.answers[calls].write(w)
					calls++
				})
				start := time.Now()
				resp, err := newTransport(t, c.config).RoundTrip(request(ctx, c.method, "http://api.example/things", c.body))
				took, status := time.Since(start), 0
				if err == nil {
					status = resp.StatusCode
					resp.Body.Close()
				} else if e, ok := errors.AsType[*httpclient.LimitedError](err); !ok || e.Status != 429 || time.Until(e.Until) != e.Wait || e.Wait <= 0 || e.Host != "api.example" {
					t.Errorf("%#v", err)
				}
				if status != c.status || calls != c.calls || took < c.min || took > c.max {
					t.Errorf("status %d (%v), %d calls in %v; want %d, %d in %v to %v", status, err, calls, took, c.status, c.calls, c.min, c.max)
				}
			})
		})
	}
}

// A request that is refused without a wait waits as long as an earlier response of the
// service says, even if it is not idempotent.
func TestKnownWait(t *testing.T) {
	for name, earlier := range map[string]answer{
		"a used-up quota":    {200, "RateLimit: \"a\";r=1;t=40"},
		"a wait of the host": {429, "Retry-After: 39"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				rt := newTransport(t, httpclient.Config{Base: service(func(w http.ResponseWriter, r *http.Request) {
					switch {
					case r.URL.Path == "/earlier":
						earlier.write(w)
					case time.Since(start) < 40*time.Second:
						time.Sleep(2 * time.Second)
						answer{429, ""}.write(w)
					}
				})})
				ask := func() {
					ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
					defer cancel()
					_, _ = get(rt, ctx, "http://api.example/earlier")
				}
				if earlier.status == 200 {
					ask()
				} else {
					time.AfterFunc(time.Second, ask) // while the other is in flight
				}
				resp, err := rt.RoundTrip(request(t.Context(), "POST", "http://api.example/", "x"))
				if took := time.Since(start); err != nil || resp.StatusCode != http.StatusOK || took < 40*time.Second || took > 45*time.Second {
					t.Error(resp, err, took)
				} else {
					resp.Body.Close()
				}
			})
		})
	}
}

// Retry-After ends the wait for a used-up quota, for other requests too, but not the window
// of a quota that had enough.
func TestRetryAfterEndsQuotas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := []answer{{200, "RateLimit: \"minute\";r=1;t=60, \"day\";r=2;t=3000\nRateLimit-Policy: \"minute\";q=5;w=60, \"day\";q=9;w=86400"}, {429, "Retry-After: 30"}, {200, ""}, {200, ""}}
		calls := 0
		rt := newTransport(t, httpclient.Config{MaxAttempts: 1, MaxWait: time.Hour, Base: service(func(w http.ResponseWriter, _ *http.Request) {
			answers[calls].write(w)
			calls++
		})})
		start := time.Now()
		for i, want := range []time.Duration{0, 0, 30 * time.Second, 3000 * time.Second} {
			status, err := get(rt, t.Context(), "http://api.example/")
			if took := time.Since(start); err != nil || status != answers[i].status || took < want || took > want+want/10 {
				t.Errorf("request %d: %d, %v after %v, not %v", i, status, err, took, want)
			}
		}
	})
}

// Retry-After ends a wait that was computed from a reset, but not one of another Retry-After.
func TestRetryAfterEndsABlock(t *testing.T) {
	for first, want := range map[string]time.Duration{"RateLimit: \"a\";r=0;t=60": 22 * time.Second, "Retry-After: 60": 60 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			rt := newTransport(t, httpclient.Config{FailFast: true, Base: service(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/late" {
					time.Sleep(2 * time.Second)
					answer{429, "Retry-After: 20"}.write(w)
					return
				}
				answer{429, first}.write(w)
			})})
			time.AfterFunc(time.Nanosecond, func() { _, _ = get(rt, t.Context(), "http://api.example/") })
			_, _ = get(rt, t.Context(), "http://api.example/late")
			_, err := get(rt, t.Context(), "http://api.example/")
			if e, ok := errors.AsType[*httpclient.LimitedError](err); !ok || e.Status != 0 || e.Until.Sub(start).Truncate(time.Second) != want {
				t.Errorf("%s: %v", first, err)
			}
		})
	}
}

// A refusal of one request makes the others wait until the service's reset.
func TestRequestsShareRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		rt := newTransport(t, httpclient.Config{Base: service(func(w http.ResponseWriter, _ *http.Request) {
			if calls.Add(1) == 1 {
				answer{429, "Retry-After: 30"}.write(w)
			}
		})})
		start := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = get(rt, t.Context(), "http://api.example/1") })
		time.Sleep(time.Second)
		for range 20 {
			wg.Go(func() {
				if status, err := get(rt, t.Context(), "http://api.example/2"); status != 200 || time.Since(start) < 30*time.Second {
					t.Error(status, err, time.Since(start))
				}
			})
		}
		if status, err := get(rt, t.Context(), "http://other.example/"); status != 200 || err != nil {
			t.Error("another host:", status, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		r := request(ctx, "POST", "http://api.example/3", "x")
		body := &closed{}
		r.Body = body
		_, err := rt.RoundTrip(r) //nolint:bodyclose // an error has none
		if e, ok := errors.AsType[*httpclient.LimitedError](err); !ok || e.Status != 0 || e.Until.Sub(start) != 30*time.Second || time.Since(start) != time.Second || !body.is {
			t.Errorf("%v after %v, body closed: %v", err, time.Since(start), body.is)
		}
		other := request(t.Context(), "GET", "http://api.example/4", "")
		other.Header.Set("Authorization", "Bearer of another account")
		if resp, err := rt.RoundTrip(other); err != nil || time.Since(start) != time.Second {
			t.Error("other credentials:", err)
		} else {
			resp.Body.Close()
		}
		wg.Wait()
		if took := time.Since(start); took > 32*time.Second || calls.Load() != 24 {
			t.Error(took, calls.Load())
		}
	})
}

type closed struct{ is bool }

func (c *closed) Read([]byte) (int, error) { return 0, io.EOF }
func (c *closed) Close() error             { c.is = true; return nil }

// window is a service with a fixed window that answers after a delay.
type window struct {
	mu            sync.Mutex
	limit, used   int
	length        time.Duration
	end           time.Time
	refused, sent int
	latency       time.Duration
	dialect       func(h http.Header, limit, left int, reset time.Duration)
}

func (s *window) serve(w http.ResponseWriter, _ *http.Request) {
	time.Sleep(s.latency / 2)
	s.mu.Lock()
	if now := time.Now(); !now.Before(s.end) {
		s.used, s.end = 0, now.Add(s.length)
	}
	reset, over := time.Until(s.end), s.used >= s.limit
	if over {
		s.refused++
	} else {
		s.used++
		s.sent++
	}
	left := s.limit - s.used
	s.mu.Unlock()
	s.dialect(w.Header(), s.limit, left, reset)
	if over {
		w.WriteHeader(http.StatusTooManyRequests)
	}
	time.Sleep(s.latency / 2)
}

func ceil(d time.Duration) string { return strconv.Itoa(int((d + time.Second - 1) / time.Second)) }

// After the first responses no request is refused and no quota is left unused, with
// all header fields that give a window.
func TestNoRefusalsAfterFirstResponses(t *testing.T) {
	for name, dialect := range map[string]func(http.Header, int, int, time.Duration){
		"ietf": func(h http.Header, limit, left int, reset time.Duration) {
			h.Set("RateLimit-Policy", `"default";q=`+strconv.Itoa(limit)+`;w=60`)
			h.Set("RateLimit", `"default";r=`+strconv.Itoa(left)+`;t=`+ceil(reset))
		},
		"github": func(h http.Header, limit, left int, reset time.Duration) {
			h.Set("X-RateLimit-Resource", "core")
			h.Set("X-RateLimit-Limit", strconv.Itoa(limit))
			h.Set("X-RateLimit-Remaining", strconv.Itoa(left))
			h.Set("X-RateLimit-Reset", strconv.FormatInt(time.Now().Add(reset+time.Second-1).Unix(), 10))
		},
		"reset after": func(h http.Header, limit, left int, reset time.Duration) {
			h.Set("X-RateLimit-Limit", strconv.Itoa(limit))
			h.Set("X-RateLimit-Remaining", strconv.Itoa(left))
			h.Set("X-RateLimit-Reset-After", strconv.FormatFloat(reset.Seconds(), 'f', 3, 64))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &window{limit: 10, length: time.Minute, latency: 50 * time.Millisecond, dialect: dialect}
				rt := newTransport(t, httpclient.Config{Base: service(s.serve), MaxWait: time.Hour})
				start := time.Now()
				if status, err := get(rt, t.Context(), "http://api.example/channels/1"); status != 200 {
					t.Fatal(status, err)
				}
				var wg sync.WaitGroup
				for range 39 {
					wg.Go(func() {
						if status, err := get(rt, t.Context(), "http://api.example/channels/1"); status != 200 {
							t.Error(status, err)
						}
					})
				}
				wg.Wait()
				if took := time.Since(start); s.refused > 0 || s.sent != 40 || took > 3*time.Minute+5*time.Second {
					t.Errorf("%d sent, %d refused in %v; four windows of 10 need 3 minutes", s.sent, s.refused, took)
				}
			})
		})
	}
}

// A used-up resource of GitHub makes only its own routes wait.
func TestBuckets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := newTransport(t, httpclient.Config{FailFast: true, Base: service(func(w http.ResponseWriter, r *http.Request) {
			resource := "core"
			if strings.HasPrefix(r.URL.Path, "/search") {
				resource = "search"
			}
			answer{200, "X-RateLimit-Limit: 1\nX-RateLimit-Remaining: 0\nX-RateLimit-Reset: 60\nX-RateLimit-Resource: " + resource}.write(w)
		})})
		for i, c := range []struct {
			path string
			ok   bool
		}{
			{"/repos/a", true}, {"/repos/b", false}, {"/search/code", true}, {"/search/users", false},
			{"/users/a", true}, {"/users/b", false}, {"/repos/c", false}, // the first one shows its resource
		} {
			if status, err := get(rt, t.Context(), "http://api.example"+c.path); (status == 200) != c.ok {
				t.Errorf("%d %s: %d %v", i, c.path, status, err)
			}
		}
		time.Sleep(60 * time.Second)
		if status, err := get(rt, t.Context(), "http://api.example/repos/a"); status != 200 {
			t.Error(status, err)
		}
	})
}

// Quotas counted in tokens refill.
func TestTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := newTransport(t, httpclient.Config{Tokens: func(r *http.Request) int64 { return r.ContentLength },
			Base: service(func(w http.ResponseWriter, _ *http.Request) {
				answer{200, "x-ratelimit-limit-tokens: 6000\nx-ratelimit-remaining-tokens: 1000\nx-ratelimit-reset-tokens: 50s"}.write(w)
			})})
		post := func(size int) time.Duration {
			start := time.Now()
			r := request(t.Context(), "POST", "http://api.example/", strings.Repeat("x", size))
			resp, err := rt.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			return time.Since(start)
		}
		if first, fits, more := post(1), post(1000), post(2000); first != 0 || fits != 0 || more < 10*time.Second || more > 11*time.Second {
			t.Error(first, fits, more, "; 1000 tokens more take 10 s at 100 a second")
		}
	})
}

func TestLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		epoch := time.Now()
		store, err := memstore.New(memstore.Config{MaxKeys: 100, Clock: func() int64 { return 1e15 + time.Since(epoch).Microseconds() }})
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		l, err := dipwell.New(store, dipwell.Limit{Name: "out", Rate: 1, Period: time.Second, Burst: 2}, dipwell.Limit{Name: "day", Rate: 5, Period: 24 * time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		host := func(r *http.Request) (string, error) { return r.URL.Host, nil }
		calls := 0
		base := service(func(http.ResponseWriter, *http.Request) { calls++ })
		one := newTransport(t, httpclient.Config{Base: base, Limiter: l, Limits: []httpclient.Limit{{Name: "out", Key: host}}})
		two := newTransport(t, httpclient.Config{Base: base, Limiter: l, Limits: []httpclient.Limit{{Name: "out", Key: host}, {Name: "day", Key: host}}})
		start := time.Now()
		for i := range 6 { // two transports, as two processes would, share one budget
			rt := one
			if i%2 == 1 {
				rt = two
			}
			if status, err := get(rt, t.Context(), "http://api.example/"); status != 200 {
				t.Fatal(status, err)
			}
		}
		if took := time.Since(start); took < 4*time.Second || took > 4*time.Second+time.Millisecond {
			t.Errorf("6 requests at 1 a second, 2 at once, took %v", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		_, err = get(one, ctx, "http://api.example/")
		refused, ok := errors.AsType[*dipwell.RefusedError](err)
		if e, is := errors.AsType[*httpclient.LimitedError](err); !ok || !is || refused.Decision.Limit != "out" || e.Limit != "out" || e.Wait <= 0 || ctx.Err() != nil {
			t.Errorf("%v", err)
		}
		if calls != 6 {
			t.Errorf("%d calls", calls)
		}
		_ = store.Close()
	})
}

// Every field of a Limit does what it says there. A new one needs a case here.
func TestFieldsOfALimit(t *testing.T) {
	mem, err := memstore.New(memstore.Config{Clock: func() int64 { return 1e15 }})
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	l, err := dipwell.New(mem, dipwell.Limit{Name: "out", Rate: 5, Period: time.Hour, MaxDebt: dipwell.NoDebt, Shared: true, Plans: dipwell.NewPlans(dipwell.Plan{Name: "pro", Rate: 50})},
		dipwell.Limit{Name: "other", Rate: 5, Period: time.Hour, Shared: true}, dipwell.Limit{Name: "each", Rate: 1, Period: time.Hour},
		dipwell.Limit{Name: "debt", Rate: 5, Period: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	one := func(name string) func(*http.Request) string { return func(*http.Request) string { return name } }
	fields := map[string]struct {
		limit httpclient.Limit
		sent  int // of ten requests
	}{
		"Name":   {httpclient.Limit{Name: "out"}, 5},
		"Key":    {httpclient.Limit{Name: "each", Key: func(r *http.Request) (string, error) { return r.URL.Path, nil }}, 10},
		"Cost":   {httpclient.Limit{Name: "out", Cost: func(*http.Request) (int64, error) { return 2, nil }}, 2},
		"Choose": {httpclient.Limit{Choose: one("other")}, 5},
		"none":   {httpclient.Limit{Choose: one("")}, 10},
		"Plan":   {httpclient.Limit{Name: "out", Plan: one("pro")}, 10},
		"Floor":  {httpclient.Limit{Name: "out", Floor: 3}, 2},
	}
	for f := range reflect.TypeFor[httpclient.Limit]().Fields() {
		if _, ok := fields[f.Name]; !ok {
			t.Errorf("no case for %s", f.Name)
		}
	}
	if _, err = httpclient.New(httpclient.Config{Limiter: l, Limits: []httpclient.Limit{{Name: "debt", Floor: 1}}}); err == nil || !strings.Contains(err.Error(), "NoDebt") {
		t.Errorf("a floor of a limit with debt: %v", err)
	}
	base := roundTrip(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Header: http.Header{}}, nil
	})
	for name, c := range fields {
		for _, limit := range []string{"out", "other"} {
			if _, err := l.Reset(t.Context(), limit, dipwell.Shared); err != nil {
				t.Fatal(err)
			}
		}
		tr, err := httpclient.New(httpclient.Config{Base: base, Limiter: l, FailFast: true, Limits: []httpclient.Limit{c.limit}})
		if err != nil {
			t.Fatal(name, err)
		}
		sent := 0
		for i := range 10 {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprint("http://service/", i), nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := tr.RoundTrip(r)
			if _, limited := errors.AsType[*httpclient.LimitedError](err); err != nil && !limited {
				t.Fatal(name, err)
			}
			if err == nil {
				resp.Body.Close()
				sent++
			}
		}
		if sent != c.sent {
			t.Errorf("%s: %d of 10 requests were sent, not %d", name, sent, c.sent)
		}
	}
}

// Many hosts and routes do not grow the table.
func TestMaxRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := newTransport(t, httpclient.Config{MaxRemembered: 50, FailFast: true, Base: service(func(w http.ResponseWriter, r *http.Request) {
			answer{200, "RateLimit: \"x\";r=0;t=3600\nX-RateLimit-Resource: " + r.URL.Host}.write(w)
		})})
		for i := range 5000 {
			if status, err := get(rt, t.Context(), "http://h"+strconv.Itoa(i)+".example/"+strconv.Itoa(i)); status != 200 {
				t.Fatal(status, err)
			}
			time.Sleep(time.Millisecond)
		}
		if n := rt.Remembered(); n > 50 {
			t.Errorf("%d entries", n)
		}
	})
}

func TestCancelledWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := newTransport(t, httpclient.Config{Base: service(func(w http.ResponseWriter, _ *http.Request) { answer{429, "Retry-After: 30"}.write(w) })})
		start := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Second, cancel)
		if _, err := get(rt, ctx, "http://api.example/"); !errors.Is(err, context.Canceled) || time.Since(start) != 10*time.Second {
			t.Error(err, time.Since(start))
		}
		if _, err := get(rt, ctx, "http://api.example/"); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// The tests from here on use real connections.

func TestLoopback(t *testing.T) {
	store, err := memstore.New(memstore.Config{MaxKeys: 100})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	limiter, err := dipwell.New(store, dipwell.Limit{Name: "api", Rate: 1, Period: time.Second, Burst: 3, Shared: true})
	if err != nil {
		t.Fatal(err)
	}
	wrap, err := httplimit.New(limiter, httplimit.Config{Limits: []httplimit.Limit{{Name: "api"}}})
	if err != nil {
		t.Fatal(err)
	}
	var connections, served atomic.Int64
	server := httptest.NewUnstartedServer(wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/quota" {
			answer{429, "Retry-After: 3600"}.write(w)
			return
		}
		served.Add(1)
		_, _ = io.Copy(w, r.Body)
	})))
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			connections.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	base := &http.Transport{}
	defer base.CloseIdleConnections()
	client := &http.Client{Transport: newTransport(t, httpclient.Config{Base: base}), Timeout: time.Minute}
	start := time.Now()
	for i := range 4 {
		resp, err := client.Post(server.URL, "text/plain", bytes.NewReader([]byte("hello "+strconv.Itoa(i))))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK || string(body) != "hello "+strconv.Itoa(i) {
			t.Errorf("%d: %s %q %v", i, resp.Status, body, err)
		}
	}
	if took := time.Since(start); took < 900*time.Millisecond || served.Load() != 4 || connections.Load() != 1 {
		t.Errorf("4 requests took %v, %d served, %d connections", took, served.Load(), connections.Load())
	}
	for i := range 2 {
		_, err = client.Get(server.URL + "/quota") //nolint:bodyclose // an error has none
		if e, ok := errors.AsType[*httpclient.LimitedError](err); !ok || e.Wait < 59*time.Minute || e.Status != []int{429, 0}[i] {
			t.Error(err)
		}
	}
}

// After a refusal with a short body the connection is reused. A body without an
// end delays the request by at most maxDrainTime.
func TestDrain(t *testing.T) {
	var connections, calls atomic.Int64
	release := make(chan struct{})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1)%2 == 0 {
			return
		}
		w.Header().Set("Retry-After-Ms", "5")
		w.WriteHeader(http.StatusTooManyRequests)
		if r.URL.Path == "/endless" {
			_ = http.NewResponseController(w).Flush()
			<-release
			return
		}
		_, _ = w.Write(make([]byte, 30<<10))
	}))
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			connections.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	defer close(release)
	base := &http.Transport{}
	defer base.CloseIdleConnections()
	rt := newTransport(t, httpclient.Config{Base: base})
	for range 3 {
		if status, err := get(rt, t.Context(), server.URL); status != 200 {
			t.Fatal(status, err)
		}
	}
	if n := connections.Load(); n != 1 {
		t.Errorf("%d connections for short refusals", n)
	}
	if status, err := get(rt, t.Context(), server.URL+"/endless"); status != 200 { // drain must stop before release
		t.Error(status, err)
	}
}

// No response makes a request wait longer than MaxBlock, nor blocks a host for
// longer.
func FuzzRoundTrip(f *testing.F) {
	f.Add(uint8(0), "Retry-After: 99999999999")
	f.Add(uint8(1), "RateLimit: \"a\";r=0;t=99999\nRateLimit-Policy: \"a\";q=9;w=999999999999999")
	f.Add(uint8(2), "X-RateLimit-Resource: a\nX-RateLimit-Remaining: 0\nX-RateLimit-Reset-After: 1e9")
	f.Add(uint8(1), "x-ratelimit-limit-tokens: 99999999999999999999\nx-ratelimit-remaining-tokens: 0\nx-ratelimit-reset-tokens: 1ns")
	f.Fuzz(func(t *testing.T, status uint8, lines string) {
		header := http.Header{}
		for line := range strings.Lines(lines) {
			if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
				header.Add(name, strings.TrimSpace(value))
			}
		}
		code := []int{429, 200, 403, 503, 529}[status%5]
		base := always{&http.Response{StatusCode: code, Header: header, Body: http.NoBody}}
		rt := newTransport(t, httpclient.Config{Base: base, FailFast: true, MaxBlock: time.Hour, MaxAttempts: 2})
		for range 5 {
			resp, err := rt.RoundTrip(request(t.Context(), "GET", "http://api.example/a/1/b", "")) //nolint:bodyclose // it is http.NoBody
			e, ok := errors.AsType[*httpclient.LimitedError](err)
			if (err != nil) != ok || ok && (e.Wait <= 0 || e.Wait > time.Hour) || (resp == nil) != ok {
				t.Fatalf("%v %v", resp, err)
			}
		}
		if n := rt.Remembered(); n > 3 {
			t.Errorf("%d entries", n)
		}
	})
}

func TestConfig(t *testing.T) {
	store, err := memstore.New(memstore.Config{MaxKeys: 10})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	l, err := dipwell.New(store, dipwell.Limit{Name: "a", Rate: 1, Period: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range []httpclient.Config{{MaxWait: -1}, {MaxBlock: -1}, {Backoff: 1 << 62}, {MaxAttempts: 101}, {MaxAttempts: -1}, {MaxRemembered: -1},
		{Limits: []httpclient.Limit{{Name: "a"}}}, {Limiter: l, Limits: []httpclient.Limit{{Name: "b"}}}, {Limiter: l, Limits: make([]httpclient.Limit, 17)}} {
		if _, err := httpclient.New(c); err == nil || !strings.HasPrefix(err.Error(), "httpclient: ") {
			t.Errorf("configuration %d: %v", i, err)
		}
	}
}

// TestPanics checks that a request that panics, in Base or in a function of a limit, is no
// longer in flight: others do not wait for it.
func TestPanics(t *testing.T) {
	for name, inBase := range map[string]bool{"in Base": true, "in a key function": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bad := false
				store, err := memstore.New(memstore.Config{Clock: func() int64 { return time.Now().UnixMicro() }})
				if err != nil {
					t.Fatal(err)
				}
				defer store.Close()
				l, err := dipwell.New(store, dipwell.Limit{Name: "own", Rate: 100, Period: time.Second})
				if err != nil {
					t.Fatal(err)
				}
				rt := newTransport(t, httpclient.Config{Limiter: l, Limits: []httpclient.Limit{{Name: "own", Key: func(*http.Request) (string, error) {
					if bad && !inBase {
						panic("no key")
					}
					return "k", nil
				}}}, Base: service(func(w http.ResponseWriter, _ *http.Request) {
					if bad {
						panic("no answer")
					}
					w.Header().Set("RateLimit-Policy", `"one";q=1;w=5`)
					w.Header().Set("RateLimit", `"one";r=1;t=5`)
				})})
				send := func() (panicked bool, err error) {
					defer func() { panicked = recover() != nil }()
					resp, err := rt.RoundTrip(request(t.Context(), "GET", "http://api.example/", ""))
					if err == nil {
						resp.Body.Close()
					}
					return false, err
				}
				for i, want := range []bool{false, true, false} {
					bad = want
					if panicked, err := send(); err != nil || panicked != want {
						t.Errorf("request %d: %v, panicked %v", i, err, panicked)
					}
				}
			})
		})
	}
}

// TestNotMadeByNew checks that a Transport that New has not made says so, since its
// Config looks as if it could be set.
func TestNotMadeByNew(t *testing.T) {
	for _, rt := range []*httpclient.Transport{{}, {Config: httpclient.Config{Base: service(func(http.ResponseWriter, *http.Request) { t.Error("it was sent") })}}} {
		body := &seen{Reader: strings.NewReader("b")}
		r := request(t.Context(), "POST", "http://api.example/", "")
		r.Header.Set("Authorization", "Bearer k")
		r.Body = body
		if resp, err := rt.RoundTrip(r); err == nil || err.Error() != "httpclient: the Transport was not made by New" || !body.closed { //nolint:bodyclose // there is none
			t.Errorf("%v, %v, closed: %v", resp, err, body.closed)
		}
	}
}

type seen struct {
	io.Reader
	closed bool
}

func (s *seen) Close() error { s.closed = true; return nil }

type always struct{ resp *http.Response }

func (a always) RoundTrip(*http.Request) (*http.Response, error) { return a.resp, nil }

func BenchmarkRoundTrip(b *testing.B) {
	for name, header := range map[string]http.Header{
		"no fields": {"Content-Type": {"text/plain"}},
		"ietf":      {"Ratelimit-Policy": {`"api";q=1000000000;w=60`}, "Ratelimit": {`"api";r=999999999;t=60`}},
		"openai": {"X-Ratelimit-Limit-Requests": {"1000000000"}, "X-Ratelimit-Remaining-Requests": {"999999999"}, "X-Ratelimit-Reset-Requests": {"6m0s"},
			"X-Ratelimit-Limit-Tokens": {"1000000000"}, "X-Ratelimit-Remaining-Tokens": {"999999999"}, "X-Ratelimit-Reset-Tokens": {"6m0s"}},
	} {
		b.Run(name, func(b *testing.B) {
			rt := newTransport(b, httpclient.Config{Base: always{&http.Response{StatusCode: http.StatusOK, Header: header, Body: http.NoBody}}})
			r := request(b.Context(), "GET", "http://api.example/things", "")
			r.Header.Set("Authorization", "Bearer 0123456789abcdef")
			b.ReportAllocs()
			for b.Loop() {
				if _, err := rt.RoundTrip(r); err != nil { //nolint:bodyclose // it is http.NoBody
					b.Fatal(err)
				}
			}
		})
	}
}
