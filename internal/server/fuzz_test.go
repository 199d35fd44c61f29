package server_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/server"
	"github.com/dipwell/dipwell/store"
)

// strict parses a body with encoding/json's tokens and the additional checks. It is
// the oracle of the scanner.
func strict(body []byte) (takes []dipwell.Take, ok bool) {
	if !utf8.Valid(body) || !json.Valid(body) {
		return nil, false
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, false
	}
	top, list, ok := strictMembers(dec, true)
	if !ok {
		return nil, false
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, false
	}
	if list != nil {
		return list, *top == dipwell.Take{Limit: "\x00"}
	}
	return []dipwell.Take{*top}, top.Limit != "\x00"
}

// strictMembers parses the members of an object. A take without a limit gets the
// limit NUL; key and cost get their defaults.
func strictMembers(dec *json.Decoder, top bool) (*dipwell.Take, []dipwell.Take, bool) {
	take := &dipwell.Take{Limit: "\x00"}
	var list []dipwell.Take
	seen := map[string]bool{}
	for dec.More() {
		name, err := dec.Token()
		if err != nil || seen[name.(string)] {
			return nil, nil, false
		}
		seen[name.(string)] = true
		value, err := dec.Token()
		if err != nil {
			return nil, nil, false
		}
		switch v, isString := value.(string); {
		case name == "limit" && isString && !strings.ContainsRune(v, utf8.RuneError):
			take.Limit = v
		case name == "key" && isString && v != "\x00" && !strings.ContainsRune(v, utf8.RuneError):
			take.Key = v
		case name == "key" && value == json.Delim('['):
			var parts []string
			for dec.More() {
				t, err := dec.Token()
				part, isString := t.(string)
				if err != nil || !isString || part == "" || strings.ContainsRune(part, utf8.RuneError) {
					return nil, nil, false
				}
				parts = append(parts, part)
			}
			_, _ = dec.Token()
			if take.Key = dipwell.Key(parts...); take.Key == dipwell.Shared {
				return nil, nil, false
			}
		case name == "plan" && isString && v != "" && !strings.ContainsRune(v, utf8.RuneError):
			take.Plan = v
		case name == "cost" || name == "floor":
			n, isNumber := value.(json.Number)
			cost, err := strconv.ParseInt(string(n), 10, 64)
			if !isNumber || err != nil || cost < 0 || cost > store.MaxInt || n[0] == '-' {
				return nil, nil, false
			}
			if name == "cost" {
				take.Cost = cost
			} else {
				take.Floor = cost
			}
		case name == "takes" && top && value == json.Delim('['):
			list = []dipwell.Take{}
			for dec.More() {
				if t, err := dec.Token(); err != nil || t != json.Delim('{') {
					return nil, nil, false
				}
				t, _, ok := strictMembers(dec, false)
				if !ok || t.Limit == "\x00" || len(list) == store.MaxTakes {
					return nil, nil, false
				}
				list = append(list, *t)
			}
			_, _ = dec.Token()
		default:
			return nil, nil, false
		}
	}
	_, _ = dec.Token()
	if list != nil && len(seen) > 1 {
		return nil, nil, false
	}
	if take.Limit != "\x00" || !top {
		if !seen["key"] {
			take.Key = dipwell.Shared
		}
		if !seen["cost"] {
			take.Cost = 1
		}
	}
	return take, list, true
}

// The scanner accepts the same bodies as the oracle, with the same result.
func FuzzTakeBody(f *testing.F) {
	for _, s := range []string{`{"limit":"login","key":"user:7","cost":3}`, `{"limit":"a","plan":"pro","floor":5}`, `{"limit":"a","key":["a/b","c"]}`, `{"limit":"a","key":["a",""]}`,
		`{"limit":"a","key":[]}`, `{"limit":"a","plan":""}`, `{"takes":[{"limit":"a","key":["b"],"plan":"c","floor":1}]}`, `{"limit":"a","cost":0}`, `{"limit":"\u00e9\ud83d\ude00"}`,
		`{"takes":[{"limit":"a","key":"b","cost":1},{"limit":"c"}]}`, `{"takes":[]}`, `{"limit":"a","limit":"b"}`, `{"limit":"a","cost":1e3}`,
		`{"limit":"\ud800"}`, ` { "limit" : "a" } `, `{"limit":"a"}x`, `{"limit":"a","cost":00}`, `{"limit":"a","cost":-0}`, `{}`, `{"key":null}`,
		`{"limit":"a","key":"\u0000"}`, `{"limit":"a","cost":9007199254740991}`, `{"limit":"a","cost":9007199254740992}`, "{\"limit\":\"\xff\"}"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if bytes.ContainsRune(body, utf8.RuneError) || bytes.Contains(bytes.ToLower(body), []byte("fffd")) {
			return // the oracle replaces half of a surrogate pair by U+FFFD
		}
		want, ok := strict(body)
		got, err := server.ParseTakes(body)
		if ok != (err == nil) {
			t.Fatalf("%q: ours %v, theirs %v (%+v)", body, err, ok, want)
		}
		if !ok {
			if !errors.As(err, new(*dipwell.FieldError)) {
				t.Fatalf("%q: %T names no field", body, err)
			}
			return
		}
		if len(got) != len(want) {
			t.Fatalf("%q: %+v, want %+v", body, got, want)
		}
		for i := range got {
			if got[i] != want[i] {
				t.Fatalf("%q: %+v, want %+v", body, got[i], want[i])
			}
		}
	})
}

