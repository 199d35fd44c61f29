package main

import (
	"net/http"
	"strings"
	"testing"

	"github.com/dipwell/dipwell/internal/redistest"
)

// What keys used is there after the end of the services that counted it, and those of one
// store add up. A file has one service at a time.
func TestUsageIsKept(t *testing.T) {
	for name, store := range map[string]func() string{
		"file":     func() string { return "file:" + t.TempDir() + "/d.db" },
		"postgres": func() string { return migratedDatabase(t) },
		"redis":    func() string { return redistest.Start(t).URL() },
	} {
		t.Run(name, func(t *testing.T) {
			args := []string{"--listen", "127.0.0.1:0", "--store", store(), "--limit", "api=5/1d,burst=20,usage=true"}
			first := start(t, args...)
			second := first
			if name != "file" {
				second = start(t, args...)
			}
			for _, p := range []*process{first, second} {
				for range 6 {
					res, err := http.Post(p.url+"/v1/take", "application/x-www-form-urlencoded", strings.NewReader("limit=api&key=cust-7&cost=2"))
					if err != nil {
						t.Fatal(err)
					}
					_ = res.Body.Close()
				}
			}
			must(t, first.stop())
			if second != first {
				must(t, second.stop())
			}
			p := start(t, args...)
			want := "used in 31 days: 20 tokens; 10 calls allowed, 2 refused\n"
			if code, out, stderr := program(t, "inspect", "api", "cust-7", "--server", p.url); code != 0 || !strings.Contains(out, want) {
				t.Errorf("%d %s%s, want %s", code, out, stderr, want)
			}
		})
	}
}
