package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/dipwell/dipwell/internal/pgtest"
)

// asProgram makes this test binary run main, so that no second build is needed
// and the race detector, if enabled, covers the service.
const asProgram = "DIPWELL_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	code := pgtest.Main(m)
	if bin.dir != "" {
		_ = os.RemoveAll(bin.dir)
	}
	os.Exit(code)
}

// built returns a command that runs the program in a process of its own.
func built(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	return cmd
}

// bin is the released form of the program, for the test that measures memory.
var bin struct {
	once sync.Once
	dir  string
	err  error
}

func shipped(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	bin.once.Do(func() {
		if bin.dir, bin.err = os.MkdirTemp("", "dipwell-test"); bin.err != nil {
			return
		}
		if out, err := exec.Command("go", "build", "-o", bin.dir, ".").CombinedOutput(); err != nil {
			bin.err = fmt.Errorf("%w: %s", err, out)
		}
	})
	if bin.err != nil {
		t.Fatal(bin.err)
	}
	return exec.Command(filepath.Join(bin.dir, "dipwell"), args...)
}

// process is a running service.
type process struct {
	t       *testing.T
	cmd     *exec.Cmd
	url     string // of the first listener
	admin   string // of the second
	stdout  *lines
	stderr  *lines
	waited  error
	waiting sync.Once
}

// lines has the output of a process so far; wait blocks until a line matches.
type lines struct {
	mu    sync.Mutex
	more  *sync.Cond
	all   bytes.Buffer
	ended chan struct{} // closed when the process has closed its end
}

func newLines(r io.Reader) *lines {
	l := &lines{ended: make(chan struct{})}
	l.more = sync.NewCond(&l.mu)
	go func() {
		defer close(l.ended)
		for b := bufio.NewReader(r); ; {
			line, err := b.ReadString('\n')
			l.mu.Lock()
			l.all.WriteString(line)
			l.more.Broadcast()
			l.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return l
}

// patience is how long a test waits for a condition: far longer than a loaded
// machine needs.
const patience = 2 * time.Minute

func (l *lines) wait(t *testing.T, pattern string) []string {
	t.Helper()
	re := regexp.MustCompile(pattern)
	late := false
	timer := time.AfterFunc(patience, func() { l.mu.Lock(); late = true; l.more.Broadcast(); l.mu.Unlock() })
	defer timer.Stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		if m := re.FindStringSubmatch(l.all.String()); m != nil {
			return m
		}
		if late {
			t.Fatalf("%q was not said in:\n%s", pattern, l.all.String())
		}
		l.more.Wait()
	}
}

func start(t *testing.T, args ...string) *process {
	t.Helper()
	return startWith(t, built, args...)
}

func startWith(t *testing.T, program func(*testing.T, ...string) *exec.Cmd, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: program(t, append([]string{"serve"}, args...)...)}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err = p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.stop() })
	out := newLines(stdout)
	p.stdout = out
	p.stderr = newLines(stderr)
	p.url = out.wait(t, `(?:on |"address":")(https?://127\.0\.0\.1:\d+)["\s]`)[1]
	for _, a := range args {
		if a == "--admin" || strings.HasPrefix(a, "--admin=") {
			p.admin = out.wait(t, `admin calls(?: on |","address":")(https?://[^\s"]+)["\s]`)[1]
		}
	}
	return p
}

// stop asks the process to end and returns how it did.
func (p *process) stop() error { return p.end(syscall.SIGTERM) }

// end sends a signal, unless it is nil, and returns how the process ended. What
// it said is read first: Wait closes the pipes, whatever is still in them.
func (p *process) end(by os.Signal) error {
	p.waiting.Do(func() {
		if by != nil {
			_ = p.cmd.Process.Signal(by)
		}
		<-p.stdout.ended
		<-p.stderr.ended
		p.waited = p.cmd.Wait()
	})
	return p.waited
}

// post sends a form to a path and returns the status and the body.
func post(t *testing.T, url, form string) (int, string) {
	t.Helper()
	return do(t, http.MethodPost, url, form)
}

func do(t *testing.T, method, url, form string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(form))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

