package server_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/dipwell/dipwell/internal/server"
	dipwellv1 "github.com/dipwell/dipwell/proto/dipwell/v1"
	"github.com/dipwell/dipwell/store"
)

func caller(name string, role server.Role, limits ...string) server.Caller {
	return server.Caller{Name: name, Role: role, Limits: limits, Token: sha256.Sum256([]byte(name + "-token"))}
}

// as is the Authorization of a caller.
func as(name string) string { return "Authorization: Bearer " + name + "-token" }

// everyRole has a caller of each role, named for it.
var everyRole = server.Config{AdminToken: "s3cret", Callers: []server.Caller{
	caller("use", server.Use), caller("read", server.Read), caller("support", server.Support), caller("admin", server.Admin)}}

// Who may make a call: the first letters of the roles, or why nobody needs one.
const (
	users     = "u sa"
	readers   = " rsa"
	supporter = "  sa"
	admins    = "   a"
	known     = "ursa"
	anybody   = "anybody"
	byProxy   = "byProxy"
)

// callsOf is who may make each call. A new call stands here, or TestRoles fails.
var callsOf = map[string]string{
	"POST /v1/take": users, "POST /v1/check": users, "POST /v1/take_up_to": users, "POST /v1/reserve": users, "POST /v1/charge": users,
	"POST /v1/cancel": users, "POST /v1/wait": users, "POST /v1/ready": users, "POST /v1/hold": users, "POST /v1/settle": users,
	"POST /v1/extend": users, "POST /v1/observe": users,
	"GET /v1/keys": readers, "GET /v1/overrides": readers,
	"GET /v1/limits": readers, "GET /v1/limits/{name}": readers, "GET /v1/limits/{name}/keys": readers, "GET /v1/limits/{name}/holds": readers, "GET /v1/limits/{name}/usage": readers,
	"GET /v1/limits/{name}/overrides": readers, "GET /v1/audit": readers, "GET /v1/top": readers,
	"POST /v1/refund": supporter, "POST /v1/reset": supporter, "PUT /v1/limits/{name}/overrides": supporter, "DELETE /v1/limits/{name}/overrides": supporter,
	"PUT /v1/limits/{name}": admins, "DELETE /v1/limits/{name}": admins,
	"GET /v1/whoami": known,
	" /v1/auth":      byProxy,
	"GET /healthz":   anybody, "GET /readyz": anybody, "GET /metrics": anybody, "GET /openapi.json": anybody,
}

// methodsOf is callsOf of the methods of dipwell.v1.Limiter.
var methodsOf = map[string]string{
	"Take": users, "Check": users, "TakeUpTo": users, "Reserve": users, "Charge": users, "Cancel": users, "Wait": users, "Ready": users, "Hold": users, "Settle": users, "Extend": users,
	"Refund": supporter, "Reset": supporter,
}

// wantDenial returns the status of a call by somebody who has a role, "" or another word for
// nobody, or 0 if the call is not denied.
func wantDenial(may, role string) int {
	letter := strings.IndexByte("ursa", (role + " ")[0])
	switch {
	case may == anybody || may == byProxy:
		return 0
	case letter < 0 || !slices.Contains([]string{"use", "read", "support", "admin"}, role):
		return http.StatusUnauthorized
	case may[letter] == ' ':
		return http.StatusForbidden
	}
	return 0
}

func TestRoles(t *testing.T) {
	calls := server.Calls()
	for _, role := range []string{"", "nobody", "use", "read", "support", "admin"} {
		w := newFixture(t, everyRole, server.Site{Open: true})
		var headers []string
		if role != "" {
			headers = append(headers, as(role))
		}
		for _, c := range calls {
			may, ok := callsOf[c.Method+" "+c.Path]
			if !ok || c.Needs == 0 {
				t.Errorf("%s %s needs %d; the test has %q", c.Method, c.Path, c.Needs, may)
				continue
			}
			method := c.Method
			if method == "" {
				method = http.MethodGet
			}
			rec := w.do(method, strings.Replace(c.Path, "{name}", "login", 1), "", headers...)
			got := rec.Code
			if got != http.StatusUnauthorized && got != http.StatusForbidden {
				got = 0
			}
			if want := wantDenial(may, role); got != want || want == http.StatusUnauthorized && rec.Header().Get("WWW-Authenticate") != "Bearer" {
				t.Errorf("%s %s by %q: %d %s, want %d", method, c.Path, role, rec.Code, rec.Body, want)
			}
		}
	}
	if len(calls) != len(callsOf) {
		t.Errorf("%d calls; the test has %d", len(calls), len(callsOf))
	}
}

