package main

import (
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/rls"
	"github.com/dipwell/dipwell/internal/server"
	"github.com/dipwell/dipwell/memstore"
)

const descriptors = "domain: d\ndescriptors:\n  - key: user\n    rate_limit: {unit: year, requests_per_unit: "

func TestServeRLS(t *testing.T) {
	dir := t.TempDir()
	save := func(version, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(dir, version), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, version, "d.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(version, filepath.Join(dir, "..tmp")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	save("..1", descriptors+"2}\n")
	if err := os.Symlink("..data/d.yaml", filepath.Join(dir, "d.yaml")); err != nil {
		t.Fatal(err)
	}
	p := start(t, "--listen", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--rls-config", dir)
	addr := p.stdout.wait(t, `serving gRPC on (\S+)\n`)[1]
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c := pb.NewRateLimitServiceClient(conn)
	req := &pb.RateLimitRequest{Domain: "d", Descriptors: []*common.RateLimitDescriptor{{Entries: []*common.RateLimitDescriptor_Entry{{Key: "user", Value: "7"}}}}}
	want := func(code pb.RateLimitResponse_Code) {
		t.Helper()
		if r, err := c.ShouldRateLimit(t.Context(), req); err != nil || r.OverallCode != code {
			t.Error(r, err)
		}
	}
	want(pb.RateLimitResponse_OK)
	want(pb.RateLimitResponse_OK)
	want(pb.RateLimitResponse_OVER_LIMIT)

	save("..2", descriptors+"3}\n") // what was used stays used
	p.stderr.wait(t, "descriptors read again")
	want(pb.RateLimitResponse_OK)
	want(pb.RateLimitResponse_OVER_LIMIT)
	save("..3", "domian: d\n")
	p.stderr.wait(t, `d.yaml:1: domian: unknown setting; did you mean domain\?`)
	p.stderr.wait(t, "the last good descriptors stay in force")
	want(pb.RateLimitResponse_OVER_LIMIT)

	const body = `{"domain":"d","descriptors":[{"entries":[{"key":"user","value":"7"}]}]}`
	if status, got := post(t, p.url+"/json", body); status != 429 || !strings.Contains(got, "OVER_LIMIT") {
		t.Error(status, got)
	}
	if status, got := do(t, http.MethodGet, p.url+"/healthcheck", ""); status != 200 || got != "OK" {
		t.Error(status, got)
	}
	if r, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: "envoy.service.ratelimit.v3.RateLimitService"}); err != nil || r.Status != healthpb.HealthCheckResponse_SERVING {
		t.Error(r, err)
	}
	_, metrics := do(t, http.MethodGet, p.url+"/metrics", "")
	for _, line := range []string{`dipwell_rls_over_limit_total{domain="d",rule="d.user"} 4`, `dipwell_rls_config_loads_total{result="error"} 1`, "dipwell_config_last_reload_failed 1", `dipwell_decisions_total{limit="rls/d.user",result="refused"} 4`} {
		if !strings.Contains(metrics, line) {
			t.Errorf("%s is not in /metrics", line)
		}
	}
	descriptor := req.Descriptors[0]
	for name, bad := range map[string]struct {
		req  *pb.RateLimitRequest
		code codes.Code
		want string
	}{
		"a value of 1 MB": {&pb.RateLimitRequest{Domain: "d", Descriptors: []*common.RateLimitDescriptor{{Entries: []*common.RateLimitDescriptor_Entry{{Key: "user", Value: strings.Repeat("x", 1<<20)}}}}},
			codes.ResourceExhausted, "larger than max"},
		"101 descriptors": {&pb.RateLimitRequest{Domain: "d", Descriptors: slices.Repeat([]*common.RateLimitDescriptor{descriptor}, 101)}, codes.InvalidArgument, "descriptors: has 101 entries"},
		"no domain":       {&pb.RateLimitRequest{Descriptors: req.Descriptors}, codes.InvalidArgument, "domain"},
	} {
		if _, err := c.ShouldRateLimit(t.Context(), bad.req); status.Code(err) != bad.code || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	req.HitsAddend = math.MaxUint32
	want(pb.RateLimitResponse_OVER_LIMIT)
	if err := os.WriteFile(filepath.Join(dir, "more"), []byte("domain: more\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	save("..4", descriptors+"4}\n")
	p.stderr.wait(t, regexp.QuoteMeta(dir)+"/more: is read, although its name does not end in .yaml")
	if err := p.stop(); err != nil {
		t.Errorf("SIGTERM: %v, want exit status 0", err)
	}
}

func TestServeRLSMistakes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "d.yaml")
	if err := os.WriteFile(file, []byte(descriptors+"x}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"d.yaml:4: descriptors[0].rate_limit.requests_per_unit:": {"--rls-config", file},
		"rls config: ": {"--rls-config", file + ".none"},
		`headers: "itef" is not one of ietf, x-ratelimit, off; did you mean ietf?`: {"--grpc", "127.0.0.1:0", "--headers", "itef"},
		`grpc: "127.0.0.1:99999" is not an address`:                                {"--grpc", "127.0.0.1:99999"},
	} {
		if code, _, stderr := program(t, append([]string{"serve", "--listen", "127.0.0.1:0"}, args...)...); code != 2 || !strings.Contains(stderr, want) {
			t.Errorf("%v: %d %s", args, code, stderr)
		}
	}
}

