package main

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/internal/redistest"
)

const deploy = "../../deploy"

// Every query of the dashboard and of the alerts uses metrics and labels that
// the service has on some store.
func TestQueriesAreAboutMetricsThatExist(t *testing.T) {
	have := seenMetrics(t)
	exprs := append(dashboardQueries(t), alertQueries(t)...)
	if len(exprs) < 25 {
		t.Fatalf("only %d queries were found", len(exprs))
	}
	metric := regexp.MustCompile(`\b((?:dipwell|process|go)_\w+)(?:\{([^}]*)\})?`)
	by := regexp.MustCompile(`by \(([^)]*)\)`)
	label := regexp.MustCompile(`(\w+)\s*(?:=~|!=|!~|=)`)
	for _, e := range exprs {
		if strings.Count(e, "(") != strings.Count(e, ")") || strings.Count(e, "{") != strings.Count(e, "}") {
			t.Errorf("unbalanced: %s", e)
		}
		for _, m := range metric.FindAllStringSubmatch(e, -1) {
			labels, ok := have[m[1]]
			if !ok {
				t.Errorf("there is no metric %s: %s", m[1], e)
				continue
			}
			used := label.FindAllStringSubmatch(m[2], -1)
			for _, b := range by.FindAllStringSubmatch(e, -1) {
				for name := range strings.SplitSeq(b[1], ",") {
					used = append(used, []string{"", strings.TrimSpace(name)})
				}
			}
			for _, l := range used {
				if l[1] != "job" && l[1] != "instance" && !slices.Contains(labels, l[1]) {
					t.Errorf("%s has no label %s: %s", m[1], l[1], e)
				}
			}
		}
	}
}

// seenMetrics runs services on each store, and returns the labels of each
// metric.
func seenMetrics(t *testing.T) map[string][]string {
	t.Helper()
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	writeCertificate(t, "metrics", cert, key)
	descs := filepath.Join(dir, "d.yaml")
	if err := os.WriteFile(descs, []byte(descriptors+"2}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	db := pgtest.Start(t, "fsync=off")
	if code, _, stderr := program(t, "migrate", "up", "--store", db.DSN("postgres")); code != 0 {
		t.Fatal(stderr)
	}
	have := map[string][]string{}
	sample := regexp.MustCompile(`^(\w+)(?:\{(.*)\})? `)
	label := regexp.MustCompile(`(\w+)="`)
	for _, args := range [][]string{
		{"--store", "memory:", "--tls-cert", cert, "--tls-key", key, "--grpc", "127.0.0.1:0", "--rls-config", descs},
		{"--store", "file:" + filepath.Join(dir, "f.db")}, {"--store", db.DSN("postgres")}, {"--store", redistest.Start(t).URL()},
	} {
		p := start(t, append(args, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--limit", "login=5/1m")...)
		eventually(t, func() error { return isReady(t, p.admin) })
		if status, body := post(t, p.admin+"/v1/take", "limit=login&key=k"); status != 200 {
			t.Fatal(args, status, body)
		}
		post(t, p.admin+"/json", `{"domain":"d","descriptors":[{"entries":[{"key":"user","value":"7"}]}]}`)
		_, metrics := do(t, "GET", p.admin+"/metrics", "")
		for line := range strings.Lines(metrics) {
			m := sample.FindStringSubmatch(line)
			if m == nil {
				continue
			}
			have[m[1]] = append(have[m[1]], "")
			for _, l := range label.FindAllStringSubmatch(m[2], -1) {
				have[m[1]] = append(have[m[1]], l[1])
			}
		}
		if err := p.stop(); err != nil {
			t.Error(err)
		}
	}
	return have
}

func dashboardQueries(t *testing.T) (out []string) {
	var d struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
		Templating struct {
			List []struct {
				Query any
			}
		}
	}
	b, err := os.ReadFile(filepath.Join(deploy, "grafana/dipwell.json"))
	if err == nil {
		err = json.Unmarshal(b, &d)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range d.Panels {
		for _, q := range p.Targets {
			if q.Expr == "" {
				t.Errorf("panel %q has an empty query", p.Title)
			}
			out = append(out, q.Expr)
		}
	}
	for _, v := range d.Templating.List {
		if q, ok := v.Query.(map[string]any); ok {
			out = append(out, q["query"].(string))
		}
	}
	return out
}

func alertQueries(t *testing.T) (out []string) {
	var f struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	r, err := os.Open(filepath.Join(deploy, "prometheus/alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	dec := yaml.NewDecoder(r)
	dec.KnownFields(true)
	if err = dec.Decode(&f); err != nil {
		t.Fatal(err)
	}
	for _, rule := range f.Groups[0].Rules {
		if rule.Alert == "" || rule.Expr == "" || rule.For == "" || rule.Labels["severity"] == "" || rule.Annotations["summary"] == "" {
			t.Errorf("a rule lacks something: %+v", rule)
		}
		out = append(out, rule.Expr)
	}
	if err = dec.Decode(new(any)); !errors.Is(err, io.EOF) {
		t.Error("more than one document: ", err)
	}
	return out
}

// The unit has only settings of systemd, one value each.
func TestUnit(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(deploy, "systemd/dipwell.service"))
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`^(#.*|\[(Unit|Service|Install)\]|[A-Z][A-Za-z]+=.*|)$`)
	for l := range strings.Lines(string(b)) {
		if !line.MatchString(strings.TrimSuffix(l, "\n")) {
			t.Errorf("no line of a unit: %q", l)
		}
	}
	for _, want := range []string{"Type=exec", "DynamicUser=yes", "StateDirectory=dipwell", "NoNewPrivileges=yes", "ProtectSystem=strict", "ExecReload=/bin/kill -HUP $MAINPID"} {
		if !strings.Contains(string(b), "\n"+want+"\n") {
			t.Errorf("%s is missing", want)
		}
	}
}
