package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/server"
	"github.com/dipwell/dipwell/memstore"
	dipwellv1 "github.com/dipwell/dipwell/proto/dipwell/v1"
	"github.com/dipwell/dipwell/store"
)

// slow is a store that answers when the test tells it to.
type slow struct {
	store.Store
	entered, release chan struct{}
}

func (s *slow) Abilities() store.Abilities { return store.AbilitiesOf(s.Store) }

func (s *slow) Apply(ctx context.Context, b *store.Batch) error {
	s.entered <- struct{}{}
	<-s.release
	return s.Store.Apply(ctx, b)
}

func TestMaxInFlight(t *testing.T) {
	inner, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer inner.Close()
	store := &slow{inner, make(chan struct{}), make(chan struct{})}
	l, err := dipwell.New(store, dipwell.Limit{Name: "login", Rate: 1, Period: 1e9, Burst: 100})
	if err != nil {
		t.Fatal(err)
	}
	s := server.New(l, server.Config{MaxInFlight: 2})
	w := &fixture{t: t, limiter: l, server: s, api: s.API(local)}
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() { w.want(w.do("POST", "/v1/take?limit=login&key=k", ""), 200) })
		<-store.entered
	}
	r := w.do("POST", "/v1/take?limit=login&key=k", "")
	w.want(r, 503, "too many calls are in flight")
	if got := r.Header().Get("Retry-After"); got != "1" {
		t.Errorf("Retry-After %q", got)
	}
	w.want(w.do("GET", "/v1/limits", ""), 503)
	w.want(w.do("GET", "/healthz", ""), 200)
	w.want(w.do("GET", "/metrics", ""), 200, "dipwell_in_flight 2", "dipwell_shed_total 2")
	if s.Enter() {
		t.Error("a third call was let in")
	}
	s.Set(server.Config{MaxInFlight: 3}) // takes effect with the next call
	if !s.Enter() {
		t.Error("a third call was turned away under a bound of three")
	}
	s.Leave()
	close(store.release)
	wg.Wait()
	go func() { <-store.entered }()
	w.want(w.do("POST", "/v1/take?limit=login&key=k", ""), 200)
	w.want(w.do("GET", "/metrics", ""), 200, "dipwell_in_flight 0", "dipwell_shed_total 3")
}

// Over gRPC a call beyond MaxInFlight gets UNAVAILABLE with RetryInfo.
func TestMaxInFlightGRPC(t *testing.T) {
	w := newFixture(t, server.Config{MaxInFlight: 1}, local)
	conn, _ := w.serveGRPC(local)
	c := dipwellv1.NewLimiterClient(conn)
	if !w.server.Enter() {
		t.Fatal("the first call was turned away")
	}
	_, err := c.Take(t.Context(), call("login", "k", 1))
	details := status.Convert(err).Details()
	if status.Code(err) != codes.Unavailable || len(details) != 1 || details[0].(*errdetails.RetryInfo).RetryDelay.AsDuration() <= 0 {
		t.Errorf("%v %v", err, details)
	}
	w.server.Leave()
	if _, err = c.Take(t.Context(), call("login", "k", 1)); err != nil {
		t.Error(err)
	}
	w.want(w.do("GET", "/metrics", ""), 200, "dipwell_in_flight 0", "dipwell_shed_total 1")
}

// lines is a log that sends each line on a channel.
type logLines chan []byte

func (l logLines) Write(b []byte) (int, error) {
	l <- bytes.Clone(b)
	return len(b), nil
}

func TestLogRefusals(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	lines := make(logLines, 100)
	w.server.LogRefusals(t.Context(), slog.New(slog.NewJSONHandler(lines, nil)), 1, func(limit, key string) string { return "hash of " + limit })
	for range 23 {
		w.do("POST", "/v1/take?limit=login&key=user:7", "")
	}
	line := <-lines
	var m struct {
		Msg, Limit, Key, Source string
		Cost                    int
		RetryAfter              int64 `json:"retry_after"`
	}
	if err := json.Unmarshal(line, &m); err != nil || m.Msg != "refused" || m.Limit != "login" || m.Key != "hash of login" ||
		m.Cost != 1 || m.RetryAfter != 12e9 || m.Source != "store" || bytes.Contains(line, []byte("user:7")) {
		t.Errorf("%s %v", line, err)
	}
	// Three were refused, within one second or two.
	if n := len(lines); n > 1 {
		t.Errorf("%d more lines, in about a second", n)
	}
}

