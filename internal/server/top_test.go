package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell/internal/server"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
)

type topKey struct {
	Limit        string
	Key          *string
	Count, Error uint64
}

type topAnswer struct {
	Store    string
	Process  string
	WindowUS int64 `json:"window_us"`
	Took     []uint64
	Gauges   map[string]float64
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
	description().conforms(w.t, res.Body.Bytes(), "components", "schemas", "Top")
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
		if a := w.top(""); a.Busiest.Counted != 0 || a.WindowUS != 0 || a.Process != "host:1" {
			t.Errorf("at the start: %+v", a)
		}
		w.takes(25, "limit=login&key=greedy")
		w.takes(3, "limit=all&cost=20")
		w.do("POST", "/v1/take", `{"takes":[{"limit":"login","key":"pair"},{"limit":"listed","key":"pair"}]}`, "Content-Type: application/json")
		time.Sleep(3 * time.Second)
		w.server.Gauge("dipwell_gauge", "A gauge.", func() float64 { return 7 })
		w.server.Gauge("dipwell_nan", "No number of JSON.", math.NaN)
		a := w.top("")
		if took := sum(a.Took); took != 29 || a.Store != "memory" || a.Gauges["dipwell_gauge"] != 7 || a.Gauges["dipwell_keys"] != 4 {
			t.Errorf("%d decisions took a time; store %s, gauges %v", took, a.Store, a.Gauges)
		}
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

func sum(list []uint64) (all uint64) {
	for _, n := range list {
		all += n
	}
	return all
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

// TestTopMinutes asks what was decided in each of the last minutes.
func TestTopMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, server.Config{}, local)
		ctx, end := context.WithCancel(t.Context())
		wait := w.server.CountKeys(ctx, "a:1", 0)
		time.Sleep(30 * time.Second)
		w.takes(22, "limit=login&key=greedy")
		w.takes(1, "limit=listed&key=rare")
		w.want(w.do("GET", "/v1/top?minutes=2", ""), 200, `{"from":"1999-12-31T23:58:00Z","minutes":2,"processes":[],`, `"limits":[],`)
		time.Sleep(70 * time.Second)
		w.takes(1, "limit=listed&key=rare")
		time.Sleep(30 * time.Second)
		w.want(w.do("GET", "/v1/top?minutes=3", ""), 200, `{"from":"1999-12-31T23:59:00Z","minutes":3,"processes":[{"process":"a:1","first":"2000-01-01T00:00:00Z","last":"2000-01-01T00:01:00Z"}],"shared":false,"took":[`,
			`"limits":[{"limit":"listed","allowed":[0,1,1]},{"limit":"login","allowed":[0,20,0],"refused":[0,2,0],"customers":1}],"refused":{"counted":2,"unlisted_at_most":0,"keys":[{"limit":"login","key":"greedy","count":2,"error":0}]},"shed":0,"gauges":{`)
		w.want(w.do("GET", "/v1/top?minutes=1&limit=login", ""), 200, `"limits":[],"refused":{"counted":0,`)
		w.want(w.do("GET", "/v1/top?minutes=3&limit=listed", ""), 200, `"keys":[]`)
		w.want(w.do("GET", "/v1/top?minutes=4", ""), 200, `"keys":[{"limit":"login","key":"greedy","count":2,"error":0}]`) // it forgets nothing when it is asked about another limit
		time.Sleep(61 * time.Minute)
		w.want(w.do("GET", "/v1/top?minutes=60", ""), 200, `"limits":[],`)
		for _, query := range []string{"minutes=0", "minutes=61", "minutes=x", "minutes=1&hour=2000-01-01T00:00:00Z"} {
			w.want(w.do("GET", "/v1/top?"+query, ""), 400, `"minutes"`)
		}
		end()
		wait()
	})
}

