package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/away"
	"github.com/dipwell/dipwell/internal/server"
	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
)

// fixture is an API over a store whose clock the test sets.
type fixture struct {
	t       testing.TB
	now     int64
	limiter *dipwell.Limiter
	server  *server.Server
	api     http.Handler
	*flaky
}

// flaky is a store that returns an error while down is set.
type flaky struct {
	inner store.Store
	down  atomic.Bool
	why   func(context.Context) error // nil: always ready
}

func (f *flaky) Abilities() store.Abilities {
	ab := store.AbilitiesOf(f.inner)
	ab.Ready = func(ctx context.Context) error {
		if f.why == nil {
			return nil
		}
		return f.why(ctx)
	}
	return ab
}

func (f *flaky) Apply(ctx context.Context, b *store.Batch) error {
	if f.down.Load() {
		return errors.New("dial tcp 10.1.2.3:5432: connection refused")
	}
	return f.inner.Apply(ctx, b)
}

const standard = "login=5/1m,burst=20,auth=true;jobs=1/1s,burst=1,max_debt=5;open=1/1m,on_store_error=open;listed=5/1m,burst=20,keys=list;never=1/1m,burst=1,max_debt=0;all=5/1m,burst=20,auth=true,shared=true"

func newFixture(t testing.TB, c server.Config, at server.Site) *fixture {
	t.Helper()
	w := &fixture{t: t, now: 1e15}
	st, err := memstore.New(memstore.Config{MaxKeys: 1000, Clock: func() int64 { return w.now }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	w.flaky = &flaky{inner: st}
	w.over(w.flaky, c, at, strings.Split(standard, ";")...)
	if _, err = w.limiter.Define(t.Context(), dipwell.Limit{Name: "filed", Rate: 1, Period: 1e9}, terms.OwnerFile); err != nil {
		t.Fatal(err)
	}
	return w
}

// over makes w an API over limits in a store.
func (w *fixture) over(st store.Store, c server.Config, at server.Site, limits ...string) *fixture {
	w.t.Helper()
	var parsed []dipwell.Limit
	for _, text := range limits {
		l, err := dipwell.ParseLimit(text)
		if err != nil {
			w.t.Fatal(err)
		}
		parsed = append(parsed, l)
	}
	var err error
	if w.limiter, err = dipwell.New(st, parsed...); err != nil {
		w.t.Fatal(err)
	}
	w.server = server.New(w.limiter, c)
	w.api = w.server.API(at)
	return w
}

var local = server.Site{Loopback: true}

// do sends a request; headers are "Name: value".
func (w *fixture) do(method, target, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "http://localhost"+target, strings.NewReader(body))
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if name == "Host" {
			r.Host = value
		} else {
			r.Header.Add(name, value)
		}
	}
	rec := httptest.NewRecorder()
	w.api.ServeHTTP(rec, r)
	if _, proxy := w.api.(*server.Proxy); !proxy {
		asDescribed(w.t, r, body, rec)
	}
	return rec
}

// post sends a body to a verb.
func (w *fixture) post(path, body string, headers ...string) *httptest.ResponseRecorder {
	return w.do(http.MethodPost, "/v1/"+path, body, headers...)
}

func (w *fixture) want(rec *httptest.ResponseRecorder, status int, parts ...string) {
	w.t.Helper()
	if rec.Code != status {
		w.t.Errorf("status %d, want %d: %s", rec.Code, status, rec.Body)
		return
	}
	for _, p := range parts {
		if !strings.Contains(rec.Body.String(), p) {
			w.t.Errorf("%q is not in %s", p, rec.Body)
		}
	}
	if rec.Code >= 400 {
		w.wantProblem(rec)
	}
	if rec.Body.Len() > 0 && strings.Contains(rec.Header().Get("Content-Type"), "json") && !json.Valid(rec.Body.Bytes()) {
		w.t.Errorf("not JSON: %s", rec.Body)
	}
}

func (w *fixture) wantProblem(rec *httptest.ResponseRecorder) {
	w.t.Helper()
	var p struct {
		Type, Title string
		Status      int
	}
	if err := json.Unmarshal(rec.Body.Bytes(), &p); err != nil || p.Type == "" || p.Title == "" || p.Status != rec.Code {
		w.t.Errorf("no problem: %v %s", err, rec.Body)
	}
	if rec.Header().Get("Content-Type") != "application/problem+json" || rec.Header().Get("Cache-Control") != "no-store" {
		w.t.Errorf("headers of a problem: %v", rec.Header())
	}
}

func TestTakeJSON(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	rec := w.post("take", `{"limit":"login","key":"user:7","cost":1}`)
	w.want(rec, 200)
	const want = `{"allowed":true,"limit":"login","key":"user:7","cost":1,"granted":1,"capacity":20,"remaining":19,"retry_after_us":null,"reset_after_us":12000000,"delay_us":0,"shadow":false,"source":"store"}` + "\n"
	if rec.Body.String() != want {
		t.Errorf("got  %swant %s", rec.Body, want)
	}
	h := rec.Header()
	if h.Get("RateLimit") != `"login";r=19;t=228` || h.Get("RateLimit-Policy") != `"login";q=20;w=240` || h.Get("Content-Type") != "application/json" {
		t.Errorf("headers %v", h)
	}
}

