package server_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/server"
)

// limitsOf is an answer of GET /v1/keys?key=.
type limitsOf struct {
	Key    string
	Limits []struct {
		Limit     string
		Plan      string
		Mode      string
		Allowed   bool
		Remaining int64
		Cost      int64
		Retry     *int64 `json:"retry_after_us"`
		Blocked   int64  `json:"blocked_until_us"`
		Override  *struct {
			Kind  string
			Under *struct{ Plan string }
		}
		Holds    []struct{ Hold string }
		Refusals struct{ Last []struct{ Cost int64 } }
		Limits   []struct{ Limit string }
	}
	Next *string
}

func (w *fixture) limitsOf(query string, headers ...string) (a limitsOf) {
	w.t.Helper()
	rec := w.do("GET", "/v1/keys?"+query, "", headers...)
	w.want(rec, 200)
	if err := json.Unmarshal(rec.Body.Bytes(), &a); err != nil {
		w.t.Error(err)
	}
	return a
}

func (w *fixture) define(texts ...string) {
	w.t.Helper()
	for _, text := range texts {
		l, err := dipwell.ParseLimit(text)
		if err == nil {
			_, err = w.limiter.Define(w.t.Context(), l, "test")
		}
		if err != nil {
			w.t.Fatal(err)
		}
	}
}

// TestEveryLimit asks why a customer is limited: each limit that knows the key answers as for
// itself, in the order of names.
func TestEveryLimit(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	w.server.CountKeys(t.Context(), "host:1", 100)
	w.define("more=5/1m,burst=20", "org=1/1h,burst=5", "user=1/1h,burst=10,parent=org", "slots=2,algorithm=concurrency,ttl=1h", "plans=1/1h,burst=3,plans=pro:burst=9|banned:mode=blocked")
	if got := w.limitsOf("key=acme"); len(got.Limits) != 0 || got.Key != "acme" || got.Next != nil {
		t.Errorf("nobody knows the key: %+v", got)
	}
	w.want(w.post("take", `{"limit":"login","key":"acme","cost":20}`), 200)
	w.want(w.post("take", `{"limit":"login","key":"acme"}`), 429)
	w.want(w.post("take", `{"limit":"user","key":"acme/ann"}`), 200)
	w.want(w.post("hold", `{"limit":"slots","key":"acme","ttl":"1m","id":"h1"}`), 200)
	w.want(w.do("PUT", "/v1/limits/plans/overrides", `{"key":"acme","plan":"pro"}`), 200)
	w.want(w.do("PUT", "/v1/limits/plans/overrides", `{"key":"acme","plan":"banned","for":"1h"}`), 200)
	w.want(w.post("take", `{"limit":"never","key":"other"}`), 200)
	got := w.limitsOf("key=acme")
	names := []string{}
	for _, l := range got.Limits {
		names = append(names, l.Limit)
	}
	if !slices.Equal(names, []string{"login", "org", "plans", "slots"}) || got.Next != nil {
		t.Fatalf("%v, next %v", names, got.Next)
	}
	w.want(w.post("take", `{"limit":"more","key":"ann","cost":15}`), 200)
	w.want(w.post("take", `{"limit":"more","key":"ann","cost":7}`), 429)
	if l := w.limitsOf("key=ann").Limits[0]; l.Allowed || l.Remaining != 5 || l.Cost != 7 || *l.Retry != 24e6 {
		t.Errorf("as refused last: %+v", l)
	}
	w.want(w.do("GET", "/v1/limits/more/keys?key=ann&cost=8", ""), 200, `"cost":8,`, `"remaining":5,"retry_after_us":36000000,`)
	w.want(w.do("GET", "/v1/limits/more/keys?key=ann&cost=5", ""), 200, `{"allowed":true,`, `"remaining":5,`)
	w.want(w.do("GET", "/v1/limits/more/keys?key=ann&cost=-1", ""), 400, `"cost"`)
	w.want(w.do("GET", "/v1/limits/more/keys?key=ann&cost=%2B5", ""), 400, `"cost"`)
	w.want(w.do("GET", "/v1/limits/more/keys?key=ann&cost=007", ""), 400, `"cost"`)
	w.want(w.do("GET", "/v1/limits/more/keys?cost=1", ""), 400, `"cost"`)
	if l := got.Limits[0]; l.Allowed || l.Remaining != 0 || l.Retry == nil || *l.Retry != 12e6 || len(l.Refusals.Last) != 1 {
		t.Errorf("login: %+v", l)
	}
	if l := got.Limits[2]; l.Override == nil || l.Override.Kind != "temporary" || l.Override.Under == nil || l.Override.Under.Plan != "pro" || l.Blocked == 0 || l.Mode != "blocked" {
		t.Errorf("plans: %+v", l)
	}
	if l := got.Limits[3]; l.Remaining != 1 || len(l.Holds) != 1 || l.Holds[0].Hold != "h1" {
		t.Errorf("slots: %+v", l)
	}
	got = w.limitsOf("key=acme/ann")
	if len(got.Limits) != 1 || got.Limits[0].Limit != "user" || got.Limits[0].Remaining != 9 || len(got.Limits[0].Limits) != 2 {
		t.Errorf("a path: %+v", got)
	}
	if a := w.limitsOf("key=acme&after=login"); len(a.Limits) != 3 || a.Limits[0].Limit != "org" {
		t.Errorf("after login: %+v", a)
	}
}