func TestGRPCRoles(t *testing.T) {
	w := newFixture(t, everyRole, local)
	conn, _ := w.serveGRPC(server.Site{})
	methods := dipwellv1.Limiter_ServiceDesc.Methods
	if len(methods) != len(methodsOf) {
		t.Errorf("%d methods; the test has %d", len(methods), len(methodsOf))
	}
	for _, role := range []string{"", "nobody", "use", "read", "support", "admin"} {
		ctx := t.Context()
		if role != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "bearer "+role+"-token")
		}
		for _, m := range methods {
			err := conn.Invoke(ctx, "/dipwell.v1.Limiter/"+m.MethodName, &emptypb.Empty{}, &emptypb.Empty{})
			got := map[codes.Code]int{codes.Unauthenticated: 401, codes.PermissionDenied: 403}[status.Code(err)]
			if may := methodsOf[m.MethodName]; may == "" || got != wantDenial(may, role) {
				t.Errorf("%s by %q: %v, want %d", m.MethodName, role, err, wantDenial(may, role))
			}
		}
	}
	for name, s := range w.server.GRPC(local, nil).GetServiceInfo() {
		for _, m := range s.Methods {
			if server.NeedsOf(name, m.Name) == 0 {
				t.Errorf("nobody may call %s of %s", m.Name, name)
			}
		}
	}
	if server.NeedsOf("envoy.service.ratelimit.v3.RateLimitService", "ShouldRateLimit") != server.Proxied {
		t.Error("Envoy's service has no place for a token")
	}
}

// A token counts only if it is that of a caller, as the one value of Authorization.
func TestTokens(t *testing.T) {
	w := newFixture(t, everyRole, local)
	take := func(status int, parts []string, headers ...string) {
		t.Helper()
		w.want(w.post("take", "limit=all", headers...), status, parts...)
	}
	for _, h := range []string{"bearer use-token", "BEARER   use-token", "Bearer admin-token", "Bearer support-token", "Bearer s3cret"} {
		take(200, nil, "Authorization: "+h)
	}
	take(403, []string{"caller read has the role read, and this call needs use"}, as("read"))
	take(401, []string{"token of a caller\""})
	for _, h := range []string{"Bearer", "Bearer ", "Bearer use-token ", "Bearer use-toke", "use-token", "Basic use-token", "Beareruse-token", "Bearer\tuse-token", "Bearer use"} {
		take(401, []string{"what was sent is none"}, "Authorization: "+h)
	}
	take(401, nil, as("use"), as("use"))
	take(401, nil, as("nobody"), as("use"))
	w.want(w.do("POST", "/v1/take?limit=all&token=use-token&access_token=use-token&authorization=Bearer+use-token", ""), 401)
	take(401, nil, "X-Authorization: Bearer use-token", "Cookie: token=use-token", "Proxy-Authorization: Bearer use-token")
	take(403, []string{"Origin"}, as("use"), "Origin: https://evil.example")
	digest := sha256.Sum256([]byte("use-token"))
	take(401, nil, "Authorization: Bearer "+string(digest[:]))

	w.server.Set(server.Config{AdminToken: "", Callers: []server.Caller{caller("new", server.Read)}})
	take(401, nil, as("use"))
	take(401, nil, "Authorization: Bearer s3cret")
	w.want(w.do("GET", "/v1/limits", "", as("new")), 200)
	w.server.Set(server.Config{AdminToken: "", Callers: nil}) // as without callers
	take(200, nil)
	w.want(w.do("GET", "/v1/limits", ""), 200)
}

// Without callers everything is as with the admin token alone; see TestAdminRule.
func TestAdminListenerWithCallers(t *testing.T) {
	w := newFixture(t, everyRole, server.Site{Loopback: true, NoAdmin: true})
	w.want(w.post("take", "limit=all", as("use")), 200)
	w.want(w.do("GET", "/v1/limits", "", as("read")), 200)
	w.want(w.do("GET", "/v1/whoami", "", as("use")), 200, `"role":"use"`)
	w.want(w.do("GET", "/v1/top", "", as("admin")), 403, "another listener")
	w.want(w.post("reset", "limit=all", as("admin")), 403, "another listener")
	w.want(w.do("GET", "/ui/", ""), 403, "the page is on another listener")
}

