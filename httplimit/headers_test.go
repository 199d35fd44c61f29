package httplimit_test

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/httplimit"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
	"github.com/dunglas/httpsfv"
)

// fields returns the header fields that Set sets, one per line.
func fields(v httplimit.Headers, d *dipwell.Decision) string {
	h := http.Header{}
	v.Set(h, d)
	var b strings.Builder
	for _, name := range []string{"RateLimit-Policy", "RateLimit", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "Retry-After"} {
		if v := h.Get(name); v != "" {
			fmt.Fprintf(&b, "%s: %s\n", name, v)
		}
	}
	return b.String()
}

func TestHeaderGolden(t *testing.T) {
	for _, tc := range []struct {
		name, limit string
		take        []int64       // costs taken first
		later       time.Duration // time that passes then
		cost        int64
		headers     httplimit.Headers
		want        string
	}{
		{"bucket", "login=5/1m,burst=20", []int64{12}, 0, 1, httplimit.IETF,
			"RateLimit-Policy: \"login\";q=20;w=240\nRateLimit: \"login\";r=7;t=84\n"},
		{"full", "login=5/1m,burst=20", nil, 0, 0, httplimit.IETF,
			"RateLimit-Policy: \"login\";q=20;w=240\nRateLimit: \"login\";r=20;t=240\n"},
		{"last token: time to the next", "login=5/1m,burst=20", []int64{19}, 0, 1, httplimit.IETF,
			"RateLimit-Policy: \"login\";q=20;w=240\nRateLimit: \"login\";r=0;t=12\n"},
		{"part of the next token is there", "login=5/1m,burst=20", []int64{20}, 4500 * time.Millisecond, 0, httplimit.IETF,
			"RateLimit-Policy: \"login\";q=20;w=240\nRateLimit: \"login\";r=0;t=8\n"},
		{"refused", "login=5/1m,burst=20", []int64{20}, 0, 1, httplimit.IETF,
			"RateLimit-Policy: \"login\";q=20;w=240\nRateLimit: \"login\";r=0;t=12\nRetry-After: 12\n"},
		{"refused with some left: t is no later than Retry-After", "login=5/1m,burst=20", []int64{10}, 0, 11, httplimit.IETF,
			"RateLimit-Policy: \"login\";q=20;w=240\nRateLimit: \"login\";r=10;t=12\nRetry-After: 12\n"},
		{"never 0 seconds", "api=1000/1s", []int64{1000}, 0, 1, httplimit.IETF,
			"RateLimit-Policy: \"api\";q=1000;w=1\nRateLimit: \"api\";r=0;t=1\nRetry-After: 1\n"},
		{"never", "login=5/1m,burst=20", nil, 0, 21, httplimit.IETF,
			"RateLimit-Policy: \"login\";q=20;w=240\nRateLimit: \"login\";r=20;t=240\n"},
		{"window", "day=100/1d,algorithm=fixed_window,start=0s", []int64{40}, 0, 0, httplimit.IETF,
			"RateLimit-Policy: \"day\";q=100;w=86400\nRateLimit: \"day\";r=60;t=80000\n"},
		{"window with roll-over, two windows short", "w=10/1m,algorithm=fixed_window,burst=30,start=0s", []int64{25}, 0, 0, httplimit.IETF,
			"RateLimit-Policy: \"w\";q=30;w=60\nRateLimit: \"w\";r=5;t=20\n"},
		{"window refused", "w=10/1m,algorithm=fixed_window,start=0s", []int64{10}, 0, 1, httplimit.IETF,
			"RateLimit-Policy: \"w\";q=10;w=60\nRateLimit: \"w\";r=0;t=20\nRetry-After: 20\n"},
		{"sliding window", "s=10/1m,algorithm=sliding_window,start=0s", []int64{6}, time.Minute, 0, httplimit.IETF,
			"RateLimit-Policy: \"s\";q=10;w=60\nRateLimit: \"s\";r=8;t=20\n"},
		{"sliding window refused", "s=10/1m,algorithm=sliding_window,start=0s", []int64{10}, 20 * time.Second, 5, httplimit.IETF,
			"RateLimit-Policy: \"s\";q=10;w=60\nRateLimit: \"s\";r=0;t=25\nRetry-After: 25\n"},
		{"month", "m=10/1mo,algorithm=fixed_window,start='0s'", nil, 0, 0, httplimit.IETF, ""},
		{"quoted name, 15 digits", `a"b\c=9007199254740/1s,burst=9007199254740`, nil, 0, 0, httplimit.IETF,
			"RateLimit-Policy: \"a\\\"b\\\\c\";q=9007199254740;w=1\nRateLimit: \"a\\\"b\\\\c\";r=9007199254740;t=1\n"},
		{"burst 0", "jobs=1/1m,burst=0,max_debt=5", nil, 0, 1, httplimit.IETF,
			"RateLimit-Policy: \"jobs\";q=0;w=1\nRateLimit: \"jobs\";r=0;t=1\n"},
		{"shadow", "login=5/1m,burst=20,mode=shadow", []int64{20}, 0, 1, httplimit.IETF,
			"RateLimit-Policy: \"login\";q=20;w=240\nRateLimit: \"login\";r=0;t=12\n"},
		{"x-ratelimit", "login=5/1m,burst=20", []int64{12}, 0, 1, httplimit.XRateLimit,
			"X-RateLimit-Limit: 20\nX-RateLimit-Remaining: 7\nX-RateLimit-Reset: 156\n"},
		{"x-ratelimit refused", "login=5/1m,burst=20", []int64{20}, 0, 1, httplimit.XRateLimit,
			"X-RateLimit-Limit: 20\nX-RateLimit-Remaining: 0\nX-RateLimit-Reset: 240\nRetry-After: 12\n"},
		{"off", "login=5/1m,burst=20", []int64{20}, 0, 1, httplimit.NoHeaders, "Retry-After: 12\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.want == "" { // a period whose length depends on the calendar
				tc.limit = "m=10/1mo,algorithm=fixed_window,start=00:00 UTC"
				tc.want = "RateLimit-Policy: \"m\";q=10;w=2592000\nRateLimit: \"m\";r=10;t=2592000\n"
			}
			l, s := newLimiter(t, tc.limit)
			name := l.Limits()[0].Name
			for _, n := range tc.take {
				if d, err := l.Take(t.Context(), name, "k", n); err != nil || !d.Allowed || d.Shadow {
					t.Fatal(d, err)
				}
			}
			s.now += tc.later.Microseconds()
			d, err := l.Take(t.Context(), name, "k", tc.cost)
			if err != nil {
				t.Fatal(err)
			}
			if got := fields(tc.headers, &d); got != tc.want {
				t.Errorf("got\n%swant\n%s", got, tc.want)
			}
		})
	}
}