// harmless fails on a 5xx, on a 4xx without a problem document, and on a 400 that
// changed a bucket.
func harmless(t *testing.T, w *fixture, method, target, body string, headers ...string) {
	t.Helper()
	w.post("reset", "limit=login&key=k")
	w.post("take", "limit=login&key=k&cost=7")
	rec := w.do(method, target, body, headers...)
	if rec.Code >= 500 && rec.Code != 501 {
		t.Fatalf("%s %q %q: %d %s", method, target, body, rec.Code, rec.Body)
	}
	if rec.Code >= 400 && !json.Valid(rec.Body.Bytes()) {
		t.Fatalf("%s %q %q: %d is no problem: %s", method, target, body, rec.Code, rec.Body)
	}
	if rec.Code != 400 {
		return
	}
	if d, err := w.limiter.Check(t.Context(), "login", "k", 0); err != nil || d.Remaining != 13 {
		t.Fatalf("%s %q %q: a 400 changed the bucket: %d left, %v", method, target, body, d.Remaining, err)
	}
}

func FuzzVerbBody(f *testing.F) {
	f.Add("take", `{"limit":"login","key":"k","cost":-1}`)
	f.Add("charge", `limit=login&key=k&cost=1e400`)
	f.Add("cancel", `{"reservation":"0198c2f3-5b6e-7cc1-9d1a-3f0a5b7c9d11"}`)
	f.Add("reserve", `{"takes":[{"limit":"login","key":"k","cost":1},{"limit":"login","key":"k","cost":9007199254740991}]}`)
	f.Fuzz(func(t *testing.T, verb, body string) {
		w := newFixture(t, server.Config{}, local)
		harmless(t, w, "POST", "/v1/"+url.PathEscape(verb), body)
	})
}

// FuzzTakeFields fuzzes each field of a call, as JSON and as a form.
func FuzzTakeFields(f *testing.F) {
	f.Add("login", "k", "1")
	f.Add("login", "", "-1")
	f.Add("", "\x00", "1.5")
	f.Add("login", "\xff", "1e400")
	f.Add("login", strings.Repeat("k", 513), "9007199254740992")
	f.Add("Login", "k", `"NaN"`)
	f.Fuzz(func(t *testing.T, limit, key, cost string) {
		w := newFixture(t, server.Config{}, local)
		form := url.Values{"limit": {limit}, "key": {key}, "cost": {cost}}.Encode()
		harmless(t, w, "POST", "/v1/take", form)
		harmless(t, w, "POST", "/v1/charge?"+form, "")
		harmless(t, w, "POST", "/v1/take", `{"limit":"`+limit+`","key":"`+key+`","cost":`+cost+`}`)
		harmless(t, w, "POST", "/v1/reserve", `{"takes":[{"limit":"`+limit+`","key":"`+key+`","cost":`+cost+`}]}`)
	})
}

func FuzzAuth(f *testing.F) {
	f.Add("limit=login&key=k&cost=-1", "u")
	f.Add("limit=login&key_header=X-User&deny=403", "")
	f.Add("limit=login&key_ip=1", "\xff")
	f.Fuzz(func(t *testing.T, query, header string) {
		if _, err := url.ParseRequestURI("/v1/auth?" + query); err != nil || strings.ContainsAny(query, " #") || strings.Contains(query, "503") {
			query = url.QueryEscape(query) // not valid in a request line, or deny is 503
		}
		w := newFixture(t, server.Config{}, local)
		w.server.Set(server.Config{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}})
		harmless(t, w, "GET", "/v1/auth?"+query, "", "X-User: "+header)
	})
}

func FuzzPutLimit(f *testing.F) {
	f.Add("mine", `{"rate":5,"per":"1m","burst":20}`)
	f.Add("mine", `rate=1&per=1y&algorithm=fixed_window&start=06:00+Europe/Rome`)
	f.Add("login", `{"rate":9007199254740991,"per":"1us","max_debt":"unlimited"}`)
	f.Fuzz(func(t *testing.T, name, body string) {
		w := newFixture(t, server.Config{}, local)
		harmless(t, w, "PUT", "/v1/limits/"+url.PathEscape(name), body)
		harmless(t, w, "GET", "/v1/limits/listed/keys?"+url.Values{"prefix": {name}, "n": {body}}.Encode(), "")
	})
}
