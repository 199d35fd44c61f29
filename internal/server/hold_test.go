package server_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/dipwell/dipwell/internal/server"
	"github.com/dipwell/dipwell/memstore"
	dipwellv1 "github.com/dipwell/dipwell/proto/dipwell/v1"
	"github.com/dipwell/dipwell/store"
)

// ofPlans is an API over limits with plans, parents and holds, at a time that the test
// sets.
func ofPlans(t *testing.T, c server.Config, at server.Site) *fixture {
	t.Helper()
	w := &fixture{t: t, now: 1e15}
	st, err := memstore.New(memstore.Config{Clock: func() int64 { return w.now }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	w.flaky = &flaky{inner: st}
	return w.over(w.flaky, c, at,
		"api=5/1m,burst=20,auth=true,keys=list,plans=pro:rate=600;burst=1000|staff:mode=unlimited;callable=false|vip:mode=unlimited|banned:mode=blocked",
		"tokens=60/1m,burst=100,max_charge=200", "slots=2,algorithm=concurrency,ttl=5m",
		"org=1/1s,burst=10,parts=1", "all=60/1m,burst=100,shared=true", "user=1/1s,burst=6,parent=org,auth=true")
}

func TestPlansAndFloors(t *testing.T) {
	w := ofPlans(t, server.Config{}, local)
	w.want(w.post("take", `{"limit":"api","key":"k","plan":"pro","cost":10}`), 200, `"plan":"pro"`, `"capacity":1000`, `"remaining":990`)
	w.want(w.post("take", "limit=api&key=k2&plan=pro&floor=5&cost=995"), 200, `"remaining":5`)
	w.want(w.post("take", "limit=api&key=k2&plan=pro&floor=5"), 429, `"retry_after_us":100000`)
	w.want(w.post("check", `{"limit":"api","key":"k2","plan":"pro","floor":4}`), 200)
	w.want(w.post("take", `{"limit":"api","key":"k2","plan":"pro","floor":1000}`), 429, `"never":true`, "the call asks for more than the limit could ever hold") // with the floor
	w.want(w.post("take", `{"takes":[{"limit":"api","key":"k3","plan":"pro"},{"limit":"tokens","key":"k3","floor":99}]}`), 200, `"plan":"pro"`)
	w.want(w.post("take", `{"takes":[{"limit":"api","key":"k3"},{"limit":"tokens","key":"k3","floor":99}]}`), 429)
	w.want(w.post("take_up_to", "limit=api&key=k4&plan=pro&cost=2000"), 200, `"granted":1000`)
	w.want(w.post("reserve", "limit=api&key=k5&plan=pro&cost=1001"), 200, `"delay_us":100000`)
	w.want(w.post("wait", "limit=api&key=k6&plan=pro&cost=1000&timeout=1s"), 200, `"plan":"pro"`)
	w.want(w.post("take", "limit=api&key=k7&plan=vip&cost=500"), 200, `"capacity":9007199254740991`, `"remaining":9007199254740991`)
	w.want(w.post("take", "limit=api&key=k8&plan=banned"), 429, `"never":true`, "the key is blocked; no wait will help")
	for body, field := range map[string]string{
		`{"limit":"api","key":"k","plan":"staff"}`:                   "plan",
		`{"limit":"api","key":"k","plan":""}`:                        "plan",
		`{"limit":"api","key":"k","plan":7}`:                         "plan",
		`{"limit":"api","key":"k","plan":"pro","plan":"pro"}`:        "plan",
		`{"limit":"api","key":"k","Plan":"pro"}`:                     "Plan",
		`{"limit":"api","key":"k","floor":-1}`:                       "floor",
		`{"limit":"api","key":"k","floor":1.5}`:                      "floor",
		`{"limit":"api","floor":1,"takes":[{"limit":"api"}]}`:        "takes",
		`{"takes":[{"limit":"api","key":"k","floor":-1}]}`:           "takes[0].floor",
		`{"takes":[{"limit":"api","key":"k","plan":""}]}`:            "takes[0].plan",
		`{"takes":[{"limit":"api","key":"k","ttl":"1s"}]}`:           "takes[0].ttl",
		`{"limit":"api","key":"k","ttl":"1s"}`:                       "ttl",
		`{"limit":"slots","key":"k"}`:                                "limit",
		`limit=api&key=k&floor=x`:                                    "floor",
		`limit=api&key=k&plan=`:                                      "plan",
		`{"limit":"user","key":"acme"}`:                              "key",
		`{"limit":"user","key":"acme/u7/x"}`:                         "key",
		`{"limit":"user","key":["acme",""]}`:                         "key",
		`{"limit":"user","key":[]}`:                                  "key",
		`{"limit":"user","key":["acme",7]}`:                          "key",
		`{"limit":"user","key":["acme","u7"`:                         "body",
		`{"limit":"api","key":[""]}`:                                 "key",
		`{"limit":"api","key":["\u0000"]}`:                           "key",
		`{"limit":"api","key":["` + strings.Repeat("%", 200) + `"]}`: "key",
	} {
		w.want(w.post("take", body), 400, `"field":"`+field+`"`)
	}
	w.want(w.post("take", `{"limit":"api","key":"k","plan":"prro"}`), 404, `"field":"plan"`)
	w.want(w.post("take", `{"limit":"tokens","key":"k","plan":"pro"}`), 404, `"field":"plan"`)
	w.want(w.post("take", `{"takes":[{"limit":"api","key":"k","plan":"prro"}]}`), 404, `"field":"takes[0].plan"`)
	w.want(w.post("charge", "limit=api&key=k&plan=pro"), 400, `"field":"plan"`)
	w.want(w.post("take_up_to", "limit=api&key=k&floor=1"), 400, `"field":"floor"`)
}

func TestAuthPlan(t *testing.T) {
	w := ofPlans(t, server.Config{}, local)
	w.want(w.do("GET", "/v1/auth?limit=api&key=k&plan=pro&floor=999", ""), 200, `"plan":"pro"`)
	w.want(w.do("GET", "/v1/auth?limit=api&key=k&plan=pro&floor=999", ""), 429)
	w.want(w.do("GET", "/v1/auth?limit=api&key=k&plan=pro", ""), 200)
	w.want(w.do("GET", "/v1/auth?limit=api&key=k&plan=prro", ""), 404, `"field":"plan"`)
	for _, bad := range []string{"plan=", "plan=pro&plan=pro", "floor=", "floor=-1"} {
		w.want(w.do("GET", "/v1/auth?limit=api&key=k&"+bad, ""), 400)
	}
}

// A key may be the parts of a path. The answer names the parents too.
// TestAuthPaths checks that a client whose header is not a path of the limit is refused
// with the deny status, as one without the header: nginx turns a 400 into a 500.
func TestAuthPaths(t *testing.T) {
	w := ofPlans(t, server.Config{}, local)
	auth := "/v1/auth?limit=user&deny=403&key_header=X-User"
	w.want(w.do("GET", auth, "", "X-User: acme/ann"), 200, `"key":"acme/ann"`)
	for _, key := range []string{"acme", "acme/ann/more", "/ann", "acme/", "/"} {
		w.want(w.do("GET", auth, "", "X-User: "+key), 403, `"field":"key"`, `"detail":"key: `)
	}
	w.want(w.do("GET", "/v1/auth?limit=user&deny=403&key=acme", ""), 400, `"field":"key"`) // the proxy's own mistake
	w.want(w.do("GET", "/metrics", ""), 200, `dipwell_keyless_requests_total{by="header"} 5`)
}

// TestUnknownSettings checks that a misspelt setting is reported as such, whatever its value
// is.
func TestUnknownSettings(t *testing.T) {
	w := ofPlans(t, server.Config{}, local)
	for body, want := range map[string]string{
		`{"rate":5,"per":"1s","plan":{"pro":{"rate":9}}}`:  `"detail":"plan: unknown setting; did you mean plans?","field":"plan"`,
		`{"rate":5,"per":"1s","brust":null}`:               `"detail":"brust: unknown setting; did you mean burst?","field":"brust"`,
		`{"rate":5,"per":"1s","plans":{"pro":{"rte":[]}}}`: `"detail":"plans.pro.rte: unknown setting; did you mean rate?","field":"plans.pro.rte"`,
		`{"rate":5,"per":"1s","adaptive":{"flor":{}}}`:     `"detail":"adaptive.flor: unknown setting; did you mean floor?","field":"adaptive.flor"`,
		`{"rate":5,"per":"1s","burst":[]}`:                 `"detail":"burst: must be a string, a number or a boolean","field":"burst"`,
	} {
		w.want(w.do("PUT", "/v1/limits/new", body), 400, want)
	}
	for body, want := range map[string]string{
		`{"key":"k","Rate":5}`:         `"detail":"Rate: unknown; known are key, plan, rate`,
		`{"key":"k","Until":null}`:     `"detail":"Until: unknown; known are key, plan, rate`,
		`{"key":"k","rate":"5"}`:       `"detail":"rate: must be a whole number","field":"rate"`,
		`{"key":"k","burst":"5"}`:      `"detail":"burst: must be a whole number","field":"burst"`,
		`{"key":"k","plans":{"a":[]}}`: `"detail":"plans: unknown; known are key, plan, rate`,
	} {
		w.want(w.do("PUT", "/v1/limits/api/overrides", body), 400, want)
	}
}

func TestPaths(t *testing.T) {
	w := ofPlans(t, server.Config{}, local)
	w.want(w.post("take", `{"limit":"user","key":["acme","a/b%"],"cost":6}`), 200, `"key":"acme/a%2Fb%25"`, `"limits":[{`, `"limit":"org","key":"acme"`)
	w.want(w.post("take", `{"limit":"user","key":"acme/u8","cost":5}`), 429, `"violated-policies":["org"]`, `"limit":"org"`, `"retry_after_us":1000000`)
	w.want(w.post("check", `{"limit":"org","key":["acme"]}`), 200, `"remaining":4`)
}

// A bad take in a list of one is named as in a list of several.
func TestListOfOne(t *testing.T) {
	w := ofPlans(t, server.Config{}, local)
	long := strings.Repeat("k", 513)
	for _, call := range []string{"take", "wait", "hold"} {
		for field, take := range map[string]string{"key": `"key":"` + long + `"`, "plan": `"key":"acme","plan":"none"`, "cost": `"key":"acme","cost":-1`, "floor": `"key":"acme","floor":-1`} {
			body, want := `{"takes":[{"limit":"tokens",`+take+`}]}`, 400
			if call == "hold" {
				body = strings.TrimSuffix(body, "}") + `,"ttl":"10s"}`
			}
			if field == "plan" {
				want = 404
			}
			w.want(w.post(call, body), want, `"field":"takes[0].`+field+`"`)
		}
	}
}

// An error about the costs of a hold names the member that the caller wrote.
func TestSettleNamesTheCost(t *testing.T) {
	w := ofPlans(t, server.Config{}, local)
	w.want(w.post("hold", `{"limit":"tokens","key":"k","ttl":"10s","id":"h"}`), 200)
	w.want(w.post("settle", `{"hold":"h","cost":1000000}`), 400, `"field":"cost"`)
	w.want(w.post("settle", `{"hold":"h","costs":[1000000]}`), 400, `"field":"costs[0]"`)
	w.want(w.post("settle", "hold=h&costs=1000000"), 400, `"field":"costs[0]"`)
	w.want(w.post("settle", `{"hold":"h","costs":[1,1]}`), 400, `"field":"costs"`)
	w.want(w.post("hold", `{"takes":[{"limit":"tokens","key":"k"},{"limit":"api","key":"k"}],"ttl":"10s","id":"two"}`), 200)
	w.want(w.post("settle", `{"hold":"two","cost":1}`), 400, `"field":"cost"`)
	w.want(w.post("settle", `{"hold":"two","costs":[1]}`), 400, `"field":"costs"`)
}

// An unknown limit in a list is named with its place, and is still a 404.
func TestUnknownLimitInList(t *testing.T) {
	w := ofPlans(t, server.Config{}, local)
	for _, call := range []string{"take", "check", "reserve", "wait", "hold"} {
		end := "}"
		if call == "hold" {
			end = `,"ttl":"10s"}`
		}
		w.want(w.post(call, `{"takes":[{"limit":"tokens","key":"k"},{"limit":"lost"}]`+end), 404, `"field":"takes[1].limit"`)
		w.want(w.post(call, `{"takes":[{"limit":"lost"}]`+end), 404, `"field":"takes[0].limit"`)
		w.want(w.post(call, `{"limit":"lost"`+end), 404, `"field":"limit"`)
	}
}

func TestHolds(t *testing.T) {
	w := ofPlans(t, server.Config{}, local)
	body := `{"takes":[{"limit":"tokens","key":"acme","cost":30},{"limit":"slots","key":"acme"}],"ttl":"30s","id":"req-1"}`
	w.want(w.post("hold", body), 200, `"hold":"req-1"`, `"expires_us":1000000030000000`, `"limits":[`)
	w.want(w.post("hold", body), 200, `"repeated":true`, `"hold":"req-1"`)
	w.want(w.post("hold", strings.Replace(body, "30}", "31}", 1)), 409, `"field":"id"`)
	w.want(w.post("check", "limit=tokens&key=acme&cost=0"), 200, `"remaining":70`)
	w.want(w.do("GET", "/v1/limits/tokens/holds?key=acme", ""), 200, `{"holds":[{"hold":"req-1","tokens":30,"expires_us":1000000030000000}]}`)
	w.want(w.do("GET", "/v1/limits/all/holds", ""), 200, `{"holds":[]}`)
	w.want(w.do("GET", "/v1/limits/slots/keys?key=acme", ""), 200, `"remaining":1`, `"holds":[{"hold":"req-1"`)

	rec := w.post("hold", "limit=slots&key=acme&ttl=5m")
	var d struct{ Hold string }
	if err := json.Unmarshal(rec.Body.Bytes(), &d); err != nil || len(d.Hold) < 16 {
		t.Fatal(err, rec.Body)
	}
	w.want(w.post("hold", "limit=slots&key=acme&ttl=1m"), 429, `"retry_is_bound":true`, `"retry_after_us":30000000`)
	w.want(w.post("extend", `{"hold":"req-1","ttl":"2m"}`), 200, `"expires_us":1000000120000000`)
	w.want(w.post("hold", "limit=slots&key=acme&ttl=1m"), 429, `"retry_after_us":120000000`)
	w.want(w.post("settle", `{"hold":"`+d.Hold+`","cost":0}`), 200)
	w.want(w.post("settle", `{"hold":"req-1","costs":[20,1]}`), 200, `"limits":[`)
	w.want(w.post("settle", `hold=req-1&costs=20,1`), 200, `"repeated":true`)
	w.want(w.post("settle", `{"hold":"req-1","costs":[21,1]}`), 409, `"field":"hold"`)
	w.want(w.post("settle", `{"hold":"req-1"}`), 409)
	w.want(w.post("extend", `hold=req-1&ttl=1m`), 409, `"field":"hold"`)
	w.want(w.post("hold", body), 409, `"field":"id"`)
	w.want(w.post("check", "limit=tokens&key=acme&cost=0"), 200, `"remaining":80`)
	w.want(w.post("check", "limit=slots&key=acme&cost=2"), 200, `"remaining":2`)
	w.want(w.post("settle", `{"hold":"nobody"}`), 404, `"field":"hold"`)
	w.want(w.post("extend", `{"hold":"nobody","ttl":"1s"}`), 404, `"field":"hold"`)
	w.want(w.do("GET", "/metrics", ""), 200, `dipwell_decisions_total{limit="slots",result="refused"} 2`)

	w.want(w.post("hold", `{"limit":"tokens","key":"b","cost":50,"ttl":"30s","id":"b"}`), 200)
	w.want(w.post("settle", `{"hold":"b","cost":251}`), 400, `"field":"cost"`, "250")
	w.want(w.post("settle", `{"hold":"b","cost":150}`), 200, `"remaining":0`) // in debt
	w.want(w.post("check", "limit=tokens&key=b"), 429, `"retry_after_us":51000000`)
}

func TestHoldBadInput(t *testing.T) {
	w := ofPlans(t, server.Config{}, local)
	w.want(w.post("hold", "limit=tokens&key=k&ttl=1m&id=x&cost=5"), 200)
	for _, tc := range []struct{ path, body, field string }{
		{"hold", `{"limit":"tokens","key":"k"}`, "ttl"},
		{"hold", `{"limit":"tokens","key":"k","ttl":"0s"}`, "ttl"},
		{"hold", `{"limit":"tokens","key":"k","ttl":"366d"}`, "ttl"},
		{"hold", `{"limit":"slots","key":"k","ttl":"6m"}`, "ttl"},
		{"hold", `{"limit":"tokens","key":"k","ttl":30}`, "ttl"},
		{"hold", `{"limit":"tokens","key":"k","ttl":"1s","id":""}`, "id"},
		{"hold", `{"limit":"tokens","key":"k","ttl":"1s","id":"` + strings.Repeat("x", 65) + `"}`, "id"},
		{"hold", `{"limit":"tokens","key":"k","ttl":"1s","id":"a b"}`, "id"},
		{"hold", `{"limit":"tokens","key":"k","ttl":"1s","id":7}`, "id"},
		{"hold", `{"limit":"tokens","key":"k","ttl":"1s","costs":[1]}`, "costs"},
		{"hold", `{"limit":"tokens","key":"k","ttl":"1s","cost":-1}`, "cost"},
		{"hold", `{"limit":"tokens","key":"k","ttl":"1s","floor":-1}`, "floor"},
		{"hold", `{"takes":[],"ttl":"1s"}`, "takes"},
		{"hold", `{"takes":[{"limit":"tokens","key":"k","cost":-1}],"ttl":"1s"}`, "takes[0].cost"},
		{"hold", `ttl=1s`, "limit"},
		{"settle", `{}`, "hold"},
		{"settle", `{"hold":""}`, "hold"},
		{"settle", `{"hold":"` + strings.Repeat("x", 65) + `"}`, "hold"},
		{"settle", `{"hold":"x","cost":-1}`, "cost"},
		{"settle", `{"hold":"x","cost":1,"costs":[1]}`, "costs"},
		{"settle", `{"hold":"x","costs":[]}`, "costs"},
		{"settle", `{"hold":"x","costs":[1,2]}`, "costs"},
		{"settle", `{"hold":"x","costs":[1,-2]}`, "costs[1]"},
		{"settle", `{"hold":"x","costs":1}`, "costs"},
		{"settle", `{"hold":"x","costs":["1"]}`, "costs[0]"},
		{"settle", `{"hold":"x","costs":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}`, "costs"},
		{"settle", `hold=x&costs=1,x`, "costs[1]"},
		{"settle", `hold=x&costs=`, "costs[0]"},
		{"settle", `hold=x&limit=tokens`, "limit"},
		{"extend", `{"hold":"x"}`, "ttl"},
		{"extend", `{"ttl":"1s"}`, "hold"},
		{"extend", `{"hold":"x","ttl":"0s"}`, "ttl"},
		{"extend", `{"hold":"x","ttl":"366d"}`, "ttl"},
	} {
		rec := w.post(tc.path, tc.body)
		if w.want(rec, 400, `"field":"`+tc.field+`"`); t.Failed() {
			t.Fatal(tc.path, tc.body)
		}
	}
	w.want(w.do("GET", "/v1/limits/tokens/holds?key=k", ""), 200, `"tokens":5,"expires_us":1000000060000000}`)
	w.want(w.do("GET", "/v1/limits/tokens/holds?key=", ""), 400, `"field":"key"`)
	w.want(w.do("GET", "/v1/limits/tokens/holds?n=1", ""), 400, `"field":"n"`)
	w.want(w.do("GET", "/v1/limits/nobody/holds?key=k", ""), 404, `"field":"limit"`)
}

// TestOverrideStart checks a billing day over HTTP: set, listed, kept under a raise, and in
// the audit.
func TestOverrideStart(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	w.want(w.do("PUT", "/v1/limits/quota", `{"algorithm":"fixed_window","rate":100,"per":"1mo","start":"00:00 UTC","plans":{"pro":{"rate":1000}}}`), 201)
	path := "/v1/limits/quota/overrides" // it is 2001-09-09T01:46:40Z
	w.want(w.do("PUT", path, `{"key":"c7","plan":"pro","start":"17 00:00 Europe/Rome","note":"billing day"}`), 200,
		`{"limit":"quota","key":"c7","plan":"pro","start":"17 00:00 Europe/Rome","until":null,"note":"billing day","kind":"standing"}`)
	if got := w.audited("?n=1").Entries; len(got) != 1 || got[0].What != "plan pro start 17 00:00 Europe/Rome" {
		t.Errorf("%+v", got)
	}
	w.want(w.post("take", "limit=quota&key=c7&cost=10"), 200, `"reset_after_us":677600000000,`)
	w.want(w.do("PUT", path, `{"key":"c7","rate":5000,"for":"1h"}`), 200, `"under":{"limit":"quota","key":"c7","plan":"pro","start":"17 00:00 Europe/Rome"`)
	w.want(w.post("take", "limit=quota&key=c7&cost=10"), 200, `"capacity":5000,"remaining":4980,`, `"reset_after_us":677600000000,`)
	w.want(w.do("GET", path, ""), 200, `"start":"17 00:00 Europe/Rome"`)
	w.want(w.do("GET", "/v1/limits/quota/keys?key=c7", ""), 200, `"start":"17 00:00 Europe/Rome"`)
	for body, want := range map[string]string{
		`{"key":"c8","start":"17 00:00 Rome"}`:             "is not an IANA time zone",
		`{"key":"c8","start":""}`:                          "is empty",
		`{"key":"c8","start":"17 00:00 UTC","for":"1h"}`:   "stands only in an override without an end",
		`{"key":"c8","start":17}`:                          "must be a string",
		`{"key":"c8","plan":"pro","start":"40 00:00 UTC"}`: "is not a day of the month",
	} {
		w.want(w.do("PUT", path, body), 400, `"field":"start"`, want)
	}
}

func TestOverrides(t *testing.T) {
	w := ofPlans(t, server.Config{}, local)
	path := "/v1/limits/api/overrides"
	w.want(w.post("take", "limit=api&key=c7&cost=20"), 200)
	w.want(w.do("PUT", path, `{"key":"c7","plan":"pro","for":"1h","note":"ticket 81"}`), 200,
		`{"limit":"api","key":"c7","plan":"pro","until":"2001-09-09T02:46:40Z","note":"ticket 81","kind":"temporary"}`)
	w.want(w.post("take", "limit=api&key=c7&cost=900"), 200, `"plan":"pro"`, `"capacity":1000`)
	w.want(w.do("PUT", path, `{"key":"c8","rate":600,"per":"1m","burst":0,"until":"2001-09-09T02:00:00.5Z"}`), 400)
	w.want(w.do("PUT", path, `{"key":"c8","rate":600,"per":"1m","burst":30,"until":"2001-09-09T02:00:00.5Z"}`), 200,
		`{"limit":"api","key":"c8","rate":600,"per":"1m","burst":30,"until":"2001-09-09T02:00:00.5Z","kind":"temporary"}`)
	w.want(w.do("PUT", path, "key=c9&plan=staff"), 200) // which callers may not name
	api := *w.limiter.Limit("api")
	share := func(shared bool) {
		t.Helper()
		api.Shared = shared
		if _, err := w.limiter.Define(t.Context(), api.Limit, store.OwnerCode); err != nil {
			t.Fatal(err)
		}
	}
	share(true)
	w.want(w.do("PUT", path+"?plan=banned", ""), 200, `"key":null,"plan":"banned","until":null,"kind":"standing"}`) // the shared bucket
	w.want(w.post("take", "limit=api"), 429, `"never":true`)
	share(false)
	w.want(w.post("take", "limit=api&key=c9&cost=50"), 200, `"plan":"staff"`)
	for _, verb := range []string{"take", "check", "take_up_to", "reserve", "charge", "refund", "reset"} {
		w.want(w.post(verb, "limit=api&key=c9"), 200, `"plan":"staff"`, `"capacity":9007199254740991,"remaining":9007199254740991,`)
	}
	w.want(w.do("GET", path, ""), 200, `{"overrides":[{"limit":"api","key":null`, `"key":"c7"`, `"key":"c8"`, `"key":"c9"`, `"next":null`)
	w.want(w.do("GET", path+"?n=2", ""), 200, `"next":"c7"`)
	w.want(w.do("GET", path+"?n=1", ""), 200, `"next":""`)
	w.want(w.do("GET", path+"?n=2&after=", ""), 200, `{"overrides":[{"limit":"api","key":"c7"`, `"next":"c8"`)
	w.want(w.do("GET", path+"?prefix=c8", ""), 200, `{"overrides":[{"limit":"api","key":"c8"`)
	w.want(w.do("GET", path+"?key=c8", ""), 200, `{"limit":"api","key":"c8"`)
	w.want(w.do("GET", path+"?key=c", ""), 404, `"field":"key"`)
	w.want(w.do("GET", "/v1/limits/api/keys?key=c7", ""), 200, `"plan":"pro"`, `"override":{"limit":"api","key":"c7"`)

	w.want(w.do("GET", "/v1/limits/api/keys?key=c8", ""), 200, `"plan":"override"`, `"capacity":30`)
	w.want(w.post("take", "limit=api&key=c2&plan=pro&cost=600"), 200)
	w.want(w.do("GET", "/v1/limits/api/keys?key=c2", ""), 200, `"capacity":20,"remaining":0,`, `"row":{"plan":"pro","capacity":1000,"remaining":400,`, `"refill":[[`)
	w.want(w.do("PUT", path, `{"key":"c2","plan":"banned","for":"1h"}`), 200)
	w.want(w.do("GET", "/v1/limits/api/keys?key=c2", ""), 200, `"plan":"banned"`, `"blocked_until_us":1000003600000000`, `"mode":"blocked"`)
	w.want(w.post("take", "limit=api&key=c2"), 429, `"blocked_until_us":1000003600000000`)
	w.want(w.do("DELETE", path+"?key=c2", ""), 204)
	w.want(w.post("take", "limit=api&key=c1&plan=pro"), 200)
	w.want(w.do("GET", "/v1/limits/api/keys?prefix=c", ""), 200, `{"key":"c1","plan":"pro","remaining":999,`, `{"key":"c7","plan":"pro","override":true,"remaining":80,`)
	w.now += 3600e6 - 1
	w.want(w.post("check", "limit=api&key=c7&cost=900"), 200, `"plan":"pro"`)
	w.now++
	w.want(w.post("check", "limit=api&key=c7&cost=20"), 200, `"capacity":20`)
	w.want(w.do("GET", path+"?key=c7", ""), 404)

	w.want(w.do("DELETE", path+"?key=c9&kind=temporary", ""), 404, `"field":"key"`)
	w.want(w.do("DELETE", path+"?key=c9&kind=both", ""), 400, `"field":"kind"`)
	w.want(w.do("PUT", path, `{"key":"c9","rate":60,"for":"1m"}`), 200, `"kind":"temporary","under":{"limit":"api","key":"c9","plan":"staff","until":null,"kind":"standing"}}`)
	w.want(w.do("PUT", path, `{"key":"c9","plan":"pro"}`), 200, `"kind":"standing","replaced":{"limit":"api","key":"c9","plan":"staff"`)
	w.want(w.do("GET", path+"?prefix=c9", ""), 200, `{"overrides":[{"limit":"api","key":"c9","rate":60,`, `{"limit":"api","key":"c9","plan":"pro","until":null,"kind":"standing"}],"next":null`)
	w.want(w.do("GET", path+"?prefix=c9&kind=standing", ""), 200, `{"overrides":[{"limit":"api","key":"c9","plan":"pro"`)
	w.want(w.do("GET", path+"?key=c9", ""), 200, `"rate":60`, `"under":{"limit":"api","key":"c9","plan":"pro"`)
	w.want(w.do("GET", path+"?key=c9&kind=standing", ""), 200, `{"limit":"api","key":"c9","plan":"pro"`)
	w.want(w.do("DELETE", path+"?key=c9", ""), 204)
	w.want(w.do("DELETE", path+"?key=c9", ""), 204)
	w.want(w.do("DELETE", path+"?key=c9", ""), 404, `"field":"key"`)
	share(true)
	w.want(w.do("DELETE", path, ""), 204)
	w.want(w.post("take", "limit=api"), 200)
	share(false)
	for body, field := range map[string]string{
		``:                                  "key",
		`{"key":"k"}`:                       "plan",
		`{"key":"k","plan":""}`:             "plan",
		`{"key":"k","plan":"pro","rate":5}`: "plan",
		`{"key":"","plan":"pro"}`:           "key",
		`{"key":"` + strings.Repeat("k", 513) + `","plan":"pro"}`:            "key",
		`{"key":"k","plan":"pro","until":"2001-09-09T01:46:40Z"}`:            "until",
		`{"key":"k","plan":"pro","until":"soon"}`:                            "until",
		`{"key":"k","plan":"pro","for":"0s"}`:                                "for",
		`{"key":"k","plan":"pro","for":"1h","until":"2030-01-01T00:00:00Z"}`: "for",
		`{"key":"k","plan":"pro","note":7}`:                                  "note",
		`{"key":"k","plan":"pro","plan":"pro"}`:                              "plan",
		`{"key":"k","plan":"pro","Note":"x"}`:                                "Note",
		`{"key":"k","Rate":5}`:                                               "Rate",
		`{"key":"k","rate":0}`:                                               "rate",
		`{"key":"k","rate":-5}`:                                              "rate",
		`{"key":"k","rate":5,"per":"soon"}`:                                  "per",
		`{"key":"k","plan":"pro"} x`:                                         "body",
		`key=k&plan=pro&note=` + strings.Repeat("n", 1025):                   "note",
		`key=k&plan=pro&nonsense=1`:                                          "nonsense",
	} {
		w.want(w.do("PUT", path, body), 400, `"field":"`+field+`"`)
	}
	w.want(w.do("GET", path+"?key=k", ""), 404)
	w.want(w.do("PUT", "/v1/limits/nobody/overrides", "key=k&plan=pro"), 404, `"field":"limit"`)
	w.want(w.do("PUT", path, `{"key":"k","plan":"prro"}`), 404, `"field":"plan"`)
	w.want(w.do("GET", path+"?n=0", ""), 400, `"field":"n"`)
	w.want(w.do("DELETE", path+"?prefix=c", ""), 400, `"field":"prefix"`)

	remote := ofPlans(t, server.Config{}, server.Site{})
	for _, method := range []string{"GET", "PUT", "DELETE"} {
		remote.want(remote.do(method, path+"?key=k", ""), 403)
	}
	remote.want(remote.do("GET", "/v1/limits/api/holds?key=k", ""), 403)
	remote.want(remote.post("hold", "limit=slots&key=k&ttl=1m&id=h"), 200)
	remote.want(remote.post("settle", "hold=h"), 200)
}

// without is a store that cannot do what memory can.
type without struct{ store.Store }

func (s without) Abilities() store.Abilities { return store.Abilities{} }

func TestStoreWithoutHolds(t *testing.T) {
	w := ofPlans(t, server.Config{}, local)
	w.limiter = w.limiter.With(without{w.flaky})
	w.api = server.New(w.limiter, server.Config{}).API(local)
	w.want(w.post("hold", "limit=tokens&key=k&ttl=1m"), 501)
	w.want(w.post("settle", "hold=x"), 501)
	w.want(w.do("GET", "/v1/limits/tokens/holds?key=k", ""), 501)
	w.want(w.do("GET", "/v1/limits/api/overrides", ""), 501)
	w.want(w.do("PUT", "/v1/limits/api/overrides", "key=k&plan=pro"), 501)
	w.want(w.do("DELETE", "/v1/limits/api/overrides?key=k", ""), 501)
	w.want(w.do("GET", "/v1/limits/api/keys?key=k", ""), 200, `"remaining":20`)
}

// Errors of gRPC name the fields of the messages, which have their unit in the name.
func TestGRPCFields(t *testing.T) {
	w := ofPlans(t, server.Config{}, local)
	conn, _ := w.serveGRPC(local)
	c := dipwellv1.NewLimiterClient(conn)
	ctx := t.Context()
	for field, call := range map[string]func() error{
		"costs[0]": func() error {
			if _, err := c.Hold(ctx, &dipwellv1.HoldRequest{Limit: "all", TtlUs: 1e6, Id: "costs"}); err != nil {
				return err
			}
			_, err := c.Settle(ctx, &dipwellv1.SettleRequest{Hold: "costs", Costs: []int64{1e6}})
			return err
		},
		"timeout_us": func() error {
			_, err := c.Wait(ctx, &dipwellv1.WaitRequest{Limit: "all", TimeoutUs: 1})
			return err
		},
		"ttl_us": func() error {
			_, err := c.Hold(ctx, &dipwellv1.HoldRequest{Limit: "all"})
			return err
		},
	} {
		if err := call(); status.Code(err) != codes.InvalidArgument || !strings.HasPrefix(status.Convert(err).Message(), field+": ") {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// TestGRPCAnswersAsJSON checks that an answer over gRPC has the members of that over HTTP.
func TestGRPCAnswersAsJSON(t *testing.T) {
	w := ofPlans(t, server.Config{}, local)
	conn, _ := w.serveGRPC(local)
	c := dipwellv1.NewLimiterClient(conn)
	for _, o := range []string{`"key":"numbers","burst":30`, `"key":"until","plan":"banned","for":"1h"`, `"key":"banned","plan":"banned"`, `"key":"raised","rate":60,"for":"1h"`, `"key":"free","plan":"staff"`} {
		w.want(w.do("PUT", "/v1/limits/api/overrides", "{"+o+"}"), 200)
	}
	w.want(w.post("take", "limit=api&key=empty&cost=20"), 200)
	w.want(w.post("take", "limit=api&key=raised&cost=20"), 200)
	w.want(w.post("hold", "limit=api&key=held&cost=20&ttl=1m"), 200)
	for _, body := range []string{
		`{"limit":"api","key":"full"}`, `{"limit":"api","key":"full","cost":21}`, `{"limit":"api","key":"empty"}`, `{"limit":"api","key":"empty","plan":"pro"}`,
		`{"limit":"api","key":"numbers"}`, `{"limit":"api","key":"until"}`, `{"limit":"api","key":"banned"}`, `{"limit":"api","key":"raised"}`, `{"limit":"api","key":"free"}`,
		`{"limit":"api","key":"held"}`, `{"limit":"all"}`, `{"limit":"user","key":"acme/ann","cost":8}`, `{"takes":[{"limit":"api","key":"until"},{"limit":"all"}]}`,
	} {
		var call dipwellv1.Call
		var members map[string]json.RawMessage
		if err := errors.Join(protojson.Unmarshal([]byte(body), &call), json.Unmarshal(w.post("check", body).Body.Bytes(), &members)); err != nil {
			t.Fatal(body, err)
		}
		for _, ofProblem := range []string{"type", "title", "status", "detail", "violated-policies"} {
			delete(members, ofProblem)
		}
		answer, err := json.Marshal(members)
		var want dipwellv1.Decision
		if err = errors.Join(err, protojson.Unmarshal(answer, &want)); err != nil {
			t.Errorf("%s: %v", body, err) // such as a member that the message lacks
		}
		if got, err := c.Check(t.Context(), &call); err != nil || !proto.Equal(got, &want) {
			t.Errorf("%s: %v, %v\nover HTTP %s", body, got, err, answer)
		}
	}
}

func TestGRPCHolds(t *testing.T) {
	w := ofPlans(t, server.Config{}, local)
	conn, _ := w.serveGRPC(local)
	c := dipwellv1.NewLimiterClient(conn)
	ctx := t.Context()
	key := "acme"
	code := func(what string, err error, want codes.Code) {
		t.Helper()
		if status.Code(err) != want {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	d, err := c.Take(ctx, &dipwellv1.Call{Limit: "api", Key: &key, Plan: "pro", Floor: 5})
	if err != nil || d.Plan != "pro" || d.Remaining != 999 {
		t.Error(d, err)
	}
	_, err = c.Take(ctx, &dipwellv1.Call{Limit: "api", Key: &key, Plan: "prro"})
	code("an unknown plan", err, codes.NotFound)
	_, err = c.Charge(ctx, &dipwellv1.Call{Limit: "api", Key: &key, Plan: "pro"})
	code("charge with a plan", err, codes.InvalidArgument)
	d, err = c.Wait(ctx, &dipwellv1.WaitRequest{Limit: "api", Key: &key, Plan: "pro"})
	if err != nil || !d.Allowed || d.Remaining != 998 {
		t.Error(d, err)
	}
	_, err = c.Wait(ctx, &dipwellv1.WaitRequest{Limit: "api", Key: &key, TimeoutUs: -1})
	code("a negative timeout", err, codes.InvalidArgument)

	hold := &dipwellv1.HoldRequest{Takes: []*dipwellv1.Take{{Limit: "tokens", Key: &key}, {Limit: "slots", Key: &key}}, TtlUs: 30e6, Id: "r"}
	d, err = c.Hold(ctx, hold)
	if err != nil || d.Hold != "r" || d.ExpiresUs != 1e15+30e6 || len(d.Limits) != 2 {
		t.Error(d, err)
	}
	if d, err = c.Hold(ctx, hold); err != nil || !d.Repeated {
		t.Error(d, err)
	}
	hold.TtlUs++
	_, err = c.Hold(ctx, hold)
	code("another hold", err, codes.FailedPrecondition)
	if d, err = c.Extend(ctx, &dipwellv1.ExtendRequest{Hold: "r", TtlUs: 60e6}); err != nil || d.ExpiresUs != 1e15+60e6 {
		t.Error(d, err)
	}
	if d, err = c.Settle(ctx, &dipwellv1.SettleRequest{Hold: "r", Costs: []int64{5, 1}}); err != nil || d.Repeated {
		t.Error(d, err)
	}
	if d, err = c.Settle(ctx, &dipwellv1.SettleRequest{Hold: "r", Costs: []int64{5, 1}}); err != nil || !d.Repeated {
		t.Error(d, err)
	}
	_, err = c.Settle(ctx, &dipwellv1.SettleRequest{Hold: "r"})
	code("another settle", err, codes.FailedPrecondition)
	_, err = c.Settle(ctx, &dipwellv1.SettleRequest{Hold: "nobody"})
	code("an unknown hold", err, codes.NotFound)
	_, err = c.Hold(ctx, &dipwellv1.HoldRequest{Limit: "tokens", Key: &key})
	code("a hold without ttl", err, codes.InvalidArgument)

	many := int64(1000)
	if ready, err := c.Ready(ctx, &dipwellv1.ReadyRequest{Limit: "slots", Keys: []string{"z", "a"}}); err != nil || !slices.Equal(ready.Keys, []string{"z", "a"}) {
		t.Error(ready, err)
	}
	if ready, err := c.Ready(ctx, &dipwellv1.ReadyRequest{Limit: "slots", Keys: []string{"z", "a"}, Cost: &many}); err != nil || len(ready.Keys) != 0 {
		t.Error(ready, err)
	}
	_, err = c.Ready(ctx, &dipwellv1.ReadyRequest{Limit: "slots", Keys: []string{"a", ""}})
	code("ready of no key", err, codes.InvalidArgument)
	_, err = c.Ready(ctx, &dipwellv1.ReadyRequest{Limit: "nobody", Keys: []string{"a"}})
	code("ready of an unknown limit", err, codes.NotFound)
}

// Settle and extend are counted like the calls before them.
func TestSettleAndExtendAreCounted(t *testing.T) {
	w := ofPlans(t, server.Config{}, local)
	w.want(w.post("hold", "limit=tokens&key=k&cost=5&ttl=30s&id=h"), 200)
	w.want(w.post("extend", "hold=h&ttl=1m"), 200)
	w.want(w.post("settle", "hold=h&cost=3"), 200)
	w.want(w.post("settle", "hold=gone"), 404)
	w.down.Store(true)
	w.want(w.post("settle", "hold=h"), 503)
	w.want(w.do("GET", "/metrics", ""), 200, `dipwell_decisions_total{limit="tokens",result="allowed"} 3`, "dipwell_store_errors_total 1")
}