// What has no place for a token is answered on open listeners only.
func TestOpenListeners(t *testing.T) {
	for _, tc := range []struct {
		c    server.Config
		open bool
		want int
	}{{everyRole, false, 403}, {everyRole, true, 200}, {server.Config{}, false, 200}, {server.Config{AdminToken: "s3cret"}, false, 200}} {
		w := newFixture(t, tc.c, local)
		w.server.Handle("POST /json", server.Proxied, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }))
		w.api = w.server.API(server.Site{Loopback: true, Open: tc.open})
		for _, path := range []string{"/v1/auth?limit=login&key=k", "/json"} {
			rec := httptest.NewRecorder()
			r := httptest.NewRequest(http.MethodPost, "http://localhost"+path, nil)
			r.Header.Set("Authorization", "Bearer admin-token")
			if w.api.ServeHTTP(rec, r); rec.Code != tc.want {
				t.Errorf("%s, open %v: %d %s, want %d", path, tc.open, rec.Code, rec.Body, tc.want)
			}
		}
		w.want(w.do("GET", "/ui/", ""), 200)
	}
}

// A caller with limits names no others, in any call.
func TestCallersLimits(t *testing.T) {
	w := newFixture(t, server.Config{Callers: []server.Caller{caller("mine", server.Admin, "login", "jobs"), caller("all", server.Admin)}}, local)
	do := func(status int, method, target, body string, parts ...string) {
		t.Helper()
		w.want(w.do(method, target, body, as("mine")), status, parts...)
	}
	do(200, "POST", "/v1/take", "limit=login&key=k")
	do(200, "POST", "/v1/take", `{"takes":[{"limit":"login","key":"k"},{"limit":"jobs","key":"k"}]}`)
	do(403, "POST", "/v1/take", `{"takes":[{"limit":"login","key":"k"},{"limit":"listed","key":"k"}]}`, "may not name the limit", "listed", `"field":"takes[1].limit"`)
	do(403, "POST", "/v1/hold", `{"takes":[{"limit":"listed","key":"k"}],"ttl":"1m"}`)
	for _, call := range []string{"take", "check", "take_up_to", "reserve", "charge", "refund", "reset", "wait", "hold?ttl=1m", "observe?latency_us=1"} {
		for _, limit := range []string{"listed", "nowhere"} { // whether a limit exists is not told
			do(403, "POST", "/v1/"+call, "limit="+limit+map[bool]string{true: "&key=k"}[!strings.HasPrefix(call, "observe")], `"field":"limit"`)
		}
	}
	do(403, "POST", "/v1/ready", `{"limit":"listed","keys":["k"]}`)
	for _, c := range server.Calls() {
		if path := strings.Replace(c.Path, "{name}", "listed", 1); path != c.Path {
			do(403, c.Method, path, "")
		}
	}
	do(403, "PUT", "/v1/limits/login", `{"rate":1,"per":"1s","parent":"listed"}`, `"field":"parent"`)
	for _, path := range []string{"/v1/audit?limit=listed", "/v1/top?limit=listed", "/v1/top?limit=nowhere", "/v1/top?limit=listed&hour=2030-01-31T18:00:00Z"} {
		do(403, "GET", path, "", `caller mine may not`)
	}
	do(200, "GET", "/v1/audit?limit=login", "")
	w.want(w.do("PUT", "/v1/limits/login/overrides", `{"key":"of-both","rate":7}`, as("all")), 200)
	w.want(w.do("PUT", "/v1/limits/never/overrides", `{"key":"of-both","rate":7}`, as("all")), 200)
	if rec := w.do("GET", "/v1/audit?key=of-both", "", as("mine")); rec.Code != 200 || strings.Count(rec.Body.String(), `"action"`) != 1 || !strings.Contains(rec.Body.String(), `"login"`) {
		t.Error("the changes of a key, of limits of another caller too:", rec.Code, rec.Body)
	}
	do(200, "GET", "/v1/top?hour=2030-01-31T18:00:00Z", "")
	w.want(w.do("POST", "/v1/take", "limit=listed&key=of-another", as("all")), 200)
	w.want(w.do("GET", "/v1/top", "", as("all")), 200, `"limit":"listed"`)
	for _, path := range []string{"/v1/audit", "/v1/top", "/v1/top?minutes=60", "/v1/overrides"} { // what the page asks
		if rec := w.do("GET", path, "", as("mine")); rec.Code != 200 || strings.Contains(rec.Body.String(), "listed\"") || strings.Contains(rec.Body.String(), "never\"") {
			t.Error(path, "of a caller with limits:", rec.Code, rec.Body)
		}
	}
	var page struct{ Limits []struct{ Name string } }
	if rec := w.do("GET", "/v1/limits", "", as("mine")); json.Unmarshal(rec.Body.Bytes(), &page) != nil || len(page.Limits) != 2 || page.Limits[0].Name != "jobs" || page.Limits[1].Name != "login" {
		t.Error(rec.Body)
	}
	w.want(w.do("GET", "/v1/limits?n=1", "", as("mine")), 200, `"next":"jobs"`)
	w.want(w.do("GET", "/v1/limits/listed", "", as("all")), 200)
}

