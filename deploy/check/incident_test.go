package check

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/util/teststorage"

	"github.com/dipwell/dipwell/internal/pgtest"
)

var update = flag.Bool("update", false, "write docs/img/dashboard.svg")

const (
	second   = time.Second
	length   = 75 * second // of the run
	hangs    = 30 * second // when PostgreSQL stops answering
	hangsFor = 12 * second
	window   = "5s" // $__rate_interval
)

// TestDashboardOfAnIncident runs a service over PostgreSQL, which stops for twelve
// seconds, scrapes it each second into Prometheus's own storage, and asks that storage the
// dashboard's queries. Each panel must show something. With -update it draws what they
// show into docs/img/dashboard.svg.
func TestDashboardOfAnIncident(t *testing.T) {
	db := pgtest.Start(t)
	p := serve(t, db.DSN("postgres"))
	storage := teststorage.New(t)
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	var callers sync.WaitGroup
	for i := range 6 {
		callers.Go(func() { p.load(ctx, i, began) })
	}
	callers.Go(func() { hang(ctx, t, db) })
	for tick := time.NewTicker(second); ctx.Err() == nil; {
		select {
		case at := <-tick.C:
			p.scrape(t, storage, at)
		case <-ctx.Done():
			tick.Stop()
		}
	}
	callers.Wait()

	engine := promqltest.NewTestEngine(t, false, 10*second, 1e6)
	var panels []panel
	for _, q := range readBoard(t) {
		for _, target := range q.Targets {
			query := strings.NewReplacer("$__rate_interval", window, `"$job"`, `"dipwell"`, "$instance", ".*", "$limit", ".*").Replace(target.Expr)
			ask, err := engine.NewRangeQuery(t.Context(), storage, nil, query, began, began.Add(length), second)
			if err != nil {
				t.Fatal(err)
			}
			m, err := ask.Exec(t.Context()).Matrix()
			if err != nil {
				t.Fatalf("%s: %v", query, err)
			}
			for _, s := range m {
				q.lines = append(q.lines, line{legend(target.LegendFormat, s.Metric), slices.Clone(s.Floats)})
			}
			ask.Close()
		}
		switch shows := len(q.lines) > 0; {
		case q.Title == "Certificate ends in": // the service has none
		case !shows:
			t.Errorf("panel %q shows nothing", q.Title)
		default:
			panels = append(panels, q)
		}
	}
	raised(t, engine, storage, began)
	if *update {
		if err := os.WriteFile(deploy+"/../docs/img/dashboard.svg", drawBoard(panels, began), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// raised checks which alerts have a cause in the incident, however short it was, and that
// the others have none.
func raised(t *testing.T, engine *promql.Engine, storage *teststorage.TestStorage, began time.Time) {
	groups, errs := rulefmt.ParseFile(deploy+"/prometheus/alerts.yaml", false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	var got []string
	for _, rule := range groups.Groups[0].Rules {
		ask, err := engine.NewRangeQuery(t.Context(), storage, nil, rule.Expr, began, began.Add(length), second)
		if err != nil {
			t.Fatal(err)
		}
		m, err := ask.Exec(t.Context()).Matrix()
		if err != nil {
			t.Fatalf("%s: %v", rule.Alert, err)
		}
		if len(m) > 0 && rule.Alert != "DipwellSlow" && rule.Alert != "DipwellLockedRows" { // may be, for some seconds
			got = append(got, rule.Alert)
		}
		ask.Close()
	}
	if want := []string{"DipwellStoreErrors", "DipwellStoreHangs", "DipwellFailingOpen", "DipwellMostlyRefused"}; !slices.Equal(got, want) {
		t.Errorf("alerts %v, want %v", got, want)
	}
}

// hang stops the server's processes for a while.
func hang(ctx context.Context, t *testing.T, db *pgtest.Server) {
	select {
	case <-time.After(hangs):
	case <-ctx.Done():
		return
	}
	err := db.SignalAll(syscall.SIGSTOP)
	select {
	case <-time.After(hangsFor):
	case <-ctx.Done():
	}
	if err = errors.Join(err, db.SignalAll(syscall.SIGCONT)); err != nil {
		t.Error(err)
	}
}

// service is a running dipwell.
type service struct {
	api, admin string
	client     http.Client
}

const descriptors = `domain: shop
descriptors:
  - key: user
    rate_limit: {unit: second, requests_per_unit: 20, timeout: 200ms}
`

// serve builds the program, makes its tables and starts it.
func serve(t *testing.T, store string) *service {
	t.Helper()
	dir := t.TempDir()
	program, rls := filepath.Join(dir, "dipwell"), filepath.Join(dir, "shop.yaml")
	if err := os.WriteFile(rls, []byte(descriptors), 0o600); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", program, "./cmd/dipwell")
	build.Dir = deploy + "/.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := exec.Command(program, "migrate", "up", "--store", store).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	run := exec.Command(program, "serve", "--store", store, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--rls-config", rls,
		"--max-in-flight", "64",
		"--limit", "login=5/1m,timeout=200ms", "--limit", "api=200/1s,burst=400,timeout=200ms",
		"--limit", "search=5/1s,mode=shadow,timeout=200ms", "--limit", "pay=50/1s,on_store_error=open,timeout=200ms")
	urls, stop := launch(t, run, 2)
	t.Cleanup(stop)
	return &service{api: urls[0], admin: urls[1]}
}

// load is one caller, whose calls differ by its number; they come in waves.
func (s *service) load(ctx context.Context, number int, began time.Time) {
	for n := 0; ctx.Err() == nil; n++ {
		limit := []string{"api", "api", "search", "pay", "login", "missing"}[(number+n)%6]
		s.post(ctx, s.api+"/v1/take", "application/x-www-form-urlencoded", url.Values{"limit": {limit}, "key": {fmt.Sprint("user:", n%7)}}.Encode())
		if n%8 == 0 {
			s.post(ctx, s.admin+"/json", "application/json", `{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"7"}]}]}`)
		}
		pause := 12 * time.Millisecond
		if phase := time.Since(began) % (20 * second); phase > 12*second {
			pause = 4 * time.Millisecond
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

func (s *service) post(ctx context.Context, to, kind, body string) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to, strings.NewReader(body))
	if err != nil {
		return
	}
	req.Header.Set("Content-Type", kind)
	if res, err := s.client.Do(req); err == nil {
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
	}
}

// scrape stores what /metrics says, as Prometheus does.
func (s *service) scrape(t *testing.T, storage *teststorage.TestStorage, at time.Time) {
	res, err := s.client.Get(s.admin + "/metrics")
	if err != nil {
		t.Error(err)
		return
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Error(err)
		return
	}
	series, err := textparse.New(b, res.Header.Get("Content-Type"), labels.NewSymbolTable(), textparse.ParserOptions{})
	if err != nil {
		t.Error(err)
		return
	}
	app := storage.Appender(t.Context())
	for {
		entry, err := series.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Error(err)
			return
		}
		if entry != textparse.EntrySeries {
			continue
		}
		_, _, v := series.Series()
		var l labels.Labels
		series.Labels(&l)
		l = labels.NewBuilder(l).Set("job", "dipwell").Set("instance", "shop-1").Labels()
		if _, err := app.Append(0, l, at.UnixMilli(), v); err != nil {
			t.Error(err)
		}
	}
	if err := app.Commit(); err != nil {
		t.Error(err)
	}
}

// A panel of the dashboard, with what its queries answered.
type panel struct {
	Type, Title string
	GridPos     struct{ H, W, X, Y float64 }
	FieldConfig struct{ Defaults struct{ Unit string } }
	Targets     []struct{ Expr, LegendFormat string }
	lines       []line
}

type line struct {
	name   string
	points []promql.FPoint
}

func readBoard(t *testing.T) []panel {
	var board struct{ Panels []panel }
	b, err := os.ReadFile(deploy + "/grafana/dipwell.json")
	if err == nil {
		err = json.Unmarshal(b, &board)
	}
	if err != nil {
		t.Fatal(err)
	}
	return board.Panels
}

var inLegend = regexp.MustCompile(`{{\s*(\w+)\s*}}`)

func legend(format string, l labels.Labels) string {
	return inLegend.ReplaceAllStringFunc(format, func(s string) string { return l.Get(inLegend.FindStringSubmatch(s)[1]) })
}
