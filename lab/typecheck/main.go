// Command typecheck checks the types of all packages of this module for each platform
// that it is given, such as linux/386, and of their tests where these can run. The
// command reads the sources of imported packages instead of compiling them, which takes a
// tenth of the processor time, and finds what a compiler would refuse: a name that a
// platform lacks, a constant that an int of 32 bits does not hold.
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log"
	"os"
	"strings"
	"sync"

	"golang.org/x/tools/go/packages"
)

func main() {
	log.SetFlags(0)
	for _, platform := range os.Args[1:] {
		system, arch, ok := strings.Cut(platform, "/")
		if !ok {
			log.Fatalf("typecheck: %q: want a platform such as linux/386", platform)
		}
		n, err := check(".", system, arch)
		if err != nil {
			log.Fatalf("%s:\n%v", platform, err)
		}
		fmt.Printf("%s: the types of %d packages are right\n", platform, n)
	}
}

// check checks the packages below a directory and returns how many there are.
func check(dir, system, arch string) (n int, err error) {
	list, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedImports | packages.NeedDeps | packages.NeedTypes | packages.NeedTypesSizes | packages.NeedSyntax | packages.NeedModule,
		Dir:  dir,
		Fset: set, ParseFile: parse,
		Env: append(os.Environ(), "GOOS="+system, "GOARCH="+arch, "CGO_ENABLED=0"),
		// Tests with servers are left out where internal/procs, which is for Unix only, does
		// not work.
		Tests: system != "windows",
	}, "./...")
	if err != nil {
		return 0, err
	}
	var wrong []string
	for _, p := range list { // of other modules only the declarations are read
		for _, e := range p.Errors {
			wrong = append(wrong, e.Error())
		}
	}
	if wrong != nil {
		err = fmt.Errorf("%s", strings.Join(wrong, "\n"))
	}
	return len(list), err
}

// Most files are the same on each platform: they are parsed once, without comments.
var (
	set    = token.NewFileSet()
	parsed sync.Map // by the file's name, a function that returns its tree
)

func parse(_ *token.FileSet, name string, text []byte) (*ast.File, error) {
	f, _ := parsed.LoadOrStore(name, sync.OnceValues(func() (*ast.File, error) {
		return parser.ParseFile(set, name, text, parser.SkipObjectResolution)
	}))
	return f.(func() (*ast.File, error))()
}
