package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	exampleLog    = "../../testdata/access.log"
	exampleLimits = "../../examples/replay.yaml"
)

// replayRun runs the program as from a shell.
func replayRun(stdin string, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(context.Background(), append([]string{"replay"}, args...), strings.NewReader(stdin), &out, &errs)
	return code, out.String(), errs.String()
}

func TestReplayReports(t *testing.T) {
	dir := t.TempDir()
	decisions, plot := filepath.Join(dir, "d.jsonl"), filepath.Join(dir, "p.svg")
	code, out, errs := replayRun("", "--log", exampleLog, "--limit", "page=12/1m,burst=15", "--limit=day=40/1d,algorithm=fixed_window", "--decisions", decisions, "--plot", plot)
	if code != 0 || errs != "" || !strings.Contains(out, "limit page=12/1m,burst=15\n  granted          137 (73.66 %)\n  refused          49 (26.34 %)") || !strings.Contains(out, "limit day=40/1d,algorithm=fixed_window") {
		t.Errorf("%d\n%s%s", code, out, errs)
	}
	b, err := os.ReadFile(decisions)
	if err != nil || bytes.Count(b, []byte("\n")) != 2*186 || !bytes.HasPrefix(b, []byte(`{"line":1,"t_us":1773478803000000,"limit":"page","key":"192.0.2.7","allowed":true,"remaining":14,"retry_after_us":null}`)) {
		t.Errorf("%v %.200s", err, b)
	}
	if b, err := os.ReadFile(plot); err != nil || !bytes.Contains(b, []byte("</svg>")) {
		t.Errorf("%v %.200s", err, b)
	}
}

// replay --config judges by the limits of a file, with plans and parents, and asks no
// store.
func TestReplayConfig(t *testing.T) {
	const file = exampleLimits
	code, out, errs := replayRun("", "--log", exampleLog, "--config", file, "--plan", "ip=2001:db8::77:banned", "--plan", "agent~curl:script", "--where", "method~^(GET|POST)$", "--json")
	var rep struct {
		Requests, Filtered, Malformed int
		Limits                        []struct {
			Limit          string
			ParentOf       string `json:"parent_of"`
			Granted        int
			Refused        int
			RefusedByOther int `json:"refused_by_other"`
			Plans          []struct {
				Plan             string
				Granted, Refused int
			}
		}
		NotJudged []struct{ Limit string } `json:"not_judged"`
	}
	if err := json.Unmarshal([]byte(out), &rep); err != nil || code != 0 || errs != "" || len(rep.Limits) != 2 || len(rep.NotJudged) != 1 {
		t.Fatalf("%d %v\n%s%s", code, err, out, errs)
	}
	page, all := rep.Limits[0], rep.Limits[1]
	if !strings.HasPrefix(page.Limit, "page=") || all.ParentOf != "page" || page.Granted != all.Granted || page.Refused != all.RefusedByOther || rep.NotJudged[0].Limit != "jobs" {
		t.Errorf("%+v", rep)
	}
	for _, p := range page.Plans {
		if p.Plan == "banned" && (p.Granted != 0 || p.Refused != 62) {
			t.Errorf("%+v", p)
		}
	}
	code, out, errs = replayRun("", "--log", exampleLog, "--config", file, "--limit", "page")
	if code != 0 || errs != "" || !strings.Contains(out, "asked with limit page, as its parent") || strings.Contains(out, "not replayed") {
		t.Errorf("%d\n%s%s", code, out, errs)
	}
}

func TestReplayFromStandardInput(t *testing.T) {
	log, err := os.ReadFile(exampleLog)
	if err != nil {
		t.Fatal(err)
	}
	code, out, errs := replayRun(string(log), "--log", "-", "--limit", "page=12/1m,burst=15", "--json")
	var rep struct {
		Requests, Malformed int
		Limits              []struct{ Granted, Refused int }
	}
	if err := json.Unmarshal([]byte(out), &rep); err != nil || code != 0 || errs != "" || rep.Requests != 186 || rep.Malformed != 1 || rep.Limits[0].Refused != 49 {
		t.Errorf("%d %+v %v\n%s%s", code, rep, err, out, errs)
	}
	code, out, errs = replayRun(string(log), "--log=-", "--limit", "page=12/1m,burst=15", "--decisions=-")
	if code != 0 || errs != "" || strings.Count(out, "\n") != 186 || strings.Count(out, `"allowed":false`) != 49 {
		t.Errorf("%d\n%s%s", code, out, errs)
	}
	if code, out, errs = replayRun("", "--log=-", "--limit", "page=12/1m"); code != 0 || !strings.Contains(out, "0 requests") {
		t.Errorf("an empty log: %d\n%s%s", code, out, errs)
	}
	for log, want := range map[string]string{
		"no log\nnone\n": "dipwell: --pattern: no line at the beginning of the log is in a format that replay knows by name (",
		"shop.example - - [14/Mar/2026:09:00:00 +0000] \"GET / HTTP/1.1\" 200 1\n": `dipwell: --log: no line of standard input can be read in combined format; line 1: its ip "shop.example" is not an address`,
	} {
		if code, _, errs = replayRun(log, "--log=-", "--limit", "page=12/1m"); code != 2 || !strings.Contains(errs, want) {
			t.Errorf("a log without any request: %d\n%s; want %s", code, errs, want)
		}
	}
}