// The file has the gRPC settings too, and flags have precedence.
func TestServeGRPCFromTheFile(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	rules := write("d.yaml", descriptors+"1}\n")
	file := write("dipwell.yaml", "data: "+filepath.Join(dir, "data")+"\nlisten: 127.0.0.1:0\ngrpc: 127.0.0.1:0\nrls_config: "+rules+"\nrls_headers: true\nrls_charge_all: true\n")
	p := start(t, "--config", file)
	conn, err := grpc.NewClient(p.stdout.wait(t, `serving gRPC on (\S+)\n`)[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	req := &pb.RateLimitRequest{Domain: "d", Descriptors: []*common.RateLimitDescriptor{{Entries: []*common.RateLimitDescriptor_Entry{{Key: "user", Value: "7"}}}}}
	r, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), req)
	if err != nil || r.OverallCode != pb.RateLimitResponse_OK || len(r.ResponseHeadersToAdd) == 0 {
		t.Error(r, err)
	}
	if err := p.stop(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "data", dataFile)); err != nil {
		t.Error(err)
	}
	s, err := serveCommand(t, "--config", file, "--store", "memory:", "--grpc", "127.0.0.1:9", "--rls-headers=false", "--rls-charge-all=false").settings()
	if err != nil || s.Store != "memory:" || s.GRPC != "127.0.0.1:9" || s.RLSConfig != rules || s.RLSHeaders || s.RLSChargeAll || s.RLSMergeDomains {
		t.Errorf("%+v %v", s, err)
	}
	if code, _, stderr := program(t, "serve", "--config", file, "--store", "memory:", "--rls-charge-all=maybe"); code != 2 || !strings.Contains(stderr, "rls-charge-all") {
		t.Error(code, stderr)
	}
	if code, out, stderr := program(t, "doctor", "--config", file); code != 0 || !strings.Contains(out, "dipwell.db is not in use") {
		t.Error(code, out, stderr)
	}
	if code, _, stderr := program(t, "config", "check", write("bad.yaml", "headers: itef\n")); code != 2 || !strings.Contains(stderr, "did you mean ietf?") {
		t.Error(code, stderr)
	}
}