func TestServeLimitsAndStops(t *testing.T) {
	p := start(t, "--listen", "127.0.0.1:0", "--limit", "api=1/1h,burst=2")
	for i, want := range []int{200, 200, 429} {
		if status, body := post(t, p.url+"/v1/take", "limit=api&key=user:7"); status != want {
			t.Errorf("call %d: %d, want %d: %s", i, status, want, body)
		}
	}
	if code, out, stderr := program(t, "take", "api", "user:7", "--server", p.url); code != 1 || !strings.Contains(out, "refused") {
		t.Error(code, out, stderr)
	}
	const missing = "key: is missing; limit api has a bucket for each key"
	for _, args := range [][]string{{"--server", p.url}, {"--store", "memory:", "--limit", "api=1/1h"}} {
		for _, verb := range []string{"take", "check", "reset", "inspect"} {
			if code, out, stderr := program(t, append([]string{verb, "api"}, args...)...); code != 2 || !strings.Contains(stderr, missing) {
				t.Errorf("%s without a key, %v: %d %s%s", verb, args, code, out, stderr)
			}
		}
	}
	if err := p.stop(); err != nil {
		t.Errorf("SIGTERM: %v, want exit status 0", err)
	}
}

func TestServeReloads(t *testing.T) {
	file := filepath.Join(t.TempDir(), "dipwell.yaml")
	save := func(text string) {
		t.Helper()
		if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	save("limits:\n  - {name: a, rate: 1, per: 1h, burst: 2}\n  - {name: gone, rate: 1, per: 1s}\n")
	p := start(t, "--config", file, "--listen", "127.0.0.1:0")
	status, _ := post(t, p.url+"/v1/take", "limit=a&key=k&cost=2")
	if status != 200 {
		t.Fatal(status)
	}
	save("limits:\n  - {name: a, rate: 1, per: 1h, burst: 5}\n  - {name: new, rate: 1, per: 1s}\n")
	p.stderr.wait(t, "configuration read again: 2 limits")
	if status, body := post(t, p.url+"/v1/take", "limit=a&key=k&cost=3"); status != 200 {
		t.Error("the larger burst does not count: ", body)
	}
	p.stderr.wait(t, "limit gone is dropped")
	if status, _ = post(t, p.url+"/v1/take", "limit=gone&key=k"); status != 404 {
		t.Error("a limit that left the file: ", status)
	}
	if status, _ = post(t, p.url+"/v1/take", "limit=new&key=j"); status != 200 {
		t.Error("a new limit: ", status)
	}
	save("limits:\n  - {name: a, rate: 1, per: 1h, brust: 9}\n")
	p.stderr.wait(t, `dipwell.yaml:2: limits\[0\]\.brust: unknown setting; did you mean burst\?(?s:.*)last good configuration stays in force`)
	if status, _ = post(t, p.url+"/v1/take", "limit=new&key=k"); status != 200 {
		t.Error("a bad file took a limit away: ", status)
	}
	save("max_keys: 9\nlimits:\n  - {name: a, rate: 1, per: 1h, burst: 9}\n")
	p.stderr.wait(t, "configuration read again: 1 limit\\b(?s:.*)only with a restart")
	if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	p.stderr.wait(t, "(?s:read again: 1 limit\\b.*){2}")
	if status, _ = post(t, p.url+"/v1/take", "limit=a&key=k&cost=4"); status != 200 {
		t.Error(status)
	}
}

func TestServeAdminListener(t *testing.T) {
	p := start(t, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--limit", "api=1/1h")
	if status, _ := post(t, p.url+"/v1/reset", "limit=api&key=k"); status != 403 {
		t.Error(status)
	}
	if status, body := post(t, p.admin+"/v1/reset", "limit=api&key=k"); status != 200 {
		t.Error(status, body)
	}
}

// The main listener does not answer what is only on the admin listener.
func TestServeAdminOnly(t *testing.T) {
	p := start(t, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--admin-only", "metrics,limits", "--limit", "api=1/1h")
	for _, path := range []string{"/metrics", "/v1/limits", "/v1/limits/api"} {
		if status, body := do(t, http.MethodGet, p.url+path, ""); status != 403 || !strings.Contains(body, "admin listener") {
			t.Error(path, status, body)
		}
		if status, body := do(t, http.MethodGet, p.admin+path, ""); status != 200 {
			t.Error(path, status, body)
		}
	}
	if status, body := do(t, http.MethodGet, p.url+"/readyz", ""); status != 200 {
		t.Error(status, body)
	}
}

// The client reads all pages of limits.
func TestLimitsBeyondAPage(t *testing.T) {
	file := filepath.Join(t.TempDir(), "dipwell.yaml")
	text := "limits:\n"
	for i := range 1050 {
		text += fmt.Sprintf("  - {name: l%d, rate: 1, per: 1h}\n", i)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, "--config", file, "--listen", "127.0.0.1:0")
	if code, out, stderr := program(t, "limits", "--server", p.url); code != 0 || strings.Count(out, "\n") != 1050 {
		t.Error(code, strings.Count(out, "\n"), stderr)
	}
	if code, out, stderr := program(t, "limits", "--json", "--server", p.url); code != 0 || strings.Count(out, `"name"`) != 1050 {
		t.Error(code, strings.Count(out, `"name"`), stderr)
	}
}

func TestServeUpstream(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "hello from "+r.URL.Path) }))
	defer up.Close()
	p := start(t, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--limit", "site=1/1h,burst=2", "--upstream", up.URL)
	for i, want := range []int{200, 200, 429} {
		res, err := http.Get(p.url + "/v1/take")
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if res.StatusCode != want || want == 200 && string(body) != "hello from /v1/take" || res.Header.Get("RateLimit-Policy") == "" {
			t.Errorf("request %d: %d, want %d: %s", i, res.StatusCode, want, body)
		}
	}
	if status, body := post(t, p.admin+"/v1/reset", "limit=site&key=127.0.0.1"); status != 200 {
		t.Error(status, body)
	}
	res, err := http.Get(p.url)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Error(res.StatusCode)
	}
}