// A pattern, and proxies in a list of addresses: given, or those of a file.
func TestReplayPatternAndProxies(t *testing.T) {
	const cases = "../../internal/replay/testdata/cases/"
	file := filepath.Join(t.TempDir(), "limits.yaml")
	if err := os.WriteFile(file, []byte("trusted_proxies: [10.0.0.0/8]\nlimits: [{name: p, rate: 5, per: 10s}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	pattern := "--pattern=^\"%{DATA:ip}\" \\[%{HTTPDATE:time}\\]"
	for _, args := range [][]string{{"--limit=p=5/10s", pattern, "--trusted-proxies=10.0.0.0/8"}, {"--config", file, pattern}, {"--limit=p=5/10s", pattern}} {
		code, out, errs := replayRun("", append(args, "--log", cases+"xff.log", "--decisions=-")...)
		if code != 0 || strings.Count(out, `"key":"192.0.2.7"`) != 8 || strings.Count(out, "\n") != 12 {
			t.Errorf("%q: %d\n%s%s", args, code, out, errs)
		}
	}
	code, out, errs := replayRun("", "--limit=p=5/10s", pattern, "--log", cases+"xff.log", "--trusted-proxies=172.16.0.1", "--decisions=-")
	if code != 0 || strings.Count(out, `"key":"10.1.1.`) != 12 {
		t.Errorf("a proxy that is not trusted is the client: %d\n%s%s", code, out, errs)
	}
}

func TestReplayNamesTheBadFlag(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "access.log")
	if b, err := os.ReadFile(exampleLog); err != nil || os.WriteFile(log, b, 0o600) != nil {
		t.Fatal(err)
	}
	file, bad := exampleLimits, filepath.Join(dir, "bad.yaml")
	if os.WriteFile(bad, []byte("limits: [{name: page}]\n"), 0o600) != nil {
		t.Fatal(bad)
	}
	limit := "--limit=page=12/1m"
	for _, c := range []struct {
		want string
		args []string
	}{
		{"--log", []string{limit}},
		{"--limit", []string{"--log", log}},
		{"--limit: limit page: per:", []string{"--log", log, "--limit", "page=12/never"}},
		{"--limit or --config is missing", []string{"--log", log}},
		{"--limit: " + file + " has no limit pag; did you mean page?", []string{"--log", log, "--config", file, "--limit", "pag"}},
		{"--by: limit page has keys of 1 part", []string{"--log", log, "--config", file, "--limit", "page", "--by", "ip+user"}},
		{"--limit: jobs is a concurrency limit", []string{"--log", log, "--config", file, "--limit", "jobs"}},
		{"config: open " + file + ".gone", []string{"--log", log, "--config", file + ".gone"}},
		{bad + ":1", []string{"--log", log, "--config", bad}},
		{"--where: ", []string{"--log", log, limit, "--where", "ip"}},
		{"--where: ", []string{"--log", log, limit, "--where", "shoe=1"}},
		{"--where: ", []string{"--log", log, limit, "--where", "ip~("}},
		{"--plan: ", []string{"--log", log, limit, "--plan", "ip=192.0.2.7:gold"}},
		{"--plan: ", []string{"--log", log, limit, "--plan", "shoe"}},
		{"--limit: page is given twice", []string{"--log", log, limit, limit}},
		{"--log: open", []string{"--log", log + ".gone", limit}},
		{"--log: " + dir + " is a directory", []string{"--log", dir, limit}},
		{"--by: ", []string{"--log", log, limit, "--by", "shoe"}},
		{"--by: is empty", []string{"--log", log, limit, "--by="}},
		{"--cost: ", []string{"--log", log, limit, "--cost", "1.5"}},
		{"--pattern: ", []string{"--log", log, limit, "--pattern", "%{XML:ip}"}},
		{`--trusted-proxies: "10" is neither`, []string{"--log", log, limit, "--trusted-proxies", "10"}},
		{`--plot: "p.png" does not end in .svg`, []string{"--log", log, limit, "--plot", "p.png"}},
		{"--plot: ", []string{"--log", log, limit, "--plot", filepath.Join(dir, "no", "p.svg")}},
		{"--plot: " + log + " is the log", []string{"--log", log, limit, "--plot", log}},
		{"--decisions: ", []string{"--log", log, limit, "--decisions", filepath.Join(dir, "no", "d.jsonl")}},
		{"--decisions: " + log + " is the log", []string{"--log", log, limit, "--decisions", log}},
	} {
		code, out, errs := replayRun("", c.args...)
		if code != 2 || !strings.Contains(errs, c.want) || out != "" {
			t.Errorf("%q: %d %q %q; want %s", c.args, code, out, errs, c.want)
		}
	}
	if b, err := os.ReadFile(log); err != nil || len(b) < 1000 {
		t.Errorf("the log was written to: %v", err)
	}
}
