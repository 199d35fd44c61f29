package check

import (
	"encoding/json"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

// TestAlerts parses the rules as `promtool check rules` does.
func TestAlerts(t *testing.T) {
	groups, errs := rulefmt.ParseFile(deploy+"/prometheus/alerts.yaml", false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	for _, err := range errs {
		t.Error(err)
	}
	if len(errs) > 0 {
		return
	}
	n := 0
	for _, rule := range groups.Groups[0].Rules {
		n++
		known(t, rule.Alert, rule.Expr)
	}
	if n < 10 {
		t.Errorf("%d rules", n)
	}
}

// TestDashboard parses the queries of the dashboard, with values in place of Grafana's
// variables.
func TestDashboard(t *testing.T) {
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
		Templating struct{ List []struct{ Name string } }
	}
	b, err := os.ReadFile(deploy + "/grafana/dipwell.json")
	if err == nil {
		err = json.Unmarshal(b, &board)
	}
	if err != nil {
		t.Fatal(err)
	}
	values := []string{"$__rate_interval", "1m", "$__interval", "1m", "$__range", "1h"}
	for _, v := range board.Templating.List {
		values = append(values, "${"+v.Name+"}", "v", "$"+v.Name, "v")
	}
	n := 0
	for _, p := range board.Panels {
		for _, q := range p.Targets {
			n++
			known(t, p.Title, strings.NewReplacer(values...).Replace(q.Expr))
		}
	}
	if n < 10 {
		t.Errorf("%d queries", n)
	}
}

var histogram = regexp.MustCompile(`_(bucket|sum|count)$`)

// known checks that a query parses, and that docs/reference/metrics.md has its metrics,
// with the labels that it selects by. That they are in /metrics of a running service is
// checked by cmd/dipwell.
func known(t *testing.T, name, query string) {
	t.Helper()
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(query)
	if err != nil {
		t.Errorf("%s: %v in %s", name, err, query)
		return
	}
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		s, ok := node.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		metric := histogram.ReplaceAllString(s.Name, "")
		row := documented(t, metric)
		if row == "" {
			t.Errorf("%s: docs/reference/metrics.md has no metric %s", name, metric)
		}
		for _, m := range s.LabelMatchers {
			if m.Name != model.MetricNameLabel && !slices.Contains([]string{"job", "instance", "le"}, m.Name) && !strings.Contains(row, "`"+m.Name+"`") {
				t.Errorf("%s: %s has no label %s", name, metric, m.Name)
			}
		}
		return nil
	})
}

// documented returns the row of the reference that has a metric, or "".
func documented(t *testing.T, metric string) string {
	t.Helper()
	if metric == "up" {
		return metric
	}
	for _, page := range []string{"metrics", "file", "grpc"} {
		b, err := os.ReadFile(deploy + "/../docs/reference/" + page + ".md")
		if err != nil {
			t.Fatal(err)
		}
		for row := range strings.Lines(string(b)) {
			if strings.Contains(row, "`"+metric+"`") || strings.HasPrefix(metric, "dipwell_rls_") && strings.Contains(row, "`dipwell_rls_…`") || strings.Contains(row, "`"+metric+"{") ||
				strings.HasPrefix(metric, "process_") && strings.Contains(row, "`process_…`") || strings.HasPrefix(metric, "go_") && strings.Contains(row, "`go_…`") {
				return row
			}
		}
	}
	return ""
}
