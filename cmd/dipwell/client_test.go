package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/redistest"
	"github.com/dipwell/dipwell/internal/server"
	"github.com/dipwell/dipwell/memstore"
)

// program runs the program in this process.
func program(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), args, strings.NewReader(""), &out, &errs)
	return code, out.String(), errs.String()
}

// fixedClock is the constant time of a store, for a constant output.
func fixedClock() int64 { return 1e15 }

// startAPI serves limits on loopback and returns the URL.
func startAPI(t *testing.T, c server.Config, limits ...string) string {
	t.Helper()
	store, err := memstore.New(memstore.Config{MaxKeys: 1000, Clock: fixedClock})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	parsed, err := parseLimits(limits)
	if err != nil {
		t.Fatal(err)
	}
	l, err := dipwell.New(store, parsed...)
	if err != nil {
		t.Fatal(err)
	}
	s := server.New(l, c)
	wait := s.CountKeys(t.Context(), "here:1", 0)
	srv := httptest.NewServer(s.API(server.Site{Loopback: true}))
	t.Cleanup(func() { srv.Close(); wait() })
	return srv.URL
}

func TestClientExitCodes(t *testing.T) {
	t.Setenv("DIPWELL_SERVER", startAPI(t, server.Config{}, "login=5/1m,burst=20,keys=list", "all=5/1m,burst=20,keys=list,shared=true", "jobs=1/1s,burst=1,max_debt=5,plans=pro:rate=2;burst=4|banned:mode=blocked|staff:mode=unlimited|inner:rate=9;callable=false", "big=8000000000/1d"))
	for _, tc := range []struct {
		args string
		code int
		want string // in standard output, or in standard error for code 2
	}{
		{"take login user:7 --cost 18", 0, "allowed: login user:7: 2 of 20 remaining, full in 3m36s"},
		{"take login user:7 --cost 3", 1, "refused: login user:7: 2 of 20 remaining, retry after 12s, full in 3m36s"},
		{"check login user:7", 0, "allowed"},
		{"check login user:7 --cost 3", 1, "refused"},
		{"take login user:7 --cost 21", 1, "the call asks for more than the limit could ever hold"},
		{"take-up-to login user:7 --cost 9", 0, "2 granted"},
		{"take-up-to login user:7 --cost 9", 1, "refused"},
		{"charge login user:7 --cost 5", 0, "0 of 20 remaining, full in 5m0s"},
		{"refund login user:7 --cost 6", 0, "1 of 20 remaining"},
		{"inspect login user:7", 0, "login user:7: 1 of 20 remaining"},
		{"inspect login user:7", 0, "refused by here:1: "},
		{"inspect login user:7", 0, " cost 3, retry after 12s, and "},
		{"inspect all", 0, "all: 20 of 20 remaining"},
		{"inspect login user:7 --json", 0, `"refill":[[`},
		{"inspect login user:7 --json", 0, `"refusals":{"process":"here:1","last":[{"at_us":`},
		{"keys login", 0, "user:7"},
		{"keys login --prefix nobody", 0, ""},
		{"limits", 0, "login=5/1m,burst=20,keys=list  (code)"},
		{"limits", 0, "big=8000000000/1d  (code)"},
		{"reset login user:7 --note ticket-81", 0, "20 of 20 remaining"},
		{"audit", 0, "2001-09-09T01:46:40Z 127.0.0.1 refund login user:7 6 tokens\n"},
		{"audit login user:7 -n 1", 0, "2001-09-09T01:46:40Z 127.0.0.1 reset login user:7 (ticket-81)\nthere may be more: --before "},
		{"audit nobody", 0, ""},
		{"audit --ndjson", 0, `"action":"reset","limit":"login","key":"user:7","note":"ticket-81"}`},
		{"audit --ndjson --json", 2, "ndjson, json: give only one"},
		{"take login", 2, "key: is missing; limit login has a bucket for each key"},
		{"take all k", 2, "key: limit all is shared: its calls have no key"},
		{"take all", 0, "allowed: all: 19 of 20"},
		{"take all --json", 0, `"key":null,"cost":1,"granted":1,"capacity":20,"remaining":18,"retry_after_us":null`},
		{"take all --cost 20 --json", 1, `"retry_after_us":24000000`},
		{"reserve jobs k", 0, "allowed"},
		{"reserve jobs k --cost 2", 0, "due in 2s, reservation "},
		{"reserve jobs k --cost 9", 1, "ever hold"},
		{"wait jobs k --cost 9", 1, "ever hold"},
		{"wait jobs w --timeout 1s", 0, "allowed: jobs w: 0 of 1 remaining"},
		{"reserve jobs w", 0, "due in 1s"},
		{"wait jobs w --timeout 1s", 1, "refused: jobs w: 0 of 1 remaining, retry after 1."},
		{"wait jobs w --timeout 1h", 2, "timeout: must be from 1ms to 10m"},
		{"take jobs p --plan pro --floor 1", 0, "allowed: jobs p (plan pro): 3 of 4 remaining"},
		{"check jobs p --plan pro --floor 3", 1, "refused: jobs p (plan pro): 3 of 4 remaining, retry after 500ms"},
		{"take jobs p --plan banned", 1, "the key is blocked; no wait will help"},
		{"take jobs p --plan staff --cost 99", 0, "allowed: jobs p (plan staff): unlimited"},
		{"take jobs p --plan prro", 2, `plan: limit jobs has no plan "prro"`},
		{"take jobs p --plan inner", 2, "plan: callers may not name plan inner"},
		{"take jobs p --floor -1", 2, "floor"},
		{"take-up-to jobs p --floor 1", 2, "unknown flag --floor"},
		{"charge jobs p --plan pro", 2, "unknown flag --plan"},
		{"hold jobs p --ttl 1y", 2, "ttl"},
		{"hold jobs p", 2, "--ttl"},
		{"override set jobs p --for 1h", 2, "override"},
		{"cancel 0198c2f3-5b6e-4cc1-9d1a-3f0a5b7c9d11", 2, "the reservation is unknown"},
		{"cancel nonsense", 2, "reservation: "},
		{"take nobody k", 2, `unknown limit "nobody"`},
		{"take login k --cost -1", 2, "cost"},
		{"take login k --cost 1.5", 2, "cost"},
		{"take", 2, "limit"},
		{"frobnicate", 2, "unexpected argument"},
		{"take login k --server http://127.0.0.1:1", 2, "connection refused: is dipwell serve running? "},
		{"doctor --server http://127.0.0.1:1", 1, "connection refused: is dipwell serve running? "},
		{"help", 0, "Run \"dipwell <command> --help\""},
		{"help take", 0, "dipwell take login user:7 --cost 3"},
		{"help migrate up", 0, "dipwell migrate up --store"},
		{"help help", 0, "dipwell help take"},
		{"help nonsense", 2, "unexpected argument nonsense"},
		{"--version", 0, "dipwell "},
		{"--version x", 2, "unexpected argument x"},
		{"keys jobs", 2, "keys: list"},
		{"version", 0, "dipwell "},
	} {
		code, stdout, stderr := program(t, strings.Fields(tc.args)...)
		got := stdout
		if tc.code == 2 {
			got = stderr
		}
		if code != tc.code || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %d, want %d with %q\n%s%s", tc.args, code, tc.code, tc.want, stdout, stderr)
		}
	}
	// A page that ends with the shared bucket continues after an empty key.
	if code, out, stderr := program(t, "take", "login", "user:9"); code != 0 {
		t.Error(out, stderr)
	}
	if code, out, stderr := program(t, "keys", "all", "-n", "1"); code != 0 || !strings.HasPrefix(out, "(shared) ") || !strings.HasSuffix(out, "there may be more: --after \"\"\n") {
		t.Errorf("the first page: %d %s%s", code, out, stderr)
	}
	if code, out, stderr := program(t, "keys", "all", "--after", ""); code != 0 || out != "" {
		t.Errorf("after the shared bucket: %d %s%s", code, out, stderr)
	}
	if code, out, stderr := program(t, "keys", "login", "--after", ""); code != 0 || !strings.HasPrefix(out, "user:9 ") {
		t.Errorf("after no key: %d %s%s", code, out, stderr)
	}
	if code, _, stderr := program(t, "take", "login", ""); code != 2 || !strings.Contains(stderr, "key") {
		t.Errorf("an empty key: %d %s", code, stderr)
	}
}

