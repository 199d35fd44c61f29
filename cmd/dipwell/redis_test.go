package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/dipwell/dipwell/internal/redistest"
)

// A service on Redis enforces limits, starts before its server, survives a
// crash of it, and restores the limits of a server that restarts empty.
func TestServeRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	server.Stop()
	p := start(t, "--listen", "127.0.0.1:0", "--store", server.URL(), "--limit", "login=1/1d,burst=5", "--limit", "local=1/1d,on_store_error=local")
	ready := func(want int) func() error {
		return func() error {
			if status, body := do(t, "GET", p.url+"/readyz", ""); status != want || status == 503 && !strings.Contains(body, "connection refused") {
				return fmt.Errorf("/readyz is %d %s", status, body)
			}
			return nil
		}
	}
	if status, body := post(t, p.url+"/v1/take", "limit=local&key=k"); status != 200 || !strings.Contains(body, "fallback-local") {
		t.Errorf("before the server is there: %d %s", status, body)
	}
	for _, form := range []string{"limit=login&key=a", "limit=login&key=b"} { // the deny cache keeps a refusal for a second
		eventually(t, ready(503))
		if status, body := post(t, p.url+"/v1/take", form); status != 503 {
			t.Errorf("without a server: %d %s", status, body)
		}
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, ready(200))
		for i, want := range []int{200, 200, 200, 200, 200, 429} {
			if status, body := post(t, p.url+"/v1/take", form); status != want {
				t.Fatalf("call %d: %d, want %d: %s", i, status, want, body)
			}
		}
		server.Kill()
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, ready(200))
	eventually(t, func() error {
		if code, out, stderr := program(t, "take", "login", "user:8", "--store", server.URL()); code != 0 {
			return fmt.Errorf("%d %s %s", code, out, stderr)
		}
		return nil
	})
	if code, out, stderr := program(t, "keys", "login", "--store", server.URL()); code != 0 || !strings.Contains(out, "user:8") {
		t.Errorf("keys: %d %s %s", code, out, stderr)
	}
	_, refusals, _ := program(t, "inspect", "login", "b", "--server", p.url)
	for _, part := range []string{" cost 1, because the store did not answer", " cost 1, retry after "} {
		if !strings.Contains(refusals, part) {
			t.Errorf("%q is not among the refusals of a key: %s", part, refusals)
		}
	}
	if _, top := do(t, "GET", p.url+"/v1/top", ""); !strings.Contains(top, `"refused":{"counted":2,`) { // one of a, one of b
		t.Error(top)
	}
	if code, _, stderr := program(t, "migrate", "status", "--store", server.URL()); code != 2 || !strings.Contains(stderr, "no schema") {
		t.Errorf("migrate: %d %s", code, stderr)
	}
	if err := p.stop(); err != nil {
		t.Error(err)
	}
}

// Answers of the deny cache are counted on /metrics.
func TestServeDenyCacheCounts(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	p := start(t, "--listen", "127.0.0.1:0", "--store", server.URL(), "--limit", "login=1/1d,burst=5", "--deny-max-age", "1h")
	for i, want := range []int{200, 200, 200, 200, 200, 429, 429, 429} {
		if status, body := post(t, p.url+"/v1/take", "limit=login&key=a"); status != want {
			t.Fatalf("call %d: %d, want %d: %s", i, status, want, body)
		}
	}
	_, metrics := do(t, "GET", p.url+"/metrics", "")
	for _, line := range []string{"dipwell_deny_cache_hits_total 2", "dipwell_deny_cache_misses_total 6", "dipwell_deny_cache_refusals_total 2", "dipwell_deny_cache_keys 1"} {
		if !strings.Contains(metrics, "\n"+line+"\n") {
			t.Errorf("%q is not on /metrics", line)
		}
	}
}

// A service and the commands work as the Redis user that
// docs/reference/redis.md describes.
func TestServeRedisLeastPrivilege(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	if err := server.Grant("../../docs/reference/redis.md", "dipwell"); err != nil {
		t.Fatal(err)
	}
	store := strings.Replace(server.URL(), "://", "://dipwell:PASSWORD@", 1)
	p := start(t, "--listen", "127.0.0.1:0", "--store", store, "--limit", "login=1/1d,burst=5")
	eventually(t, func() error {
		if status, body := do(t, "GET", p.url+"/readyz", ""); status != 200 {
			return fmt.Errorf("/readyz is %d %s", status, body)
		}
		return nil
	})
	for _, path := range []string{"/v1/take", "/v1/check", "/v1/take_up_to", "/v1/reserve", "/v1/charge", "/v1/refund", "/v1/reset"} {
		if status, body := post(t, p.url+path, "limit=login&key=k"); status != 200 {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	for _, path := range []string{"/metrics", "/v1/limits", "/v1/limits/login/keys"} {
		if status, body := do(t, "GET", p.url+path, ""); status != 200 {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	if code, found := doctor(t, "--store", store); code != 0 {
		t.Errorf("doctor: %d %v", code, found)
	}
	for _, args := range [][]string{{"take", "login", "k"}, {"keys", "login"}, {"limits"}} {
		if code, out, stderr := program(t, append(args, "--store", store)...); code != 0 {
			t.Errorf("%v: %d %s %s", args, code, out, stderr)
		}
	}
	if list, err := server.Denied(); err != nil || len(list) > 0 {
		t.Errorf("denied: %v, %v", list, err)
	}
}

// A store that answers calls with an error is no store that is away: /readyz may find
// nothing, and callers are only told that it cannot answer. The log says why.
func TestServeLogsWhyCallsFail(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	p := start(t, "--listen", "127.0.0.1:0", "--store", server.URL(), "--limit", "login=1/1d,burst=5", "--log-refusals", "0")
	if status, body := post(t, p.url+"/v1/take", "limit=login&key=a"); status != 200 {
		t.Fatal(status, body)
	}
	c := server.Client()
	if err := c.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if status, body := post(t, p.url+"/v1/take", "limit=login&key=b"); status != 503 {
			t.Error(status, body)
		}
	}
	p.stderr.wait(t, "dipwell: store: .*OOM")
	if status, body := do(t, "GET", p.url+"/readyz", ""); status != 503 || !strings.Contains(body, "its disk or memory is full") {
		t.Error(status, body)
	}
}
