package server_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/server"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
)

// view opens GET /v1/live over a pipe. next returns the next event.
func (w *fixture) view(ctx context.Context) (next func() []byte) {
	w.t.Helper()
	in, out := io.Pipe()
	rec := &piped{ResponseRecorder: httptest.NewRecorder(), out: out}
	go func() {
		w.api.ServeHTTP(rec, httptest.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/v1/live", nil))
		_ = out.Close()
	}()
	lines := bufio.NewReader(in)
	return func() []byte {
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				return nil
			}
			if data, ok := strings.CutPrefix(line, "data: "); ok {
				return []byte(data)
			}
		}
	}
}

// piped is a recorder whose body goes to a pipe.
type piped struct {
	*httptest.ResponseRecorder
	out *io.PipeWriter
}

func (p *piped) Write(b []byte) (int, error) { return p.out.Write(b) }

type liveEvent struct {
	IntervalUS int64 `json:"interval_us"`
	Store      string
	Process    string
	All        struct{ Allowed, Refused, Shadow, Fallback uint64 }
	Limits     []struct {
		Limit            string
		Allowed, Refused uint64
	}
	P50         *int64 `json:"p50_ns"`
	StoreErrors uint64 `json:"store_errors"`
	Gauges      map[string]float64
	Busiest     struct{ Keys []topKey }
}

// Events have what happened since the one before, for each viewer the same. The ticker
// ends with the last viewer, and all viewers when the server stops.
func TestLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, server.Config{}, local)
		w.server.Gauge("dipwell_gauge", "A gauge.", func() float64 { return 7 })
		counting, end := context.WithCancel(t.Context())
		defer w.server.CountKeys(counting, "host:1", 0)()
		defer end()
		ctx, leave := context.WithCancel(t.Context())
		first := w.view(ctx)
		synctest.Wait()
		for range 25 {
			w.post("take", "limit=login&key=greedy")
		}
		w.post("take", "limit=listed&key=k")
		text := first()
		description().conforms(t, text, "components", "schemas", "Live")
		var e liveEvent
		if err := json.Unmarshal(text, &e); err != nil {
			t.Fatal(err)
		}
		if e.All.Allowed != 21 || e.All.Refused != 5 || fmt.Sprint(e.Limits) != "[{login 20 5} {listed 1 0}]" || e.IntervalUS != 1e6 || e.Process != "host:1" || e.Store != "memory" || e.P50 == nil ||
			e.Gauges["dipwell_gauge"] != 7 || e.Gauges["dipwell_keys"] != 2 {
			t.Errorf("the first event: %s", text)
		}
		second := w.view(ctx) // sees the last event at once
		if again := second(); string(again) != string(text) {
			t.Errorf("a second viewer: %s", again)
		}
		w.post("take", "limit=login&key=new")
		w.down.Store(true)
		w.post("take", "limit=login&key=new")
		w.down.Store(false)
		a, b := first(), second()
		e = liveEvent{}
		if err := json.Unmarshal(a, &e); err != nil || string(a) != string(b) {
			t.Fatal(err, string(a), string(b))
		}
		if e.All.Allowed != 1 || e.All.Fallback != 1 || e.StoreErrors != 1 || fmt.Sprint(e.Busiest.Keys) != "[login greedy 25-0 login new 2-0 listed k 1-0]" {
			t.Errorf("the second event: %s", a)
		}
		leave()
		time.Sleep(time.Minute)
		synctest.Wait() // the test fails if a goroutine is left when it returns

		ctx, leave = context.WithCancel(t.Context())
		defer leave()
		third := w.view(ctx)
		if e = (liveEvent{}); json.Unmarshal(third(), &e) != nil || e.All.Allowed != 0 || e.P50 != nil {
			t.Errorf("nothing happened: %+v", e)
		}
		w.server.Stop()
		if e := third(); e != nil {
			t.Errorf("after the end: %s", e)
		}
		time.Sleep(time.Minute)
	})
}

// Viewers are not calls in flight, and there is a bound on them.
func TestLiveIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, server.Config{MaxInFlight: 1}, local)
		ctx, leave := context.WithCancel(t.Context())
		for range 256 {
			w.view(ctx)
		}
		synctest.Wait()
		w.want(w.do("GET", "/v1/live", ""), 503, "too many viewers")
		w.want(w.post("take", "limit=all"), 200)
		leave()
		time.Sleep(time.Minute)
	})
}

func TestLiveIsAdmin(t *testing.T) {
	w := newFixture(t, server.Config{AdminToken: "s3cret"}, local)
	w.want(w.do("GET", "/v1/live", ""), 401)
	w.want(newFixture(t, server.Config{}, server.Site{}).do("GET", "/v1/live", ""), 403)
	w.want(w.do("POST", "/v1/live", ""), 405)
}

