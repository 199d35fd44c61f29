package dipwell_test

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/dipwell/dipwell"

type goPackage struct {
	ImportPath, Doc  string
	Imports, GoFiles []string
}

// packages returns all packages, also the one that is built for browsers alone.
func packages(t *testing.T) []goPackage {
	t.Helper()
	return append(listed(t, os.Environ(), "./..."), listed(t, append(os.Environ(), "GOOS=js", "GOARCH=wasm"), "./internal/ui/engine")...)
}

func listed(t *testing.T, env []string, pattern string) (out []goPackage) {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", "list", "-e", "-json=ImportPath,Doc,Imports,GoFiles", pattern)
	list.Env = env
	stdout, err := list.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := list.Start(); err != nil {
		t.Fatal(err)
	}
	for dec := json.NewDecoder(stdout); ; {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		out = append(out, p)
	}
	if err := list.Wait(); err != nil {
		t.Fatal(err)
	}
	return out
}

// rules are the import rules of CONTRIBUTING.md: its table and the two sentences
// below it.
type rules struct {
	imports    map[string][]string // what each package may import besides everywhere; "*" is everything that is not for tests alone
	everywhere []string            // what every package but the root may import
	testsOnly  []string            // what tests alone may import
}

// code matches a name in backticks.
var code = regexp.MustCompile("`([^`]+)`")

func names(text string) (list []string) {
	for _, m := range code.FindAllStringSubmatch(text, -1) {
		list = append(list, m[1])
	}
	return list
}

func readRules(t *testing.T) *rules {
	t.Helper()
	b, err := os.ReadFile("CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	r := &rules{imports: map[string][]string{}}
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSpace(line)
		cells := strings.Split(strings.Trim(line, "|"), " | ")
		switch {
		case strings.HasPrefix(line, "Every package but the root and `store` may import "):
			r.everywhere = names(line)[1:] // the first is store itself
		case strings.HasPrefix(line, "Only tests import "):
			r.testsOnly = names(line)
		case strings.HasPrefix(line, "| `") && len(cells) == 3:
			r.row(t, names(cells[0]), strings.TrimSpace(cells[2]))
		}
	}
	if len(r.imports) == 0 || len(r.everywhere) == 0 || len(r.testsOnly) == 0 {
		t.Fatalf("CONTRIBUTING.md has %d packages in its table, %v for every package, and %v for tests alone", len(r.imports), r.everywhere, r.testsOnly)
	}
	return r
}

func (r *rules) row(t *testing.T, packages []string, may string) {
	t.Helper()
	list := names(may)
	if i := slices.Index(list, "dipwell"); i >= 0 {
		list[i] = ""
	}
	switch {
	case may == "everything":
		list = []string{"*"}
	case len(list) == 0 && !strings.HasPrefix(may, "nothing"):
		t.Errorf("CONTRIBUTING.md: %v: %q is neither everything, nothing nor a list of packages", packages, may)
	}
	for _, p := range packages {
		if p == "dipwell" {
			p = ""
		}
		if _, twice := r.imports[p]; twice {
			t.Errorf("CONTRIBUTING.md names %q twice", p)
		}
		r.imports[p] = list
	}
}

// in reports whether a package is in a list. An entry that ends in a slash means all
// packages below it.
func in(path string, list []string) bool {
	return slices.ContainsFunc(list, func(e string) bool {
		return path == e || strings.HasSuffix(e, "/") && strings.HasPrefix(path+"/", e)
	})
}

func (r *rules) allowed(path string) (list []string, ok bool) {
	for name, list := range r.imports {
		if in(path, []string{name}) {
			return list, true
		}
	}
	return nil, false
}

// TestImportRules checks the imports of every package.
func TestImportRules(t *testing.T) {
	r := readRules(t)
	used := map[string]bool{}
	for _, p := range packages(t) {
		path := strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
		list, ok := r.allowed(path)
		if !ok {
			t.Errorf("the table of CONTRIBUTING.md does not name %s", p.ImportPath)
			continue
		}
		for _, imp := range p.Imports {
			if reason := r.forbidden(path, list, imp); reason != "" {
				t.Errorf("%s imports %s; %s", p.ImportPath, imp, reason)
			}
		}
		for name := range r.imports {
			used[name] = used[name] || in(path, []string{name})
		}
	}
	for name := range r.imports {
		if !used[name] {
			t.Errorf("the table of CONTRIBUTING.md names %s, which is not there", name)
		}
	}
}

// forbidden returns why a package may not import another, or "" if it may.
func (r *rules) forbidden(path string, list []string, imp string) string {
	imp, ours := strings.CutPrefix(imp, module)
	imp = strings.TrimPrefix(imp, "/")
	first, _, _ := strings.Cut(imp, "/")
	switch {
	case !ours && strings.Contains(first, ".") && (path == "" || path == "store"):
		return "the root and store may import the standard library alone"
	case !ours || in(imp, list):
		return ""
	case path == "" || path == "store":
	case in(imp, r.testsOnly) && !in(path, r.testsOnly):
		return "only tests may"
	case !in(imp, r.testsOnly) && (in(imp, r.everywhere) || slices.Contains(list, "*")):
		return ""
	}
	return "its line in CONTRIBUTING.md does not have it"
}