func TestEveryLimitPrefix(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	w.define("more=5/1m,burst=20,keys=list")
	for i := range 5 {
		w.want(w.post("take", fmt.Sprintf(`{"limit":"listed","key":"cust-%d"}`, i)), 200)
	}
	w.want(w.post("take", `{"limit":"more","key":"cust-3"}`), 200)
	w.want(w.do("PUT", "/v1/limits/login/overrides", `{"key":"cust-2","rate":7}`), 200)
	w.want(w.do("GET", "/v1/keys?prefix=cust-&n=4", ""), 200,
		`{"keys":[{"key":"cust-0","limits":["listed"]},{"key":"cust-1","limits":["listed"]},{"key":"cust-2","limits":["listed","login"]},{"key":"cust-3","limits":["listed","more"]}],"more":true,`,
		`"unlisted":["filed","jobs","login","never","open"],"next":null}`)
	w.want(w.do("GET", "/v1/keys?prefix=cust-4", ""), 200, `{"keys":[{"key":"cust-4","limits":["listed"]}],"more":false,`)
	w.want(w.do("GET", "/v1/keys?prefix=x", ""), 200, `{"keys":[],"more":false,`)
}

// An answer looks at no more than 100 limits, and ends after a megabyte; next goes on.
func TestEveryLimitBounds(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	for i := range 120 {
		w.define(fmt.Sprintf("l%03d=1/1h,burst=5", i))
		w.want(w.post("take", fmt.Sprintf(`{"limit":"l%03d","key":"k"}`, i)), 200)
	}
	first := w.limitsOf("key=k")
	if first.Next == nil {
		t.Fatal("all in one answer")
	}
	rest := w.limitsOf("key=k&after=" + *first.Next)
	if n := len(first.Limits) + len(rest.Limits); n != 120 || rest.Next != nil || len(first.Limits) > 100 {
		t.Errorf("%d and %d limits, next %v", len(first.Limits), len(rest.Limits), rest.Next)
	}
	key, note := strings.Repeat("\x01", 512), strings.Repeat("\x01", 1024) // six times as long in JSON
	for i := range 90 {
		for _, until := range []string{"", `,"for":"1h"`} {
			w.want(w.do("PUT", fmt.Sprintf("/v1/limits/l%03d/overrides", i), fmt.Sprintf(`{"key":%s,"rate":2,"note":%s%s}`, asJSON(key), asJSON(note), until)), 200)
		}
	}
	query := "key=" + url.QueryEscape(key)
	rec := w.do("GET", "/v1/keys?"+query, "")
	if n, size := len(w.limitsOf(query).Limits), rec.Body.Len(); n >= 90 || size < 1<<20 || size > 1<<20+1<<16 {
		t.Errorf("%d limits in %d bytes", n, size)
	}
}

func asJSON(v any) []byte {
	b, _ := json.Marshal(v)
	return b
}

