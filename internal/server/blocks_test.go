package server_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/server"
	"github.com/dipwell/dipwell/store"
)

// TestBlocks begins blocks by calls, and lists and ends them.
func TestBlocks(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	l, err := dipwell.ParseLimit("failed=5/15m,max_debt=0,block=20m")
	if err == nil {
		_, err = w.limiter.Define(t.Context(), l, store.OwnerCode)
	}
	if err != nil {
		t.Fatal(err)
	}
	w.want(w.do("GET", "/v1/limits/failed", ""), 200, `"block":"20m"`)
	w.want(w.do("PUT", "/v1/limits/filed", `{"rate":1,"per":"1s","block":"1m"}`), 409)
	w.want(w.do("PUT", "/v1/limits/made", `{"rate":1,"per":"1s","block":"0s"}`), 400, `"field":"block"`)
	w.want(w.do("PUT", "/v1/limits/made", `{"rate":1,"per":"1s","block":"1h","shared":true}`), 400, `"field":"block"`, "shared limit")
	w.want(w.do("PUT", "/v1/limits/made", `{"rate":1,"per":"1s","parent":"failed"}`), 400, `"field":"block"`)
	entries := len(w.audited("").Entries)
	for _, key := range []string{"a", "b", "c"} {
		w.want(w.post("take", "limit=failed&cost=5&key="+key), 200)
		w.want(w.post("check", "limit=failed&cost=1&key="+key), 429, `"retry_after_us":180000000`)
		rec := w.post("take", "limit=failed&key="+key)
		w.want(rec, 429, `"blocked_until_us":1000001200000000`, `"retry_after_us":1200000000`)
		if after := rec.Header().Get("Retry-After"); after != "1200" {
			t.Errorf("Retry-After: %s", after)
		}
		w.want(w.post("check", "limit=failed&cost=0&key="+key), 429, `"blocked_until_us":1000001200000000`)
	}
	if n := len(w.audited("").Entries); n != entries {
		t.Errorf("%d entries in the audit; %d before", n, entries)
	}
	w.want(w.do("PUT", "/v1/limits/failed/overrides", `{"key":"b","burst":9}`), 200, `"kind":"standing"`)
	list := func(query, want string, parts ...string) {
		t.Helper()
		rec := w.do("GET", "/v1/limits/failed/overrides"+query, "")
		w.want(rec, http.StatusOK, parts...)
		if got := strings.Count(rec.Body.String(), `"kind":"`+want+`"`); got != len(parts) || strings.Count(rec.Body.String(), `"kind"`) != got {
			t.Errorf("%s: %s", query, rec.Body)
		}
	}
	list("", "standing", `"key":"b"`)
	list("?kind=standing", "standing", `"key":"b"`)
	list("?kind=temporary", "temporary")
	list("?kind=automatic", "automatic", `"key":"a"`, `"key":"b"`, `"key":"c"`)
	w.want(w.do("GET", "/v1/limits/failed/overrides?n=1", ""), 200, `"overrides":[],"next":"a"`)
	w.want(w.do("GET", "/v1/limits/failed/overrides?n=1&after=a", ""), 200, `"key":"b"`, `"next":"b"`)
	w.want(w.do("GET", "/v1/limits/failed/overrides?key=a", ""), 200, `"kind":"automatic"`, `"note":"automatic"`, `"until":"2001-09-09T02:06:40Z"`)
	w.want(w.do("GET", "/v1/limits/failed/overrides?kind=none", ""), 400, `"field":"kind"`)
	w.want(w.do("GET", "/v1/limits/failed/keys?key=a", ""), 200, `"mode":"blocked"`, `"blocked_until_us":1000001200000000`)

	w.want(w.do("DELETE", "/v1/limits/failed/overrides?key=a", ""), 204)
	w.want(w.do("DELETE", "/v1/limits/failed/overrides?key=b&kind=automatic&note=called", ""), 204)
	if e := w.audited("?n=1").Entries; len(e) != 1 || e[0].What != "block until 2001-09-09T02:06:40Z, over burst 9" || e[0].Note != "called" {
		t.Errorf("the audit: %+v", e)
	}
	w.want(w.do("DELETE", "/v1/limits/failed/overrides?key=b&kind=automatic", ""), 404)
	w.want(w.post("take", "limit=failed&cost=4&key=b"), 200)
	w.want(w.post("reset", "limit=failed&key=c"), 200)
	w.want(w.post("take", "limit=failed&key=c"), 200)
	w.want(w.do("PUT", "/v1/limits/failed/overrides", `{"key":"b","until":"2030-01-01T00:00:00Z"}`), 400, `"field":"plan"`)
}
