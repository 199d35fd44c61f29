package main

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/memstore"
)

// start runs a gateway before a model, and returns its URL and its limiter.
func start(t *testing.T, m http.Handler) (string, *dipwell.Limiter) {
	t.Helper()
	store, err := memstore.New(memstore.Config{Clock: func() int64 { return 1e15 }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	limiter, err := dipwell.New(store, limits...)
	if err != nil {
		t.Fatal(err)
	}
	upstream := httptest.NewServer(m)
	t.Cleanup(upstream.Close)
	srv := httptest.NewServer(&gateway{limiter, upstream.URL})
	t.Cleanup(srv.Close)
	return srv.URL, limiter
}

func post(ctx context.Context, url, org, key, body string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("X-Org", org)
	r.Header.Set("X-Key", key)
	return http.DefaultClient.Do(r)
}

func ask(t *testing.T, url, org, key, body string) (status int, text string) {
	t.Helper()
	res, err := post(t.Context(), url, org, key, body)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// wantLeft checks how many tokens are left of a key and of its organisation.
func wantLeft(t *testing.T, l *dipwell.Limiter, org, key string, ofKey, ofOrg int64) {
	t.Helper()
	for _, c := range []struct {
		limit, key string
		want       int64
	}{{"tokens", dipwell.Key(org, key), ofKey}, {"org-tokens", dipwell.Key(org), ofOrg}} {
		if d, err := l.Check(t.Context(), c.limit, c.key, 0); err != nil || d.Remaining != c.want {
			t.Errorf("%s %s: %d left, want %d: %v", c.limit, c.key, d.Remaining, c.want, err)
		}
	}
}

// What a call did not use of its estimate is given back, to the key and to its
// organisation.
func TestSettles(t *testing.T) {
	url, l := start(t, &model{})
	status, text := ask(t, url, "acme", "alice", `{"prompt":"Tell me a story.","max_tokens":100}`)
	if status != 200 || strings.Count(text, "data: ") != 51 || !strings.Contains(text, `{"used":54}`) {
		t.Fatal(status, text)
	}
	wantLeft(t, l, "acme", "alice", 30_000-54, 60_000-54)
	if status, text = ask(t, url, "acme", "alice", `{"prompt":"","max_tokens":29947}`); status != 429 || !strings.Contains(text, `"status":429,"retry_after":`) {
		t.Error("an estimate above what is left:", status, text)
	}
	for _, key := range []string{"bob", "carol"} { // each may use a half of the organisation
		if status, text = ask(t, url, "acme", key, `{"prompt":"","max_tokens":29900}`); status != 200 {
			t.Fatal(key, status, text)
		}
	}
	wantLeft(t, l, "acme", "bob", 30_000-14_950, 60_000-54-2*14_950)
	for _, key := range []string{"a/b", "a%2Fb"} { // user input does not choose the organisation
		if status, _ = ask(t, url, "acme", key, `{"prompt":"","max_tokens":2}`); status != 200 {
			t.Error(key, status)
		}
	}
	if status, _ = ask(t, url, "acme", "", `{"prompt":"","max_tokens":2}`); status != 400 {
		t.Error("a call without a key:", status)
	}
}

// A client that hangs up pays for the tokens that were streamed.
func TestHangUp(t *testing.T) {
	said, ended := make(chan struct{}), make(chan struct{})
	url, l := start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for range 7 {
			_, _ = io.WriteString(w, "{\"token\":\"word \"}\n")
		}
		_ = http.NewResponseController(w).Flush()
		close(said)
		<-r.Context().Done()
		close(ended)
	}))
	ctx, hangUp := context.WithCancel(t.Context())
	res, err := post(ctx, url, "acme", "alice", `{"prompt":"Tell me a story.","max_tokens":100}`)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	<-said
	for read, buf := 0, make([]byte, 1); read < 7; { // blank lines between events
		if _, err = io.ReadFull(res.Body, buf); err != nil {
			t.Fatal(err)
		}
		if buf[0] == '}' {
			read++
		}
	}
	wantLeft(t, l, "acme", "alice", 30_000-104, 60_000-104)
	hangUp()
	<-ended
	deadline, tick := time.After(time.Minute), time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		holds, err := l.Holds(t.Context(), "tokens", dipwell.Key("acme", "alice"))
		if err != nil {
			t.Fatal(err)
		}
		if len(holds) == 0 {
			break
		}
		select {
		case <-deadline:
			t.Fatal("the hold is not settled")
		case <-tick.C:
		}
	}
	wantLeft(t, l, "acme", "alice", 30_000-11, 60_000-11)
}
