package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/dipwell/dipwell/internal/config"
)

func sum(token string) string {
	digest := sha256.Sum256([]byte(token))
	return hex.EncodeToString(digest[:])
}

// TestServeCallers checks who may do what in a running service, and that a change of the
// file or of a token's file takes effect at once.
func TestServeCallers(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	save := func(name, text string) {
		t.Helper()
		must(t, os.WriteFile(at(name), []byte(text), 0o600))
	}
	file := func(role string) string {
		return fmt.Sprintf(`callers:
  - {name: web, token_file: %s, role: %s, limits: [api, gone]}
  - {name: desk, token_sha256: %s, role: support}
open_listeners: [admin]
limits: [{name: api, rate: 9, per: 1h, auth: true}, {name: other, rate: 9, per: 1h}]
`, at("web"), role, sum("desk-1-of-16-bytes"))
	}
	save("web", "web-1-of-16-bytes\n")
	save("desk", "desk-1-of-16-bytes\n")
	save("conf", file("use"))
	p := start(t, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--config", at("conf"), "--log-refusals", "1000")
	p.stderr.wait(t, `warning: callers\[0\]\.limits\[1\]: caller web may name the limit gone, which does not exist`)
	want := func(token, method, url string, status int) {
		t.Helper()
		eventually(t, func() error {
			r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
			if err != nil {
				return err
			}
			if token != "" {
				r.Header.Set("Authorization", "Bearer "+token)
			}
			res, err := http.DefaultClient.Do(r)
			if err != nil {
				return err
			}
			_ = res.Body.Close()
			if res.StatusCode != status {
				return fmt.Errorf("%s %s by %s: %s, want %d", method, url, token, res.Status, status)
			}
			return nil
		})
	}
	take, limits := p.url+"/v1/take?limit=api&key=k&cost=0", p.url+"/v1/limits"
	want("", "POST", take, 401)
	want("web-1-of-16-bytes", "POST", take, 200)
	want("web-1-of-16-bytes", "POST", p.url+"/v1/take?limit=other&key=k", 403)
	want("web-1-of-16-bytes", "GET", limits, 403)
	want("desk-1-of-16-bytes", "GET", limits, 200)
	want("", "GET", p.url+"/healthz", 200)
	want("web-1-of-16-bytes", "POST", p.url+"/v1/auth?limit=api&key=k", 403) // only the admin listener is open
	want("", "POST", p.admin+"/v1/auth?limit=api&key=k", 200)

	checkCallersGRPC(t, p.stdout.wait(t, `serving gRPC on (\S+)\n`)[1])
	checkCallersCLI(t, p, at("desk"))

	save("web", "web-2-of-16-bytes\n")
	want("web-2-of-16-bytes", "POST", take, 200)
	want("web-1-of-16-bytes", "POST", take, 401)
	for _, bad := range [][2]string{{"", `callers\[0\].token_file: \S+ is empty`}, {"a\nb", "more than one line"}, {"desk-1-of-16-bytes", `callers\[1\].token_sha256: the token is that of caller web too`}} {
		save("web", bad[0])
		p.stderr.wait(t, bad[1]+`(?s:.*)the last good configuration stays in force`)
	}
	want("web-2-of-16-bytes", "POST", take, 200)
	save("web", "web-3-of-16-bytes\n")
	want("web-3-of-16-bytes", "POST", take, 200)
	save("conf", strings.Replace(file("use"), "role: use", "role: usr", 1))
	p.stderr.wait(t, `conf:2: callers\[0\].role: "usr" is not one of`)
	want("web-3-of-16-bytes", "POST", take, 200)
	save("conf", file("read"))
	want("web-3-of-16-bytes", "POST", take, 403)
	save("conf", "limits: [{name: api, rate: 9, per: 1h, auth: true}]\n") // maybe cut off
	p.stderr.wait(t, `/conf: callers: are missing; callers: \[\] says that anybody may call\n(?s:.*)the last good configuration stays in force`)
	want("", "POST", take, 401)
	save("conf", "callers: []\nlimits: [{name: api, rate: 9, per: 1h, auth: true}]\n")
	want("", "POST", take, 200)
	must(t, p.end(syscall.SIGTERM))
	for _, out := range []*lines{p.stdout, p.stderr} {
		if text := out.all.String(); strings.Contains(text, "web-1-of-16-bytes") || strings.Contains(text, "web-2-of-16-bytes") || strings.Contains(text, "desk-1-of-16-bytes") || strings.Contains(text, sum("desk-1-of-16-bytes")) {
			t.Errorf("a token is in the log:\n%s", text)
		}
	}
	if text := p.stderr.all.String(); !strings.Contains(text, `refused from=127.0.0.1 reason="calls need Authorization`) || !strings.Contains(text, `reason="caller web may not name the limit \"other\""`) {
		t.Errorf("denials are not in the log:\n%s", text)
	}
}

// checkCallersGRPC checks that a listener that is not open answers neither Envoy nor a call
// without a token.
func checkCallersGRPC(t *testing.T, addr string) {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	defer conn.Close()
	if _, err = pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), &pb.RateLimitRequest{Domain: "d"}); status.Code(err) != codes.PermissionDenied {
		t.Error(err)
	}
	if err = conn.Invoke(t.Context(), "/dipwell.v1.Limiter/Take", &pb.RateLimitRequest{}, &pb.RateLimitResponse{}); status.Code(err) != codes.Unauthenticated {
		t.Error(err)
	}
}

