package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/server"
	"github.com/dipwell/dipwell/store"
)

type topKey struct {
	Limit        string
	Key          *string
	Count, Error uint64
}

type topAnswer struct {
	Process  string
	WindowUS int64 `json:"window_us"`
	MaxBytes int   `json:"sketch_max_bytes"`
	Limits   []struct {
		Limit                              string
		Allowed, Refused, Shadow, Fallback uint64
	}
	Busiest, Refused struct {
		Counted  uint64
		Unlisted uint64 `json:"unlisted_at_most"`
		Keys     []topKey
	}
}

func (w *fixture) top(query string) (a topAnswer) {
	w.t.Helper()
	res := w.do("GET", "/v1/top"+query, "")
	if res.Code != http.StatusOK {
		w.t.Fatal(res.Code, res.Body)
	}
	if err := json.Unmarshal(res.Body.Bytes(), &a); err != nil {
		w.t.Fatal(err, res.Body)
	}
	return a
}

func (k topKey) String() string {
	key := "(shared)"
	if k.Key != nil {
		key = *k.Key
	}
	return fmt.Sprintf("%s %s %d-%d", k.Limit, key, k.Count, k.Error)
}

// Keys are counted in a sliding window of a minute, by one process.
func TestTop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, server.Config{}, local)
		ctx, end := context.WithCancel(t.Context())
		defer w.server.CountKeys(ctx, "host:1", 20)()
		defer end()
		if a := w.top(""); a.Busiest.Counted != 0 || a.WindowUS != 0 || a.MaxBytes < 1<<20 || a.MaxBytes > 16<<20 || a.Process != "host:1" {
			t.Errorf("at the start: %+v", a)
		}
		w.takes(25, "limit=login&key=greedy")
		w.takes(3, "limit=all&cost=20")
		w.do("POST", "/v1/take", `{"takes":[{"limit":"login","key":"pair"},{"limit":"listed","key":"pair"}]}`, "Content-Type: application/json")
		time.Sleep(3 * time.Second)
		a := w.top("")
		if got, want := fmt.Sprint(a.Busiest.Keys), "[login greedy 25-0 all (shared) 3-0 listed pair 1-0 login pair 1-0]"; got != want || a.Busiest.Counted != 30 || a.Busiest.Unlisted != 0 {
			t.Errorf("busiest %s of %d, want %s", got, a.Busiest.Counted, want)
		}
		if got, want := fmt.Sprint(a.Refused.Keys), "[login greedy 5-0 all (shared) 2-0]"; got != want || a.WindowUS != 3e6 {
			t.Errorf("refused %s in %d µs, want %s", got, a.WindowUS, want)
		}
		if a = w.top("?n=1&limit=login"); fmt.Sprint(a.Busiest.Keys) != "[login greedy 25-0]" || a.Busiest.Unlisted != 1 || len(a.Limits) != 1 || a.Limits[0].Refused != 5 {
			t.Errorf("one limit: %+v", a)
		}
		time.Sleep(50 * time.Second)
		if a = w.top(""); a.Busiest.Counted != 30 {
			t.Errorf("within the minute: %+v", a)
		}
		time.Sleep(10 * time.Second)
		if a = w.top(""); a.Busiest.Counted != 0 || a.WindowUS < 50e6 || a.WindowUS > 60e6 {
			t.Errorf("a minute later: %+v", a)
		}
	})
}

// takes takes n times by a form.
func (w *fixture) takes(n int, form string) {
	for range n {
		w.do("POST", "/v1/take", form, "Content-Type: application/x-www-form-urlencoded")
	}
}

type hourAnswer struct {
	topAnswer
	Hour      string
	Processes []string
}

func (w *fixture) hour(query string) (a hourAnswer) {
	w.t.Helper()
	res := w.do("GET", "/v1/top?hour="+query, "")
	if err := json.Unmarshal(res.Body.Bytes(), &a); err != nil || res.Code != http.StatusOK {
		w.t.Fatal(res.Code, res.Body, err)
	}
	return a
}