// MaxInFlight also bounds the RateLimitService.
func TestShedRLS(t *testing.T) {
	store, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	l, err := dipwell.New(store)
	if err != nil {
		t.Fatal(err)
	}
	s := server.New(l, server.Config{MaxInFlight: 1})
	client := pb.NewRateLimitServiceClient(serveVerbs(t, s, func(r grpc.ServiceRegistrar) {
		pb.RegisterRateLimitServiceServer(r, rls.New(l, rls.Config{}))
	}))
	req := &pb.RateLimitRequest{Domain: "d", Descriptors: []*common.RateLimitDescriptor{{Entries: []*common.RateLimitDescriptor_Entry{{Key: "user"}}}}}
	s.Enter()
	if _, err := client.ShouldRateLimit(t.Context(), req); status.Code(err) != codes.Unavailable {
		t.Error(err)
	}
	s.Leave()
	if r, err := client.ShouldRateLimit(t.Context(), req); err != nil || r.OverallCode != pb.RateLimitResponse_OK {
		t.Error(r, err)
	}
}

// With --shadow nothing is refused, and the answers show what would have been.
func TestServeShadow(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "d.yaml"), []byte("domain: d\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 1}}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, "--listen", "127.0.0.1:0", "--limit", "api=1/1d,auth=true", "--shadow", "--rls-config", dir, "--rls-near-limit-ratio", "0.5",
		"--rls-headers", "--rls-limit-header", "X-Max", "--metric-label", "env=prod", "--metric-label", "cell=7")
	p.stderr.wait(t, "shadow mode: nothing is refused")
	for i, want := range []string{`"shadow":false`, `"shadow":true`, `"shadow":true`} {
		if status, body := post(t, p.url+"/v1/take", "limit=api&key=k"); status != 200 || !strings.Contains(body, want) {
			t.Errorf("take %d: %d %s", i, status, body)
		}
	}
	if status, body := do(t, "GET", p.url+"/v1/auth?limit=api&key_header=X-Nobody", ""); status != 200 || !strings.Contains(body, `"shadow":true`) {
		t.Errorf("without a key: %d %s", status, body)
	}
	for i, want := range []string{`"code":"OK"`, `"code":"OVER_LIMIT"`} {
		r, err := http.Post(p.url+"/json", "application/json", strings.NewReader(`{"domain":"d","descriptors":[{"entries":[{"key":"user","value":"7"}]}]}`))
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(r.Body)
		_ = r.Body.Close()
		text := strings.ReplaceAll(string(body), " ", "")
		if r.StatusCode != http.StatusOK || !strings.Contains(text, `"overallCode":"OK"`) || !strings.Contains(text, want) || r.Header.Get("X-Max") != "1" {
			t.Errorf("descriptor %d: %s %v %s", i, r.Status, r.Header, body)
		}
	}
	_, metrics := do(t, "GET", p.url+"/metrics", "")
	for _, line := range []string{`dipwell_decisions_total{cell="7",env="prod",limit="api",result="shadow"} 2`, `dipwell_rls_global_shadow_mode_total{cell="7",env="prod"} 1`,
		`dipwell_keyless_requests_total{by="header",cell="7",env="prod"} 1`} {
		if !strings.Contains(metrics, line+"\n") {
			t.Errorf("%s is not on /metrics", line)
		}
	}
	for _, bad := range [][]string{{"--metric-label", "limit=x"}, {"--metric-label", "a-b=x"}, {"--rls-limit-header", "X"}, {"--rls-headers", "--rls-reset-header", "a b"}, {"--rls-near-limit-ratio", "8"}} {
		if code, _, stderr := program(t, append([]string{"serve", "--grpc", "127.0.0.1:0"}, bad...)...); code != 2 || !strings.HasPrefix(stderr, "dipwell: ") {
			t.Errorf("%v: %d %s", bad, code, stderr)
		}
	}
}

// A proxy in shadow mode forwards every request, also if the store is down.
func TestServeShadowProxy(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer up.Close()
	p := start(t, "--listen", "127.0.0.1:0", "--limit", "site=1/1d", "--upstream", up.URL, "--by", "header:X-User", "--shadow", "--store", "redis://127.0.0.1:1")
	for i := range 3 {
		if status, body := do(t, "GET", p.url, ""); status != 200 {
			t.Errorf("request %d without a key: %d %s", i, status, body)
		}
		r, err := http.NewRequest(http.MethodGet, p.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-User", "7")
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusOK {
			t.Errorf("request %d: %s", i, res.Status)
		}
	}
}
