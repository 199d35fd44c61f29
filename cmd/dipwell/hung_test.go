package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/internal/redistest"
)

// A store that hangs keeps its connections open and does not answer. Each limit
// answers by its failure mode within its timeout, /readyz answers 503, and the
// service recovers without a restart.
func TestHungStore(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Start(t, "fsync=off")
		dsn := db.DSN("postgres")
		if code, _, stderr := program(t, "migrate", "up", "--store", dsn); code != 0 {
			t.Fatal(stderr)
		}
		hungStore(t, dsn, func() error { return db.SignalAll(syscall.SIGSTOP) }, func() error { return db.SignalAll(syscall.SIGCONT) })
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		db := redistest.Start(t)
		hungStore(t, db.URL(), db.Hang, db.Continue)
	})
}

const (
	hungTimeout = 500 * time.Millisecond
	hungClients = 16 // of each limit
	hungRounds  = 2
	// hungSlack is the time that a loaded machine may add, beyond the control's. A
	// call that ignores its limit's timeout would take five seconds.
	hungSlack = 4 * time.Second
)

func hungStore(t *testing.T, url string, hang, goOn func() error) {
	p := start(t, "--listen", "127.0.0.1:0", "--store", url, "--log-refusals", "0",
		"--limit", "closed=1000/1s,timeout=500ms", "--limit", "open=1000/1s,timeout=500ms,on_store_error=open",
		"--limit", "local=1/1d,burst=3,timeout=500ms,on_store_error=local", "--limit", "shadow=1/1d,mode=shadow,timeout=500ms")
	ready := func(want int) func() error {
		return func() error {
			if status, body := do(t, "GET", p.url+"/readyz", ""); status != want || status == 503 && !strings.Contains(body, "it does not answer in time") {
				return fmt.Errorf("/readyz is %d, want %d: %s", status, want, body)
			}
			return nil
		}
	}
	eventually(t, ready(200))
	known := 0 // the key of which this process learns from the store; a busy machine may time one out
	eventually(t, func() error {
		known++
		for _, form := range []string{"limit=closed", "limit=open", "limit=local&cost=2", "limit=shadow", "limit=shadow"} {
			if status, body := post(t, p.url+"/v1/take", fmt.Sprint(form, "&key=k", known)); status != 200 || !strings.Contains(body, `"source":"store"`) {
				return fmt.Errorf("%s: %d %s", form, status, body)
			}
		}
		return nil
	})
	_, before := do(t, "GET", p.url+"/metrics", "")
	if err := hang(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = goOn() }()
	noop := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		ctx, cancel := context.WithTimeout(r.Context(), hungTimeout) // as long as a limit waits, so that as many wake up at once
		defer cancel()
		<-ctx.Done()
		fmt.Fprint(w, `{"allowed":true}`)
	}))
	defer noop.Close()
	var worst, control longest
	var wg sync.WaitGroup
	for i := range hungClients {
		for _, tc := range []struct {
			limit, want string
			status      int
		}{{"closed", "", 503}, {"open", "fallback-open", 200}, {"local", "fallback-local", 200}, {"shadow", `"shadow":true,"source":"fallback-open"`, 200}} {
			wg.Go(func() {
				for n := range hungRounds {
					form := fmt.Sprint("limit=", tc.limit, "&key=", i, "-", n)
					control.of(func() { post(t, noop.URL, form) })
					var status int
					var body string
					worst.of(func() { status, body = post(t, p.url+"/v1/take", form) })
					if status != tc.status || !strings.Contains(body, tc.want) {
						t.Errorf("%s while the store hangs: %d %s", tc.limit, status, body)
					}
				}
			})
		}
	}
	wg.Wait()
	t.Logf("%d calls of %d clients: the slowest %v, its timeout %v, the slowest no-op that waits as long %v", 4*hungClients*hungRounds, 4*hungClients, worst.d, hungTimeout, control.d)
	if worst.d > control.d+hungSlack {
		t.Errorf("an answer took %v: its timeout is %v, and a no-op that waits as long took %v", worst.d, hungTimeout, control.d)
	}
	// What this process last knew of the key: 2 of 3 were taken.
	for i, want := range []int{200, 429} {
		if status, body := post(t, p.url+"/v1/take", fmt.Sprint("limit=local&key=k", known)); status != want || !strings.Contains(body, "fallback-local") {
			t.Errorf("local call %d: %d %s", i, status, body)
		}
	}
	if err := ready(503)(); err != nil {
		t.Error(err)
	}
	_, after := do(t, "GET", p.url+"/metrics", "")
	if metric(t, after, "dipwell_store_breaker_open") != 1 || metric(t, after, "dipwell_store_breaker_calls_total") == 0 {
		t.Error("the breaker is not open")
	}
	p.stderr.wait(t, "store: the store does not answer")
	const asked = hungClients * hungRounds
	for name, want := range map[string]int{`dipwell_fallbacks_total{kind="open",limit="open"}`: asked, `dipwell_fallbacks_total{kind="closed",limit="closed"}`: asked, `dipwell_fallbacks_total{kind="open",limit="shadow"}`: asked,
		`dipwell_fallbacks_total{kind="local",limit="local"}`: asked + 2, "dipwell_store_errors_total": asked} {
		if got := metric(t, after, name) - metric(t, before, name); got != want {
			t.Errorf("%s went up by %d, want %d", name, got, want)
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
	if _, after = do(t, "GET", p.url+"/metrics", ""); metric(t, after, "dipwell_store_breaker_open") != 0 {
		t.Error("the breaker is still open")
	}
	p.stderr.wait(t, "store: it answers again")
	if err := p.stop(); err != nil {
		t.Errorf("SIGTERM: %v, want exit status 0", err)
	}
}

// longest returns the longest of some calls.
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

// metric returns the value of a counter on /metrics.
func metric(t *testing.T, text, name string) int {
	t.Helper()
	_, rest, ok := strings.Cut(text, "\n"+name+" ")
	value, _, _ := strings.Cut(rest, "\n")
	n, err := strconv.Atoi(value)
	if !ok || err != nil {
		t.Errorf("%s is not in /metrics", name)
	}
	return n
}