// Each process adds its busiest keys at the end of an hour and at its own end, and the
// hour has those of all. An hour in which nothing happened is not there.
func TestTopOfHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := newFixture(t, server.Config{}, local)
		second := &fixture{t: t, limiter: first.limiter, server: server.New(first.limiter, server.Config{})}
		second.api = second.server.API(local)
		ctx, end := context.WithCancel(t.Context())
		endFirst := first.server.CountKeys(ctx, "a:1", 2)
		endSecond := second.server.CountKeys(ctx, "b:2", 2)
		time.Sleep(30 * time.Minute) // the clock begins at midnight
		first.takes(25, "limit=login&key=greedy")
		first.takes(4, "limit=login&key=other")
		first.takes(2, "limit=listed&key=rare")
		second.takes(10, "limit=login&key=greedy")
		second.takes(3, "limit=all&cost=20")
		if a := first.hour("2000-01-01T00:59:59Z"); len(a.Processes) != 0 || len(a.Busiest.Keys) != 0 {
			t.Errorf("before the end of the hour: %+v", a)
		}
		time.Sleep(40 * time.Minute)
		a := first.hour("2000-01-01T00:59:59Z")
		if got := fmt.Sprint(a.Hour, a.Processes, a.Busiest.Counted, a.Busiest.Unlisted, a.Busiest.Keys); got != "2000-01-01T00:00:00Z[a:1 b:2] 44 2 [login greedy 35-0 all (shared) 5-2 login other 4-0]" {
			t.Errorf("busiest: %s", got)
		}
		if got := fmt.Sprint(a.Refused.Keys); got != "[login greedy 15-0 all (shared) 2-0]" {
			t.Errorf("refused: %s", got)
		}
		if a = second.hour("2000-01-01T02:00:00%2B02:00&limit=login&n=1"); fmt.Sprint(a.Busiest.Keys) != "[login greedy 35-0]" || a.Busiest.Unlisted != 4 {
			t.Errorf("one limit: %+v", a)
		}
		time.Sleep(2 * time.Hour)
		if a = first.hour("2000-01-01T01:00:00Z"); len(a.Processes) != 0 {
			t.Errorf("an hour without calls: %+v", a)
		}
		second.takes(1, "limit=login&key=late")
		end()
		endFirst()
		endSecond()
		if a = first.hour("2000-01-01T03:00:00Z"); fmt.Sprint(a.Processes, a.Busiest.Keys) != "[b:2] [login late 1-0]" {
			t.Errorf("the end of a process: %+v", a)
		}
		if res := first.do("GET", "/v1/top?hour=now", ""); res.Code != http.StatusBadRequest {
			t.Error(res.Code, res.Body)
		}
	})
}

// A store that keeps no hours, or fails, delays nothing.
func TestTopHourIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, server.Config{}, local)
		l, err := dipwell.New(hung{w.limiter.Store()}, dipwell.Limit{Name: "login", Rate: 1, Period: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		w.server = server.New(l, server.Config{})
		w.api = w.server.API(local)
		ctx, end := context.WithCancel(t.Context())
		wait := w.server.CountKeys(ctx, "host:1", 20)
		for range 2 {
			time.Sleep(time.Second) // the calls are not at the instant at which an hour ends
			w.takes(1, "limit=login&key=k")
			time.Sleep(time.Hour)
		}
		w.takes(3, "limit=login&key=k")
		if a := w.top(""); a.Busiest.Counted != 3 {
			t.Errorf("%+v", a)
		}
		end()
		wait()
		w.want(w.do("GET", "/metrics", ""), 200, "dipwell_top_hours_lost_total 3")
		w.want(w.do("GET", "/v1/top?hour=2000-01-01T00:00:00Z", ""), 503)
	})
}

// hung is a store that does not answer about top keys before the context ends.
type hung struct{ store.Store }

func (s hung) Abilities() store.Abilities {
	ab := store.AbilitiesOf(s.Store)
	ab.TopKeys = s
	return ab
}

func (hung) Record(ctx context.Context, _ store.AuditEntry) error {
	<-ctx.Done()
	return ctx.Err()
}

