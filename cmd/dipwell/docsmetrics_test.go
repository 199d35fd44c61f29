package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/dipwell/dipwell/internal/redistest"
)

// exposed is the line of /metrics that declares a metric.
var exposed = regexp.MustCompile(`(?m)^# TYPE (dipwell_\S+) `)

// TestDocMetrics checks that docs/reference has every metric of a service, over each store:
// its whole name, or its end where the page shortens the names of a family.
func TestDocMetrics(t *testing.T) {
	pages, err := filepath.Glob("../../docs/reference/*.md")
	must(t, err)
	var docs strings.Builder
	for _, page := range pages {
		text, err := os.ReadFile(page)
		must(t, err)
		docs.Write(text)
	}
	said := map[string]bool{}
	var ends []string
	for _, m := range regexp.MustCompile("`(dipwell)?(_[a-z_]+)[`{]").FindAllStringSubmatch(docs.String(), -1) {
		if said[m[1]+m[2]] = true; m[1] == "" {
			ends = append(ends, m[2])
		}
	}
	for _, store := range []string{"memory:", "file:" + filepath.Join(t.TempDir(), "d.db"), migratedDatabase(t), redistest.Start(t).URL()} {
		p := start(t, "--store", store, "--listen", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--limit", "login=5/1m",
			"--rls-config", "../../examples/envoy/ratelimit", "--upstream", "http://127.0.0.1:9", "--admin", "127.0.0.1:0")
		found := exposed.FindAllStringSubmatch(fetch(t, p.admin+"/metrics"), -1)
		if len(found) < 20 {
			t.Errorf("%s: %d metrics", store, len(found))
		}
		for _, m := range found {
			ok := said[m[1]]
			for _, end := range ends {
				ok = ok || strings.HasSuffix(m[1], end)
			}
			if !ok {
				t.Errorf("docs/reference has no metric %s", m[1])
			}
		}
		must(t, p.stop())
	}
}
