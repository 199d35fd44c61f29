package server_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell/internal/server"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
)

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
		for _, path := range []string{"/ui/", "/ui/main.js", "/ui/console.css"} {
			rec := w.do("GET", path, "")
			if rec.Code != tc.status || tc.status == 200 && !strings.Contains(rec.Header().Get("Content-Security-Policy"), "default-src 'none'") {
				t.Errorf("%+v %s: %d %v", tc, path, rec.Code, rec.Header())
			}
		}
	}
	w := newFixture(t, server.Config{MaxInFlight: 1}, local)
	for _, path := range []string{"/ui/nothing", "/ui/page/index.html", "/ui/../console.css"} {
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
	if rec := w.do("GET", "/", "", append(navigate, "Accept: text/html,*/*")...); rec.Code != 303 || rec.Header().Get("Location") != "/ui/" {
		t.Error("a browser at the root:", rec.Code, rec.Header())
	}
	w.want(w.do("GET", "/", ""), 404)
	w.want(w.do("POST", "/", "", "Accept: text/html"), 404)
	elsewhere := newFixture(t, server.Config{}, server.Site{Loopback: true, NoAdmin: true, AdminAt: "127.0.0.1:9090"})
	elsewhere.want(elsewhere.do("GET", "/ui/", "", "Accept: text/html"), 403, "the page is on another listener, that of admin calls: 127.0.0.1:9090")
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
	for _, list := range []string{"keys", "overrides"} {
		for _, field := range []string{"prefix", "after", "n"} {
			for _, query := range []string{"key=k&" + field + "=1", field + "=1&key=k"} {
				w.want(w.do("GET", "/v1/limits/login/"+list+"?"+query, ""), 400, `"field":"`+field+`"`)
			}
		}
	}
	w.want(w.do("GET", "/v1/limits/login/keys?key=k", ""), 200, `"refill":[[12000000,3],[24000000,4],`, `,[216000000,20]]`)
	w.now += 4e6
	w.want(w.do("GET", "/v1/limits/login/keys?key=k", ""), 200, `"refill":[[8000000,3],`, `,[212000000,20]]`)
	w.want(w.do("GET", "/v1/limits/window/keys?key=k", ""), 200, `"refill":[[6000000,7],[16000000,12],[26000000,17],[36000000,20]]`)
	w.want(w.do("PUT", "/v1/limits/slide", `{"algorithm":"sliding_window","rate":4,"per":"10s","start":"0s"}`), 201)
	w.post("take", "limit=slide&key=k&cost=3")
	w.want(w.do("GET", "/v1/limits/slide/keys?key=k", ""), 200, `"remaining":1`, `"refill":[[6010000,2],[9340000,3],[12670000,4]]`)

	// Until the override ends a token a second comes back, and then the rest by the limit.
	w.want(w.do("PUT", "/v1/limits/login/overrides", `{"key":"raised","rate":60,"per":"1m","burst":20,"for":"3500ms"}`), 200)
	w.post("take", "limit=login&key=raised&cost=8")
	w.want(w.do("GET", "/v1/limits/login/keys?key=raised", ""), 200, `"refill":[[1000000,13],[2000000,14],[3000000,15],[3500000,15],[9500000,16],[21500000,17],[33500000,18],[45500000,19],[57500000,20]]`)
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
		w := (&fixture{t: t}).over(&quiet{Store: inner}, server.Config{}, local, "login=1/1h,burst=100")
		begun := time.Now()
		if rec := w.do("GET", "/v1/limits/login/keys?key=k", ""); rec.Code != 200 || strings.Contains(rec.Body.String(), "refill") {
			t.Error(rec.Code, rec.Body)
		}
		if d := time.Since(begun); d > time.Second {
			t.Errorf("answered after %v", d)
		}
	})
}
