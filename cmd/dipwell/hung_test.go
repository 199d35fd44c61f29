package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/internal/redistest"
)

// A store that hangs holds its connections and says nothing, which is worse
// than one that is gone. Each limit answers by its own mode within its own
// timeout, /readyz is red meanwhile, and all heals without a restart.
func TestHungStore(t *testing.T) {
	t.Run("postgres", func(t *testing.T) {
		db := pgtest.Start(t, "fsync=off")
		dsn := db.DSN("postgres")
		if code, _, stderr := program(t, "migrate", "up", "--store", dsn); code != 0 {
			t.Fatal(stderr)
		}
		hungStore(t, dsn, func() error { return db.SignalAll(syscall.SIGSTOP) }, func() error { return db.SignalAll(syscall.SIGCONT) })
	})
	t.Run("redis", func(t *testing.T) {
		db := redistest.Start(t)
		hungStore(t, db.URL(), db.Hang, db.Continue)
	})
}

const hungTimeout = 100 * time.Millisecond

func hungStore(t *testing.T, url string, hang, goOn func() error) {
	p := start(t, "--listen", "127.0.0.1:0", "--store", url, "--log-refusals", "0",
		"--limit", "closed=1000/1s,timeout=100ms", "--limit", "open=1000/1s,timeout=100ms,on_store_error=open",
		"--limit", "local=1/1d,burst=3,timeout=100ms,on_store_error=local", "--limit", "shadow=1/1d,mode=shadow,timeout=100ms")
	ready := func(want int) func() error {
		return func() error {
			if status, body := do(t, "GET", p.url+"/readyz", ""); status != want {
				return fmt.Errorf("/readyz is %d, want %d: %s", status, want, body)
			}
			return nil
		}
	}
	eventually(t, ready(200))
	for _, form := range []string{"limit=closed&key=k", "limit=open&key=k", "limit=local&key=k&cost=2", "limit=shadow&key=k", "limit=shadow&key=k"} {
		if status, body := post(t, p.url+"/v1/take", form); status != 200 || !strings.Contains(body, `"source":"store"`) {
			t.Fatalf("%s: %d %s", form, status, body)
		}
	}
	if err := hang(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = goOn() }()
	noop := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, `{"allowed":true}`)
	}))
	defer noop.Close()
	var worst, control longest
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			for n := range 5 {
				key := fmt.Sprint("key=", i, "-", n)
				control.of(func() { post(t, noop.URL, key) })
				for _, tc := range []struct {
					limit, want string
					status      int
				}{{"closed", "", 503}, {"open", "fallback-open", 200}, {"local", "fallback-local", 200}, {"shadow", "", 503}} {
					var status int
					var body string
					worst.of(func() { status, body = post(t, p.url+"/v1/take", "limit="+tc.limit+"&"+key) })
					if status != tc.status || !strings.Contains(body, tc.want) {
						t.Errorf("%s while the store hangs: %d %s", tc.limit, status, body)
					}
				}
			}
		})
	}
	wg.Wait()
	t.Logf("320 calls of 16 clients: the slowest %v, its timeout %v, the slowest no-op %v", worst.d, hungTimeout, control.d)
	if slack := 100 * time.Millisecond; worst.d > hungTimeout+control.d+slack { // slack for two loaded cores
		t.Errorf("an answer took %v: its timeout is %v, and a no-op took %v", worst.d, hungTimeout, control.d)
	}
	// What this process last knew of the key: 2 of 3 were taken.
	for i, want := range []int{200, 429} {
		if status, body := post(t, p.url+"/v1/take", "limit=local&key=k"); status != want || !strings.Contains(body, "fallback-local") {
			t.Errorf("local call %d: %d %s", i, status, body)
		}
	}
	if err := ready(503)(); err != nil {
		t.Error(err)
	}
	_, metrics := do(t, "GET", p.url+"/metrics", "")
	for _, line := range []string{`dipwell_fallbacks_total{kind="open",limit="open"} 80`, `dipwell_fallbacks_total{kind="closed",limit="closed"} 80`,
		`dipwell_fallbacks_total{kind="local",limit="local"} 82`, `dipwell_store_errors_total 160`} {
		if !strings.Contains(metrics, line) {
			t.Errorf("%s is not in /metrics:\n%s", line, grep(metrics, line[:20]))
		}
	}
	if err := goOn(); err != nil {
		t.Fatal(err)
	}
	eventually(t, ready(200))
	eventually(t, func() error {
		if status, body := post(t, p.url+"/v1/take", "limit=closed&key=after"); status != 200 || !strings.Contains(body, `"source":"store"`) {
			return errors.New(body)
		}
		return nil
	})
	if err := p.stop(); err != nil {
		t.Errorf("SIGTERM: %v, want exit status 0", err)
	}
}

// longest is the longest of some calls.
type longest struct {
	mu sync.Mutex
	d  time.Duration
}

func (l *longest) of(f func()) {
	start := time.Now()
	f()
	took := time.Since(start)
	l.mu.Lock()
	l.d = max(l.d, took)
	l.mu.Unlock()
}

func grep(text, part string) (out string) {
	for line := range strings.Lines(text) {
		if strings.Contains(line, part) {
			out += line
		}
	}
	return out
}
