package server_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell/internal/server"
)

const upstreamLimit = "upstream=250/1s,burst=50,shared=true,adaptive=floor=50;latency=200ms;errors=2%"

// POST /v1/observe moves the rate; metrics, decisions and the limit say what it is and why.
func TestObserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := live(t, server.Config{}, upstreamLimit)
		w.want(w.do("GET", "/v1/limits/upstream", ""), 200,
			`"adaptive":{"floor":50,"latency":"200ms","errors":0.02}`, `"present_rate":250`, `"rate_reason":"defined"`, `"rate_changed_us":`)
		for _, body := range []string{`{"limit":"upstream","latency_us":300000,"ok":true,"count":100}`, `limit=upstream&latency_us=300000&count=100`,
			`limit=upstream&latency_us=100&ok=false&count=100`, `{"limit":"upstream","latency_us":100}`, `{"limit":"upstream","latency_us":9007199254740991,"ok":false}`} {
			time.Sleep(500 * time.Millisecond)
			w.want(w.post("observe", body), 204)
		}
		w.want(w.post("take", `limit=upstream`), 200, `"capacity":39`, `"remaining":38`)
		w.want(w.do("GET", "/v1/limits/upstream", ""), 200, `"present_rate":199`, `"rate_reason":"latency"`)
		w.want(w.do("GET", "/metrics", ""), 200, `dipwell_adaptive_rate{limit="upstream"} 199`, `dipwell_adaptive_reason{limit="upstream",reason="latency"} 1`)
	})
}

func TestObserveBadInput(t *testing.T) {
	w := live(t, server.Config{}, upstreamLimit, "fixed=1/1s")
	for body, field := range map[string]string{
		`{"limit":"upstream"}`:                                   "latency_us",
		`{"latency_us":1}`:                                       "limit",
		`{"limit":"upstream","latency_us":-1}`:                   "latency_us",
		`{"limit":"upstream","latency_us":1.5}`:                  "latency_us",
		`{"limit":"upstream","latency_us":"1ms"}`:                "latency_us",
		`{"limit":"upstream","latency_us":1,"ok":1}`:             "ok",
		`{"limit":"upstream","latency_us":1,"ok":"true"}`:        "ok",
		`{"limit":"upstream","latency_us":1,"ok":truth}`:         "body",
		`{"limit":"upstream","latency_us":1,"count":0}`:          "count",
		`{"limit":"upstream","latency_us":1,"count":1e3}`:        "count",
		`{"limit":"upstream","latency_us":1,"key":"k"}`:          "key",
		`{"limit":"fixed","latency_us":1}`:                       "limit",
		`limit=upstream&latency_us=1&ok=yes`:                     "ok",
		`limit=upstream&latency_us=1&latency_us=1`:               "latency_us",
		`limit=upstream&latency_us=1&count=-1`:                   "count",
		`limit=upstream&latency_us=1&count=9007199254740991`:     "count",
		`{"limit":"upstream","latency_us":1,"Count":1}`:          "Count",
		`{"limit":"upstream","latency_us":1,"latency_us":1}`:     "latency_us",
		`{"limit":"upstream","latency_us":1,"ok":null}`:          "ok",
		`{"limit":"upstream","latency_us":99999999999999999999}`: "latency_us",
	} {
		w.want(w.post("observe", body), 400, `"field":"`+field+`"`)
	}
	w.want(w.post("observe", `limit=nobody&latency_us=1`), 404)
	w.want(w.do("GET", "/v1/observe", ""), 405)
}

// PUT takes the settings as an object, or as text, and says which one is wrong.
func TestPutAdaptive(t *testing.T) {
	w := live(t, server.Config{})
	w.want(w.do("PUT", "/v1/limits/up", `{"rate":250,"per":"1s","adaptive":{"floor":50,"latency":"200ms","quantile":0.99}}`), 201,
		`"adaptive":{"floor":50,"latency":"200ms","quantile":0.99}`)
	w.want(w.do("PUT", "/v1/limits/up", `rate=250&per=1s&adaptive=floor%3D50%3Berrors%3D2%25`), 200, `"adaptive":{"floor":50,"errors":0.02}`)
	for body, field := range map[string]string{
		`{"rate":250,"per":"1s","adaptive":{"floor":50}}`:                         "adaptive",
		`{"rate":250,"per":"1s","adaptive":{"flor":50}}`:                          "adaptive.flor",
		`{"rate":250,"per":"1s","adaptive":{"floor":50,"floor":50}}`:              "adaptive.floor",
		`{"rate":250,"per":"1s","adaptive":{"floor":50},"adaptive":{"floor":50}}`: "adaptive",
		`{"rate":250,"per":"1s","adaptive":{"floor":50,"errors":"200%"}}`:         "adaptive.errors",
		`{"rate":250,"per":"1s","adaptive":[50]}`:                                 "adaptive",
		`{"rate":250,"per":"1s","adaptive":{"floor":[50]}}`:                       "adaptive.floor",
		`{"rate":25,"per":"1s","adaptive":{"floor":50,"errors":0.02}}`:            "adaptive",
	} {
		w.want(w.do("PUT", "/v1/limits/up", body), 400, `"field":"`+field+`"`)
	}
}
