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

func in(path string, rooms ...string) bool {
	return slices.ContainsFunc(rooms, func(r string) bool { return path == module+"/"+r || strings.HasPrefix(path, module+"/"+r+"/") })
}

// The rules of who imports whom.
func TestImportRules(t *testing.T) {
	stores := []string{"memstore", "filestore", "pgstore", "redisstore"}
	fronts := []string{"httplimit", "grpclimit", "httpclient"}
	for _, p := range packages(t) {
		for _, imp := range p.Imports {
			std := !strings.Contains(strings.SplitN(imp, "/", 2)[0], ".")
			switch {
			case p.ImportPath == module && !std:
				t.Errorf("the root package imports %s; the standard library is all it may", imp)
			case in(imp, "storetest"):
				t.Errorf("%s imports %s; only tests may", p.ImportPath, imp)
			case in(p.ImportPath, fronts...) && in(imp, stores...):
				t.Errorf("the front end %s imports the store %s", p.ImportPath, imp)
			}
			for _, s := range stores {
				if in(p.ImportPath, s) && in(imp, stores...) && !in(imp, s) && (s != "filestore" || !in(imp, "memstore")) { // memory decides for the file
					t.Errorf("the store %s imports another, %s", p.ImportPath, imp)
				}
			}
		}
	}
}

func TestEveryPackageHasADocSentence(t *testing.T) {
	for _, p := range packages(t) {
		if p.Doc == "" && len(p.GoFiles) > 0 {
			t.Errorf("%s has no doc sentence", p.ImportPath)
		}
	}
}
