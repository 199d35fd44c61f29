package main

import (
	"encoding/json"
	"errors"
	"log"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// configFile returns the path of a file of limits, and a function that writes it.
func configFile(t *testing.T) (path string, write func(text string)) {
	path = filepath.Join(t.TempDir(), "dipwell.yaml")
	return path, func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// With --log-format json every line is an object, and names of durations have
// their unit.
func TestEachLineIsJSON(t *testing.T) {
	file, write := configFile(t)
	write("limits:\n  - {name: login, rate: 1, per: 1d, burst: 1}\n")
	p := start(t, "--config", file, "--limit", "two=1/1s,burst=5", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--grpc", "127.0.0.1:0",
		"--log-format", "json", "--log-refusals", "5")
	p.stderr.wait(t, `"msg":"starting","version":"[^"]+","store":"memory:","limits":2,"limit_names":\["two","login"\],"config":".*dipwell.yaml"}`)
	p.stdout.wait(t, `"msg":"serving gRPC","address":"127`)
	post(t, p.url+"/v1/take", "limit=login&key=a")
	post(t, p.url+"/v1/take", "limit=login&key=a")
	p.stderr.wait(t, `"msg":"refused","limit":"login".*"retry_after_us":\d+`)
	write("limits:\n  - {name: login, rate: oops, per: 1d}\n")
	p.stderr.wait(t, `"level":"ERROR","msg":"the last good configuration stays in force","error":".*oops`)
	write("limits:\n  - {name: login, rate: 1, per: 1d, burst: 2}\n")
	p.stderr.wait(t, `"msg":"configuration read again`)
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.stderr.wait(t, `"msg":"stopping"(?s:.*)"msg":"stopped","took_us":\d+}`)
	if err := p.end(nil); err != nil { // a second signal would end it at once
		t.Error(err)
	}
	for _, out := range []*lines{p.stdout, p.stderr} {
		out.mu.Lock()
		checkJSON(t, out.all.String())
		out.mu.Unlock()
	}
}

// Without --log-format each line begins with the name of the program, whatever wrote it.
func TestEachLineIsText(t *testing.T) {
	file, write := configFile(t)
	write("limits:\n  - {name: login, rate: 1, per: 1d, burst: 1}\n")
	p := start(t, "--config", file, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--log-refusals", "5")
	p.stdout.wait(t, `serving admin calls on (\S+) \(page: \S+/ui/\)\n`)
	post(t, p.url+"/v1/take", "limit=login&key=a")
	post(t, p.url+"/v1/take", "limit=login&key=a")
	p.stderr.wait(t, `dipwell: refused limit=login cost=1 source=store key=\S+ retry_after=\S+\n`)
	write("limits:\n  - {name: login, rate: oops, per: 1d}\n")
	p.stderr.wait(t, `dipwell: the last good configuration stays in force\n`)
	checkText(t, p)
	// A store that is away, and an admin call that it fails.
	p = start(t, "--listen", "127.0.0.1:0", "--store", "redis://127.0.0.1:1/0")
	p.stderr.wait(t, `dipwell: store: `)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, p.url+"/v1/limits/other", strings.NewReader(`{"rate":1,"per":"1s"}`))
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusServiceUnavailable {
		t.Error(res.Status)
	}
	p.stderr.wait(t, `change of limit other: `)
	checkText(t, p)
}

// checkText stops a service and checks all that it has written.
func checkText(t *testing.T, p *process) {
	t.Helper()
	if err := p.stop(); err != nil {
		t.Error(err)
	}
	for _, out := range []*lines{p.stdout, p.stderr} {
		out.mu.Lock()
		for line := range strings.Lines(out.all.String()) {
			if !strings.HasPrefix(line, "dipwell: ") {
				t.Errorf("%q", line)
			}
		}
		out.mu.Unlock()
	}
}

// The packages log and slog write as the logger does, a panic's stack too.
func TestTextLog(t *testing.T) {
	old, flags := slog.Default(), log.Flags()
	defer func() { // SetDefault has changed the package log too
		slog.SetDefault(old)
		log.SetOutput(os.Stderr)
		log.SetFlags(flags)
	}()
	var b strings.Builder
	l := &logger{to: &b}
	l.setFormat("")
	slog.Error("http: panic serving\ngoroutine 1")
	slog.Error("\x1b[31mof a client\r")
	slog.Error("'a'")
	slog.Debug("handshake")
	log.Print("of log")
	slog.With("a", 1).WithGroup("g").Info("m", "text", "b c", "msg", "d")
	l.error(errors.New("away"))
	if got, want := b.String(), "dipwell: http: panic serving\ndipwell: goroutine 1\ndipwell: \"\\x1b[31mof a client\\r\"\ndipwell: 'a'\ndipwell: of log\ndipwell: m a=1 g.text=\"b c\" g.msg=d\ndipwell: away\n"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func checkJSON(t *testing.T, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		var l struct {
			Time, Level, Msg string
		}
		if err := json.Unmarshal([]byte(line), &l); err != nil || l.Time == "" || l.Level == "" || l.Msg == "" {
			t.Errorf("%v: %s", err, line)
		}
	}
}

// The error of a failed start is JSON too.
func TestErrorIsJSON(t *testing.T) {
	for _, args := range []string{"--limit login=oops", "--listen 256.0.0.1:1", "--store nowhere:", "--upstream http://x --by nobody"} {
		cmd := built(t, append([]string{"serve", "--log-format", "json"}, strings.Fields(args)...)...)
		var errs strings.Builder
		cmd.Stderr = &errs
		_ = cmd.Run()
		if code := cmd.ProcessState.ExitCode(); code != 2 || !strings.Contains(errs.String(), `"level":"ERROR"`) {
			t.Errorf("%s: %d %s", args, code, errs.String())
		}
		checkJSON(t, errs.String())
	}
}

// The start is also logged as text, without passwords.
func TestStartLine(t *testing.T) {
	p := start(t, "--listen", "127.0.0.1:0", "--limit", "a=1/1s", "--limit", "b=1/1s", "--store", "redis://user:secret@127.0.0.1:1/0")
	m := p.stderr.wait(t, `dipwell: starting version=(\S+) store=redis://\.\.\.@127\.0\.0\.1:1/0 limits=2 limit_names="\[a b\]"\n`)
	if m[1] == "" || strings.Contains(m[0], "secret") {
		t.Error(m[0])
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.stderr.wait(t, `dipwell: stopping\ndipwell: stopped took=`)
}
