package examples

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/dipwell/dipwell/internal/procs"
)

// The proxies' real programs run the files of this directory; only the ports
// are changed, so that tests can run side by side.
func TestProxies(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "dipwell")
	if out, err := exec.Command("go", "build", "-o", bin, "../cmd/dipwell").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, p := range []struct {
		name    string
		program string
		files   []string
		args    func(dir string) []string
	}{
		{"nginx", "nginx", []string{"nginx/nginx.conf"}, func(dir string) []string {
			return []string{"-p", dir, "-c", "nginx.conf", "-e", "stderr", "-g", "daemon off; pid " + dir + "/nginx.pid;"}
		}},
		{"haproxy", "haproxy", []string{"haproxy/haproxy.cfg", "haproxy/dipwell.lua"}, func(dir string) []string {
			return []string{"-db", "-C", dir, "-f", "haproxy.cfg"}
		}},
		{"caddy", "caddy", []string{"caddy/Caddyfile"}, func(dir string) []string {
			return []string{"run", "--adapter", "caddyfile", "--config", filepath.Join(dir, "Caddyfile")}
		}},
	} {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			program, err := find(p.program)
			if err != nil {
				if os.Getenv("CI") == "true" {
					t.Fatal(err)
				}
				t.Skip(err)
			}
			s := &site{t: t, dir: t.TempDir(), bin: bin}
			s.app()
			s.limiter()
			s.copy(p.files...)
			s.run(program, p.args(s.dir)...)
			s.check()
		})
	}
}

// TestPassWithoutLimiter takes away the # in nginx.conf by which requests pass while dipwell
// does not answer. Answers of dipwell count as before.
func TestPassWithoutLimiter(t *testing.T) {
	program, err := find("nginx")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	s := &site{t: t, dir: t.TempDir()}
	s.app()
	s.copy("nginx/nginx.conf")
	file := filepath.Join(s.dir, "nginx.conf")
	const marked = "#error_page 502 504"
	text, err := os.ReadFile(file)
	if err != nil || strings.Count(string(text), marked) != 1 {
		t.Fatal("not one", marked, err)
	}
	if err = os.WriteFile(file, []byte(strings.Replace(string(text), marked, marked[1:], 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	s.run(program, "-p", s.dir, "-c", "nginx.conf", "-e", "stderr", "-g", "daemon off; pid "+s.dir+"/nginx.pid;")
	s.await(s.url("127.0.0.1", "/"), func(r *http.Response) bool { return r.StatusCode == http.StatusOK }) // nothing listens
	if r, body := s.get("127.0.0.1", "/a"); r.StatusCode != http.StatusOK || !strings.HasPrefix(body, "app GET /a") {
		t.Errorf("nothing listens: %s %s", r.Status, body)
	}
	for _, tc := range []struct{ answer, want int }{{200, 200}, {403, 429}, {503, 500}, {0, 200}} { // 0: none
		l, err := net.Listen("tcp", "127.0.0.1:"+s.ports.limiter)
		if err != nil {
			t.Fatal(err)
		}
		limiter := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if tc.answer == 0 {
				<-r.Context().Done()
				return
			}
			w.WriteHeader(tc.answer)
		})}
		done := make(chan struct{})
		go func() { defer close(done); _ = limiter.Serve(l) }()
		if r, _ := s.get("127.0.0.1", "/"); r.StatusCode != tc.want {
			t.Errorf("the answer is %d: %s, want %d", tc.answer, r.Status, tc.want)
		}
		_ = limiter.Close()
		<-done
	}
}

// A site is an app, a limiter and a proxy in front of them.
type site struct {
	t     *testing.T
	dir   string
	bin   string
	ports struct{ proxy, app, limiter string }
	seen  atomic.Int64 // requests that came to the app
	dip   *exec.Cmd
}

func (s *site) app() {
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.seen.Add(1)
		if r.URL.Path == "/forbidden" {
			w.WriteHeader(http.StatusForbidden)
		}
		fmt.Fprintf(w, "app %s %s %s", r.Method, r.URL.Path, r.URL.RawQuery)
	}))
	s.t.Cleanup(app.Close)
	u, _ := url.Parse(app.URL)
	s.ports.app, s.ports.limiter, s.ports.proxy = u.Port(), freePort(s.t), freePort(s.t)
}

// limiter starts the service on examples/proxies.yaml, with tokens that come
// back far too slowly for a busy machine to see one.
func (s *site) limiter() {
	s.copy("proxies.yaml")
	s.dip = s.run(s.bin, "serve", "--config", filepath.Join(s.dir, "proxies.yaml"))
	s.await("http://127.0.0.1:"+s.ports.limiter+"/readyz", func(r *http.Response) bool { return r.StatusCode == http.StatusOK })
}

