package main

import (
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dipwell/dipwell/internal/config"
	"github.com/dipwell/dipwell/internal/rls"
)

var (
	// shellBlock is a block of commands in a page.
	shellBlock = regexp.MustCompile("(?ms)^```sh\n(.*?)^```")
	// session is a command in a block that also has what it prints.
	session = regexp.MustCompile(`(?m)^(?:\$ )?(dipwell (?:replay --log testdata|migrate up --store) .*)$`)
)

// elsewhere are programs in documented commands that this test does not run, and why.
var elsewhere = map[string]string{
	"caddy":          "TestProxies runs it on the same file",
	"docker":         "CI has no daemon; deploy/check runs what the image is made of, and make release-check the image",
	"envoy":          "not packaged by Debian; internal/rls reads the file",
	"cd":             "into a clone",
	"git":            "clones what is published",
	"go":             "fetches what is published",
	"grpcurl":        "not packaged by Debian; TestGRPC calls the same",
	"haproxy":        "TestProxies runs it on the same file",
	"helm":           "deploy/check renders the chart",
	"java":           "TestClients in examples runs it",
	"kubectl":        "deploy/check renders the same",
	"make":           "it runs this test",
	"nginx":          "TestProxies runs it on the same file",
	"node":           "make clients runs it",
	"npm":            "make clients installs the package",
	"npx":            "make clients runs it",
	"pip":            "TestPython in examples installs the wheel",
	"psql":           "TestClients in examples and pgstore's TestDocs run the same statements",
	"python3":        "TestPython in examples runs the programs; internal/ui's TestStatic serves the same files as http.server",
	"ruby":           "TestClients in examples runs it",
	"sqlite3":        "not installed by CI; filestore reads the view",
	"traefik":        "not packaged by Debian",
	"--from-literal": "a part of kubectl's line",
}

// docLimits are the limits of the service that documented commands call.
const docLimits = `
limits:
  - {name: login, rate: 5, per: 1m, burst: 20}
  - {name: api, rate: 60, per: 1m, keys: list, plans: {pro: {rate: 600}}}
  - {name: requests, rate: 60, per: 1m}
  - {name: tokens, rate: 100000, per: 1m}
  - {name: login-account, rate: 5, per: 15m}
  - {name: failed-logins, rate: 5, per: 15m, block: 15m}
  - {name: login-address, rate: 50, per: 1h}
  - {name: sign-ups, rate: 100, per: 1h, shared: true}
  - {name: session, rate: 10, per: 1m}
  - {name: address, rate: 100, per: 1m}
  - {name: webhooks, rate: 2, per: 1s, max_debt: 1000}
  - {name: graphql, rate: 1000, per: 1m}
  - {name: mail-pace, rate: 10, per: 1m, burst: 2}
  - {name: mail-day, rate: 500, per: 1d, algorithm: fixed_window, start: '00:00 UTC'}
  - {name: nightly-mail, rate: 1, per: 1d}
  - {name: builds, algorithm: concurrency, burst: 10}
`