// What a store that does not answer does is refused by no limit, in shadow by none either.
func TestTopOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, server.Config{}, local)
		ctx, end := context.WithCancel(t.Context())
		wait := w.server.CountKeys(ctx, "a:1", 0)
		w.now = time.Now().UnixMicro() // usage is of the last month
		w.want(w.do("PUT", "/v1/limits/watched", `{"rate":1,"per":"1m","mode":"shadow"}`), 201)
		w.want(w.do("PUT", "/v1/limits/used", `{"rate":1,"per":"1m","usage":true}`), 201)
		for _, down := range []bool{false, true} {
			w.down.Store(down)
			for _, limit := range []string{"never", "open", "used", "watched"} {
				w.takes(3, "key=k&limit="+limit)
			}
		}
		w.down.Store(false)
		const want = `{"limit":"never","allowed":1,"refused":2,"shadow":0,"closed":3,"fallback":3},{"limit":"open","allowed":4,"refused":2,"shadow":0,"closed":0,"fallback":3},` +
			`{"limit":"used","allowed":1,"refused":2,"shadow":0,"closed":3,"fallback":3},{"limit":"watched","allowed":4,"refused":0,"shadow":2,"closed":0,"fallback":3}`
		w.want(w.do("GET", "/v1/top", ""), 200, want)
		w.want(w.do("GET", "/metrics", ""), 200, `dipwell_decisions_total{limit="never",result="refused"} 5`+"\n", `dipwell_decisions_total{limit="watched",result="shadow"} 5`+"\n")
		time.Sleep(90 * time.Second)
		w.want(w.do("GET", "/v1/top?minutes=1", ""), 200, `{"limit":"never","allowed":[1],"refused":[2],"closed":[3],"fallback":[3],"customers":1}`, `{"limit":"watched","allowed":[4],"shadow":[2],"fallback":[3],"customers":1}`)
		w.want(w.do("GET", "/v1/limits/used/usage?key=k", ""), 200, `"allowed":1,"refused":2,`)
		end()
		wait()
	})
}

// Who asks the same within a second gets the same answer.
func TestTopShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, server.Config{}, local)
		w.takes(1, "limit=login&key=k")
		first := w.do("GET", "/v1/top", "").Body.String()
		w.takes(1, "limit=login&key=k")
		time.Sleep(time.Second - 1)
		if again := w.do("GET", "/v1/top", "").Body.String(); again != first {
			t.Errorf("%s, and before it %s", again, first)
		}
		w.want(w.do("GET", "/v1/top?n=1", ""), 200, `"limit":"login","allowed":2,`) // another question
		time.Sleep(time.Nanosecond)
		w.want(w.do("GET", "/v1/top", ""), 200, `"limit":"login","allowed":2,`)
	})
}

// An answer that many share stays shared, whatever else is asked.
func TestTopOfManyQuestions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, server.Config{}, local)
		first := w.do("GET", "/v1/top", "").Body.String()
		w.takes(1, "limit=login&key=k")
		for n := range 100 {
			w.want(w.do("GET", fmt.Sprint("/v1/top?n=", n+1), ""), 200)
			if again := w.do("GET", "/v1/top", "").Body.String(); again != first {
				t.Fatalf("after %d others it is made anew", n+1)
			}
		}
	})
}

// An answer that took long to make is shared for longer.
func TestTopSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &slowOverrides{Store: newFixture(t, server.Config{}, local).limiter.Store()}
		w := (&fixture{t: t}).over(st, server.Config{}, local, "login=1/1h")
		n := len(w.limiter.Limits())
		for _, c := range []struct {
			pause time.Duration
			asked int
		}{{0, n}, {time.Duration(n) * 1900 * time.Millisecond, n}, {time.Duration(n) * 100 * time.Millisecond, 2 * n}} {
			time.Sleep(c.pause)
			if w.want(w.do("GET", "/v1/overrides", ""), 200); st.asked != c.asked {
				t.Errorf("of %d limits the store was asked %d times, want %d", n, st.asked, c.asked)
			}
		}
	})
}

// slowOverrides is a store that takes 10 ms to list overrides.
type slowOverrides struct {
	store.Store
	asked int
}

func (s *slowOverrides) Abilities() store.Abilities {
	ab := store.AbilitiesOf(s.Store)
	ab.Overrides = slowOverrider{ab.Overrides, s}
	return ab
}

type slowOverrider struct {
	store.Overrider
	of *slowOverrides
}

func (s slowOverrider) Overrides(ctx context.Context, def *store.Definition, prefix, after string, n int) ([]store.Override, error) {
	s.of.asked++
	time.Sleep(10 * time.Millisecond)
	return s.Overrider.Overrides(ctx, def, prefix, after, n)
}

// lockedAudit is a store whose reports cannot be read before the context ends.
type lockedAudit struct {
	store.Store
	asked chan struct{}
}

func (s lockedAudit) Abilities() store.Abilities {
	ab := store.AbilitiesOf(s.Store)
	ab.TopKeys = s
	return ab
}

func (lockedAudit) Record(context.Context, store.AuditEntry) error { return nil }

func (s lockedAudit) Audit(ctx context.Context, _ string, _ int) ([]store.AuditEntry, error) {
	s.asked <- struct{}{}
	<-ctx.Done()
	return nil, ctx.Err()
}