func (hung) Audit(context.Context, string, int) ([]store.AuditEntry, error) {
	return nil, store.ErrStore
}

// A key has its last refusals, a second apart at least, and how many were between.
func TestLastRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, server.Config{}, local)
		ctx, end := context.WithCancel(t.Context())
		defer w.server.CountKeys(ctx, "host:1", 0)()
		defer end()
		w.takes(25, "limit=login&key=k")
		time.Sleep(2 * time.Second)
		w.takes(1, "limit=login&key=k&cost=21")
		w.takes(3, "limit=all")
		w.want(w.do("GET", "/v1/limits/login/keys?key=k", ""), 200, `"refusals":{"process":"host:1","last":[`+
			`{"at_us":946684802000000,"cost":21,"retry_after_us":null,"never":true,"source":"store","more":0},`+
			`{"at_us":946684800000000,"cost":1,"retry_after_us":12000000,"source":"store","more":4}]}`)
		w.down.Store(true)
		w.want(w.post("take", "limit=login&key=outage"), 503)
		w.down.Store(false)
		w.want(w.do("GET", "/v1/limits/login/keys?key=outage", ""), 200, `"source":"fallback-closed"`)
		if rec := w.do("GET", "/v1/top", ""); strings.Contains(rec.Body.String()[strings.LastIndex(rec.Body.String(), `"refused"`):], "outage") {
			t.Errorf("a key that only an outage refused is among the most refused: %s", rec.Body)
		}
		w.want(w.do("GET", "/v1/limits/all/keys?key=", ""), 200, `"key":null`, `"remaining":17`, `"last":[]`)
		w.want(w.do("GET", "/v1/limits/listed/keys?key=k", ""), 200, `"last":[]`)
		w.takes(21, "limit=all")
		w.want(w.do("GET", "/v1/limits/all/keys?key=", ""), 200, `"more":3}]`)
		for range 20 {
			time.Sleep(time.Second)
			w.takes(1, "limit=login&key=k")
		}
		if n := strings.Count(w.do("GET", "/v1/limits/login/keys?key=k", "").Body.String(), "at_us"); n != 16 {
			t.Errorf("%d refusals are kept", n)
		}
		for i := range 5000 {
			w.takes(1, fmt.Sprintf("limit=never&key=%d&cost=9", i))
		}
		kept := 0
		for i := range 5000 {
			kept += strings.Count(w.do("GET", fmt.Sprintf("/v1/limits/never/keys?key=%d", i), "").Body.String(), "at_us")
		}
		if kept < 800 || kept > 1024 {
			t.Errorf("%d keys are kept", kept)
		}
	})
}

func TestTopAdminAndErrors(t *testing.T) {
	w := newFixture(t, server.Config{AdminToken: "s3cret"}, local)
	if res := w.do("GET", "/v1/top", ""); res.Code != http.StatusUnauthorized {
		t.Error(res.Code, res.Body)
	}
	if res := newFixture(t, server.Config{}, server.Site{}).do("GET", "/v1/top", ""); res.Code != http.StatusForbidden {
		t.Error(res.Code, res.Body)
	}
	w = newFixture(t, server.Config{}, local)
	w.want(w.do("GET", "/v1/top", ""), 501)
	for query, want := range map[string]string{"n=0": "n", "n=101": "n", "n=x": "n", "n=1&n=2": "n", "limit=": "limit", "key=a": "key", "hour=1": "hour"} {
		if res := w.do("GET", "/v1/top?"+query, ""); res.Code != http.StatusBadRequest || !strings.Contains(res.Body.String(), `"field":"`+want+`"`) {
			t.Error(query, res.Code, res.Body)
		}
	}
	if res := w.do("GET", "/v1/top?limit=nobody", ""); res.Code != http.StatusNotFound {
		t.Error(res.Code, res.Body)
	}
	if res := w.do("POST", "/v1/top", ""); res.Code != http.StatusMethodNotAllowed {
		t.Error(res.Code, res.Body)
	}
}
