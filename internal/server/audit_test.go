package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/dipwell/dipwell/internal/server"
	"github.com/dipwell/dipwell/store"
)

type auditPage struct {
	Entries []struct{ ID, At, Who, Action, Limit, Key, What, Note string }
	Next    *string
}

func (w *fixture) audited(query string) (p auditPage) {
	w.t.Helper()
	rec := w.do("GET", "/v1/audit"+query, "")
	if err := json.Unmarshal(rec.Body.Bytes(), &p); err != nil || rec.Code != http.StatusOK {
		w.t.Fatal(rec.Code, rec.Body, err)
	}
	return p
}

// Who ends a hold with a note is in the audit; that a worker settles it is not.
func TestAuditOfSettle(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	for _, id := range []string{"a", "b"} {
		w.want(w.post("hold", `{"limit":"login","key":"k","cost":3,"ttl":"1m","id":"`+id+`"}`), 200)
	}
	w.want(w.post("settle", `{"hold":"a","cost":2}`), 200)
	for range 2 { // the second one changes nothing
		w.want(w.post("settle", `{"hold":"b","cost":0,"note":"the machine is gone"}`), 200)
	}
	got := w.audited("?key=k").Entries
	if len(got) != 1 || got[0].Action != "settle" || got[0].Limit != "login" || got[0].Key != "k" || got[0].What != "hold b, 0 tokens" || got[0].Note != "the machine is gone" {
		t.Errorf("%+v", got)
	}
	w.want(w.post("settle", `{"hold":"b","cost":0,"note":"`+strings.Repeat("x", 2000)+`"}`), 400, `"field":"note"`)
}

// A hold of several takes has an entry for each of them, and none for the parents of their
// limits.
func TestAuditOfSettleOfAChild(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	w.want(w.do("PUT", "/v1/limits/tenant", `{"rate":1,"per":"1h","burst":9,"parts":1}`), 201)
	w.want(w.do("PUT", "/v1/limits/user", `{"rate":9,"per":"1h","parent":"tenant"}`), 201)
	w.want(w.post("hold", `{"takes":[{"limit":"user","key":"acme/u7","cost":2},{"limit":"login","key":"k","cost":2}],"ttl":"1m","id":"a"}`), 200)
	w.want(w.post("settle", `{"hold":"a","costs":[1,1],"note":"ticket 81"}`), 200)
	var got []string
	for _, e := range w.audited("").Entries {
		if e.Action == "settle" {
			got = append(got, e.Limit+" "+e.Key)
		}
	}
	if slices.Sort(got); !slices.Equal(got, []string{"login k", "user acme/u7"}) {
		t.Errorf("%q", got)
	}
}

// A refund or reset is recorded under the limit and key that the call named, although the
// answer speaks for a parent that has less left.
func TestAuditOfAChild(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	w.want(w.do("PUT", "/v1/limits/tenant", `{"rate":1,"per":"1h","parts":1}`), 201)
	w.want(w.do("PUT", "/v1/limits/user", `{"rate":9,"per":"1h","parent":"tenant"}`), 201)
	for _, verb := range []string{"refund", "reset"} {
		w.want(w.post("take", `{"limit":"user","key":"acme/u7","cost":1}`), 200)
		w.want(w.post(verb, `{"limit":"user","key":["acme","u7"],"note":"ticket 81"}`), 200)
		if got := w.audited("?n=1").Entries; len(got) != 1 || got[0].Action != verb || got[0].Limit != "user" || got[0].Key != "acme/u7" {
			t.Errorf("%s: %+v", verb, got)
		}
	}
}

// TestAuditOfOverrides checks that the audit names what an override sets, and nothing that
// it leaves to the limit.
func TestAuditOfOverrides(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	for body, want := range map[string]string{
		`{"key":"k","rate":7}`:                                         "rate 7",
		`{"key":"k","per":"2h"}`:                                       "per 2h",
		`{"key":"k","burst":70}`:                                       "burst 70",
		`{"key":"k","rate":7,"per":"1m","burst":70}`:                   "rate 7 per 1m burst 70",
		`{"key":"k","burst":70,"for":"1h"}`:                            "burst 70 until 2001-09-09T02:46:40Z",
		`{"key":"k","burst":70,"until":"2030-01-01T00:00:00Z"}`:        "burst 70 until 2030-01-01T00:00:00Z",
		`{"key":"k","burst":70,"until":"2030-01-01T00:00:00.250001Z"}`: "burst 70 until 2030-01-01T00:00:00.250001Z",
	} {
		for _, kind := range []string{"standing", "temporary"} {
			w.do("DELETE", "/v1/limits/login/overrides?key=k&kind="+kind, "")
		}
		rec := w.do("PUT", "/v1/limits/login/overrides", body)
		if got := w.audited("?n=1").Entries; rec.Code != http.StatusOK || len(got) != 1 || got[0].What != want {
			t.Errorf("%s: %d, recorded %+v, want %q", body, rec.Code, got, want)
		}
	}
	for _, c := range [][2]string{
		{`{"key":"l","rate":7}`, "rate 7"},
		{`{"key":"l","burst":70,"until":"2030-01-01T00:00:00Z"}`, "burst 70 until 2030-01-01T00:00:00Z, over rate 7"},
		{`{"key":"l","burst":80,"until":"2030-01-01T00:00:00Z"}`, "burst 80 until 2030-01-01T00:00:00Z, in place of burst 70 until 2030-01-01T00:00:00Z, over rate 7"},
		{`{"key":"l","rate":9}`, "rate 9, in place of rate 7"},
	} {
		w.do("PUT", "/v1/limits/login/overrides", c[0])
		if got := w.audited("?n=1").Entries; len(got) != 1 || got[0].What != c[1] {
			t.Errorf("%s: recorded %+v, want %q", c[0], got, c[1])
		}
	}
}