func TestVerbs(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	for _, step := range []struct {
		path, body string
		status     int
		parts      []string
	}{
		{"take", "limit=login&key=k&cost=18", 200, []string{`"remaining":2`}},
		{"check", "limit=login&key=k&cost=2", 200, []string{`"remaining":2`, `"granted":0`}},
		{"check", "limit=login&key=k&cost=3", 429, []string{`"retry_after_us":12000000`, `"violated-policies":["login"]`, `"status":429`}},
		{"take_up_to", "limit=login&key=k&cost=5", 200, []string{`"granted":2`, `"remaining":0`}},
		{"take_up_to", "limit=login&key=k&cost=5", 429, nil},
		{"charge", "limit=login&key=k&cost=5", 200, []string{`"remaining":0`, `"reset_after_us":300000000`}},
		{"refund", "limit=login&key=k&cost=6", 200, []string{`"remaining":1`}},
		{"reset", "limit=login&key=k", 200, []string{`"remaining":20`}},
		{"take", "limit=login&key=k&cost=21", 429, []string{`"never":true`, `"retry_after_us":null`}},
		{"take", "limit=all", 200, []string{`"key":null`, `"remaining":19`}},
		{"take", `{"limit":"all"}`, 200, []string{`"key":null`, `"remaining":18`}},
		{"reserve", "limit=jobs&key=k", 200, []string{`"delay_us":0`}},
		{"reserve", "limit=jobs&key=k&cost=2", 200, []string{`"delay_us":2000000`, `"reservation":"`}},
		{"take", "limit=jobs&key=k", 429, nil},
		{"reserve", "limit=never&key=k&cost=2", 429, []string{`"never":true`}},
		{"take", `{"takes":[{"limit":"login","key":"a","cost":2},{"limit":"listed","key":"a"}]}`, 200, []string{`"limits":[{`, `"remaining":18`, `"remaining":19`}},
		{"take", `{"takes":[{"limit":"login","key":"a","cost":1},{"limit":"never","key":"a","cost":2}]}`, 429, []string{`"violated-policies":["never"]`}},
		{"check", `{"takes":[{"limit":"login","key":"a","cost":18}]}`, 200, nil},
		{"reserve", `{"takes":[{"limit":"jobs","key":"x","cost":2},{"limit":"login","key":"x"}]}`, 200, []string{`"delay_us":1000000`}},
	} {
		rec := w.post(step.path, step.body)
		w.want(rec, step.status, step.parts...)
		if rec.Code == 429 {
			if never := strings.Contains(rec.Body.String(), `"never":true,`); never != (rec.Header().Get("Retry-After") == "") {
				t.Errorf("%s: Retry-After %q", rec.Body, rec.Header().Get("Retry-After"))
			}
		}
	}
	w.want(w.do("POST", "/v1/take?limit=login&key=q&cost=20", ""), 200, `"remaining":0`)
	w.want(w.do("POST", "/v1/take?limit=login", "key=q"), 429)
}

func TestCancel(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	w.post("reserve", "limit=jobs&key=k")
	rec := w.post("reserve", "limit=jobs&key=k&cost=2")
	var d struct{ Reservation string }
	if err := json.Unmarshal(rec.Body.Bytes(), &d); err != nil || d.Reservation == "" {
		t.Fatal(err, rec.Body)
	}
	w.want(w.post("cancel", `{"reservation":"`+d.Reservation+`"}`), 200, `"cancelled":true`)
	w.want(w.post("cancel", `{"reservation":"`+d.Reservation+`"}`), 409)
	w.want(w.post("cancel", "reservation="+d.Reservation), 409)
	for _, bad := range []string{"", "{}", `{"reservation":"x"}`, `{"reservation":7}`, `{"Reservation":"x"}`, "limit=login", "reservation="} {
		w.want(w.post("cancel", bad), 400)
	}
	w.want(w.do("GET", "/v1/cancel", ""), 405, "GET is not allowed here; use POST")
	w.want(w.do("GET", "/v1/take", ""), 405, "GET is not allowed here; use POST")
	w.want(w.do("POST", "/v1/limits/login", ""), 405, "POST is not allowed here; use DELETE, GET, HEAD or PUT")
}

// Each body is refused with the field's name, and charges nothing.
func TestBadInput(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	long := strings.Repeat("k", 513)
	for _, tc := range []struct{ body, field string }{
		{`{"limit":"login","cost":-1}`, "cost"},
		{`{"limit":"login","cost":1.5}`, "cost"},
		{`{"limit":"login","cost":1e400}`, "cost"},
		{`{"limit":"login","cost":1e3}`, "cost"},
		{`{"limit":"login","cost":"NaN"}`, "cost"},
		{`{"limit":"login","cost":NaN}`, "body"},
		{`{"limit":"login","cost":9007199254740992}`, "cost"},
		{`{"limit":"login","cost":99999999999999999999999999}`, "cost"},
		{`{"limit":"login","cost":null}`, "cost"},
		{`{"limit":"login","cost":true}`, "cost"},
		{`{"limit":"login","cost":01}`, "body"},
		{`{"limit":"login","cost":-0}`, "cost"},
		{`{"limit":"login","cost":"1"}`, "cost"},
		{`{"limit":"login","cost":[1]}`, "cost"},
		{`{"limit":"login","key":""}`, "key"},
		{`{"limit":"login","key":null}`, "key"},
		{`{"limit":"login","key":7}`, "key"},
		{`{"limit":"login","key":"` + long + `"}`, "key"},
		{`{"limit":"login","key":"a\u0000b"}`, "key"},
		{`{"limit":"login","key":"\u0000"}`, "key"},
		{"{\"limit\":\"login\",\"key\":\"a\xff\"}", "key"},
		{`{"limit":"login","key":"\ud800"}`, "key"},
		{`{"limit":"login","key":"\ud800\u0041"}`, "key"},
		{`{"limit":"login","key":"\x"}`, "body"},
		{"{\"limit\":\"login\",\"key\":\"a\nb\"}", "body"},
		{`{"limit":7}`, "limit"},
		{`{"limit":null}`, "limit"},
		{`{"key":"k"}`, "limit"},
		{`{}`, "limit"},
		{``, "limit"},
		{`{"limit":"login","Key":"k"}`, "Key"},
		{`{"LIMIT":"login"}`, "LIMIT"},
		{`{"limit":"login","limit":"login"}`, "limit"},
		{`{"limit":"login","key":"a","key":"b"}`, "key"},
		{`{"limit":"login","extra":1}`, "extra"},
		{`{"limit":"login"} x`, "body"},
		{`{"limit":"login"}{"limit":"login"}`, "body"},
		{`{"limit":"login"`, "body"},
		{`{"limit":"login",}`, "body"},
		{`{"limit" "login"}`, "body"},
		{`{"limit":"login"`, "body"},
		{`{"limit":"login","takes":[]}`, "takes"},
		{`{"takes":[]}`, "takes"},
		{`{"takes":{}}`, "takes"},
		{`{"takes":[7]}`, "takes[0]"},
		{`{"takes":[{"limit":"login"},{"limit":"login","cost":1.5}]}`, "takes[1].cost"},
		{`{"takes":[{"limit":"login","key":""}]}`, "takes[0].key"},
		{`{"takes":[{"limit":"login","key":"` + long + `"}]}`, "takes[0].key"},
		{`{"takes":[{"limit":"login","Cost":1}]}`, "takes[0].Cost"},
		{`{"takes":[{"limit":"login","cost":1,"cost":1}]}`, "takes[0].cost"},
		{`{"takes":[{"key":"k"}]}`, "takes[0].limit"},
		{`{"takes":[` + strings.TrimSuffix(strings.Repeat(`{"limit":"login"},`, 17), ",") + `]}`, "takes"},
		{`limit=login&cost=-1`, "cost"},
		{`limit=login&cost=1.5`, "cost"},
		{`limit=login&cost=1e400`, "cost"},
		{`limit=login&cost=NaN`, "cost"},
		{`limit=login&cost=%2B1`, "cost"},
		{`limit=login&cost=`, "cost"},
		{`limit=login&cost=9007199254740992`, "cost"},
		{`limit=login&key=`, "key"},
		{`limit=login&key=%00`, "key"},
		{`limit=login&key=%ff`, "key"},
		{`limit=login&key=%zz`, "key"},
		{`limit=login&key=` + long, "key"},
		{`limit=login&key=a&key=b`, "key"},
		{`limit=login&Key=a`, "Key"},
		{`limit=login&nonsense=1`, "nonsense"},
		{`limit=login&takes=1`, "takes"},
		{`cost=1`, "limit"},
	} {
		for _, verb := range []string{"take", "charge"} {
			if verb == "charge" && strings.Contains(tc.body, "takes") {
				continue // forms have no takes
			}
			body := tc.body
			if !strings.Contains(strings.ToLower(body), "key") { // nothing else is wrong with it
				body = strings.ReplaceAll(body, "login", "all")
			}
			rec := w.post(verb, body)
			var p struct{ Field, Detail string }
			_ = json.Unmarshal(rec.Body.Bytes(), &p)
			if rec.Code != 400 || p.Field != tc.field || p.Detail == "" {
				t.Errorf("%s %.80s: %d, field %q, want 400 and %q: %s", verb, tc.body, rec.Code, p.Field, tc.field, rec.Body)
			}
			w.wantProblem(rec)
		}
	}
	for key, limit := range map[string]string{dipwell.Shared: "all", "a": "login", "b": "login", "k": "login"} {
		if d, err := w.limiter.Check(t.Context(), limit, key, 20); err != nil || !d.Allowed {
			t.Errorf("a 400 was charged: %+v %v", d, err)
		}
	}
	w.want(w.post("take", `{"limit":"all","cost":0}`), 200, `"cost":0`)
	w.want(w.post("take", `{"limit":"all","cost":9007199254740991}`), 429, `"never":true`)
	w.want(w.post("take", `{"limit":"login","key":"`+long[:512]+`"}`), 200)
	w.want(w.post("take", ` {"limit" : "login" , "key":"\u00e9\ud83d\ude00\/\"" } `), 200, `"key":"é😀/\""`)
	w.want(w.post("charge", `{"takes":[{"limit":"login"}]}`), 400, `"field":"takes"`)
	w.want(w.do("POST", "/v1/take?limit=login", `{"limit":"login"}`), 400, `"field":"query"`)
	w.want(w.do("POST", "/v1/take", `[1]`, "Content-Type: application/json"), 400, `"field":"body"`)
	form := "--x\r\nContent-Disposition: form-data; name=\"limit\"\r\n\r\nlogin\r\n--x--\r\n"
	w.want(w.do("POST", "/v1/take", form, "Content-Type: multipart/form-data; boundary=x"), 400, `"field":"body"`, "is multipart; send JSON")
	for _, kind := range []string{"application/json", "application/x-www-form-urlencoded"} {
		w.want(w.do("POST", "/v1/take", "\x1f\x8b\x08\x00", "Content-Type: "+kind, "Content-Encoding: gzip"), 400, `"field":"body"`, "has a Content-Encoding")
	}
}