func TestClientCancels(t *testing.T) {
	url := startAPI(t, server.Config{}, "jobs=1/1s,burst=1,max_debt=5")
	_, stdout, _ := program(t, "reserve", "jobs", "k", "--cost", "3", "--json", "--server", url)
	var a answer
	if err := json.Unmarshal([]byte(stdout), &a); err != nil || a.Reservation == "" {
		t.Fatal(err, stdout)
	}
	if code, out, _ := program(t, "cancel", a.Reservation, "--server", url); code != 0 || out != "cancelled: "+a.Reservation+"; asked "+url+"\n" {
		t.Error(code, out)
	}
	if code, _, _ := program(t, "cancel", a.Reservation, "--server", url); code != 2 {
		t.Error("cancelled twice")
	}
}

// TestClientTimeout checks the error of a client whose server does not answer in time, before
// and inside the body.
func TestClientTimeout(t *testing.T) {
	silent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/check" {
			_, _ = w.Write([]byte("{"))
			_ = http.NewResponseController(w).Flush()
		}
		_, _ = io.Copy(io.Discard, r.Body) // so that the end of the connection is noticed
		<-r.Context().Done()
	}))
	defer silent.Close()
	for _, verb := range []string{"take", "check"} {
		code, _, stderr := program(t, verb, "login", "k", "--timeout", "50ms", "--server", silent.URL)
		if want := "dipwell: timeout: " + silent.URL + " has not answered within 50ms\n"; code != 2 || stderr != want {
			t.Errorf("%s: %d %q, want %q", verb, code, stderr, want)
		}
	}
}