// pagedAudit is a store that counts how often its audit is read.
type pagedAudit struct {
	store.Store
	store.Auditor
	reads *int
}

func (s pagedAudit) Abilities() store.Abilities {
	ab := store.AbilitiesOf(s.Store)
	s.Auditor = ab.Audit
	ab.Audit = s
	return ab
}

func (s pagedAudit) Audit(ctx context.Context, before string, n int) ([]store.AuditEntry, error) {
	*s.reads++
	return s.Auditor.Audit(ctx, before, n)
}

// A caller with limits who asks for few changes has the store read many at once, because most
// may be of other limits.
func TestCallersAuditReads(t *testing.T) {
	reads := 0
	st := pagedAudit{Store: newFixture(t, server.Config{}, local).limiter.Store(), reads: &reads}
	w := (&fixture{t: t}).over(st, server.Config{Callers: []server.Caller{caller("mine", server.Admin, "login"), caller("all", server.Admin)}}, local, "login=1/1h", "other=1/1h")
	for rate := range 100 {
		w.want(w.do("PUT", "/v1/limits/other/overrides", fmt.Sprintf(`{"key":"k","rate":%d}`, rate+1), as("all")), 200)
	}
	reads = 0
	if w.want(w.do("GET", "/v1/audit?n=1", "", as("mine")), 200); reads > 2 {
		t.Errorf("%d reads of the store", reads)
	}
}

func TestGRPCCallersLimits(t *testing.T) {
	w := newFixture(t, server.Config{Callers: []server.Caller{caller("mine", server.Admin, "login")}}, local)
	conn, _ := w.serveGRPC(local)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer mine-token")
	byID := map[string]bool{"Cancel": true, "Settle": true, "Extend": true} // who knows the id may
	methods := dipwellv1.File_proto_dipwell_v1_dipwell_proto.Services().Get(0).Methods()
	for i := range methods.Len() {
		m := methods.Get(i)
		for limit, denied := range map[string]bool{"listed": true, "login": false} {
			in := dynamicpb.NewMessage(m.Input())
			named := nameLimit(in, limit)
			err := conn.Invoke(ctx, "/dipwell.v1.Limiter/"+string(m.Name()), in, &emptypb.Empty{})
			if named == byID[string(m.Name())] || (status.Code(err) == codes.PermissionDenied) != (denied && named) {
				t.Errorf("%s of %s: %v", m.Name(), limit, err)
			}
		}
	}
	c := dipwellv1.NewLimiterClient(conn)
	if _, err := c.Take(ctx, &dipwellv1.Call{Takes: []*dipwellv1.Take{{Limit: "login", Key: proto.String("k")}, {Limit: "listed", Key: proto.String("k")}}}); status.Code(err) != codes.PermissionDenied {
		t.Error(err)
	}
}

// nameLimit sets the limit of a message, and reports whether it has one.
func nameLimit(m protoreflect.Message, limit string) bool {
	if f := m.Descriptor().Fields().ByName("limit"); f != nil {
		m.Set(f, protoreflect.ValueOfString(limit))
		if key := m.Descriptor().Fields().ByName("key"); key != nil {
			m.Set(key, protoreflect.ValueOfString("k"))
		}
		return true
	}
	return false
}