// checkCallersCLI checks that commands send the token of a file or of a variable, and that
// the audit has the name of the caller.
func checkCallersCLI(t *testing.T, p *process, token string) {
	t.Helper()
	if code, _, stderr := program(t, "take", "api", "k", "--server", p.url); code != 2 || !strings.Contains(stderr, "the token of a caller") {
		t.Error(code, stderr)
	}
	for _, flag := range []string{"--token-file", "--admin-token-file"} {
		if code, out, stderr := program(t, "override", "set", "api", "k", "--rate", "7/1h", "--server", p.admin, flag, token); code != 0 {
			t.Error(code, out, stderr)
		}
	}
	t.Setenv("DIPWELL_ADMIN_TOKEN", "another")
	t.Setenv("DIPWELL_TOKEN", "desk-1-of-16-bytes")
	if code, out, stderr := program(t, "audit", "--server", p.admin); code != 0 || !strings.Contains(out, "desk") {
		t.Error(code, out, stderr)
	}
	if code, out, stderr := program(t, "top", "--once", "--interval", "100ms", "--server", p.admin); code != 0 {
		t.Error(code, out, stderr)
	}
}

// Envoy needs no token on a listener that is open.
func TestOpenGRPC(t *testing.T) {
	dir := t.TempDir()
	conf, rules := filepath.Join(dir, "conf"), filepath.Join(dir, "rules.yaml")
	must(t, os.WriteFile(rules, []byte(descriptors+"2}\n"), 0o600))
	must(t, os.WriteFile(conf, []byte("callers: [{name: a, token_sha256: "+sum("a")+"}]\nopen_listeners: [grpc]\n"), 0o600))
	p := start(t, "--config", conf, "--listen", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--rls-config", rules)
	conn, err := grpc.NewClient(p.stdout.wait(t, `serving gRPC on (\S+)\n`)[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	defer conn.Close()
	if _, err = pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), &pb.RateLimitRequest{Domain: "d", Descriptors: []*common.RateLimitDescriptor{{Entries: []*common.RateLimitDescriptor_Entry{{Key: "user", Value: "7"}}}}}); err != nil {
		t.Error(err)
	}
	if err = conn.Invoke(t.Context(), "/dipwell.v1.Limiter/Take", &pb.RateLimitRequest{}, &pb.RateLimitResponse{}); status.Code(err) != codes.Unauthenticated {
		t.Error(err)
	}
	if status, body := post(t, p.url+"/json", `{"domain":"d","descriptors":[{"entries":[{"key":"user","value":"7"}]}]}`); status != http.StatusForbidden {
		t.Error(status, body)
	}
}

// config check and doctor read the files of tokens, and doctor says who may read them.
func TestCheckCallers(t *testing.T) {
	dir := t.TempDir()
	conf, token := filepath.Join(dir, "conf"), filepath.Join(dir, "token")
	const sixteen = "0123456789abcdef"
	for _, tc := range []struct{ token, callers, says string }{
		{sixteen, "{name: a, token_file: " + token + "}", ""},
		{sixteen[1:], "{name: a, token_file: " + token + "}", "callers[0].token_file: the token in " + token + " has 15 bytes; it must have 16 to 256"},
		{strings.Repeat("a", 257), "{name: a, token_file: " + token + "}", "has 257 bytes"},
		{"", "{name: a, token_file: " + token + "}", "callers[0].token_file: " + token + " is empty"},
		{sixteen, "{name: a, token_file: " + token + "}, {name: b, token_file: " + token + "}", "callers[1].token_file: the token is that of caller a too"},
		{"", "{name: a, token_sha256: " + sum("b") + "}, {name: b, token_sha256: " + strings.ToUpper(sum("b")) + "}", "callers[1].token_sha256: the token is that of caller a too"},
		{sixteen, "{name: a, token_file: " + token + "}, {name: b, token_sha256: " + sum(sixteen) + "}", "callers[1].token_sha256: the token is that of caller a too"},
	} {
		must(t, os.WriteFile(token, []byte(tc.token), 0o600))
		must(t, os.WriteFile(conf, []byte("limits: []\ncallers: ["+tc.callers+"]\n"), 0o600))
		if code, out, stderr := program(t, "config", "check", conf); (code != 0) != (tc.says != "") || !strings.Contains(stderr, tc.says) {
			t.Error(code, out, stderr)
		}
		if tc.says == "" {
			continue
		}
		if code, _, stderr := program(t, "serve", "--listen", "127.0.0.1:0", "--config", conf); code != 2 || !strings.Contains(stderr, tc.says) {
			t.Error(code, stderr)
		}
	}
	must(t, os.WriteFile(conf, []byte("limits: []\ncallers: [{name: a, token_file: "+token+", limits: [x]}, {name: b, token_file: "+token+".none}]\n"), 0o600))
	if code, _, stderr := program(t, "config", "check", conf); code != 0 || !strings.Contains(stderr, "may name the limit x, which does not exist in this file") || !strings.Contains(stderr, "callers[1].token_file is not here") {
		t.Error(code, stderr)
	}
	must(t, os.WriteFile(conf, []byte("limits: []\ncallers: [{name: a, token_file: "+token+"}]\n"), 0o600))
	must(t, os.Chmod(token, 0o644))
	if _, found := doctor(t, "--config", conf); !strings.Contains(found["configuration"], "warning: callers[0].token_file: "+token+" can be read by everybody") {
		t.Error(found)
	}
	must(t, os.WriteFile(conf, []byte("limits: []\nopen_listeners: [grpc]\n"), 0o600))
	if code, _, stderr := program(t, "config", "check", conf); code != 2 || !strings.Contains(stderr, "open_listeners: there is no listener grpc") {
		t.Error(code, stderr)
	}
}

// at is a listener that says it has an address.
type at struct {
	net.Listener
	addr net.Addr
}

func (l at) Addr() net.Addr { return l.addr }

// A listener that everybody may reach and use is logged when it is opened.
func TestWarnIfOpen(t *testing.T) {
	public, loopback := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 80}, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80}
	for _, tc := range []struct {
		f    config.File
		addr net.Addr
		want string
	}{
		{config.File{}, public, "dipwell: warning: listen: whoever reaches 192.0.2.1:80 may take from every key, because the address is not loopback and there are no callers\n"},
		{config.File{}, loopback, ""},
		{config.File{Callers: []config.Caller{{Name: "a"}}}, public, ""},
		{config.File{ClientCA: "ca.pem"}, public, ""},
	} {
		var out strings.Builder
		s := &service{logger: &logger{to: &out}, started: &settings{File: tc.f}}
		if s.warnIfOpen("listen", at{addr: tc.addr}); out.String() != tc.want {
			t.Errorf("%v: %q, want %q", tc.addr, &out, tc.want)
		}
	}
}