func TestClientToken(t *testing.T) {
	url := startAPI(t, server.Config{AdminToken: "s3cret"}, "login=5/1m")
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := program(t, "reset", "login", "k", "--server", url); code != 2 || !strings.Contains(stderr, "admin token") {
		t.Error(code, stderr)
	}
	if code, _, stderr := program(t, "reset", "login", "k", "--server", url, "--admin-token-file", file); code != 0 {
		t.Error(code, stderr)
	}
	t.Setenv("DIPWELL_ADMIN_TOKEN", "s3cret")
	if code, _, stderr := program(t, "reset", "login", "k", "--server", url); code != 0 {
		t.Error(code, stderr)
	}
}

func TestClientOnAStore(t *testing.T) {
	code, out, stderr := program(t, "take", "login", "k", "--store", "memory:", "--limit", "login=5/1m,burst=20")
	if code != 0 || !strings.Contains(out, "19 of 20") {
		t.Error(code, out, stderr)
	}
	for _, tc := range []struct{ url, want string }{
		{"cassandra://user:hunter2@10.0.0.1/x", `store: "cassandra://...@10.0.0.1/x" is not a store that this program can open; it knows cockroach://, file:, memory:, postgres://`},
		{"nonsense", "memory:, postgres://"},
		{"memory:x", `nothing may follow "memory:"`},
	} {
		code, _, stderr := program(t, "take", "login", "k", "--store", tc.url, "--limit", "login=5/1m")
		if code != 2 || !strings.Contains(stderr, tc.want) || strings.Contains(stderr, "hunter2") {
			t.Errorf("%s: %d %s", tc.url, code, stderr)
		}
	}
	if code, _, stderr := program(t, "take", "login", "--store", "memory:", "--limit", "login=5/1m,brust=3"); code != 2 || !strings.Contains(stderr, "did you mean burst?") {
		t.Error(code, stderr)
	}
}

// joined matches an example that is not followed by an empty line: the lines of a paragraph
// are joined.
var joined = regexp.MustCompile(`(?m)^Example: .*\n.`)