func TestEveryLimitBadInput(t *testing.T) {
	w := newFixture(t, server.Config{Callers: []server.Caller{caller("all", server.Admin), caller("some", server.Read, "login", "never")}}, local)
	all := as("all")
	w.want(w.do("GET", "/v1/keys", "", all), 400, `"field":"key"`, "is missing")
	w.want(w.do("GET", "/v1/keys?key=", "", all), 400, `"field":"key"`, "is empty")
	w.want(w.do("GET", "/v1/keys?key=a&prefix=b", "", all), 400, `"field":"prefix"`)
	w.want(w.do("GET", "/v1/keys?key="+strings.Repeat("k", 513), "", all), 400, `"field":"key"`, "513")
	w.want(w.do("GET", "/v1/keys?prefix="+strings.Repeat("k", 513), "", all), 400, `"field":"prefix"`)
	w.want(w.do("GET", "/v1/keys?prefix=a&n=0", "", all), 400, `"field":"n"`)
	w.want(w.do("GET", "/v1/keys?limit=a", "", all), 400, `"field":"limit"`)
	for _, limit := range []string{"login", "listed"} {
		w.want(w.post("take", `{"limit":"`+limit+`","key":"k"}`, all), 200)
	}
	if got := w.limitsOf("key=k", as("some")); len(got.Limits) != 1 || got.Limits[0].Limit != "login" {
		t.Errorf("a caller sees other limits than its own: %+v", got)
	}
	w.down.Store(true)
	w.want(w.do("GET", "/v1/keys?key=k", "", all), 503)
}

// GET /v1/overrides counts the overrides of each limit, and has those that end first. It is
// shared until one is set, and a caller sees its own limits alone.
func TestEveryOverride(t *testing.T) {
	w := newFixture(t, server.Config{Callers: []server.Caller{{Name: "all", Role: server.Admin, Token: sha256.Sum256([]byte("all"))},
		{Name: "one", Role: server.Read, Token: sha256.Sum256([]byte("one")), Limits: []string{"b"}}}}, local)
	w.define("a=5/1d,plans=pro:rate=600|banned:mode=blocked", "b=5/1d,block=1h", "c=5/1d")
	at := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	for _, o := range []string{
		`a {"key":"x","plan":"pro"}`, `a {"key":"x","rate":9,"until":"` + at.Add(time.Minute).Format(time.RFC3339) + `","note":"later"}`,
		`a {"key":"y","plan":"banned"}`, `b {"key":"x","rate":7,"until":"` + at.Format(time.RFC3339) + `"}`,
	} {
		limit, body, _ := strings.Cut(o, " ")
		w.want(w.do("PUT", "/v1/limits/"+limit+"/overrides", body, "Content-Type: application/json", "Authorization: Bearer all"), 200)
	}
	for range 6 {
		w.do("POST", "/v1/take", "limit=b&key=z", "Authorization: Bearer all")
	}
	ask := func(query, token string) string {
		rec := w.do("GET", "/v1/overrides"+query, "", "Authorization: Bearer "+token)
		w.want(rec, 200)
		description().conforms(t, rec.Body.Bytes(), "components", "schemas", "OverridesOfLimits")
		return rec.Body.String()
	}
	later := `{"limit":"a","key":"x","rate":9,"until":"` + at.Add(time.Minute).Format(time.RFC3339) + `","note":"later","kind":"temporary","under":{"limit":"a","key":"x","plan":"pro","until":null,"kind":"standing"}}`
	first := `{"limit":"b","key":"x","rate":7,"until":"` + at.Format(time.RFC3339) + `","kind":"temporary"}`
	ofB := `{"limit":"b","overrides":1,"blocked":1}`
	for got, want := range map[string]string{
		ask("", "all"):     `{"ends":[` + first + `,` + later + `],"limits":[{"limit":"a","overrides":1,"blocked":1},` + ofB + `],"next":null}`,
		ask("?n=1", "all"): `{"ends":[` + first + `],"limits":[{"limit":"a","overrides":1,"blocked":1},` + ofB + `],"next":null}`,
		ask("", "one"):     `{"ends":[` + first + `],"limits":[` + ofB + `],"next":null}`,
	} {
		if strings.TrimSpace(got) != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	}
	w.want(w.do("DELETE", "/v1/limits/b/overrides?key=x", "", "Authorization: Bearer all"), 204)
	if got := ask("?n=1", "all"); !strings.Contains(got, "later") {
		t.Errorf("after one has ended: %s", got)
	}
}
