package main

import (
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/dipwell/dipwell/internal/redistest"
	"github.com/dipwell/dipwell/internal/server"
)

// keepAsking calls a limit until the test ends, so that there is something to see.
func keepAsking(t *testing.T, url string, forms ...string) {
	t.Helper()
	done, stopped := make(chan struct{}), make(chan struct{})
	pause := time.NewTicker(2 * time.Millisecond)
	go func() {
		defer close(stopped)
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			case <-pause.C:
				res, err := http.Post(url+"/v1/take", "application/x-www-form-urlencoded", strings.NewReader(forms[i%len(forms)]))
				if err != nil {
					t.Error(err)
					return
				}
				_ = res.Body.Close()
			}
		}
	}()
	t.Cleanup(func() { pause.Stop(); close(done); <-stopped })
}

func TestTopOnce(t *testing.T) {
	p := start(t, "--listen", "127.0.0.1:0", "--limit", "login=1/1d,burst=1", "--limit", "api=1000000/1s", "--limit", "all=1000000/1s,shared=true")
	keepAsking(t, p.url, "limit=login&key=greedy", "limit=api&key=calm", "limit=login&key=greedy", "limit=api&key=%1b%5b2Jevil", "limit=all")
	top := func(args ...string) string {
		t.Helper()
		out, err := built(t, append([]string{"top", "--server", p.url, "--interval", "300ms"}, args...)...).Output()
		if err != nil {
			t.Fatal(err, string(out))
		}
		return string(out)
	}
	eventually(t, func() error { // a machine may be too busy for each call to come within an interval
		text := top() // standard output is no terminal
		for _, want := range []string{"decisions ", "LIMIT\n", "BUSIEST KEYS", "login greedy\n", "api calm\n", "all (shared)\n", `api "\x1b[2Jevil"`, "MOST REFUSED KEYS"} {
			if !strings.Contains(text, want) {
				return fmt.Errorf("%q is not in\n%s", want, text)
			}
		}
		if strings.Contains(text, "\x1b") {
			t.Errorf("a key reached the terminal as it is, or a report is coloured:\n%q", text)
		}
		return nil
	})
	eventually(t, func() error {
		text := top("--limit", "login", "-n", "1")
		if m := regexp.MustCompile(`decisions ([\d.]+)/s, refused ([\d.]+)/s \(100\.0 %\)`).FindStringSubmatch(text); m == nil || m[1] != m[2] || m[1] == "0" ||
			!strings.Contains(text, "login greedy\n") || strings.Contains(text, "api") {
			return errors.New(text)
		}
		return nil
	})
}

func TestTopErrors(t *testing.T) {
	url := startAPI(t, server.Config{AdminToken: "s3cret"}, "login=5/1m")
	for _, tc := range [][2]string{
		{"--interval 1ms", "interval: 1ms is not between"},
		{"--interval 1m", "interval: 1m0s is not between"},
		{"-n 0", "n: 0 is not between"},
		{"--once", "admin token"},
		{"--server http://127.0.0.1:1", "connection refused"},
	} {
		code, _, stderr := program(t, append([]string{"top", "--server", url}, strings.Fields(tc[0])...)...)
		if code != 2 || !strings.Contains(stderr, tc[1]) {
			t.Errorf("%s: %d %s", tc[0], code, stderr)
		}
	}
	t.Setenv("DIPWELL_ADMIN_TOKEN", "s3cret")
	if code, _, stderr := program(t, "top", "--server", url, "--limit", "nobody"); code != 2 || !strings.Contains(stderr, `unknown limit "nobody"`) {
		t.Error(code, stderr)
	}
	if code, out, stderr := program(t, "top", "--server", url, "--interval", "100ms"); code != 0 || !strings.Contains(out, "decisions 0/s") {
		t.Error(code, out, stderr)
	}
}

// TestTopHour checks that a service keeps the keys of its last hour when it ends, and that
// another one prints them.
func TestTopHour(t *testing.T) {
	for name, store := range map[string]func() string{
		"file":     func() string { return "file:" + filepath.Join(t.TempDir(), "dipwell.db") },
		"redis":    func() string { return redistest.Start(t).URL() },
		"postgres": func() string { return migratedDatabase(t) },
	} {
		t.Run(name, func(t *testing.T) { keepsHour(t, store()) })
	}
}

func keepsHour(t *testing.T, store string) {
	t.Helper()
	args := []string{"--listen", "127.0.0.1:0", "--store", store, "--limit", "login=5/1d,burst=20"}
	p := start(t, args...)
	from := time.Now()
	for range 23 {
		res, err := http.Post(p.url+"/v1/take", "application/x-www-form-urlencoded", strings.NewReader("limit=login&key=greedy"))
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
	}
	to := time.Now()
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	p = start(t, args...)
	var all string
	for _, at := range []time.Time{from, to} { // two if an hour has just begun
		code, out, stderr := program(t, "top", "--server", p.url, "--hour", at.Format(time.RFC3339))
		if code != 0 {
			t.Fatal(code, stderr)
		}
		all += out
	}
	for _, want := range []string{", 1 service: ", "BUSIEST KEYS, 1h", "login greedy\n", "MOST REFUSED KEYS, 1h"} {
		if !strings.Contains(all, want) {
			t.Errorf("%q is not in\n%s", want, all)
		}
	}
	if code, out, _ := program(t, "top", "--server", p.url, "--hour", "9h"); code != 0 || !strings.Contains(out, "nothing is kept of the hour") {
		t.Error(code, out)
	}
	if code, _, stderr := program(t, "top", "--server", p.url, "--hour", "noon"); code != 2 || !strings.Contains(stderr, `hour: "noon" is neither`) {
		t.Error(code, stderr)
	}
}

// A service that was begun anew between two answers counts from zero.
func TestTopCompares(t *testing.T) {
	old := &server.TopNow{At: 1e6, StoreErrors: 5, Limits: []server.LimitCounts{{Limit: "a", Allowed: 10, Refused: 2}, {Limit: "b", Allowed: 900}}}
	now := &server.TopNow{At: 3e6, StoreErrors: 9, Limits: []server.LimitCounts{{Limit: "a", Allowed: 20, Refused: 6, Shadow: 2}, {Limit: "b", Allowed: 4}, {Limit: "c", Fallback: 2, Refused: 2}}}
	r := compare(old, now)
	if got, want := fmt.Sprint(r.byLimit), "[{a 8 2 1 0} {c 1 1 0 1} {b 2 0 0 0}]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if r.all.decisions != 11 || r.all.refused != 3 || r.errors != 2 {
		t.Errorf("%+v", r)
	}
}