// Every change by an admin call is in the audit, and nothing else.
func TestAudit(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	for _, c := range []struct{ method, path, body, want string }{
		{"POST", "/v1/take?limit=login&key=k", "", ""},
		{"POST", "/v1/refund?limit=login&key=k", "", ""}, // by a program
		{"POST", "/v1/refund", `{"limit":"login","key":"=k","cost":3,"note":"ticket 81"}`, "refund login =k 3 tokens (ticket 81)"},
		{"POST", "/v1/reset?limit=all&note=", "", "reset all   ()"},
		{"PUT", "/v1/limits/login/overrides", `{"key":"k","rate":50,"per":"1m","burst":70,"for":"1h","note":"a customer"}`, "override login k rate 50 per 1m burst 70 until 2001-09-09T02:46:40.000005Z (a customer)"},
		{"PUT", "/v1/limits/login/overrides", `{"key":"k","plan":"none"}`, ""}, // refused
		{"DELETE", "/v1/limits/login/overrides?key=k&note=paid", "", "end-override login k rate 50 per 1m burst 70 until 2001-09-09T02:46:40.000005Z (paid)"},
		{"DELETE", "/v1/limits/login/overrides?key=k", "", ""},
		{"PUT", "/v1/limits/new", `{"rate":5,"per":"1m","note":"81"}`, "define new  new=5/1m (81)"},
		{"PUT", "/v1/limits/new", `{"rate":5,"per":"1m"}`, ""},
		{"PUT", "/v1/limits/new?rate=6&per=1m&note=more", "", "define new  new=6/1m; was new=5/1m (more)"},
		{"PUT", "/v1/limits/filed", `{"rate":5,"per":"1m"}`, ""},
		{"DELETE", "/v1/limits/new?note=gone", "", "drop new   (gone)"},
	} {
		before := w.audited("?n=1000").Entries
		w.now++
		w.do(c.method, c.path, c.body)
		after := w.audited("?n=1000").Entries
		got := ""
		if len(after) > len(before) {
			e := after[0]
			got = fmt.Sprintf("%s %s %s %s (%s)", e.Action, e.Limit, e.Key, e.What, e.Note)
			if e.Who != "192.0.2.1" || !strings.HasPrefix(e.At, "2001-09-09T01:46:40.0000") {
				t.Errorf("%s %s: by %s at %s", c.method, c.path, e.Who, e.At)
			}
		}
		if got != c.want || len(after) > len(before)+1 {
			t.Errorf("%s %s %s: recorded %q, want %q", c.method, c.path, c.body, got, c.want)
		}
	}
	all := w.audited("")
	if len(all.Entries) != 7 || all.Next != nil {
		t.Errorf("%+v", all)
	}
	first := w.audited("?n=3")
	if first.Next == nil || *first.Next != first.Entries[2].ID || w.audited("?n=1000&before=" + *first.Next).Entries[0] != all.Entries[3] {
		t.Errorf("a page: %+v", first)
	}
	if p := w.audited("?limit=login&key=k"); len(p.Entries) != 2 {
		t.Errorf("of a key: %+v", p)
	}
	if p := w.audited("?key=k&n=1"); len(p.Entries) != 1 || p.Next == nil || len(w.audited("?key=k&before="+*p.Next).Entries) != 1 {
		t.Errorf("of a key, of every limit: %+v", p)
	}
	if p := w.audited("?limit=all&key="); len(p.Entries) != 1 || p.Entries[0].Action != "reset" {
		t.Errorf("of the shared bucket: %+v", p)
	}
	if p := w.audited("?limit=login&n=1"); len(p.Entries) != 1 || p.Next == nil {
		t.Errorf("of a limit: %+v", p)
	}
	for _, query := range []string{"?before=x", "?n=0", "?limit=", "?format=json", "?after=x", "?n=1&n=2"} {
		if rec := w.do("GET", "/v1/audit"+query, ""); rec.Code != http.StatusBadRequest {
			t.Errorf("%s: %d %s", query, rec.Code, rec.Body)
		}
	}
	if rec := w.do("POST", "/v1/reset", `{"limit":"login","note":"`+strings.Repeat("n", 1025)+`"}`); rec.Code != http.StatusBadRequest {
		t.Errorf("a long note: %d", rec.Code)
	}
}

// unwritten is a store whose audit cannot be written.
type unwritten struct{ store.Store }

func (u unwritten) Abilities() store.Abilities {
	ab := store.AbilitiesOf(u.Store)
	ab.Audit = u
	return ab
}
func (unwritten) Record(context.Context, store.AuditEntry) error { return errors.New("no") }
func (unwritten) Audit(context.Context, string, int) ([]store.AuditEntry, error) {
	return nil, fmt.Errorf("%w: no", store.ErrStore)
}

// A change that cannot be recorded is made all the same.
func TestAuditFails(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	w.inner = unwritten{w.inner}
	w.api = server.New(w.limiter, server.Config{}).API(local)
	if rec := w.do("POST", "/v1/reset?limit=all&note=x", ""); rec.Code != http.StatusOK {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
	if rec := w.do("GET", "/v1/audit", ""); rec.Code != http.StatusServiceUnavailable {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
}
