package dipwell_test

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/dipwell/dipwell"

type goPackage struct {
	ImportPath, Doc  string
	Imports, GoFiles []string
}

func packages(t *testing.T) (out []goPackage) {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", "list", "-e", "-json=ImportPath,Doc,Imports,GoFiles", "./...")
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

// everywhere may be imported by every package but the root.
var everywhere = []string{"internal/await", "internal/pace"}

// imports lists what each package may import of this module besides the root
// and everywhere. "*" is everything that is not for tests alone.
var imports = map[string][]string{
	"":     {},
	"cmd/": {"*"},

	"memstore":   {},
	"filestore":  {"memstore"}, // memory decides for the file
	"pgstore":    {"internal/algebra", "internal/sqlexpr", "internal/sqlstep"},
	"redisstore": {"internal/algebra"},

	"breaker":   {},
	"coalesce":  {},
	"denycache": {},
	"fallback":  {"memstore"}, // decides while the store is away
	"keyhash":   {},
	"shadow":    {},
	"tracing":   {},

	"httplimit":  {},
	"grpclimit":  {"httplimit"},
	"httpclient": {"httplimit"},

	"config": {"httplimit"},
	"rls":    {"httplimit", "config"},
	"server": {"httplimit", "internal/sketch", "proto/"},
	"proto/": {},
	"replay": {},

	"storetest": {"testdata/golden"},
	"examples/": {},
	"internal/": {"internal/"},
}

// testsOnly may be imported by tests alone.
var testsOnly = []string{"storetest", "testdata/", "internal/pgtest", "internal/redistest", "internal/procs", "internal/tmpfs", "internal/lockstep"}

// in reports whether a package is in a list; an entry that ends in a slash stands
// for all packages below it.
func in(path string, list []string) bool {
	return slices.ContainsFunc(list, func(e string) bool {
		return path == e || strings.HasSuffix(e, "/") && strings.HasPrefix(path+"/", e)
	})
}

func allowed(path string) (list []string, ok bool) {
	for room, list := range imports {
		if in(path, []string{room}) {
			return list, true
		}
	}
	return nil, false
}

// The rules of who imports whom. A new package needs a line in imports.
func TestImportRules(t *testing.T) {
	for _, p := range packages(t) {
		path := strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
		list, ok := allowed(path)
		if !ok {
			t.Errorf("%s has no line in imports", p.ImportPath)
			continue
		}
		for _, imp := range p.Imports {
			if reason := forbidden(path, list, imp); reason != "" {
				t.Errorf("%s imports %s; %s", p.ImportPath, imp, reason)
			}
		}
	}
}

// forbidden says why a package may not import another, and nothing if it may.
func forbidden(path string, list []string, imp string) string {
	imp, ours := strings.CutPrefix(imp, module)
	imp = strings.TrimPrefix(imp, "/")
	first, _, _ := strings.Cut(imp, "/")
	switch {
	case path == "" && (ours || strings.Contains(first, ".")):
		return "the standard library is all that the root package may"
	case !ours || imp == "" || in(imp, list):
		return ""
	case in(imp, testsOnly):
		return "only tests may"
	case in(imp, everywhere) || slices.Contains(list, "*"):
		return ""
	}
	return "its line in imports does not have it"
}

func TestEveryPackageHasADocSentence(t *testing.T) {
	for _, p := range packages(t) {
		if p.Doc == "" && len(p.GoFiles) > 0 {
			t.Errorf("%s has no doc sentence", p.ImportPath)
		}
	}
}
