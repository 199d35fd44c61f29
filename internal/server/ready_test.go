package server_test

import (
	"strings"
	"testing"

	"github.com/dipwell/dipwell/internal/server"
)

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