// While the store does not answer one caller, another who asks the same can leave.
func TestTopSharedHangs(t *testing.T) {
	st := lockedAudit{newFixture(t, server.Config{}, local).limiter.Store(), make(chan struct{}, 2)}
	w := (&fixture{t: t}).over(st, server.Config{}, local, "login=1/1h")
	ask := func(ctx context.Context) <-chan struct{} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			w.api.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/v1/top?hour=2000-01-01T00:00:00Z", nil))
		}()
		return done
	}
	patient, end := context.WithCancel(t.Context())
	first := ask(patient)
	<-st.asked
	leaves, leave := context.WithCancel(t.Context())
	second := ask(leaves)
	leave()
	select {
	case <-second:
	case <-time.After(10 * time.Second):
		t.Error("a caller who has left waits for the answer of another")
	}
	end()
	<-first
	<-second
}

// keepsMinutes is a store that keeps the minutes of all processes.
type keepsMinutes struct{ *memstore.Store }

func (s keepsMinutes) Abilities() store.Abilities {
	ab := s.Store.Abilities()
	ab.Store, ab.Quick, ab.Lanes, ab.Minutes, ab.TopKeys = s, nil, nil, ab.TopKeys, nil
	return ab
}

// Two services over one store answer the same, with the decisions of both.
func TestMinutesOfAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, err := memstore.New(memstore.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer inner.Close()
		ctx, end := context.WithCancel(t.Context())
		var both []*fixture
		var ends []func()
		for _, name := range []string{"a:1", "b:2"} {
			w := (&fixture{t: t}).over(keepsMinutes{inner}, server.Config{}, local, "login=5/1h,burst=20")
			ends, both = append(ends, w.server.CountKeys(ctx, name, 0)), append(both, w)
		}
		both[0].takes(25, "limit=login&key=k")
		both[1].takes(3, "limit=login&key=k")
		time.Sleep(90 * time.Second)
		want := `"limits":[{"limit":"login","allowed":[0,20],"refused":[0,8],"customers":1}],"refused":{"counted":8,"unlisted_at_most":0,"keys":[{"limit":"login","key":"k","count":8,"error":0}]},"shed":0,"gauges":{`
		for _, w := range both {
			w.want(w.do("GET", "/v1/top?minutes=2", ""), 200, `"processes":[{"process":"a:1",`, `{"process":"b:2",`, `"shared":true,`, want)
		}
		end()
		for _, wait := range ends {
			wait()
		}
	})
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
		first.want(first.do("GET", "/v1/top?hour=2000-01-01T00:00:00Z", ""), 200, `"counts":{"all":[3,2],"listed":[2,0],"login":[39,15]}`)
		first.want(first.do("GET", "/v1/top?limit=login&hour=2000-01-01T00:00:00Z", ""), 200, `"counts":{"login":[39,15]}`)
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

// How many customers a limit has refused: those that the lists of its minutes have.
func TestRefusedCustomers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, server.Config{}, local)
		ctx, end := context.WithCancel(t.Context())
		wait := w.server.CountKeys(ctx, "a:1", 2)
		time.Sleep(time.Second)
		for i := range 10 {
			w.takes(21, fmt.Sprintf("limit=login&key=many-%d", i))
		}
		time.Sleep(time.Minute)
		answer := w.do("GET", "/v1/top?minutes=60", "")
		w.want(answer, 200, `"customers":10}],"refused":`)
		if strings.Contains(answer.Body.String(), "more_customers") {
			t.Errorf("no list was full: %s", answer.Body)
		}
		for i := range 30 {
			w.takes(21, fmt.Sprintf("limit=login&key=more-%d", i))
		}
		time.Sleep(time.Minute)
		answer = w.do("GET", "/v1/top?minutes=60", "")
		w.want(answer, 200, `"customers":30}],`, `"more_customers":true`) // a minute has 20 keys
		description().conforms(t, answer.Body.Bytes(), "components", "schemas", "TopMinutes")
		end()
		wait()
	})
}

// A store that keeps no hours, or fails, delays nothing.
func TestTopHourIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, server.Config{}, local)
		w.over(hung{w.limiter.Store()}, server.Config{}, local, "login=1/1h")
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
		w.want(w.post("take", "limit=login&key=k"), 503) // in the same second
		w.want(w.post("take", "limit=login&key=outage"), 503)
		w.down.Store(false)
		w.want(w.do("GET", "/v1/limits/login/keys?key=k", ""), 200, `"last":[`+
			`{"at_us":946684802000000,"cost":1,"retry_after_us":null,"source":"fallback-closed","more":0},`+
			`{"at_us":946684802000000,"cost":21,"retry_after_us":null,"never":true,"source":"store","more":0},`)
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
	w.want(w.do("GET", "/v1/top", ""), 200, `"process":""`, `"busiest":{"counted":0,"unlisted_at_most":0,"keys":[]}`) // a server that counts no keys
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