// Requests without a key are logged too, at most one a second.
func TestKeylessRequestsAreLogged(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	lines := make(logLines, 1000)
	w.server.LogRefusals(t.Context(), slog.New(slog.NewJSONHandler(lines, nil)), 1, func(string, string) string { return "" })
	for range 500 {
		w.want(w.do("GET", "/v1/auth?limit=login&key_header=X-User", ""), 429)
	}
	var m struct{ Msg, Limit, Reason string }
	line := <-lines
	if err := json.Unmarshal(line, &m); err != nil || m.Msg != "refused" || m.Limit != "login" || m.Reason != "header X-User: is missing or empty" {
		t.Errorf("%s %v", line, err)
	}
	if n := len(lines); n > 100 { // one a second; the machine may be slow
		t.Errorf("%d more lines of 500 refusals", n)
	}
}

// Every metric has the constant labels, and their names cannot be those of a
// metric's own labels.
func TestConstantLabels(t *testing.T) {
	w := newFixture(t, server.Config{Labels: map[string]string{"env": "prod", "cell": "b 1"}}, local)
	w.server.Gauge("dipwell_gauge", "A gauge.", func() float64 { return 7 })
	if _, err := w.server.Proxy(server.Upstream{URL: "http://127.0.0.1:1"}); err != nil {
		t.Fatal(err)
	}
	w.post("take", "limit=login&key=k")
	rec := w.do("GET", "/metrics", "")
	w.want(rec, 200, `dipwell_gauge{cell="b 1",env="prod"} 7`, `dipwell_keys{cell="b 1",env="prod"} 1`, `dipwell_decisions_total{cell="b 1",env="prod",limit="login",result="allowed"} 1`)
	for line := range strings.Lines(rec.Body.String()) {
		if line[0] == '#' {
			continue
		}
		if !strings.Contains(line, `cell="b 1"`) || !strings.Contains(line, `env="prod"`) {
			t.Error("without the labels:", line)
		}
		for _, m := range regexp.MustCompile(`[{,]([a-z_]+)="`).FindAllStringSubmatch(line, -1) {
			if m[1] != "env" && m[1] != "cell" && server.CheckLabels(map[string]string{m[1]: "x"}) == nil {
				t.Errorf("%q is a metric's own label, and is accepted", m[1])
			}
		}
	}
	for _, bad := range []map[string]string{{"": "x"}, {"a-b": "x"}, {"__a": "x"}, {"1a": "x"}, {"a": ""}, {"a": "\xff"}, {"a": strings.Repeat("x", 129)}, {"rule": "x"}, {"domain": "x"}} {
		if server.CheckLabels(bad) == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
	many := map[string]string{}
	for i := range 17 {
		many[fmt.Sprintf("l%d", i)] = "x"
	}
	if server.CheckLabels(many) == nil {
		t.Error("17 labels were accepted")
	}
}

func TestLabelsAreBounded(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	w.want(w.do("POST", "/v1/take?limit=nobody&key=k", ""), 404)
	w.want(w.do("GET", "/metrics", ""), 200, "dipwell_unknown_limit_total 1")
	for i := range 10050 {
		d := dipwell.Decision{Limit: fmt.Sprintf("l%d", i), Allowed: true}
		w.server.Observe(&d, nil, 1)
	}
	body := w.do("GET", "/metrics", "").Body.String()
	if n := strings.Count(body, `result="allowed"`); n > 10001 {
		t.Errorf("%d limits have labels", n)
	}
	if !strings.Contains(body, `dipwell_decisions_total{limit="_other",result="allowed"} 50`) {
		t.Error("the rest do not count as one")
	}
	if strings.Contains(body, "nobody") {
		t.Error("a name that is no limit's became a label")
	}
}
