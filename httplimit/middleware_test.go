package httplimit_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/httplimit"
	"github.com/dipwell/dipwell/store"
)

// refusalAfter60 is the body of a refusal that ends in a minute.
const refusalAfter60 = `{"title":"Too Many Requests","status":429,"retry_after":60}` + "\n"

func wrap(t *testing.T, l *dipwell.Limiter, c httplimit.Config) http.Handler {
	t.Helper()
	m, err := httplimit.New(l, c)
	if err != nil {
		t.Fatal(err)
	}
	return m(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
}

func get(h http.Handler, path string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestMiddleware(t *testing.T) {
	l, _ := newLimiter(t, "api=1/1m,burst=2")
	h := wrap(t, l, httplimit.Config{Limits: []httplimit.Limit{{Name: "api", Key: httplimit.Header("X-User")}}})
	for i, want := range []int{204, 204, 429} {
		if got := get(h, "/", "X-User", "7"); got.Code != want {
			t.Errorf("call %d: %d, want %d", i, got.Code, want)
		}
	}
	if got := get(h, "/", "X-User", "8"); got.Code != 204 {
		t.Errorf("another user: %d", got.Code)
	}
	w := get(h, "/", "X-User", "7")
	// Nothing of the limit or of the key, which clients need not know.
	if got := w.Body.String(); got != refusalAfter60 {
		t.Errorf("%s, want %s", got, refusalAfter60)
	}
	h2 := w.Result().Header
	if h2.Get("Content-Type") != "application/problem+json" || h2.Get("Cache-Control") != "no-store" || h2.Get("Retry-After") != "60" {
		t.Errorf("%v", h2)
	}
}

func TestMiddlewareBadKeys(t *testing.T) {
	l, _ := newLimiter(t, "api=1/1m,burst=2", "all=1/1m,burst=2,shared=true")
	by := func(limit string, key httplimit.KeyFunc) http.Handler {
		return wrap(t, l, httplimit.Config{Limits: []httplimit.Limit{{Name: limit, Key: key}}})
	}
	byHeader, header := by("api", httplimit.Header("X-User")), by("all", httplimit.Header("X-User"))
	empty := func(*http.Request) (string, error) { return "", nil }
	nul := func(*http.Request) (string, error) { return "\x00", nil }
	badCost := wrap(t, l, httplimit.Config{Limits: []httplimit.Limit{{Name: "all", Cost: func(*http.Request) (int64, error) { return -1, nil }}}})
	for i, w := range []*httptest.ResponseRecorder{
		get(badCost, "/"), get(byHeader, "/"), get(byHeader, "/", "X-User", ""), get(byHeader, "/", "X-User", "a", "X-User", "b"),
		get(byHeader, "/", "X-User", "\xff"), get(by("api", empty), "/"), get(by("all", empty), "/"), get(by("api", nul), "/"), get(by("all", nul), "/"),
		get(by("api", nil), "/"), get(header, "/", "X-User", "a"), get(header, "/"),
	} {
		if w.Code != 400 || w.Result().Header.Get("Content-Type") != "application/problem+json" || i >= 4 && i <= 10 && !strings.Contains(w.Body.String(), `"field":"key"`) {
			t.Errorf("case %d: %d %s", i, w.Code, w.Body)
		}
	}
	for limit, key := range map[string]string{"api": "a", "all": dipwell.Shared} {
		if d, err := l.Check(t.Context(), limit, key, 2); err != nil || !d.Allowed {
			t.Errorf("%s: a bad key took: %v", limit, err)
		}
	}
}

func TestMiddlewareSeveralLimits(t *testing.T) {
	l, _ := newLimiter(t, "user=1/1m,burst=5", "all=1/1m,burst=1,shared=true")
	h := wrap(t, l, httplimit.Config{Limits: []httplimit.Limit{
		{Name: "user", Key: httplimit.Header("X-User"), Cost: func(*http.Request) (int64, error) { return 2, nil }}, {Name: "all"}}})
	if w := get(h, "/", "X-User", "7"); w.Code != 204 {
		t.Fatal(w.Code, w.Body)
	}
	w := get(h, "/", "X-User", "7")
	if got := w.Body.String(); w.Code != 429 || got != refusalAfter60 {
		t.Errorf("%d %s, want %s", w.Code, got, refusalAfter60)
	}
	if d, _ := l.Check(t.Context(), "user", "7", 0); d.Remaining != 3 {
		t.Errorf("the user was charged by a refused call: %d left", d.Remaining)
	}
}

// The body has the number of Retry-After, whatever that is, and none where there is none.
func TestRefusalBody(t *testing.T) {
	l, _ := newLimiter(t, "jitter=1/1m,retry_jitter=100%,shared=true", "never=1/1m,plans=banned:mode=blocked,shared=true")
	for _, v := range []httplimit.Headers{httplimit.IETF, httplimit.XRateLimit, httplimit.NoHeaders} {
		for _, limit := range []string{"jitter", "never"} {
			h := wrap(t, l, httplimit.Config{Headers: v, Limits: []httplimit.Limit{{Name: limit, Plan: func(*http.Request) string {
				return map[string]string{"never": "banned"}[limit]
			}}}})
			get(h, "/")
			w := get(h, "/")
			want := `{"title":"Too Many Requests","status":429,"retry_after":` + w.Header().Get("Retry-After") + "}\n"
			if limit == "never" {
				want = `{"title":"Too Many Requests","status":429}` + "\n"
			}
			if got := w.Body.String(); w.Code != 429 || got != want {
				t.Errorf("%s, %s: %d %s, want %s", v, limit, w.Code, got, want)
			}
		}
	}
	w := httptest.NewRecorder()
	w.Header().Set("Retry-After", "Fri, 31 Dec 1999 23:59:59 GMT") // of a handler; HTTP allows a date
	httplimit.Refuse(w, http.StatusForbidden)
	if got, want := w.Body.String(), `{"title":"Forbidden","status":403}`+"\n"; w.Code != 403 || got != want {
		t.Errorf("%d %s, want %s", w.Code, got, want)
	}
}

func TestMiddlewareStoreErrors(t *testing.T) {
	l, s := newLimiter(t, "closed=1/1m,shared=true", "open=1/1m,on_store_error=open,shared=true")
	s.err = errors.New("down")
	closed := wrap(t, l, httplimit.Config{Limits: []httplimit.Limit{{Name: "closed"}}})
	open := wrap(t, l, httplimit.Config{Limits: []httplimit.Limit{{Name: "open"}}})
	if w := get(closed, "/"); w.Code != 503 || w.Header().Get("RateLimit") != "" {
		t.Error(w.Code, w.Header())
	}
	if w := get(open, "/"); w.Code != 204 || w.Header().Get("RateLimit") != "" || w.Header().Get("RateLimit-Policy") == "" {
		t.Error(w.Code, w.Header())
	}
}

func TestMiddlewareCustomHandlers(t *testing.T) {
	l, s := newLimiter(t, "api=1/1m,shared=true")
	h := wrap(t, l, httplimit.Config{Limits: []httplimit.Limit{{Name: "api"}},
		Refused: func(w http.ResponseWriter, _ *http.Request, d *dipwell.Decision) {
			http.Error(w, "slow down, "+d.Limit, 420)
		},
		Failed: func(w http.ResponseWriter, _ *http.Request, err error) { http.Error(w, err.Error(), 599) }})
	get(h, "/")
	if w := get(h, "/"); w.Code != 420 || w.Header().Get("Retry-After") != "60" {
		t.Error(w.Code, w.Header())
	}
	s.err = errors.New("down")
	if w := get(h, "/"); w.Code != 599 {
		t.Error(w.Code)
	}
}

func TestMiddlewareConfig(t *testing.T) {
	l, _ := newLimiter(t, "api=1/1m")
	for _, c := range []httplimit.Config{{}, {Limits: make([]httplimit.Limit, 17)}, {Limits: []httplimit.Limit{{Name: "ipa"}}}} {
		if _, err := httplimit.New(l, c); err == nil {
			t.Errorf("%d limits were accepted", len(c.Limits))
		}
	}
}

func TestServeMuxPathValue(t *testing.T) {
	l, _ := newLimiter(t, "api=1/1m,burst=1")
	mux := http.NewServeMux()
	mux.Handle("GET /users/{user}", wrap(t, l, httplimit.Config{Limits: []httplimit.Limit{{Name: "api", Key: httplimit.PathValue("user")}}}))
	if a, b, c := get(mux, "/users/7").Code, get(mux, "/users/7").Code, get(mux, "/users/%00").Code; a != 204 || b != 429 || c != 400 {
		t.Error(a, b, c)
	}
}

// The plan and the limit are chosen by the request, and some requests are skipped.
func TestMiddlewareChooses(t *testing.T) {
	l, _ := newLimiter(t, "api=1/1m,burst=1,plans=pro:burst=3|banned:mode=blocked", "search=1/1m,burst=2", "work=1/1m,burst=2,shared=true")
	h := wrap(t, l, httplimit.Config{
		Skip: func(r *http.Request) bool { return r.URL.Path == "/healthz" },
		Limits: []httplimit.Limit{
			{Name: "api", Key: httplimit.Header("X-User"), Plan: func(r *http.Request) string { return r.Header.Get("X-Plan") }},
			{Key: httplimit.Header("X-User"), Choose: func(r *http.Request) string { return r.URL.Query().Get("limit") }},
		}})
	for i, tc := range []struct {
		path, user, plan string
		want             int
	}{
		{"/", "7", "", 204},
		{"/", "7", "", 429},
		{"/healthz", "", "", 204}, // no key either
		{"/", "8", "pro", 204},
		{"/?limit=search", "8", "pro", 204},
		{"/?limit=search", "9", "pro", 204},
		{"/?limit=search", "9", "pro", 204},
		{"/?limit=search", "9", "pro", 429},
		{"/", "9", "pro", 204}, // the refused request took nothing
		{"/", "9", "pro", 429},
		{"/", "6", "banned", 429},
		{"/", "6", "prro", 500},
		{"/?limit=nobody", "6", "", 500},
	} {
		header := []string{}
		if tc.user != "" {
			header = append(header, "X-User", tc.user, "X-Plan", tc.plan)
		}
		if got := get(h, tc.path, header...); got.Code != tc.want {
			t.Errorf("call %d: %d, want %d: %s", i, got.Code, tc.want, got.Body)
		}
	}
	low := wrap(t, l, httplimit.Config{Limits: []httplimit.Limit{{Name: "work", Floor: 1}}})
	high := wrap(t, l, httplimit.Config{Limits: []httplimit.Limit{{Name: "work"}}})
	for i, tc := range []struct {
		h    http.Handler
		want int
	}{{low, 204}, {low, 429}, {high, 204}, {high, 429}} {
		if got := get(tc.h, "/"); got.Code != tc.want {
			t.Errorf("floor, call %d: %d, want %d", i, got.Code, tc.want)
		}
	}
}

// A store that keeps no holds cannot have concurrency limits.
func TestConcurrencyNeedsHolds(t *testing.T) {
	l, _ := newLimiter(t, "slots=2,algorithm=concurrency")
	if _, err := httplimit.New(l, httplimit.Config{Limits: []httplimit.Limit{{Name: "slots"}}}); !errors.Is(err, store.ErrNotSupported) {
		t.Error(err)
	}
}