// copy copies files of this directory with the ports that are free here.
func (s *site) copy(files ...string) {
	ports := strings.NewReplacer("127.0.0.1:8080", "127.0.0.1:"+s.ports.limiter, "127.0.0.1:3000", "127.0.0.1:"+s.ports.app,
		"127.0.0.1:8000", "127.0.0.1:"+s.ports.proxy, "http://:8000", "http://:"+s.ports.proxy, "per: 1m", "per: 1d",
		"dipwell-limiter", "dipwell-"+s.ports.limiter)
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err == nil {
			err = os.WriteFile(filepath.Join(s.dir, filepath.Base(f)), []byte(ports.Replace(string(b))), 0o644)
		}
		if err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *site) run(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	cmd.Env = append(os.Environ(), "XDG_CONFIG_HOME="+s.dir, "XDG_DATA_HOME="+s.dir, "HOME="+s.dir)
	log := &strings.Builder{}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		stop(cmd)
		if s.t.Failed() {
			s.t.Logf("%s said:\n%s", filepath.Base(program), log)
		}
	})
	return cmd
}

// stop ends a program in order, with what it started, and at once if it will not.
func stop(cmd *exec.Cmd) {
	if cmd.ProcessState != nil {
		return
	}
	_ = cmd.Process.Signal(syscall.SIGTERM)
	late := time.AfterFunc(10*time.Second, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	defer late.Stop()
	_ = cmd.Wait()
}

// check asks through the proxy what a client could ask.
func (s *site) check() {
	t := s.t
	s.await(s.url("127.0.0.1", "/"), func(r *http.Response) bool { return r.StatusCode == http.StatusOK })
	s.seen.Store(0)

	for i := range 20 { // the burst of a client that has not been here yet
		r, body := s.get("127.0.0.7", "/a?limit=other&key=x&key_ip=0&deny=401", "Origin", "https://elsewhere.example",
			"Sec-Fetch-Site", "cross-site", "X-Forwarded-For", "203.0.113."+strconv.Itoa(i), "Authorization", "Bearer x")
		if r.StatusCode != http.StatusOK || body != "app GET /a limit=other&key=x&key_ip=0&deny=401" {
			t.Fatalf("request %d: %s %q", i, r.Status, body)
		}
		if got, want := r.Header.Get("RateLimit"), fmt.Sprintf(`"site";r=%d;`, 19-i); !strings.HasPrefix(got, want) {
			t.Fatalf("request %d: RateLimit: %q, want %s…", i, got, want)
		}
		if got := r.Header.Get("RateLimit-Policy"); got != `"site";q=20;w=345600` {
			t.Fatalf("RateLimit-Policy: %q", got)
		}
	}
	r, body := s.get("127.0.0.7", "/a", "X-Forwarded-For", "203.0.113.99")
	retry, err := strconv.Atoi(r.Header.Get("Retry-After"))
	if r.StatusCode != http.StatusTooManyRequests || err != nil || retry < 1 || retry > 17280 {
		t.Fatalf("the request after the burst: %s, Retry-After: %q, %s", r.Status, r.Header.Get("Retry-After"), body)
	}
	if !strings.Contains(body, "quota-exceeded") || !strings.HasPrefix(r.Header.Get("Content-Type"), "application/problem+json") ||
		r.Header.Get("Cache-Control") != "no-store" || !strings.HasPrefix(r.Header.Get("RateLimit"), `"site";r=0;`) {
		t.Fatalf("a refusal as %v %s", r.Header, body)
	}
	if r, _ := s.post("127.0.0.7", "/a", strings.Repeat("x", 100_000)); r.StatusCode != http.StatusTooManyRequests {
		t.Fatalf("a refused client's POST: %s", r.Status)
	}
	if n := s.seen.Load(); n != 20 {
		t.Fatalf("%d requests came to the app, want 20", n)
	}
	if r, body := s.post("127.0.0.8", "/b", "some text"); r.StatusCode != http.StatusOK || body != "app POST /b " {
		t.Fatalf("another client: %s %s", r.Status, body)
	}
	if r, body := s.get("127.0.0.8", "/forbidden"); r.StatusCode != http.StatusForbidden || !strings.HasPrefix(body, "app") {
		t.Fatalf("the app's own 403: %s %s", r.Status, body)
	}
	// The path that asks is nobody's outside: it is the app's, or nowhere.
	for _, path := range []string{"/_limit", "/v1/auth?limit=site&key=me"} {
		if r, body := s.get("127.0.0.8", path); r.StatusCode != http.StatusNotFound && !strings.HasPrefix(body, "app") {
			t.Fatalf("%s from outside: %s %s", path, r.Status, body)
		}
	}

	s.withoutLimiter()
}

// withoutLimiter asks while the limiter hangs, is gone, or takes connections
// and says nothing: the client is refused before any of that changes, and
// nothing comes to the app.
func (s *site) withoutLimiter() {
	t := s.t
	before := s.seen.Load()
	refused := func(what string) {
		t.Helper()
		begun := time.Now()
		if r, _ := s.get("127.0.0.9", "/"); r.StatusCode < http.StatusInternalServerError {
			t.Fatalf("%s: %s", what, r.Status)
		}
		t.Logf("%s: refused after %v", what, time.Since(begun))
	}
	for range 2 { // the first may find a connection that is open already
		s.freeze()
		refused("the limiter is stopped")
		refused("the limiter is stopped")
		_ = s.dip.Process.Signal(syscall.SIGCONT)
	}
	_ = s.dip.Process.Kill()
	_ = s.dip.Wait()
	refused("the limiter is killed")

	l, err := net.Listen("tcp", "127.0.0.1:"+s.ports.limiter)
	if err != nil {
		t.Fatal(err)
	}
	var tries atomic.Int64
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			tries.Add(1)
			t.Cleanup(func() { _ = c.Close() })
		}
	}()
	refused("the limiter says nothing")
	if n := tries.Load(); n != 1 {
		t.Errorf("a limiter that says nothing was asked %d times for one request", n)
	}
	_ = l.Close()
	if n := s.seen.Load(); n != before {
		t.Fatalf("without the limiter %d requests came to the app", n-before)
	}
	s.limiter()
	s.await(s.url("127.0.0.9", "/"), func(r *http.Response) bool { return r.StatusCode == http.StatusOK })
}