// The page is where admin calls are answered. Its files say nothing, so they need no
// token, and a link of another site may open it.
func TestPage(t *testing.T) {
	for _, tc := range []struct {
		token  string
		at     server.Site
		status int
	}{
		{"", local, 200}, {"s3cret", local, 200}, {"s3cret", server.Site{}, 200}, {"", server.Site{}, 403}, {"s3cret", server.Site{NoAdmin: true}, 403},
	} {
		w := newFixture(t, server.Config{AdminToken: tc.token}, tc.at)
		for _, path := range []string{"/ui/", "/ui/main.js", "/ui/page.css"} {
			rec := w.do("GET", path, "")
			if rec.Code != tc.status || tc.status == 200 && !strings.Contains(rec.Header().Get("Content-Security-Policy"), "default-src 'none'") {
				t.Errorf("%+v %s: %d %v", tc, path, rec.Code, rec.Header())
			}
		}
	}
	w := newFixture(t, server.Config{MaxInFlight: 1}, local)
	for _, path := range []string{"/ui/nothing", "/ui/page/index.html", "/ui/../page.css"} {
		if rec := w.do("GET", path, ""); rec.Code == 200 {
			t.Error(path, rec.Code)
		}
	}
	navigate := []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate"}
	if rec := w.do("GET", "/ui/", "", navigate...); rec.Code != 200 {
		t.Error("a link to the page:", rec.Code, rec.Body)
	}
	if rec := w.do("GET", "/ui/main.js", "", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors"); rec.Code != 403 {
		t.Error("another site loads a file:", rec.Code)
	}
	if rec := w.do("GET", "/ui/", "", append(navigate, "Host: evil.example")...); rec.Code != 403 {
		t.Error("another name for this machine:", rec.Code)
	}
	w.want(w.do("GET", "/v1/limits", "", navigate...), 403)
	tag := w.do("GET", "/ui/", "").Header().Get("ETag")
	if rec := w.do("GET", "/ui/", "", "If-None-Match: "+tag); rec.Code != 304 || tag == "" {
		t.Error("not modified:", rec.Code, tag)
	}
}

// GET keys?key= says when how many tokens are free.
func TestRefill(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	w.want(w.do("PUT", "/v1/limits/window", `{"algorithm":"interval","rate":5,"per":"10s","burst":20,"start":"0s"}`), 201)
	w.post("take", "limit=login&key=k&cost=18")
	w.post("take", "limit=window&key=k&cost=18")
	w.want(w.do("GET", "/v1/limits/login/keys?key=full", ""), 200, `"remaining":20`)
	if rec := w.do("GET", "/v1/limits/login/keys?key=full", ""); strings.Contains(rec.Body.String(), "refill") {
		t.Error("a full bucket fills:", rec.Body)
	}
	w.want(w.do("GET", "/v1/limits/login/keys?key=k", ""), 200, `"refill":[[12000000,3],[24000000,4],`, `,[216000000,20]]`)
	w.now += 4e6
	w.want(w.do("GET", "/v1/limits/login/keys?key=k", ""), 200, `"refill":[[8000000,3],`, `,[212000000,20]]`)
	w.want(w.do("GET", "/v1/limits/window/keys?key=k", ""), 200, `"refill":[[6000000,7],[16000000,12],[26000000,17],[36000000,20]]`)

	// Until the override ends a token a second comes back, and then the rest by the limit.
	w.want(w.do("PUT", "/v1/limits/login/overrides", `{"key":"raised","rate":60,"per":"1m","burst":20,"for":"3500ms"}`), 200)
	w.post("take", "limit=login&key=raised&cost=8")
	w.want(w.do("GET", "/v1/limits/login/keys?key=raised", ""), 200, `"refill":[[1000000,13],[2000000,14],[3000000,15],[3500000,15],[9500000,16],[21500000,17],[33500000,18],[45500000,19],[57500000,20]]`)
}

// A viewer leaves with the first event that it may not see any more.
func TestLiveTokenChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, server.Config{}, local)
		ctx, leave := context.WithTimeout(t.Context(), time.Minute)
		defer leave()
		next := w.view(ctx)
		if next() == nil {
			t.Fatal("no event")
		}
		w.server.SetTokens("s3cret", nil)
		if e := next(); e != nil {
			t.Errorf("without the token: %s", e)
		}
		leave()
		time.Sleep(time.Minute)
	})
}

// A viewer that stops reading, and a HEAD, leave: the first after a bounded wait, the
// second at once.
func TestLiveStuck(t *testing.T) {
	for name, method := range map[string]string{"slow": "GET", "head": "HEAD"} {
		synctest.Test(t, func(t *testing.T) {
			w := newFixture(t, server.Config{}, local)
			left := make(chan struct{})
			api := http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
				defer close(left)
				w.api.ServeHTTP(out, r)
			})
			w.serving(t, func(ctx context.Context, l net.Listener) error {
				return w.server.Serve(ctx, server.Listener{Listener: l, Handler: api})
			}, func(dial func() net.Conn, _ context.CancelFunc) {
				c := dial()
				defer c.Close()
				fmt.Fprint(c, method+" /v1/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
				if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || line != "HTTP/1.1 200 OK\r\n" {
					t.Fatal(line, err)
				}
				time.Sleep(time.Minute)
				select {
				case <-left:
				default:
					t.Errorf("%s: the viewer is still there after a minute", name)
				}
			})
		})
	}
}

// quiet is a store that answers one call, and no other before its context ends.
type quiet struct {
	store.Store
	calls int
}

func (s *quiet) Apply(ctx context.Context, b *store.Batch) error {
	if s.calls++; s.calls > 1 {
		<-ctx.Done()
		return ctx.Err()
	}
	return s.Store.Apply(ctx, b)
}

// A store that does not answer when the refill is asked for delays the answer by a second
// at most.
func TestRefillTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, err := memstore.New(memstore.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer inner.Close()
		l, err := dipwell.New(&quiet{Store: inner}, dipwell.Limit{Name: "login", Rate: 1, Period: time.Hour, Burst: 100})
		if err != nil {
			t.Fatal(err)
		}
		s := server.New(l, server.Config{})
		w := &fixture{t: t, limiter: l, server: s, api: s.API(local)}
		begun := time.Now()
		if rec := w.do("GET", "/v1/limits/login/keys?key=k", ""); rec.Code != 200 || strings.Contains(rec.Body.String(), "refill") {
			t.Error(rec.Code, rec.Body)
		}
		if d := time.Since(begun); d > time.Second {
			t.Errorf("answered after %v", d)
		}
	})
}