// Holds that have ended do not stand in the way of others: one request after the other
// passes, however many --max-holds allows at once. A hold of nothing is an error.
func TestServeEndedHolds(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "hello") }))
	defer up.Close()
	p := start(t, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--max-holds", "200", "--limit", "site=20,algorithm=concurrency", "--limit", "a=9/1h,burst=100000", "--upstream", up.URL)
	for i := range 600 {
		res, err := http.Get(p.url)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if res.StatusCode != http.StatusOK || string(body) != "hello" {
			t.Fatalf("request %d: %d %s", i, res.StatusCode, body)
		}
	}
	for i := range 300 {
		id := fmt.Sprint("id=h", i)
		if status, body := post(t, p.admin+"/v1/hold", "limit=a&key=k&ttl=1h&"+id); status != http.StatusOK {
			t.Fatal(i, status, body)
		}
		if status, body := post(t, p.admin+"/v1/settle", "cost=0&"+strings.Replace(id, "id", "hold", 1)); status != http.StatusOK {
			t.Fatal(i, status, body)
		}
	}
	for _, form := range []string{"limit=a&key=k&cost=0&ttl=1h", "limit=site&key=k&cost=0&ttl=1h"} {
		if status, body := post(t, p.admin+"/v1/hold", form); status != http.StatusBadRequest || !strings.Contains(body, "cost") {
			t.Error(form, status, body)
		}
	}
}

// A proxy whose limit another service has dropped is told of the drift. Its file is not
// called invalid when it is read again.
func TestServeUpstreamDrift(t *testing.T) {
	store, dir := sharedStores["redis"](t), t.TempDir()
	save := func(name, text string) string {
		file := filepath.Join(dir, name)
		must(t, os.WriteFile(file+".new", []byte(text), 0o600))
		must(t, os.Rename(file+".new", file))
		return file
	}
	both := limitsOf("", "x=9", "y=9")
	one := start(t, "--config", save("one.yaml", both), "--store", store, "--listen", "127.0.0.1:0")
	two := start(t, "--config", save("two.yaml", both), "--store", store, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--upstream", "http://127.0.0.1:1")
	save("one.yaml", limitsOf("", "y=9"))
	one.stderr.wait(t, "limit x is dropped")
	two.stderr.wait(t, "drift: .*limit x is not in the store; a change of the file or a restart puts them in force")
	must(t, two.cmd.Process.Signal(syscall.SIGHUP))
	two.stderr.wait(t, "configuration read again: 2 limits, unchanged")
	save("two.yaml", both+"# again\n")
	two.stderr.wait(t, "configuration read again: 2 limits\\n(?s:.*)drift has ended")
}

// A file whose limits the proxy cannot take from changes nothing: requests are limited as
// before.
func TestServeUpstreamReloads(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }))
	defer up.Close()
	file := filepath.Join(t.TempDir(), "dipwell.yaml")
	save := func(text string) {
		t.Helper()
		must(t, os.WriteFile(file+".new", []byte(text), 0o600))
		must(t, os.Rename(file+".new", file))
	}
	save("limits:\n  - {name: site, rate: 5, per: 1h}\n")
	p := start(t, "--config", file, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--upstream", up.URL)
	save("limits:\n  - {name: all, rate: 50, per: 1h, shared: true}\n  - {name: site, rate: 6, per: 1h, parent: all}\n")
	p.stderr.wait(t, "limit site has a parent or parts(?s:.*)last good configuration stays in force")
	res, err := http.Get(p.url)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if policy := res.Header.Get("RateLimit-Policy"); res.StatusCode != http.StatusOK || policy != `"site";q=5;w=3600` {
		t.Errorf("%d %s", res.StatusCode, policy)
	}
}