// The audit has the name of the caller.
func TestAuditHasCaller(t *testing.T) {
	w := newFixture(t, everyRole, local)
	who := func() string {
		t.Helper()
		var p auditPage
		rec := w.do("GET", "/v1/audit?n=1", "", as("read"))
		if err := json.Unmarshal(rec.Body.Bytes(), &p); err != nil || len(p.Entries) != 1 {
			t.Fatal(rec.Body, err)
		}
		return p.Entries[0].Who
	}
	for name, auth := range map[string]string{"support": as("support"), "admin": as("admin"), "admin-token": "Authorization: Bearer s3cret"} {
		w.want(w.do("PUT", "/v1/limits/login/overrides", `{"key":"`+name+`","rate":9}`, auth), 200)
		if got := who(); got != name {
			t.Errorf("%s: %s", name, got)
		}
	}
}

func TestWhoami(t *testing.T) {
	w := newFixture(t, everyRole, local)
	t.Setenv("TZ", "UTC")
	for auth, want := range map[string]string{as("support"): `{"name":"support","role":"support","service":"","store":"memory","time_zone":"`, "Authorization: Bearer s3cret": `{"name":"admin-token","role":"admin",`} {
		w.want(w.do("GET", "/v1/whoami", "", auth), 200, want)
	}
	w.want(w.do("GET", "/v1/whoami", ""), 401)
	w.server.CountKeys(t.Context(), "host:7", 0)
	w.server.Set(server.Config{AdminToken: "s3cret", Callers: nil})
	w.want(w.do("GET", "/v1/whoami", ""), 401)
	w.want(w.do("GET", "/v1/whoami", "", "Authorization: Bearer s3cret"), 200, `{"name":"admin-token","role":"admin","service":"host:7",`)
	w.server.Set(server.Config{AdminToken: "", Callers: nil})
	w.want(w.do("GET", "/v1/whoami", ""), 200, `{"name":"192.0.2.1","role":"admin",`)
	w.want(newFixture(t, server.Config{}, server.Site{}).do("GET", "/v1/whoami", ""), 403)
	w.want(newFixture(t, server.Config{Labels: map[string]string{"env": "prod"}}, local).do("GET", "/v1/whoami", ""), 200, `"labels":{"env":"prod"},`)
}

// Denials are counted by reason, and logged without the token.
func TestDenials(t *testing.T) {
	w := newFixture(t, everyRole, local)
	lines := make(logLines, 1000)
	w.server.LogRefusals(t.Context(), slog.New(slog.NewJSONHandler(lines, nil)), 1000, func(string, string) string { return "" })
	w.server.Set(server.Config{AdminToken: "", Callers: []server.Caller{caller("use", server.Use, "login"), caller("read", server.Read)}})
	conn, _ := w.serveGRPC(local)
	for _, token := range []string{"", "wrong-token", "read-token", "use-token"} {
		var headers []string
		ctx := t.Context()
		if token != "" {
			headers = append(headers, "Authorization: Bearer "+token)
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
		}
		w.post("take", "limit=all", headers...)
		if err := conn.Invoke(ctx, "/dipwell.v1.Limiter/Take", &dipwellv1.Call{Limit: "all"}, &dipwellv1.Decision{}); err == nil {
			t.Error(token)
		}
	}
	w.do("GET", "/v1/auth?limit=login&key=k", "")
	rec := w.do("GET", "/metrics", "")
	for _, reason := range []string{`no_token"} 2`, `unknown_token"} 2`, `role"} 2`, `limit"} 2`, `listener"} 1`} {
		w.want(rec, 200, `dipwell_denied_total{reason="`+reason)
	}
	for range 9 {
		var m struct{ Msg, Reason, From string }
		line := <-lines
		if err := json.Unmarshal(line, &m); err != nil || m.Msg != "refused" || m.Reason == "" || bytes.Contains(line, []byte("-token")) {
			t.Errorf("%s %v", line, err)
		}
	}
}

// A decision of a caller costs one digest and one look-up.
func BenchmarkTakeOfCaller(b *testing.B) {
	for name, c := range map[string]server.Config{"without": {}, "with": everyRole} {
		b.Run(name, func(b *testing.B) {
			w := newFixture(b, c, local)
			r := httptest.NewRequest(http.MethodPost, "http://localhost/v1/check?limit=all", nil)
			r.Header.Set("Authorization", "Bearer use-token")
			rec := httptest.NewRecorder()
			for b.Loop() {
				rec.Body.Reset()
				w.api.ServeHTTP(rec, r)
			}
			if rec.Code != http.StatusOK {
				b.Error(rec.Code)
			}
		})
	}
}