// A call without a key of a limit for keys, and one with a key of a shared limit, are
// mistakes of every path, and change nothing.
func TestKeylessCalls(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	const missing, shared = "key: is missing; limit login has a bucket for each key (shared: true would make it one for everybody)", "key: limit all is shared: its calls have no key"
	for _, verb := range []string{"take", "check", "take_up_to", "reserve", "charge", "refund", "reset", "wait", "hold"} {
		rest := ""
		if verb == "hold" {
			rest = "&ttl=1m"
		}
		w.want(w.post(verb, "limit=login"+rest), 400, `"field":"key"`, missing)
		w.want(w.post(verb, "limit=all&key=k"+rest), 400, `"field":"key"`, shared)
	}
	for _, verb := range []string{"take", "check", "reserve", "wait"} {
		w.want(w.post(verb, `{"takes":[{"limit":"all"},{"limit":"login"}]}`), 400, `"field":"takes[1].key"`, missing)
		w.want(w.post(verb, `{"takes":[{"limit":"login","key":"k"},{"limit":"all","key":"k"}]}`), 400, `"field":"takes[1].key"`, shared)
	}
	for _, path := range []string{"keys", "holds"} {
		w.want(w.do("GET", "/v1/limits/all/"+path+"?key=k", ""), 400, `"field":"key"`, shared)
	}
	w.want(w.do("GET", "/v1/limits/login/keys?key=", ""), 400, `"field":"key"`, missing)
	w.want(w.do("GET", "/v1/limits/login/holds", ""), 400, `"field":"key"`, missing)
	w.want(w.do("PUT", "/v1/limits/login/overrides", "rate=1&per=1s"), 400, `"field":"key"`, missing)
	w.want(w.do("PUT", "/v1/limits/all/overrides", "key=k&rate=1&per=1s"), 400, `"field":"key"`, shared)
	w.want(w.do("DELETE", "/v1/limits/login/overrides", ""), 400, `"field":"key"`, missing)
	w.want(w.do("DELETE", "/v1/limits/login/overrides?key=cust-*", ""), 400, `"field":"key"`, "no patterns")
	w.want(w.do("DELETE", "/v1/limits/all/overrides?key=k", ""), 400, `"field":"key"`, shared)
	w.want(w.do("GET", "/v1/auth?limit=login", ""), 400, `"field":"key"`, "is missing: give key, key_header or key_ip")
	w.want(w.post("check", "limit=all&cost=20"), 200)
	w.want(w.post("check", "limit=login&key=k&cost=20"), 200)
	w.want(w.do("GET", "/v1/auth?limit=all", ""), 200)
	w.want(w.do("GET", "/v1/limits/all/keys?key=", ""), 200, `"key":null`, `"remaining":19`)
}

// A limit becomes shared by its settings.
func TestSharedIsASetting(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	w.want(w.do("PUT", "/v1/limits/new", `{"rate":1,"per":"1s","shared":true}`), 201, `"shared":true`)
	w.want(w.do("GET", "/v1/limits/new", ""), 200, `"shared":true`)
	w.want(w.post("take", "limit=new"), 200, `"key":null`)
	w.want(w.do("PUT", "/v1/limits/new", `{"rate":1,"per":"1s","parts":0}`), 400, `"field":"parts"`, "a limit with one bucket for everybody is shared: true")
	w.want(w.do("PUT", "/v1/limits/new", `{"rate":1,"per":"1s","parts":1,"shared":true}`), 400, `"field":"shared"`)
	w.want(w.do("PUT", "/v1/limits/new", `{"rate":1,"per":"1s","shared":"yes"}`), 400, `"field":"shared"`)
}