// A window of a calendar ends at its own end, however many windows it takes until all that
// rolls over is there again.
func TestResetOfCalendarWithRollover(t *testing.T) {
	l, s := newLimiter(t, "m=10/1mo,algorithm=fixed_window,burst=40,start=00:00 UTC")
	now := time.Now()
	s.now = now.UnixMicro()
	d, err := l.Take(t.Context(), "m", "k", 35)
	if err != nil || d.ResetAfter < 80*24*time.Hour {
		t.Fatal(d, err)
	}
	end := time.Date(now.UTC().Year(), now.UTC().Month()+1, 1, 0, 0, 0, 0, time.UTC)
	got := fields(httplimit.IETF, &d)
	var seconds int64
	_, rest, _ := strings.Cut(got, ";t=")
	if _, err := fmt.Sscanf(rest, "%d", &seconds); err != nil {
		t.Fatal(got, err)
	}
	if wait := end.Sub(now) - time.Duration(seconds)*time.Second; wait.Abs() > time.Minute && end.Sub(now) > time.Minute {
		t.Errorf("%s: the window ends in %v", got, end.Sub(now))
	}
}

func TestHeadersOfSeveralLimits(t *testing.T) {
	l, _ := newLimiter(t, "user=5/1m,burst=20", "tenant=1/1s,burst=3")
	takes := func(n int64) dipwell.Decision {
		d, err := l.TakeAll(t.Context(), dipwell.Take{Limit: "user", Key: "u", Cost: n}, dipwell.Take{Limit: "tenant", Key: "t", Cost: n})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	d := takes(2)
	want := "RateLimit-Policy: \"user\";q=20;w=240, \"tenant\";q=3;w=3\nRateLimit: \"user\";r=18;t=216, \"tenant\";r=1;t=1\n"
	if got := fields(httplimit.IETF, &d); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	d = takes(3) // only the tenant refuses: two more come in 2 s
	want = "RateLimit-Policy: \"user\";q=20;w=240, \"tenant\";q=3;w=3\nRateLimit: \"user\";r=18;t=216, \"tenant\";r=1;t=1\nRetry-After: 2\n"
	if got := fields(httplimit.IETF, &d); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// The fields parse as structured fields with a library that implements RFC 9651.
func TestHeadersAreStructuredFields(t *testing.T) {
	names := []string{"login", `a"b\c`, "with space", "~!@#$%^&*(){}[]|;:'<>?/"}
	for _, name := range names {
		l, _ := newLimiter(t)
		if _, err := l.Define(t.Context(), dipwell.Limit{Name: name, Rate: 5, Period: time.Minute, Burst: 20}, store.OwnerCode); err != nil {
			t.Fatal(err)
		}
		d, err := l.TakeAll(t.Context(), dipwell.Take{Limit: name, Key: "a", Cost: 3}, dipwell.Take{Limit: name, Key: "b", Cost: 4})
		if err != nil {
			t.Fatal(err)
		}
		h := http.Header{}
		httplimit.IETF.Set(h, &d)
		policy, err := httpsfv.UnmarshalList(h["Ratelimit-Policy"])
		if err != nil || len(policy) != 1 {
			t.Fatalf("%s: %v %v", h["Ratelimit-Policy"], policy, err)
		}
		list, err := httpsfv.UnmarshalList(h["Ratelimit"])
		if err != nil || len(list) != 2 {
			t.Fatalf("%s: %v %v", h["Ratelimit"], list, err)
		}
		for i, member := range append(policy, list...) {
			item := member.(httpsfv.Item)
			if item.Value != name {
				t.Errorf("name %q came back as %q", name, item.Value)
			}
			param := map[bool]string{true: "q", false: "r"}[i == 0]
			if _, ok := item.Params.Get(param); !ok {
				t.Errorf("item %d has no %s", i, param)
			}
		}
		if text, err := httpsfv.Marshal(list); err != nil || text != h.Get("RateLimit") {
			t.Errorf("canonical %q, ours %q (%v)", text, h.Get("RateLimit"), err)
		}
	}
}

// retryAfter returns the field Retry-After of a decision.
func retryAfter(t *testing.T, d *dipwell.Decision) int64 {
	t.Helper()
	h := http.Header{}
	httplimit.NoHeaders.Set(h, d)
	n, err := strconv.ParseInt(h.Get("Retry-After"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestRetryJitterWidensUpwardOnly(t *testing.T) {
	l, _ := newLimiter(t, "login=1/100s,burst=1,retry_jitter=50%")
	if _, err := l.Take(t.Context(), "login", "k", 1); err != nil {
		t.Fatal(err)
	}
	d, _ := l.Take(t.Context(), "login", "k", 1)
	seen := map[int64]bool{}
	for range 200 {
		n := retryAfter(t, &d)
		if n < 100 || n > 150 {
			t.Fatalf("Retry-After %d is outside 100 to 150", n)
		}
		seen[n] = true
	}
	if len(seen) < 10 || d.RetryAfter != 100*time.Second {
		t.Errorf("%d different values, retry_after %v", len(seen), d.RetryAfter)
	}
}

func TestRetryJitterDoesNotOverflow(t *testing.T) {
	l, _ := newLimiter(t, "slow=1/40000d,burst=1,retry_jitter=100%,max_debt=0,max_charge=1")
	_, _ = l.Take(t.Context(), "slow", "k", 1)
	d, err := l.Take(t.Context(), "slow", "k", 1)
	if err != nil || d.Allowed {
		t.Fatal(d, err)
	}
	for range 100 {
		if n := retryAfter(t, &d); n < 40000*86400 {
			t.Fatal(n)
		}
	}
}

// Plans are announced by their own numbers, unlimited ones not at all. A concurrency
// limit has no window.
func TestHeadersOfPlans(t *testing.T) {
	l, _ := newLimiter(t, "api=5/1m,burst=20,plans=pro:rate=600;burst=1000|staff:mode=unlimited|banned:mode=blocked")
	for _, tc := range []struct{ plan, want string }{
		{"", "RateLimit-Policy: \"api\";q=20;w=240\nRateLimit: \"api\";r=19;t=228\n"},
		{"pro", "RateLimit-Policy: \"api\";q=1000;w=100\nRateLimit: \"api\";r=999;t=100\n"},
		{"staff", ""},
		{"banned", "RateLimit-Policy: \"api\";q=20;w=240\nRateLimit: \"api\";r=0\n"},
	} {
		for _, with := range []bool{false, true} {
			var d dipwell.Decision
			takes := []dipwell.Take{{Limit: "api", Key: "k" + tc.plan + fmt.Sprint(with), Cost: 1, Plan: tc.plan}}
			var err error
			if with { // Decision.Limits
				err = l.DoAll(t.Context(), &d, store.VerbTake, takes)
			} else {
				err = l.Do(t.Context(), &d, store.VerbTake, takes[0])
			}
			if got := fields(httplimit.IETF, &d); err != nil || got != tc.want {
				t.Errorf("plan %q: %v\n%swant\n%s", tc.plan, err, got, tc.want)
			}
		}
	}
	// Another key of the limit, in the same call, has its plan announced.
	free, pro := dipwell.Take{Limit: "api", Key: "free", Cost: 1, Plan: "staff"}, dipwell.Take{Limit: "api", Key: "pro", Cost: 1, Plan: "pro"}
	for _, takes := range [][]dipwell.Take{{free, pro}, {pro, free}} {
		d, err := l.TakeAll(t.Context(), takes...)
		if got := fields(httplimit.IETF, &d); err != nil || !strings.HasPrefix(got, "RateLimit-Policy: \"api\";q=1000;w=100\nRateLimit: \"api\";r=99") {
			t.Errorf("%v: %v\n%s", takes, err, got)
		}
	}
}

// TestHeadersOfABlockedKey checks that a key that is blocked until a time has no tokens
// before it, whatever is in its bucket.
func TestHeadersOfABlockedKey(t *testing.T) {
	s, err := memstore.New(memstore.Config{Clock: func() int64 { return 1e15 }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l, err := dipwell.New(s, dipwell.Limit{Name: "api", Rate: 5, Period: time.Minute, Burst: 20, Plans: dipwell.NewPlans(dipwell.Plan{Name: "banned", Mode: dipwell.Blocked})})
	if err == nil {
		_, err = l.SetOverride(t.Context(), "api", dipwell.Override{Key: "k", Plan: "banned", Until: 1e15 + time.Hour.Microseconds()})
	}
	if err != nil {
		t.Fatal(err)
	}
	d, err := l.Take(t.Context(), "api", "k", 1)
	for headers, want := range map[httplimit.Headers]string{
		httplimit.IETF:       "RateLimit-Policy: \"api\";q=20;w=240\nRateLimit: \"api\";r=0;t=3600\nRetry-After: 3600\n",
		httplimit.XRateLimit: "X-RateLimit-Limit: 20\nX-RateLimit-Remaining: 0\nX-RateLimit-Reset: 3600\nRetry-After: 3600\n",
	} {
		if got := fields(headers, &d); err != nil || got != want {
			t.Errorf("%v\n%swant\n%s", err, got, want)
		}
	}
}