// TestDocCommands runs the commands of README.md and docs/: those that call a service, in
// their order, against one that has the limits of docLimits, each `dipwell serve` until it
// serves, on other addresses and in memory, and each `dipwell migrate` on an empty database.
// What it does not run is in elsewhere, or has a … for the reader to fill in.
func TestDocCommands(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*/*.md")
	must(t, err)
	more, err := filepath.Glob("../../docs/*/*/*.md")
	must(t, err)
	dir := t.TempDir()
	exe, err := os.Executable()
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "dipwell"), []byte("#!/bin/sh\n"+asProgram+"=1 exec '"+exe+"' \"$@\"\n"), 0o700))
	must(t, os.WriteFile(filepath.Join(dir, "doc.yaml"), []byte(docLimits), 0o600))
	ran := 0
	for _, page := range append(append(pages, more...), "../../README.md") {
		text, err := os.ReadFile(page)
		must(t, err)
		blocks := shellBlock.FindAllStringSubmatch(string(text), -1)
		blocks = append(blocks, session.FindAllStringSubmatch(shellBlock.ReplaceAllString(string(text), ""), -1)...)
		if len(blocks) == 0 {
			continue
		}
		t.Run(strings.TrimPrefix(page, "../../"), func(t *testing.T) {
			p := start(t, "--listen", "127.0.0.1:0", "--config", filepath.Join(dir, "doc.yaml"), "--rls-config", "../../examples/envoy/ratelimit")
			for _, b := range blocks {
				for line := range strings.Lines(strings.ReplaceAll(b[1], "\\\n", " ")) {
					if documented(t, p, dir, strings.TrimSpace(line)) {
						ran++
					}
				}
			}
			must(t, p.stop())
		})
	}
	if ran < 30 {
		t.Errorf("only %d commands were run", ran)
	}
}

// documented runs a command of a page, and reports whether it is one that is run here.
func documented(t *testing.T, p *process, dir, line string) bool {
	t.Helper()
	u, err := url.Parse(p.url)
	must(t, err)
	line = strings.NewReplacer("localhost:8080", u.Host, "curl -s", "curl --fail-with-body -s", "go run ./cmd/dipwell ", "dipwell ").Replace(line)
	words := strings.Fields(line)
	switch {
	case line == "" || words[0][0] == '#' || strings.Contains(line, "…"): // … is for the reader to fill in
		return false
	case strings.HasPrefix(line, "dipwell serve "):
		must(t, start(t, serveArgs(t, dir, line)...).stop())
		return true
	case strings.HasPrefix(line, "dipwell migrate "):
		line = databaseURL.ReplaceAllString(line, "'"+freshDatabase(t)+"'")
	case strings.Contains(line, "localhost:8000") || strings.Contains(line, ":10000"):
		return false // TestProxies; Envoy is not packaged by Debian
	case words[0] == "for":
		line = strings.ReplaceAll(line, "curl --fail-with-body -si", "curl -si") // the sixth is refused
	case words[0] != "dipwell" && words[0] != "curl":
		if elsewhere[words[0]] == "" {
			t.Errorf("nothing runs %s: %s", words[0], line)
		}
		return false
	}
	cmd := exec.Command("sh", "-c", strings.Replace(line, "make;", "true;", 1))
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "DIPWELL_SERVER="+p.url, "N=1", "USER=ann")
	for _, out := range []string{"> dipwell.json", "> audit.ndjson", "--plot docs/img/replay.svg", "--plot docs/img/sliding.svg"} {
		option, name, _ := strings.Cut(out, " ")
		cmd.Args[2] = strings.ReplaceAll(cmd.Args[2], out, option+" "+filepath.Join(dir, filepath.Base(name)))
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", line, err, out)
	}
	return true
}

var (
	// sentence matches a command in a sentence: dipwell with its words and flags, a target of
	// make, or a script.
	sentence = regexp.MustCompile("`(?:\\$ )?(?:go run \\./cmd/)?((?:dipwell|make) [^`]+|scripts/[^`]+)`")
	makes    = regexp.MustCompile(`(?m)^([a-z][a-z0-9-]*):`)
)

// TestDocSentences checks the commands in the sentences of README.md, CONTRIBUTING.md and
// docs/: that dipwell has the command and its flags, and make and scripts/ what they name.
func TestDocSentences(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	must(t, err)
	var targets []string
	for _, m := range makes.FindAllSubmatch(makefile, -1) {
		targets = append(targets, string(m[1]))
	}
	pages := []string{"../../README.md", "../../CONTRIBUTING.md"}
	must(t, filepath.WalkDir("../../docs", func(name string, _ os.DirEntry, err error) error {
		if filepath.Ext(name) == ".md" {
			pages = append(pages, name)
		}
		return err
	}))
	found := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		must(t, err)
		for _, m := range sentence.FindAllStringSubmatch(string(text), -1) {
			found++
			words := strings.Fields(strings.ReplaceAll(m[1], "\\", ""))
			switch {
			case words[0] == "dipwell" && (words[1] == "…" || words[1] == "v0.2.0"): // any command; the title of a release
			case strings.HasPrefix(words[0], "scripts/"):
				if _, err := os.Stat("../../" + words[0]); err != nil {
					t.Errorf("%s: %s: %v", page, m[1], err)
				}
			case words[0] == "make":
				for _, w := range words[1:] {
					if !strings.Contains(w, "=") && !slices.Contains(targets, w) {
						t.Errorf("%s: %s: the Makefile has no %s", page, m[1], w)
					}
				}
			default:
				checkSentence(t, page, words[1:])
			}
		}
	}
	if found < 60 {
		t.Errorf("only %d commands were found", found)
	}
}

// checkSentence checks a command of dipwell by its help.
func checkSentence(t *testing.T, page string, words []string) {
	t.Helper()
	var command, flags []string
	for i, w := range words {
		switch flag, _, _ := strings.Cut(strings.Trim(w, "[]()…,"), "="); {
		case strings.HasPrefix(flag, "--"):
			flags = append(flags, flag)
		case len(command) == i && (i == 0 || i == 1 && slices.Contains([]string{"migrate", "config", "override"}, command[0])) && flag != "":
			first, _, _ := strings.Cut(w, "|")
			command = append(command, first)
		}
	}
	var out, errs strings.Builder
	if code := run(t.Context(), append(command, "--help"), strings.NewReader(""), &out, &errs); code != 0 {
		t.Errorf("%s: dipwell %s: %s", page, strings.Join(words, " "), errs.String())
	}
	for _, flag := range flags {
		if flag != "--version" && !regexp.MustCompile(flag+`\b`).MatchString(out.String()) {
			t.Errorf("%s: dipwell %s: the help has no %s", page, strings.Join(words, " "), flag)
		}
	}
}

var (
	databaseURL = regexp.MustCompile(`postgres://\S+`)

	address = regexp.MustCompile(`(--(?:listen|grpc|admin)[ =])\S+`)
	setting = regexp.MustCompile(`--(?:store|data|tls-cert|tls-key|client-ca) \S+`)
	other   = regexp.MustCompile(`(?:/etc/ratelimit/config|dipwell\.yaml)(\s|$)`)
)

// serveArgs returns the arguments of a documented `dipwell serve`, with addresses of this
// test, in memory, without TLS, and with the files of examples/ in place of the reader's.
func serveArgs(t *testing.T, dir, line string) []string {
	t.Helper()
	line, _, _ = strings.Cut(line, " #")
	line = strings.TrimSuffix(strings.TrimSpace(line), "&")
	line = setting.ReplaceAllString(address.ReplaceAllString(line, "${1}127.0.0.1:0"), "")
	if strings.Contains(line, "--rls-config") {
		line = other.ReplaceAllString(line, "examples/envoy/ratelimit ")
	} else {
		line = other.ReplaceAllString(line, filepath.Join(dir, "doc.yaml")+" ")
	}
	line = strings.ReplaceAll(line, " examples/", " ../../examples/")
	if !strings.Contains(line, "--listen") {
		line += " --listen 127.0.0.1:0"
	}
	out, err := exec.Command("sh", "-c", "printf '%s\\n' "+strings.TrimPrefix(line, "dipwell serve ")).Output()
	must(t, err)
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// yamlBlock is a block of YAML in a page that does not quote a file.
var yamlBlock = regexp.MustCompile("(?ms)(^<!-- from: \\S+ -->\n)?^```yaml\n(.*?)^```")

// TestDocYAML reads the YAML of README.md and docs/ as the service does: as a file of its
// own, as entries of a list of limits, or as a file of Envoy's rate limit service.
func TestDocYAML(t *testing.T) {
	read := 0
	must(t, filepath.WalkDir("../../docs", func(name string, d os.DirEntry, err error) error {
		if err != nil || filepath.Ext(name) != ".md" {
			return err
		}
		text, err := os.ReadFile(name)
		must(t, err)
		for _, m := range yamlBlock.FindAllStringSubmatch(string(text), -1) {
			if m[1] != "" {
				continue // the tests read the file
			}
			block := strings.Replace(m[2], "limits: [...]", "limits: [{name: login, rate: 5, per: 1m}]", 1)
			if strings.HasPrefix(block, "  - ") {
				block = "limits:\n" + block
			}
			if strings.HasPrefix(block, "domain:") {
				_, err = rls.Parse(rls.Defaults{}, rls.File{Name: name, YAML: []byte(block)})
			} else {
				_, err = config.Parse(name, []byte(block))
			}
			if err != nil {
				t.Errorf("%s: %v\n%s", name, err, block)
			}
			read++
		}
		return nil
	}))
	if read == 0 {
		t.Error("no YAML was read")
	}
}
