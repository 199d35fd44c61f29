package main

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// The reference names every metric of a service: in metrics.md, or of the RateLimitService
// in grpc.md, without its first words.
func TestMetricsAreDocumented(t *testing.T) {
	var docs []byte
	for _, name := range []string{"metrics.md", "grpc.md"} {
		b, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", name))
		if err != nil {
			t.Fatal(err)
		}
		docs = append(docs, b...)
	}
	rls := regexp.MustCompile(`^dipwell_rls(_.*)$`)
	families := regexp.MustCompile(`(?m)^# TYPE (dipwell_\w+)`)
	for name, args := range map[string][]string{
		"memory": {"--grpc", "127.0.0.1:0", "--rls-config", filepath.Join("..", "..", "examples", "envoy", "ratelimit")},
		"file":   {"--data", t.TempDir()},
		"proxy":  {"--upstream", "http://127.0.0.1:1", "--admin", "127.0.0.1:0"},
	} {
		p := start(t, append(args, "--listen", "127.0.0.1:0", "--limit", "api=5/1m")...)
		url := p.url
		if p.admin != "" {
			url = p.admin
		}
		found := families.FindAllStringSubmatch(fetch(t, url+"/metrics"), -1)
		if len(found) < 10 {
			t.Errorf("%s: only %d metrics", name, len(found))
		}
		for _, f := range found {
			short := rls.ReplaceAllString(f[1], "$1")
			if !regexp.MustCompile("`(" + f[1] + "|" + short + ")`").Match(docs) {
				t.Errorf("%s: docs/reference does not name %s", name, f[1])
			}
		}
	}
}
