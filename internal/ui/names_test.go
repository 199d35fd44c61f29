package ui_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tdewolff/parse/v2"
	"github.com/tdewolff/parse/v2/js"
)

// globals are the names that the page's scripts have from the browser, and Go from
// wasm_exec.js.
var globals = strings.Fields(`AbortController AbortSignal Array Boolean Date DecompressionStream Error FileReaderSync Go Intl JSON Map Math NaN Number Object Promise
	ResizeObserver Response Set String TextEncoder URL URLSearchParams Uint8Array WebAssembly Worker addEventListener cancelAnimationFrame
	clearInterval clearTimeout console document encodeURIComponent fetch globalThis history location matchMedia navigator onmessage performance
	postMessage removeEventListener requestAnimationFrame scrollTo setInterval setTimeout undefined`)

var (
	importLine = regexp.MustCompile(`(?m)^import \{(.*)\} from "\./(.*)";$`)
	exportLine = regexp.MustCompile(`(?m)^export (?:async )?(?:class|const|function) (\w+)`)
	preact     = regexp.MustCompile(`(?:export\{| as )(\w+)`)
)

// Each name in the page's scripts is declared there, imported from a script that exports it,
// or the browser's; and what is imported or exported is used. No browser says so before it
// runs the line.
func TestNames(t *testing.T) {
	files, err := os.ReadDir("page")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	exports := map[string]int{} // "words.js count": one more than it is imported
	texts := map[string]string{}
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".js") {
			continue
		}
		text, err := os.ReadFile("page/" + f.Name())
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range exportLine.FindAllStringSubmatch(string(text), -1) {
			exports[f.Name()+" "+m[1]] = 1
		}
		texts[f.Name()] = string(text)
	}
	for _, m := range preact.FindAllStringSubmatch(texts["preact.js"], -1) {
		exports["preact.js "+m[1]] = 2
	}
	delete(texts, "preact.js")
	for name, text := range texts {
		used := undeclared(t, name, text)
		var imports []string
		for _, m := range importLine.FindAllStringSubmatch(text, -1) {
			for one := range strings.SplitSeq(m[1], ", ") {
				imports = append(imports, one)
				if exports[m[2]+" "+one] == 0 || !slices.Contains(used, one) {
					t.Errorf("%s: %s is not exported by %s, or not used", name, one, m[2])
				}
				exports[m[2]+" "+one]++
			}
		}
		for _, one := range used {
			if !slices.Contains(imports, one) && !slices.Contains(globals, one) {
				t.Errorf("%s: %s is not defined", name, one)
			}
		}
	}
	for name, n := range exports {
		if n == 1 {
			t.Errorf("%s is exported and not imported", name)
		}
	}
}

// undeclared returns the names that a script uses and does not declare.
func undeclared(t *testing.T, name, text string) (out []string) {
	t.Helper()
	ast, err := js.Parse(parse.NewInputString(text), js.Options{})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	for _, v := range ast.Undeclared {
		out = append(out, string(v.Data))
	}
	return out
}
