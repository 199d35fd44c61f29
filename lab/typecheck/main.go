// Command typecheck checks the types of all packages of this module as on each of the
// platforms that it is given, such as linux/386, and of their tests where these run. It
// reads the sources of what they import instead of compiling them, which takes a tenth of
// the processor time, and finds what a compiler would refuse: a name that a platform
// lacks, a constant that an int of 32 bits does not hold.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

func main() {
	log.SetFlags(0)
	for _, platform := range os.Args[1:] {
		system, arch, ok := strings.Cut(platform, "/")
		if !ok {
			log.Fatalf("typecheck: %q: want a platform such as linux/386", platform)
		}
		n, err := check(context.Background(), ".", system, arch)
		if err != nil {
			log.Fatalf("%s:\n%v", platform, err)
		}
		fmt.Printf("%s: the types of %d packages are right\n", platform, n)
	}
}

// A listed package is what go list says about one, or about one as a test sees it.
type listed struct {
	ImportPath, Dir string
	GoFiles         []string
	ImportMap       map[string]string
	Module          *struct {
		Main      bool
		GoVersion string
	}
}

// own reports whether a package is of the module that is checked.
func (p *listed) own() bool { return p.Module != nil && p.Module.Main }

// check checks the packages below a directory and returns how many there are.
func check(ctx context.Context, dir, system, arch string) (own int, err error) {
	packages, err := list(ctx, dir, system, arch)
	if err != nil {
		return 0, err
	}
	c := checker{fset: token.NewFileSet(), sizes: types.SizesFor("gc", arch), done: map[string]*types.Package{"unsafe": types.Unsafe}}
	for _, p := range packages { // each after those that it imports
		if p.ImportPath == "unsafe" || strings.HasSuffix(p.ImportPath, ".test") {
			continue
		}
		if p.own() {
			own++
		}
		err = errors.Join(err, c.check(p))
	}
	return own, err
}

func list(ctx context.Context, dir, system, arch string) (packages []*listed, err error) {
	tests := system != "windows" // they start servers, which internal/procs does on Unix alone
	cmd := exec.CommandContext(ctx, "go", "list", "-deps", fmt.Sprintf("-test=%t", tests), "-json=ImportPath,Dir,GoFiles,ImportMap,Module", "./...")
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	cmd.Env = append(os.Environ(), "GOOS="+system, "GOARCH="+arch, "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err = d.Decode(&p); errors.Is(err, io.EOF) {
			return packages, nil
		} else if err != nil {
			return nil, err
		}
		packages = append(packages, &p)
	}
}

// A checker has the packages of one platform.
type checker struct {
	fset  *token.FileSet
	sizes types.Sizes
	done  map[string]*types.Package // by import path
}

// check checks a package. Of other modules it needs the declarations alone.
func (c *checker) check(p *listed) error {
	files, err := c.parse(p)
	if err != nil {
		return err
	}
	var wrong []error
	config := types.Config{Importer: importer{c, p}, Sizes: c.sizes, IgnoreFuncBodies: !p.own(), Error: func(err error) { wrong = append(wrong, err) }}
	if p.Module != nil && p.Module.GoVersion != "" {
		config.GoVersion = "go" + p.Module.GoVersion
	}
	path, _, _ := strings.Cut(p.ImportPath, " ") // "a [b.test]" is a as the test of b sees it
	c.done[p.ImportPath], _ = config.Check(path, c.fset, files, nil)
	if !p.own() {
		return nil // imports that only the bodies use, which are left out
	}
	return errors.Join(wrong...)
}

// parse parses the files of a package side by side.
func (c *checker) parse(p *listed) ([]*ast.File, error) {
	files, wrong := make([]*ast.File, len(p.GoFiles)), make([]error, len(p.GoFiles))
	var all sync.WaitGroup
	for i, name := range p.GoFiles {
		all.Go(func() {
			files[i], wrong[i] = parser.ParseFile(c.fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		})
	}
	all.Wait()
	return files, errors.Join(wrong...)
}

// An importer finds what one package imports.
type importer struct {
	*checker
	of *listed
}

func (i importer) Import(path string) (*types.Package, error) {
	if mapped, ok := i.of.ImportMap[path]; ok {
		path = mapped
	}
	if p, ok := i.done[path]; ok {
		return p, nil
	}
	return nil, fmt.Errorf("%s is not listed", path)
}