// Every command shows an example in its help.
func TestHelpShowsExamples(t *testing.T) {
	_, out, _ := program(t, "--help")
	for _, c := range []string{"serve", "take", "check", "take-up-to", "reserve", "wait", "charge", "refund", "reset", "hold", "settle", "extend", "holds", "override set", "override list", "override end",
		"audit", "cancel", "limits", "keys", "inspect", "top", "replay", "bench", "doctor", "migrate up", "migrate down", "migrate status", "migrate print", "config check", "completion", "version", "help"} {
		if !strings.Contains(out, "  "+c+" ") {
			t.Errorf("%s is not in the help", c)
		}
		code, help, _ := program(t, append(strings.Fields(c), "--help")...)
		if code != 0 || !strings.Contains(help, "dipwell "+c) || !strings.Contains(help, "Example") {
			t.Errorf("%s --help: %d\n%s", c, code, help)
		}
		if joined.MatchString(help) {
			t.Errorf("%s --help: text follows the example in its line\n%s", c, help)
		}
	}
}

func TestConfigCheck(t *testing.T) {
	if code, out, stderr := program(t, "config", "check", "../../examples/dipwell.yaml"); code != 0 || !strings.Contains(out, "good, 4 limits") {
		t.Error(code, out, stderr)
	}
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(bad, []byte("limits:\n  - name: a\n    rate: 1\n    per: 1s\n    brust: 2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := program(t, "config", "check", bad); code != 2 || !strings.Contains(stderr, bad+":5: limits[0].brust: unknown setting; did you mean burst?") {
		t.Error(code, stderr)
	}
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	for text, says := range map[string]string{
		"domain: d\ndescriptors:\n  - key: user\n    rate_limit: {unit: minute, requests_per_unit: 4}\n": "good, 0 limits and descriptors of 1 domain\n",
		"domain: d\ndescriptors:\n  - kye: user\n":                                                       bad + ": rls_config: " + rules + ":3: ",
	} {
		for name, text := range map[string]string{bad: "rls_config: " + rules + "\n", rules: text} {
			if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if _, out, stderr := program(t, "config", "check", bad); !strings.Contains(out+stderr, says) {
			t.Errorf("%q%q, not %q", out, stderr, says)
		}
	}
	rules = filepath.Dir(rules)
	if err := os.WriteFile(filepath.Join(rules, "more.yaml"), []byte("domain: d\ndescriptors:\n  - key: ip\n    rate_limit: {unit: minute, requests_per_unit: 4}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(rules, "rules.yaml"), []byte("domain: d\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ path, merge, says string }{
		{rules, "", "more.yaml"},
		{rules, "true", "good, 0 limits and descriptors of 1 domain"},
		{rules + "/elsewhere", "", "rls_config is not here, and was not read"},
		{"../../internal/rls/testdata/cases/extensionless", "", "extensionless/ratelimit: is read, although its name does not end in .yaml or .yml"},
		{"../../internal/rls/testdata/cases/manifest.yaml", "", "manifest.yaml:1: apiVersion: unknown setting"},
	} {
		t.Setenv("DIPWELL_RLS_MERGE_DOMAINS", tc.merge)
		if err := os.WriteFile(bad, []byte("rls_config: "+tc.path+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if code, out, stderr := program(t, "config", "check", bad); !strings.Contains(out+stderr, tc.says) || (code == 0) != strings.Contains(out, "good") {
			t.Errorf("%+v: %d %q%q", tc, code, out, stderr)
		}
	}
	if err := os.WriteFile(bad, []byte("store: carrier-pigeon://x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := program(t, "config", "check", bad); code != 2 || !strings.Contains(stderr, "memory:, postgres://") {
		t.Error(code, stderr)
	}
}

// Flags have precedence over the environment, that over the file, and that over
// defaults.
func TestSettingsAgree(t *testing.T) {
	file := filepath.Join(t.TempDir(), "dipwell.yaml")
	if err := os.WriteFile(file, []byte("listen: 127.0.0.1:1\nadmin: 127.0.0.1:2\nmax_keys: 3\nlimits:\n  - {name: a, rate: 1, per: 1s}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := serveCommand(t, "--config", file, "--listen", "127.0.0.1:9", "--limit", "b=1/1s").settings()
	if err != nil {
		t.Fatal(err)
	}
	if s.Listen != "127.0.0.1:9" || s.Admin != "127.0.0.1:2" || s.MaxKeys != 3 || s.Store != "memory:" || strings.Join(s.names(), ",") != "b,a" {
		t.Errorf("%+v", s)
	}
	for _, bad := range [][]string{
		{"--config", file, "--limit", "a=1/1s"}, {"--limit", "a=1/1s", "--limit", "a=2/1s"}, {"--limit", "a"}, {"--by", "ip"},
		{"--headers", "ITEF"}, {"--trusted-proxies", "x"}, {"--admin-token-file", file + ".none"}, {"--max-keys=-1"}, {"--config", file + ".none"},
	} {
		if _, err := serveCommand(t, bad...).settings(); err == nil {
			t.Errorf("%+v was accepted", bad)
		}
	}
}

// Without a command the program prints its help and exits with status 2.
func TestWithoutCommand(t *testing.T) {
	code, out, errs := program(t)
	if code != 2 || out != "" || !strings.HasPrefix(errs, "Usage: dipwell COMMAND") || !strings.Contains(errs, "Commands: serve, take,") || strings.Contains(errs, "expected") {
		t.Errorf("%d %s %s", code, out, errs)
	}
	if n := strings.Count(errs, "\n"); n > 15 {
		t.Errorf("%d lines", n)
	}
}

func TestFullIn(t *testing.T) {
	for us, want := range map[int64]string{0: ", full", 1: ", full in 1µs", 36e8: ", full in 1h0m0s"} {
		if got := fullIn(us); got != want {
			t.Errorf("%d: %q, want %q", us, got, want)
		}
	}
}

func TestHowMany(t *testing.T) {
	for n, want := range []string{"0 warnings", "1 warning", "2 warnings"} {
		if got := howMany(n, "warning"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// walkLimits are the limits of walkHoldsAndOverrides. Hardly any tokens come back.
var walkLimits = []string{"tokens=1/1h,burst=100,plans=pro:burst=1000|banned:mode=blocked", "slots=1,algorithm=concurrency"}

func TestClientHoldsAndOverrides(t *testing.T) {
	walkHoldsAndOverrides(t, startAPI(t, server.Config{}, walkLimits...), func(text string) string { return text })
}

// times matches what depends on the time of the store.
var times = regexp.MustCompile(`\d{4}-\d\d-\d\d[ T][\d:.]+Z|after [\dhms.]+ or`)

// The same over the stores that are servers, of which the time is not known.
func TestClientHoldsAndOverridesOnServers(t *testing.T) {
	for name, url := range storeServers(t) {
		t.Run(name, func(t *testing.T) {
			args := []string{"--listen", "127.0.0.1:0", "--store", url, "--deny-max-age", "0"}
			for _, l := range walkLimits {
				args = append(args, "--limit", l)
			}
			p := start(t, args...)
			eventually(t, func() error {
				if status, body := do(t, "GET", p.url+"/readyz", ""); status != 200 {
					return fmt.Errorf("/readyz is %d %s", status, body)
				}
				return nil
			})
			walkHoldsAndOverrides(t, p.url, func(text string) string { return times.ReplaceAllString(text, "TIME") })
		})
	}
}

// storeServers returns URLs of PostgreSQL and Redis.
func storeServers(t *testing.T) map[string]string {
	return map[string]string{"postgres": migratedDatabase(t), "redis": redistest.Start(t).URL()}
}

// walkHoldsAndOverrides runs the commands about plans, holds and overrides. shown
// changes what is compared.
func walkHoldsAndOverrides(t *testing.T, url string, shown func(text string) string) {
	t.Setenv("DIPWELL_SERVER", url)
	for _, tc := range []struct {
		args string
		code int
		want string // in standard output, or in standard error for code 2
	}{
		{"hold tokens acme --cost 30 --ttl 10m --id req-1", 0, "allowed: tokens acme: 70 of 100 remaining, hold req-1 until 2001-09-09 01:56:40Z"},
		{"hold tokens acme --cost 30 --ttl 10m --id req-1", 0, "repeated: the call was made before"},
		{"hold tokens acme --cost 31 --ttl 10m --id req-1", 2, "made or settled by another call"},
		{"holds tokens acme", 0, "req-1: 30 tokens until 2001-09-09 01:56:40Z\n"},
		{"holds tokens acme --json", 0, `{"holds":[{"hold":"req-1","tokens":30`},
		{"holds tokens nobody", 0, ""},
		{"holds tokens", 2, "key: is missing; limit tokens has a bucket for each key"},
		{"inspect tokens acme", 0, "hold: req-1: 30 tokens until"},
		{"extend req-1 --ttl 20m", 0, "until 2001-09-09 02:06:40Z"},
		{"settle req-1 --cost 1000000", 2, "dipwell: cost: "},
		{"settle req-1 --cost 20", 0, "allowed: tokens acme: 80 of 100 remaining, hold req-1 settled, full"},
		{"settle req-1 --cost 20 --json", 0, `"repeated":true`},
		{"settle req-1 --cost 21", 2, "another call"},
		{"settle req-1 --cost 20 --cost 1", 2, "costs"},
		{"settle nobody", 2, "unknown hold"},
		{"extend req-1 --ttl 1m", 2, "ended"},
		{"extend req-1", 2, "--ttl"},
		{"hold tokens acme --ttl 0s", 2, "ttl"},
		{"hold tokens acme --cost 81 --ttl 1m", 1, "refused"},
		{"hold slots acme --ttl 10m --id s", 0, "allowed: slots acme: 0 of 1 remaining, hold s"},
		{"hold slots acme --ttl 1m", 1, "retry after 10m0s or when a hold ends"},
		{"take slots acme", 2, "only hold, check and reset are possible"},
		{"settle s", 0, "slots acme: 1 of 1 remaining"},

		{"override set tokens c7 --plan pro --for 1h --note ticket", 0, "tokens c7: plan pro until 2001-09-09T02:46:40Z (ticket)"},
		{"override set tokens c8 --rate 600/1m --burst 700 --until 2030-01-31T18:00:00Z", 0, "tokens c8: rate 600/1m burst 700 until 2030-01-31T18:00:00Z"},
		{"override set tokens c9 --plan banned --json", 0, `{"limit":"tokens","key":"c9","plan":"banned","until":null,"kind":"standing","asked":`},
		{"override set tokens c7b --plan pro", 0, "tokens c7b: plan pro; asked"},
		{"override set tokens c7b --rate 9/1m --for 1h", 0, "tokens c7b: rate 9/1m until 2001-09-09T02:46:40Z; at its end: plan pro; asked"},
		{"override set tokens c7b --rate 8/1m --for 1h", 0, "tokens c7b: rate 8/1m until 2001-09-09T02:46:40Z; replaced: rate 9/1m until 2001-09-09T02:46:40Z; at its end: plan pro; asked"},
		{"override list tokens --prefix c7b", 0, "tokens c7b: rate 8/1m until 2001-09-09T02:46:40Z\ntokens c7b: plan pro\n"},
		{"override list tokens --prefix c7b --kind standing", 0, "tokens c7b: plan pro\n"},
		{"override end tokens c7b --kind standing", 0, "ended"},
		{"override end tokens c7b --kind standing", 2, "no override"},
		{"override end tokens c7b --kind both", 2, `--kind must be one of "standing","temporary","automatic" but got "both"`},
		{"override end tokens c7b", 0, "ended"},
		{"override list tokens", 0, "tokens c7: plan pro until 2001-09-09T02:46:40Z (ticket)\ntokens c8: rate 600/1m burst 700"},
		{"override list tokens -n 1", 0, `there may be more: --after "c7"`},
		{"override list tokens --prefix c9", 0, "tokens c9: plan banned\n"},
		{"take tokens c7 --cost 500", 0, "allowed: tokens c7 (plan pro): 500 of 1000 remaining"},
		{"inspect tokens c7", 0, "override: tokens c7: plan pro until 2001-09-09T02:46:40Z (ticket)"},
		{"inspect tokens c9", 0, "tokens c9 (plan banned): blocked; without that 100 of 100 remaining, full; asked"},
		{"override set tokens c9 --plan banned --for 1h", 0, "at its end: plan banned"},
		{"inspect tokens c9", 0, "tokens c9 (plan banned): blocked; without that 100 of 100 remaining"}, // it stays so below
		{"override set tokens z9 --plan banned --for 1h", 0, "tokens z9: plan banned until"},
		{"inspect tokens z9", 0, "tokens z9 (plan banned): blocked until 2001-09-09 02:46:40Z; then 100 of 100 remaining"},
		{"override end tokens c9", 0, "ended"},
		{"override set tokens c10 --burst 200", 0, "tokens c10: burst 200"},
		{"take tokens c10", 0, "allowed: tokens c10 (override): 199 of 200 remaining"},
		{"take tokens c11 --plan pro --cost 300", 0, "(plan pro): 700 of 1000 remaining"},
		{"inspect tokens c11", 0, "tokens c11 (plan pro): 700 of 1000 remaining"},
		{"inspect tokens c11", 0, "; a call without a plan: 0 of 100 remaining"},
		{"inspect tokens c7 --json", 0, `"override":{"limit":"tokens","key":"c7","plan":"pro"`},
		{"take tokens p1 --plan pro --floor 400 --cost 500", 0, "allowed: tokens p1 (plan pro): 500 of 1000 remaining"},
		{"take tokens p1 --plan pro --floor 400 --cost 200", 1, "refused"},
		{"wait tokens p1 --plan pro --cost 10 --timeout 1s", 0, "490 of 1000 remaining"},
		{"take tokens p1 --plan prro", 2, "no plan"},
		{"take tokens c9", 1, "the key is blocked"},
		{"override end tokens c9", 0, "ended; asked "},
		{"override end tokens c9", 2, "no override"},
		{"take tokens c9", 0, "allowed"},
		{"override set tokens c7", 2, "plan"},
		{"override set tokens c7 --plan prro", 2, `no plan "prro"`},
		{"override set tokens c7 --plan pro --rate 5/1m", 2, "either a plan or numbers"},
		{"override set tokens c7 --plan pro --for 1h --until 2030-01-31T18:00:00Z", 2, "give one of them"},
		{"override set tokens c7 --plan pro --until 2001-01-31T18:00:00Z", 2, "not in the future"},
		{"override set nobody c7 --plan pro", 2, "unknown limit"},
	} {
		code, stdout, stderr := program(t, strings.Fields(tc.args)...)
		got := stdout
		if tc.code == 2 {
			got = stderr
		}
		if code != tc.code || !strings.Contains(shown(got), shown(tc.want)) {
			t.Errorf("%s: %d, want %d with %q\n%s%s", tc.args, code, tc.code, tc.want, stdout, stderr)
		}
	}
}

// With --store, holds and overrides live in the store.
func TestDirectHoldsAndOverrides(t *testing.T) {
	stores := storeServers(t)
	stores["file"] = "file:" + filepath.Join(t.TempDir(), "dipwell.db")
	for name, url := range stores {
		t.Run(name, func(t *testing.T) { walkDirect(t, url) })
	}
}

func walkDirect(t *testing.T, url string) {
	t.Setenv("DIPWELL_STORE", url)
	const limit = "slots=1,algorithm=concurrency,shared=true"
	for _, tc := range []struct {
		args []string
		code int
	}{
		{[]string{"hold", "slots", "--limit", limit, "--ttl", "1h", "--id", "a"}, 0},
		{[]string{"hold", "slots", "--ttl", "1h", "--id", "b"}, 1},
		{[]string{"holds", "slots"}, 0},
		{[]string{"settle", "a"}, 0},
		{[]string{"hold", "slots", "--ttl", "1h", "--id", "b"}, 0},
		{[]string{"override", "set", "slots", "--burst", "2", "--for", "1h"}, 0},
		{[]string{"hold", "slots", "--ttl", "1h", "--id", "c"}, 0},
		{[]string{"override", "end", "slots"}, 0},
		{[]string{"hold", "slots", "--ttl", "1h"}, 1},
	} {
		if code, stdout, stderr := program(t, tc.args...); code != tc.code {
			t.Errorf("%q: %d, want %d: %s%s", tc.args, code, tc.code, stdout, stderr)
		}
	}
}