// A proxy that limits nothing says so, at the start and when a file takes the
// last limit away.
func TestServeUpstreamWithoutLimits(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer up.Close()
	const warning = `warning: there is no limit: every request is passed on to http://127`
	start(t, "--listen", "127.0.0.1:0", "--upstream", up.URL).stderr.wait(t, warning)

	file := filepath.Join(t.TempDir(), "dipwell.yaml")
	if err := os.WriteFile(file, []byte("limits: [{name: a, rate: 1, per: 1h}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, "--config", file, "--listen", "127.0.0.1:0", "--upstream", up.URL)
	if err := os.WriteFile(file, []byte("limits: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.stderr.wait(t, warning)
}

// The upstream is asked itself, whatever the environment says of proxies, and
// its failures are in the log.
func TestServeUpstreamWithoutProxy(t *testing.T) {
	var asked atomic.Int64
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	defer elsewhere.Close()
	t.Setenv("HTTP_PROXY", elsewhere.URL)
	t.Setenv("http_proxy", elsewhere.URL)
	p := start(t, "--listen", "127.0.0.1:0", "--limit", "site=1/1h,burst=9", "--upstream", "http://upstream.invalid")
	status, body := do(t, http.MethodGet, p.url, "")
	if status/100 != 5 || asked.Load() != 0 {
		t.Errorf("%d %s, and the proxy of the environment was asked %d times", status, body, asked.Load())
	}
	p.stderr.wait(t, "dipwell: upstream upstream.invalid: ")
}

func TestServeErrors(t *testing.T) {
	for _, args := range [][]string{
		{"--store", "oracle:x"}, {"--limit", "a"}, {"--listen", "nowhere:x"}, {"--upstream", "ftp://x"}, {"--config", "none.yaml"},
		{"--admin", "nowhere:x", "--listen", "127.0.0.1:0"}, {"--limit", "a=1/1s", "--upstream", "http://127.0.0.1:1", "--by", "cookie"}, {"argument"},
		{"--admin-only", "metrics"}, {"--admin", "127.0.0.1:0", "--admin-only", "metrics,limit"}, {"--upstream", "http://u:p@x"}, {"--upstream", "http://x", "--upstream-floor=-1"},
	} {
		code, _, stderr := program(t, append([]string{"serve"}, args...)...)
		if code != 2 || !strings.HasPrefix(stderr, "dipwell: ") {
			t.Errorf("%v: %d %s", args, code, stderr)
		}
	}
}

func TestServeEnvironment(t *testing.T) {
	for _, tc := range [][3]string{
		{"DIPWELL_LISTEN", "127.0.0.1:env", "env"},
		{"DIPWELL_LIMIT", "a=1/1s;a=2/1s", "limit a is given twice"},
		{"DIPWELL_STORE", "pigeon:x", "pigeon:x"},
		{"DIPWELL_CONFIG", "none.yaml", "none.yaml"},
		{"DIPWELL_HEADERS", "ITEF", "ITEF"},
		{"DIPWELL_TRUSTED_PROXIES", "10.0.0.0/8,nobody", "nobody"},
	} {
		t.Run(tc[0], func(t *testing.T) {
			t.Setenv(tc[0], tc[1])
			if code, _, stderr := program(t, "serve"); code != 2 || !strings.Contains(stderr, tc[2]) {
				t.Error(code, stderr)
			}
		})
	}
}