func TestUnknownNames(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	w.want(w.post("take", `{"limit":"nobody"}`), 404, `"field":"limit"`)
	w.want(w.post("take", `{"takes":[{"limit":"login","key":"k"},{"limit":"nobody"}]}`), 404)
	w.want(w.post("nothing", ``), 404)
	w.want(w.do("GET", "/", ""), 404)
	for _, path := range []string{"//v1/limits", "/v1//limits", "/v1/./limits", "/v1/x/../limits", "//ui/"} { // not a redirect in HTML
		rec := httptest.NewRecorder()
		w.api.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "http://localhost"+path, nil))
		if w.wantProblem(rec); rec.Code != 404 {
			t.Errorf("%s: %d", path, rec.Code)
		}
	}
	rec := w.do("GET", "/v1/take", "")
	if w.want(rec, 405); rec.Header().Get("Allow") != "POST" {
		t.Error(rec.Header())
	}
	if rec = w.do("POST", "/v1/limits", ""); rec.Code != 405 || rec.Header().Get("Allow") == "" {
		t.Error(rec.Code, rec.Header())
	}
}

func TestTooLarge(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	big := `{"limit":"login","key":"` + strings.Repeat("k", 65<<10) + `"}`
	w.want(w.post("take", big), 413, `"field":"body"`)
	r := httptest.NewRequest(http.MethodPost, "http://localhost/v1/take", strings.NewReader(big))
	r.ContentLength = -1 // chunked
	rec := httptest.NewRecorder()
	w.api.ServeHTTP(rec, r)
	w.want(rec, 413)
	w.want(w.do("PUT", "/v1/limits/x", big), 413)
	fits := `{"limit":"all"` + strings.Repeat(" ", 64<<10-15) + `}`
	w.want(w.post("take", fits), 200)
}

func TestStoreDown(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	w.down.Store(true)
	rec := w.post("take", "limit=login&key=k")
	w.want(rec, 503)
	if strings.Contains(rec.Body.String(), "10.1.2.3") {
		t.Errorf("tells the store's address: %s", rec.Body)
	}
	w.want(w.post("take", "limit=open&key=k"), 200, `"source":"fallback-open"`)
	w.want(w.post("take", `{"takes":[{"limit":"open","key":"k"},{"limit":"login","key":"k"}]}`), 503)
	w.want(w.do("GET", "/readyz", ""), 503)
	w.want(w.do("GET", "/healthz", ""), 200)
	w.want(w.do("GET", "/metrics", ""), 200, `dipwell_store_errors_total 2`, `dipwell_fallbacks_total{kind="open",limit="open"} 1`,
		`dipwell_fallbacks_total{kind="closed",limit="login"} 2`)
	w.down.Store(false)
	w.want(w.do("GET", "/readyz", ""), 200)
	w.server.Stop()
	w.want(w.do("GET", "/readyz", ""), 503)
}

// /readyz answers 503 while the fallback decides, and while a condition fails.
func TestReadiness(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	f, err := away.NewFallback(w.flaky, away.FallbackConfig{MaxKeys: 100})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	l, err := dipwell.New(f, dipwell.Limit{Name: "a", Rate: 1, Period: time.Second, OnStoreError: dipwell.FailLocal})
	if err != nil {
		t.Fatal(err)
	}
	w.server = server.New(l, server.Config{})
	var why error
	w.why = func(context.Context) error { return why }
	w.api = w.server.API(local)
	w.want(w.do("GET", "/readyz", ""), 200)
	w.down.Store(true)
	w.want(w.do("GET", "/readyz", ""), 503)
	w.down.Store(false)
	for _, tc := range []struct {
		why  error
		want string
	}{
		{fmt.Errorf("%w: it is secret", dipwell.ErrStore), "the store cannot answer: see the service's log"},
		{store.ErrNoSpace, "its disk or memory is full"},
		{fmt.Errorf("%w: %w", dipwell.ErrStore, errors.New("connect to secret.host")), "the store cannot answer: see the service's log"},
		{fmt.Errorf("%w: secret.host: %w", away.ErrOpen, &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}), "the store cannot answer: " + syscall.ECONNREFUSED.Error()},
		{fmt.Errorf("%w: %w", dipwell.ErrStore, &net.DNSError{Err: "no such host", Name: "secret.host"}), "the store cannot answer: see the service's log"},
		{fmt.Errorf("%w: secret.host: %w", dipwell.ErrStore, context.DeadlineExceeded), "it does not answer in time"},
		{fmt.Errorf("%w: secret.host: %w", dipwell.ErrStore, &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}), "it does not answer in time"},
		{fmt.Errorf("secret.host: %w", &pgconn.PgError{Code: "28P01", Message: "secret.user"}), "the store cannot answer: SQLSTATE 28P01"},
		{fmt.Errorf("secret.host: %w", &pgconn.PgError{Code: "42501"}), "the store cannot answer: SQLSTATE 42501"},
		{&pgconn.PgError{Code: "XX000", Message: "secret"}, "the store cannot answer: SQLSTATE XX000"},
		{&pgconn.PgError{Message: "secret"}, "the store cannot answer: SQLSTATE"},
	} {
		why = tc.why
		rec := w.do("GET", "/readyz", "")
		if w.want(rec, 503, tc.want); strings.Contains(rec.Body.String(), "secret") {
			t.Errorf("tells too much: %s", rec.Body)
		}
	}
}

func TestMetrics(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	w.server.Collect(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "dipwell_batches_total"}, func() float64 { return 9 }))
	w.server.Gauge("dipwell_gauge", "A gauge.", func() float64 { return 7 })
	w.post("take", "limit=login&key=k&cost=20")
	w.post("take", "limit=login&key=k")
	w.post("take", "limit=login&key=k&cost=-1")
	w.post("take", "limit=nobody")
	rec := w.do("GET", "/metrics", "")
	w.want(rec, 200, `dipwell_decisions_total{limit="login",result="allowed"} 1`, `dipwell_decisions_total{limit="login",result="refused"} 1`,
		`dipwell_decision_seconds_count{store="memory",verb="take"} 2`, `dipwell_store_errors_total 0`, "dipwell_gauge 7", "dipwell_keys 1", "# TYPE dipwell_keys gauge", "dipwell_batches_total 9")
	if strings.Contains(rec.Body.String(), "nobody") {
		t.Error("an unknown limit became a label")
	}
}

