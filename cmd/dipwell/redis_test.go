package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/dipwell/dipwell/internal/redistest"
)

// A service on Redis limits, starts before its server, follows it through a
// crash, and tells one that comes back empty its limits.
func TestServeRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	server.Stop()
	p := start(t, "--listen", "127.0.0.1:0", "--store", server.URL(), "--limit", "login=1/1d,burst=5", "--limit", "local=1/1d,on_store_error=local")
	ready := func(want int) func() error {
		return func() error {
			if status, body := do(t, "GET", p.url+"/readyz", ""); status != want {
				return fmt.Errorf("/readyz is %d %s", status, body)
			}
			return nil
		}
	}
	if status, body := post(t, p.url+"/v1/take", "limit=local&key=k"); status != 200 || !strings.Contains(body, "fallback-local") {
		t.Errorf("before the server is there: %d %s", status, body)
	}
	for _, form := range []string{"limit=login&key=a", "limit=login&key=b"} { // a refusal is believed for a second
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
	if code, _, stderr := program(t, "migrate", "status", "--store", server.URL()); code != 2 || !strings.Contains(stderr, "no schema") {
		t.Errorf("migrate: %d %s", code, stderr)
	}
	if err := p.stop(); err != nil {
		t.Error(err)
	}
}