// freeze stops the limiter, and returns when all of it stands still.
func (s *site) freeze() {
	s.t.Helper()
	if err := s.dip.Process.Signal(syscall.SIGSTOP); err != nil {
		s.t.Fatal(err)
	}
	var status syscall.WaitStatus
	for {
		_, err := syscall.Wait4(s.dip.Process.Pid, &status, syscall.WUNTRACED, nil)
		if err == nil && status.Stopped() {
			return
		}
		if !errors.Is(err, syscall.EINTR) {
			s.t.Fatal(err, status)
		}
	}
}

func (s *site) url(_, path string) string { return "http://127.0.0.1:" + s.ports.proxy + path }

// dial opens connections from an address of this machine's own.
func dial(addr string) *net.Dialer {
	return &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(addr)}, Timeout: time.Minute}
}

// answer is what there is to say of a response that has been read.
type answer struct {
	StatusCode int
	Status     string
	Header     http.Header
}

func (s *site) get(addr, path string, headers ...string) (answer, string) {
	return s.do(addr, http.MethodGet, path, nil, headers...)
}

func (s *site) post(addr, path, body string) (answer, string) {
	return s.do(addr, http.MethodPost, path, strings.NewReader(body))
}

func (s *site) do(addr, method, path string, body io.Reader, headers ...string) (answer, string) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(context.Background(), method, s.url(addr, path), body)
	if err != nil {
		s.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	c, err := dial(addr).DialContext(r.Context(), "tcp", r.URL.Host)
	if err != nil {
		s.t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	// A proxy may refuse before it has read the body, and close: the rest of
	// the body then has nowhere to go, but the answer is there to be read.
	// http.Client returns the failed write in place of it.
	r.Close = true
	go func() { _ = r.Write(c) }()
	res, err := http.ReadResponse(bufio.NewReader(c), r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return answer{res.StatusCode, res.Status, res.Header}, string(b)
}

func (s *site) await(url string, ok func(*http.Response) bool) {
	s.t.Helper()
	client := &http.Client{Transport: &http.Transport{DialContext: dial("127.0.0.1").DialContext, DisableKeepAlives: true}, Timeout: time.Minute}
	var last error
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for begun := time.Now(); time.Since(begun) < 2*time.Minute; <-again.C {
		r, err := client.Get(url)
		if last = err; err != nil {
			continue
		}
		_ = r.Body.Close()
		if ok(r) {
			return
		}
		last = errors.New(r.Status)
	}
	s.t.Fatalf("%s: %v", url, last)
}

func freePort(t *testing.T) string {
	t.Helper()
	port, err := procs.Port()
	if err != nil {
		t.Fatal(err)
	}
	return strconv.Itoa(port)
}

// find looks where Debian keeps servers, too.
func find(program string) (string, error) {
	if path, err := exec.LookPath(program); err == nil {
		return path, nil
	}
	if path := "/usr/sbin/" + program; exec.Command(path, "-v").Run() == nil {
		return path, nil
	}
	return "", fmt.Errorf("%s is not installed here (Debian: apt-get install %s)", program, program)
}