// TestMetricsOfFullStore checks that calls for which the store had no room count, also if
// the limit answers them in its place.
func TestMetricsOfFullStore(t *testing.T) {
	st, err := memstore.New(memstore.Config{MaxKeys: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	plain := dipwell.Limit{Name: "plain", Rate: 1, Period: time.Hour}
	shadow, open := plain, plain
	shadow.Name, shadow.Mode = "shadow", dipwell.Shadow
	open.Name, open.OnStoreError = "open", dipwell.FailOpen
	l, err := dipwell.New(st, plain, shadow, open)
	if err != nil {
		t.Fatal(err)
	}
	w := &fixture{t: t, limiter: l, server: server.New(l, server.Config{})}
	w.api = w.server.API(local)
	w.want(w.post("take", "limit=plain&key=a"), 200)
	w.want(w.post("take", "limit=shadow&key=b"), 200, `"source":"fallback-open"`)
	w.want(w.post("take", "limit=open&key=c"), 200, `"source":"fallback-open"`)
	w.want(w.post("take", "limit=plain&key=d"), 503)
	w.want(w.do("GET", "/metrics", ""), 200, "dipwell_store_full_total 3\n", "dipwell_store_errors_total 1\n")
}

// measured is a store with metrics of its own.
type measured struct {
	store.Store
	metrics []store.Metric
}

func (m measured) Abilities() store.Abilities {
	ab := store.AbilitiesOf(m.Store)
	ab.Metrics = func() []store.Metric { return m.metrics }
	return ab
}

// TestMetricsOfStore checks that /metrics leaves out a metric of the store that has
// the name of another or no valid one, and has all others.
func TestMetricsOfStore(t *testing.T) {
	st, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	l, err := dipwell.New(&measured{st, []store.Metric{
		{Name: "dipwell_in_flight", Help: "Another gauge.", Value: 7},
		{Name: "dipwell_shed_total", Help: "Calls turned away, because max_in_flight others were in flight or another bound of what clients can hold was reached.", Counter: true, Value: 7},
		{Name: "go_goroutines", Help: "Another counter.", Counter: true, Value: -7},
		{Name: "not\xffvalid", Help: "No name.", Value: 7},
		{Name: "dipwell_twice", Help: "The first.", Value: 1},
		{Name: "dipwell_twice", Help: "The second.", Value: 2},
		{Name: "dipwell_own", Help: "Its own.", Value: 7},
	}})
	if err != nil {
		t.Fatal(err)
	}
	w := &fixture{t: t, limiter: l, server: server.New(l, server.Config{Labels: map[string]string{"zone": "a"}})}
	w.api = w.server.API(local)
	for range 20 { // the metrics of a scrape are collected concurrently
		rec := w.do("GET", "/metrics", "")
		w.want(rec, 200, `dipwell_in_flight{zone="a"} 0`, `dipwell_shed_total{zone="a"} 0`, `dipwell_twice{zone="a"} 1`, `dipwell_own{zone="a"} 7`, `go_goroutines{zone="a"} `)
		if strings.Contains(rec.Body.String(), `go_goroutines{zone="a"} -7`) {
			t.Error("the store's metric took the place of the service's")
		}
	}
}

// An error does not repeat all of a long name.
func TestErrorsAreShort(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	long := strings.Repeat("\\u0001\u20ac", 5000)
	for call, body := range map[string]string{
		"take":   strings.Repeat("%e2%82%ac", 7000) + "=1",
		"check":  `{"limit":"` + long + `"}`,
		"charge": strings.Repeat("%01", 20000),
		"cancel": `{"reservation":"` + long + `"}`,
	} {
		rec := w.post(call, body)
		if rec.Code != 400 && rec.Code != 404 || rec.Body.Len() > 16<<10 || !json.Valid(rec.Body.Bytes()) || !utf8.Valid(rec.Body.Bytes()) {
			t.Errorf("%s: %d with %d bytes: %.200s", call, rec.Code, rec.Body.Len(), rec.Body)
		}
	}
}

func TestLimits(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	w.want(w.do("GET", "/v1/limits", ""), 200, `"name":"login"`, `"owner":"file"`)
	w.want(w.do("GET", "/v1/limits/login", ""), 200, `{"name":"login","rate":5,"per":"1m","burst":20,"auth":true,"owner":"code"`)
	w.want(w.do("GET", "/v1/limits/nobody", ""), 404)
	w.want(w.do("PUT", "/v1/limits/mine", `{"rate":1,"per":"1h","burst":0,"max_debt":"unlimited","auth":false}`), 201, `"name":"mine"`, `"owner":"api"`, `"burst":0`, `"max_debt":"unlimited"`)
	w.want(w.do("PUT", "/v1/limits/mine", `rate=2&per=1h`), 200, `"rate":2`, `"version":2`)
	w.want(w.post("take", "limit=mine&key=k&cost=2"), 200)
	for _, tc := range []struct{ body, field string }{
		{`{"rate":1,"per":"1h","brust":1}`, "brust"}, {`{"rate":0,"per":"1h"}`, "rate"}, {`{"rate":1.5,"per":"1h"}`, "rate"},
		{`{"rate":1}`, "per"}, {`{}`, ""}, {`{"rate":1,"rate":2,"per":"1h"}`, "rate"}, {`{"name":"other","rate":1,"per":"1h"}`, "name"},
		{`{"rate":[1],"per":"1h"}`, "rate"}, {`{"rate":null,"per":"1h"}`, "rate"}, {`{"Rate":1,"per":"1h"}`, "Rate"},
		{`{"rate":1,"per":"1h","burst":9007199254740991}`, "burst"}, {`{"rate":1,"per":"1h"} 7`, "body"}, {`rate=1&per=1h&rate=2`, "rate"},
	} {
		rec := w.do("PUT", "/v1/limits/mine", tc.body)
		w.want(rec, 400)
		if tc.field != "" && !strings.Contains(rec.Body.String(), `"field":"`+tc.field+`"`) {
			t.Errorf("%s: %s", tc.body, rec.Body)
		}
	}
	w.want(w.do("PUT", "/v1/limits/mine", `{"rate":1,"per":"1h","brust":1}`), 400, "did you mean burst?")
	w.want(w.do("PUT", "/v1/limits/mine", `{"per":"1h"}`), 400, `rate: is missing`)
	w.want(w.do("PUT", "/v1/limits/mine", `{"rate":0,"per":"1h"}`), 400, `rate: 0 is less than 1`)
	w.want(w.do("PUT", "/v1/limits/mine", `{"algorithm":"concurrency"}`), 400, `burst: is missing`)
	w.want(w.do("PUT", "/v1/limits/mine", `{"algorithm":"concurrency","burst":0}`), 400, `burst: 0 is not between 1 and 2^53-1`)
	w.want(w.do("GET", "/v1/limits/mine", ""), 200, `"rate":2`)
	w.want(w.do("PUT", "/v1/limits/filed", `{"rate":1,"per":"1h"}`), 409, "configuration file")
	w.want(w.do("DELETE", "/v1/limits/filed", ""), 409)
	if rec := w.do("DELETE", "/v1/limits/mine", ""); rec.Code != 204 {
		t.Error(rec.Code, rec.Body)
	}
	w.want(w.do("DELETE", "/v1/limits/mine", ""), 404)
	w.want(w.post("take", "limit=mine"), 404)
	w.want(w.do("PUT", "/v1/limits/a%2Fb", `{"rate":1,"per":"1h"}`), 201, `"name":"a/b"`)
}

// Pages of definitions are in order of name.
// TestLimitWithPlans checks that plans and parents are read and written as in a
// configuration file.
func TestLimitWithPlans(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	const want = `{"name":"user","rate":60,"per":"1m","plans":{"banned":{"mode":"blocked"},"pro":{"rate":600,"burst":1000},"same":{},"staff":{"mode":"unlimited","callable":false},"team":{"rate":90,"callable":"children"}},"parent":"tenant","owner":"api"`
	w.want(w.do("PUT", "/v1/limits/user", `{"rate":60,"per":"1m","parent":"tenant"}`), 400, `"field":"parent"`, "there is no limit tenant")
	w.want(w.do("PUT", "/v1/limits/tenant", `{"rate":1000,"per":"1m","parts":1}`), 201, `"parts":1`)
	body := `{"rate":60,"per":"1m","parent":"tenant","plans":{"pro":{"rate":600,"burst":1000},"staff":{"mode":"unlimited","callable":false},"team":{"rate":90,"callable":"children"},"banned":"blocked","same":{}}}`
	w.want(w.do("PUT", "/v1/limits/user", body), 201, want)
	w.want(w.do("PUT", "/v1/limits/user", body), 200, want)
	w.want(w.do("GET", "/v1/limits/user", ""), 200, want)
	w.want(w.do("DELETE", "/v1/limits/tenant", ""), 409, "it is the parent of limit user")
	for _, bad := range []struct{ plans, field string }{
		{`{"pro":{"rat":1}}`, `plans.pro.rat`},
		{`{"pro":{"rate":"x"}}`, `plans.pro.rate`},
		{`{"pro":{"rate":1,"rate":2}}`, `plans.pro.rate`},
		{`{"pro":{"rate":[1]}}`, `plans.pro.rate`},
		{`{"pro":"blokced"}`, `plans.pro`},
		{`{"pro":{},"pro":{}}`, `plans.pro`},
		{`{"p|q":{}}`, `plans`},
		{`[1]`, `plans`},
		{`{"pro":{"burst":9007199254740991}}`, `plans`},
	} {
		w.want(w.do("PUT", "/v1/limits/user", `{"rate":60,"per":"1m","plans":`+bad.plans+`}`), 400, `"field":"`+bad.field+`"`)
	}
	w.want(w.do("PUT", "/v1/limits/user", `{"rate":60,"per":"1m","plans":{"pro":{"rate":1}},"plans":{}}`), 400, `"field":"plans"`)
	w.want(w.do("GET", "/v1/limits/user", ""), 200, want)
}

func TestLimitsPaged(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	for i := range 150 {
		w.want(w.do("PUT", fmt.Sprintf("/v1/limits/page-%03d", i), "rate=1&per=1h"), 201)
	}
	var all []string
	for query, pages := "?n=20", 0; ; pages++ {
		var page struct {
			Limits []struct{ Name string }
			Next   *string
		}
		rec := w.do("GET", "/v1/limits"+query, "")
		if err := json.Unmarshal(rec.Body.Bytes(), &page); err != nil || rec.Code != 200 || len(page.Limits) > 20 || pages > 10 {
			t.Fatal(rec.Code, err, len(page.Limits), pages)
		}
		for _, l := range page.Limits {
			all = append(all, l.Name)
		}
		if page.Next == nil {
			break
		}
		query = "?n=20&after=" + url.QueryEscape(*page.Next)
	}
	if want := len(w.limiter.Limits()); len(all) != want || !slices.IsSorted(all) || len(slices.Compact(all)) != want {
		t.Errorf("%d of %d limits: %v", len(all), want, all)
	}
	w.want(w.do("GET", "/v1/limits", ""), 200, `"next":"page-092"`) // 100 of them
	w.want(w.do("GET", "/v1/limits?n=1000", ""), 200, `"next":null`)
	w.want(w.do("GET", "/v1/limits?after=page-1490", ""), 200, `{"limits":[],"next":null}`)
	for _, q := range []string{"n=0", "n=1001", "n=x", "n=1&n=1", "prefix=a", "after=a&after=b"} {
		w.want(w.do("GET", "/v1/limits?"+q, ""), 400)
	}
}

// Every path answers 400 to an unknown parameter.
func TestUnknownParameters(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	w.server.Handle("GET /healthcheck", server.Anybody, http.HandlerFunc(w.server.Healthcheck))
	w.api = w.server.API(local)
	for _, call := range [][3]string{
		{"GET", "/v1/limits", ""}, {"GET", "/v1/limits/login", ""}, {"PUT", "/v1/limits/login", "rate=1&per=1h"}, {"PUT", "/v1/limits/new", `{"rate":1,"per":"1h"}`},
		{"DELETE", "/v1/limits/listed", ""}, {"GET", "/v1/limits/listed/keys", ""}, {"GET", "/v1/top", ""}, {"GET", "/healthz", ""}, {"GET", "/readyz", ""},
		{"GET", "/metrics", ""}, {"GET", "/healthcheck", ""}, {"POST", "/v1/take", "limit=login"}, {"POST", "/v1/take", `{"limit":"login"}`}, {"POST", "/v1/reset", "limit=login"},
		{"POST", "/v1/cancel", "reservation=x"}, {"GET", "/v1/auth", ""},
	} {
		query := "?nonsense=1"
		if call[1] == "/v1/auth" {
			query += "&limit=login&key=k"
		}
		rec := w.do(call[0], call[1]+query, call[2])
		w.want(rec, 400)
	}
	if w.limiter.Limit("listed") == nil || w.limiter.Limit("new") != nil {
		t.Error("a refused call had an effect")
	}
}

func TestKeys(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	for _, k := range []string{"user:1", "user:2", "user:3", "other"} {
		w.post("take", "limit=listed&cost=5&key="+k)
	}
	w.want(w.do("GET", "/v1/limits/listed/keys", ""), 200, `{"key":"other","remaining":15,"reset_after_us":60000000},{"key":"user:1"`, `"next":null`)
	listed := *w.limiter.Limit("listed")
	share := func(shared bool) {
		t.Helper()
		listed.Shared = shared
		if _, err := w.limiter.Define(t.Context(), listed.Limit, store.OwnerCode); err != nil {
			t.Fatal(err)
		}
	}
	share(true)
	w.want(w.post("take", "limit=listed&cost=5"), 200) // the shared bucket is first in order
	share(false)
	w.want(w.do("GET", "/v1/limits/listed/keys?n=1", ""), 200, `{"keys":[{"key":null`, `"next":""`)
	w.want(w.do("GET", "/v1/limits/listed/keys?n=1&after=", ""), 200, `{"keys":[{"key":"other"`, `"next":"other"`)
	w.want(w.do("GET", "/v1/limits/listed/keys?prefix=user:&n=2", ""), 200, `"user:2"`, `"next":"user:2"`)
	w.want(w.do("GET", "/v1/limits/listed/keys?prefix=user:&n=2&after=user:2", ""), 200, `{"keys":[{"key":"user:3"`)
	w.want(w.do("GET", "/v1/limits/listed/keys?key=user:1", ""), 200, `"remaining":15`)
	w.want(w.do("GET", "/v1/limits/listed/keys?key=user:1", ""), 200, `"remaining":15`)
	w.want(w.do("PUT", "/v1/limits/slots", `{"algorithm":"concurrency","burst":3,"keys":"list"}`), 201)
	w.post("hold", "limit=slots&key=job&cost=2&ttl=1m")
	w.want(w.do("GET", "/v1/limits/slots/keys", ""), 200, `{"keys":[{"key":"job","remaining":1,"reset_after_us":null}]`)
	w.want(w.do("GET", "/v1/limits/login/keys", ""), 409, "keys: list")
	w.want(w.do("GET", "/v1/limits/nobody/keys", ""), 404)
	for _, q := range []string{"n=0", "n=1001", "n=x", "key=%00", "key=a&key=b", "what=1"} {
		w.want(w.do("GET", "/v1/limits/listed/keys?"+q, ""), 400)
	}
}

func TestAdminRule(t *testing.T) {
	calls := func(w *fixture, status int, headers ...string) {
		t.Helper()
		for _, rec := range []*httptest.ResponseRecorder{
			w.post("refund", "limit=login&key=k", headers...), w.post("reset", "limit=login&key=k", headers...),
			w.do("PUT", "/v1/limits/new", `{"rate":1,"per":"1s"}`, headers...), w.do("DELETE", "/v1/limits/new", "", headers...),
			w.do("GET", "/v1/limits/listed/keys", "", headers...), w.do("GET", "/v1/limits/listed/keys?key=k", "", headers...),
		} {
			if rec.Code != status && (status != 200 || rec.Code/100 != 2) {
				t.Errorf("%d, want %d: %s", rec.Code, status, rec.Body)
			}
		}
	}
	public := server.Site{}
	calls(newFixture(t, server.Config{}, local), 200)
	calls(newFixture(t, server.Config{}, public), 403)
	calls(newFixture(t, server.Config{}, server.Site{Loopback: true, NoAdmin: true}), 403)
	for _, at := range []server.Site{local, public} {
		w := newFixture(t, server.Config{AdminToken: "s3cret"}, at)
		calls(w, 401)
		calls(w, 401, "Authorization: Bearer s3cre")
		calls(w, 401, "Authorization: s3cret")
		calls(w, 401, "Authorization: Basic s3cret")
		calls(w, 401, "Authorization: Bearer  ")
		calls(w, 401, "Authorization: Bearers3cret")
		calls(w, 401, "Authorization: Bearer s3cret", "Authorization: Bearer s3cret")
		calls(w, 200, "Authorization: Bearer s3cret")
		calls(w, 200, "Authorization: bEARER   s3cret")
		w.want(w.post("take", "limit=all"), 200)
		w.server.Set(server.Config{AdminToken: "other"})
		calls(w, 401, "Authorization: Bearer s3cret")
		calls(w, 200, "Authorization: Bearer other")
	}
}

func TestCrossSite(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	for _, h := range []string{"Origin: https://evil.example", "Origin: null", "Origin: http://localhost:3000", "Origin: ::bad",
		"Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-site", "Host: evil.example", "Host: 10.0.0.1:8080", "Host: localhost.evil.example"} {
		w.want(w.post("take", "limit=login&key=k", h), 403)
		w.want(w.do("GET", "/v1/limits", "", h), 403)
		w.want(w.do("GET", "/v1/auth?limit=login&key=k", "", h), 403)
	}
	if d, _ := w.limiter.Check(t.Context(), "login", "k", 20); !d.Allowed {
		t.Error("a cross-site request was charged")
	}
	for _, h := range []string{"Origin: http://localhost", "Sec-Fetch-Site: same-origin", "Sec-Fetch-Site: none", "Host: 127.0.0.1:8080",
		"Host: [::1]:8080", "Host: LOCALHOST", "Host: 127.8.8.8"} {
		w.want(w.post("take", "limit=login&key=k", h), 200)
	}
	public := newFixture(t, server.Config{}, server.Site{})
	public.want(public.post("take", "limit=all", "Host: limits.example"), 200)
	public.want(public.post("take", "limit=all", "Host: limits.example", "Origin: https://evil.example"), 403)
	// Behind a proxy, the browser's fields are about the proxied site.
	w.want(w.do("GET", "/v1/auth?limit=login&key=z", "", "Origin: https://shop.example", "Sec-Fetch-Site: cross-site", "X-Forwarded-For: 1.2.3.4"), 200)
	// That is allowed for /v1/auth only: a page of another site can reach other
	// paths that a proxy publishes.
	for _, call := range [][3]string{{"POST", "/v1/take", "limit=login&key=z"}, {"POST", "/v1/reset", "limit=login&key=z"}, {"GET", "/v1/limits", ""},
		{"PUT", "/v1/limits/new", "rate=1&per=1h"}, {"GET", "/metrics", ""}, {"GET", "/v1/auth/", ""}} {
		for _, h := range []string{"Origin: https://shop.example", "Sec-Fetch-Site: cross-site"} {
			w.want(w.do(call[0], call[1], call[2], h, "X-Forwarded-For: 1.2.3.4"), 403)
		}
	}
	// Without a proxy's field the check applies to /v1/auth as well.
	w.want(w.do("GET", "/v1/auth?limit=login&key=z", "", "Sec-Fetch-Site: cross-site"), 403)
}

// localHost must not accept a Host that merely contains a loopback name.
func TestHosts(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	for host, status := range map[string]int{
		"localhost": 200, "LOCALHOST": 200, "localhost:8080": 200, "127.0.0.1": 200, "127.0.0.1:1": 200, "127.8.9.1:80": 200, "[::1]": 200, "[::1]:8080": 200, "::1": 200,
		"[::ffff:127.0.0.1]:80":       200,
		"localhost:8080:evil.example": 403, "127.0.0.1:80:evil.example": 403, "127.0.0.1:80:1": 403, "localhost::80": 403, "localhost.": 403,
		"127.0.0.1.evil.example": 403, "127.0.0.1:80.evil.example:1": 403, "[::2]:80": 403, "0.0.0.0:80": 403, "evil.example:80": 403,
	} {
		w.want(w.do("GET", "/healthz", "", "Host: "+host), status)
	}
}

func TestAuth(t *testing.T) {
	trusted := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")} // httptest's RemoteAddr
	w := newFixture(t, server.Config{TrustedProxies: trusted}, local)
	for _, l := range []dipwell.Limit{{Name: "top", Rate: 9, Period: time.Hour, Shared: true}, {Name: "client", Rate: 1, Period: time.Hour, Parent: "top", Auth: true}} {
		if _, err := w.limiter.Define(t.Context(), l, terms.OwnerFile); err != nil {
			t.Fatal(err)
		}
	}
	for _, method := range []string{"GET", "POST", "HEAD", "DELETE", "PROPFIND"} {
		rec := w.do(method, "/v1/auth?limit=login&key="+method, "limit=ignored&key=ignored")
		if rec.Code != 200 || rec.Header().Get("RateLimit") != `"login";r=19;t=228` {
			t.Error(method, rec.Code, rec.Header())
		}
	}
	for _, tc := range []struct {
		query   string
		status  int
		headers []string
	}{
		{"limit=login&key_header=X-User&cost=20", 200, []string{"X-User: 7"}},
		{"limit=login&key_header=x-user", 429, []string{"X-User: 7"}},
		{"limit=login&key_header=X-User&deny=401", 401, []string{"X-User: 7"}},
		{"limit=login&key_header=X-User&deny=403", 403, []string{"X-User: 7"}},
		{"limit=login&key_header=X-User&deny=503", 503, []string{"X-User: 7"}},
		{"limit=login&key_header=X-User", 429, nil},
		{"limit=login&key_header=X-User&deny=403", 403, nil},
		{"limit=login&key_header=X-User&deny=403", 403, []string{"X-User: "}},
		{"limit=login&key_header=X-User&deny=403", 403, []string{"X-User: a", "X-User: b"}},
		{"limit=login&key_header=X-User&deny=403", 403, []string{"X-User: " + strings.Repeat("u", 513)}},
		{"limit=login&key_ip=1&cost=20", 200, []string{"X-Forwarded-For: 9.9.9.9, 198.51.100.7"}},
		{"limit=login&key_ip=1", 429, []string{"X-Forwarded-For: 1.1.1.1, 198.51.100.7"}},
		{"limit=client&key_ip=1", 200, []string{"X-Forwarded-For: 2001:db8::1"}}, // the '/' of 2001:db8::/64 does not divide a path
		{"limit=client&key_ip=1", 429, []string{"X-Forwarded-For: 2001:db8::2"}},
		{"limit=login&key_ip=1&deny=403", 403, []string{"X-Forwarded-For: nonsense"}},
		{"limit=login&key_ip=1&deny=403", 403, nil},
		{"limit=login&key_ip=1&deny=403", 403, []string{"X-Forwarded-For: ", "X-Forwarded-For:  "}},
		{"limit=login&key_ip=1", 200, []string{"X-Forwarded-For: 192.0.2.9"}}, // a trusted address that is itself the client
		{"limit=login&key_header=Host", 400, []string{"Host: localhost"}},
		{"limit=login&key_header=hOST", 400, nil},
		{"limit=login&key_header=X%20User", 400, []string{"X User: 7"}},
		{"limit=login&key_header=X-User%0d%0a", 400, nil},
		{"limit=login&key_header=X-User:", 400, nil},
		{"limit=login&key=new&deny=404", 400, nil},
		{"limit=login&key=new&deny=200", 400, nil},
		{"limit=login&key=new&deny=403&deny=403", 400, nil},
		{"limit=login&key=new&key=new", 400, nil},
		{"limit=login&limit=login&key=new", 400, nil},
		{"limit=login&key=new&cost=1&cost=1", 400, nil},
		{"limit=login&key=new&cost=1.5", 400, nil},
		{"limit=login&key=new&key_ip=1", 400, nil},
		{"limit=login&key=", 400, nil},
		{"limit=login&key=%00", 400, nil},
		{"limit=login&key=%ff", 400, nil},
		{"limit=login&key=" + strings.Repeat("u", 513), 400, nil},
		{"limit=login&key_header=", 400, nil},
		{"limit=login&key_ip=0", 400, nil},
		{"limit=login", 400, nil},
		{"limit=all&cost=20", 200, nil},
		{"limit=all&deny=403", 403, nil},
		{"limit=all&key=new", 400, nil},
		{"limit=all&key_header=X-User", 400, []string{"X-User: 7"}},
		{"limit=all&key_ip=1", 400, []string{"X-Forwarded-For: 198.51.100.7"}},
		{"key=new", 400, nil},
		{"limit=login&key=new&Key=x", 400, nil},
		{"limit=jobs&key=new", 404, nil},
		{"limit=nobody&key=new", 404, nil},
	} {
		rec := w.do("GET", "/v1/auth?"+tc.query, "", tc.headers...)
		w.want(rec, tc.status)
	}
	if d, _ := w.limiter.Check(t.Context(), "login", "new", 20); !d.Allowed {
		t.Error("a bad call was charged")
	}
	w.want(w.do("GET", "/v1/auth?limit=login&key_ip=1&deny=403", "", "X-Forwarded-For: "+strings.Repeat("x", 9999)), 403, "X-Forwarded-For: \\\"xxx")
	w.want(w.do("GET", "/metrics", ""), 200, `dipwell_keyless_requests_total{by="address"} 4`, `dipwell_keyless_requests_total{by="header"} 5`)
	w.down.Store(true)
	w.want(w.do("GET", "/v1/auth?limit=login&key=k&deny=403", ""), 503)
	plain := newFixture(t, server.Config{}, local)
	plain.want(plain.do("GET", "/v1/auth?limit=login&key_ip=1", ""), 400, `"field":"key_ip"`)
}
