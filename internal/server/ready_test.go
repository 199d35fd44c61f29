package server_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/dipwell/dipwell/internal/server"
	"github.com/dipwell/dipwell/store"
)

// A gate is a store that decides nothing until it is open.
type gate struct {
	store.Store
	entered chan struct{}
	open    chan struct{}
}

func (g *gate) Apply(ctx context.Context, b *store.Batch) error {
	g.entered <- struct{}{}
	<-g.open
	return g.Store.Apply(ctx, b)
}

// TestReadyIsBounded: of calls that are decided at the same time, each with many keys, the
// ninth is shed.
func TestReadyIsBounded(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	g := &gate{Store: w.limiter.Store(), entered: make(chan struct{}, 100), open: make(chan struct{})}
	w.over(g, server.Config{}, local, "login=5/1m,burst=20")
	ask := func() int { return w.do("POST", "/v1/ready", `{"limit":"login","keys":["a","b"]}`).Code }
	var calls sync.WaitGroup
	for range 8 {
		calls.Go(func() {
			if code := ask(); code != 200 {
				t.Errorf("a call within the bound: %d", code)
			}
		})
	}
	for range 8 {
		<-g.entered
	}
	if code := ask(); code != 503 {
		t.Errorf("one more: %d", code)
	}
	close(g.open)
	calls.Wait()
	if code := ask(); code != 200 {
		t.Errorf("afterwards: %d", code)
	}
}

// TestReady: the keys whose take would be allowed, in the order given; nothing is taken.
func TestReady(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	w.post("take", "limit=login&key=a&cost=20")
	w.post("take", "limit=login&key=b&cost=19")
	for range 2 {
		w.want(w.do("POST", "/v1/ready", `{"limit":"login","keys":["c","a","b"]}`), 200, `{"keys":["c","b"]}`)
	}
	w.want(w.do("POST", "/v1/ready", `{"limit":"login","keys":["c","a","b"],"cost":2}`), 200, `{"keys":["c"]}`)
	w.want(w.do("POST", "/v1/ready", `{"limit":"login","keys":[]}`), 200, `{"keys":[]}`)
	for body, field := range map[string]string{
		`{"keys":["a"]}`:                                                     "limit",
		`{"limit":"login"}`:                                                  "keys",
		`{"limit":"login","keys":["a",""]}`:                                  "keys[1]",
		`{"limit":"login","keys":["a",7]}`:                                   "keys[1]",
		`{"limit":"login","keys":"a"}`:                                       "keys",
		`{"limit":"login","keys":["a"],"key":"a"}`:                           "key",
		`{"limit":"login","keys":["a"],"cost":-1}`:                           "cost",
		`{"limit":"login","keys":["` + strings.Repeat(`a","`, 1000) + `a"]}`: "keys",
	} {
		w.want(w.do("POST", "/v1/ready", body), 400, `"field":"`+field+`"`)
	}
	w.want(w.do("POST", "/v1/ready", `{"limit":"nosuch","keys":["a"]}`), 404, "nosuch")
	w.want(w.do("POST", "/v1/ready", `{"limit":"login","keys":["a"],"plan":"gold"}`), 404, `"field":"plan"`)
	w.want(w.do("GET", "/v1/ready", ""), 405)
}