// TestImportRulesForbid checks that forbidden imports are found.
func TestImportRulesForbid(t *testing.T) {
	r := readRules(t)
	for _, c := range []struct {
		path, imp string
		allowed   bool
	}{
		{"", "context", true},
		{"", module + "/internal/catalog", false},
		{"", module + "/store", true},
		{"store", module, false},
		{"store", module + "/internal/background", false},
		{"store", "github.com/jackc/pgx/v5", false},
		{"", "github.com/jackc/pgx/v5", false},
		{"filestore", module, false},
		{"redisstore", module, false},
		{"internal/coalesce", module, false},
		{"memstore", module + "/internal/background", true},
		{"memstore", module + "/filestore", false},
		{"filestore", module + "/internal/memory", true},
		{"internal/server", module + "/proto/dipwell/v1", true},
		{"internal/server", module + "/pgstore", false},
		{"cmd/dipwell", module + "/pgstore", true},
		{"cmd/dipwell", module + "/storetest", false},
		{"lab/simulate", module + "/internal/pgtest", false},
		{"internal/pgtest", module + "/internal/procs", true},
		{"pgstore", module + "/internal/pgtest", false},
	} {
		list, ok := r.allowed(c.path)
		if reason := r.forbidden(c.path, list, c.imp); !ok || (reason == "") != c.allowed {
			t.Errorf("%q imports %s: %q, allowed %v", c.path, c.imp, reason, c.allowed)
		}
	}
	if _, ok := r.allowed("internal/unheard"); ok {
		t.Error("a new package under internal needs no line")
	}
}

// sleeps lists the test files that may sleep in real time, and why they cannot wait
// for a condition.
var sleeps = map[string]string{
	"cmd/dipwell/soak_test.go":      "calls are sent on a schedule",
	"redisstore/helpers_test.go":    "callers pause between calls",
	"redisstore/faults_test.go":     "callers pause between calls, and appendfsync everysec loses what is younger than a time",
	"internal/rls/upstream_test.go": "another program's windows follow the wall clock",
}

// TestNoTestSleeps checks that tests sleep only in virtual time. A test that sleeps in
// real time is slow on every machine and fails on a slow one.
func TestNoTestSleeps(t *testing.T) {
	sleeping := map[string]bool{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if sleepsInRealTime(f) {
			sleeping[filepath.ToSlash(path)] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for path := range sleeping {
		if sleeps[path] == "" {
			t.Errorf("%s sleeps; await a condition, use testing/synctest, or give a reason in sleeps", path)
		}
	}
	for path := range sleeps {
		if !sleeping[path] {
			t.Errorf("%s does not sleep any more; remove it from sleeps", path)
		}
	}
}

// sleepsInRealTime reports whether a file calls time.Sleep or background.Sleep and does not
// use testing/synctest.
func sleepsInRealTime(f *ast.File) (found bool) {
	if slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == `"testing/synctest"` }) {
		return false
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok && s.Sel.Name == "Sleep" {
			x, ok := s.X.(*ast.Ident)
			found = found || ok && (x.Name == "time" || x.Name == "background")
		}
		return !found
	})
	return found
}

func TestEveryPackageHasADocSentence(t *testing.T) {
	for _, p := range packages(t) {
		if p.Doc == "" && len(p.GoFiles) > 0 {
			t.Errorf("%s has no doc sentence", p.ImportPath)
		}
	}
}

// TestStandardLibraryOnly checks that a program with limits in memory, with any of the
// decorators or behind net/http, links only the standard library. It checks several
// systems, because files may be for one system only.
func TestStandardLibraryOnly(t *testing.T) {
	paths := []string{"", "/store", "/memstore", "/stack", "/internal/away", "/internal/coalesce", "/internal/denycache", "/internal/keyhash", "/httplimit"}
	for _, goos := range []string{"linux", "darwin", "windows"} {
		args := []string{"list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}"}
		for _, path := range paths {
			args = append(args, module+path)
		}
		list := exec.CommandContext(t.Context(), "go", args...)
		list.Env = append(os.Environ(), "GOOS="+goos, "GOARCH=amd64", "CGO_ENABLED=0")
		out, err := list.CombinedOutput()
		if err != nil {
			t.Fatalf("go list: %v\n%s", err, out)
		}
		own := 0
		for path := range strings.FieldsSeq(string(out)) {
			if path == module || strings.HasPrefix(path, module+"/") {
				own++
			} else {
				t.Errorf("on %s, one of %v imports %s", goos, paths, path)
			}
		}
		if own < len(paths) {
			t.Errorf("on %s, go list names %d packages of this module, want at least %d", goos, own, len(paths))
		}
	}
}
