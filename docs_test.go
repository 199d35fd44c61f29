package dipwell_test

import (
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

var (
	fence    = regexp.MustCompile("(?ms)^`````.*?^`````$|^[ \t]*```.*?^[ \t]*```[ \t]*$") // five in THIRD_PARTY_LICENSES.md, whose texts have three
	codeSpan = regexp.MustCompile("`+[^`\n]*`+")
	mdLink   = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	htmlLink = regexp.MustCompile(`(?:href|src|srcset)="([^"]+)"`)
	heading  = regexp.MustCompile(`(?m)^#{1,6} +(.+?) *#* *$`)
	docName  = regexp.MustCompile(`\bdocs/[\w./-]+\.(?:md|svg|png)\b`)
)

// TestDocLinks checks every relative link of every Markdown file, with its anchor, and
// that the pages of docs/ that other files mention exist.
func TestDocLinks(t *testing.T) {
	err := fs.WalkDir(os.DirFS("."), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (name == ".git" || name == "bin" || d.Name() == "node_modules"):
			return fs.SkipDir
		case d.IsDir():
			return nil
		}
		switch path.Ext(name) {
		case ".md":
			checkLinks(t, name)
		case ".go", ".yaml", ".yml", ".sql", ".lua", ".sh":
			for _, page := range docName.FindAllString(readText(t, name), -1) {
				if _, err := os.Stat(page); err != nil {
					t.Errorf("%s mentions %s, which is not there", name, page)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func checkLinks(t *testing.T, name string) {
	t.Helper()
	text := codeSpan.ReplaceAllString(fence.ReplaceAllString(readText(t, name), ""), "")
	for _, m := range append(mdLink.FindAllStringSubmatch(text, -1), htmlLink.FindAllStringSubmatch(text, -1)...) {
		u, err := url.Parse(m[1])
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if u.IsAbs() {
			continue
		}
		target := name
		if u.Path != "" {
			target = path.Join(path.Dir(name), u.Path)
		}
		if _, err := os.Stat(filepath.FromSlash(target)); err != nil {
			t.Errorf("%s: link to %s, which is not there", name, m[1])
		} else if u.Fragment != "" && path.Ext(target) == ".md" && !anchors(t, target)[u.Fragment] {
			t.Errorf("%s: link to %s, a heading that is not there", name, m[1])
		}
	}
}

// anchors returns the anchors that GitHub gives to the headings of a page.
func anchors(t *testing.T, name string) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(readText(t, name), ""), -1) {
		anchor := strings.Map(func(c rune) rune {
			switch {
			case c == ' ':
				return '-'
			case c == '-' || c == '_' || unicode.IsLetter(c) || unicode.IsNumber(c):
				return unicode.ToLower(c)
			}
			return -1
		}, mdLink.ReplaceAllString(m[1], "]"))
		found[anchor] = true
	}
	return found
}

// quoted matches a block of code that a page quotes from a file, with the path of the
// file before it.
var quoted = regexp.MustCompile("(?s)<!-- from: (\\S+) -->\n```\\w*\n(.*?)```\n")

// TestDocQuotes checks that the blocks that README.md and docs/ quote are in their
// files, and that they quote all their Go, so that it compiles and is run. It ignores
// indentation.
func TestDocQuotes(t *testing.T) {
	indent := regexp.MustCompile(`(?m)^[ \t]+`)
	found := 0
	err := fs.WalkDir(os.DirFS("."), ".", func(name string, _ fs.DirEntry, err error) error {
		if err != nil || name != "README.md" && (path.Ext(name) != ".md" || !strings.HasPrefix(name, "docs/")) {
			return err
		}
		text := readText(t, name)
		if !strings.HasPrefix(name, "docs/adr/") && strings.Contains(quoted.ReplaceAllString(text, ""), "```go\n") {
			t.Errorf("%s has Go that it does not quote from a file", name)
		}
		for _, m := range quoted.FindAllStringSubmatch(text, -1) {
			found++
			if !strings.Contains(indent.ReplaceAllString(readText(t, m[1]), ""), indent.ReplaceAllString(m[2], "")) {
				t.Errorf("%s quotes what is not in %s:\n%s", name, m[1], m[2])
			}
		}
		return nil
	})
	if err != nil || found == 0 {
		t.Fatal(found, err)
	}
}

func readText(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.FromSlash(name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestDocTests checks that the test files and tests that pages name are there.
func TestDocTests(t *testing.T) {
	var tests strings.Builder // every test file: its name and its functions
	var pages []string
	err := fs.WalkDir(os.DirFS("."), ".", func(name string, _ fs.DirEntry, err error) error {
		switch {
		case strings.HasSuffix(name, "_test.go"):
			tests.WriteString(" /" + name + "\n" + readText(t, name))
		case path.Ext(name) == ".md" && (name == "README.md" || name == "CONTRIBUTING.md" || strings.HasPrefix(name, "docs/")):
			pages = append(pages, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	all := tests.String()
	file, function := regexp.MustCompile(`\w[\w/]*_test\.go\b`), regexp.MustCompile(`\b(?:Test[A-Z]|Example_)\w+`)
	for _, page := range pages {
		text := readText(t, page)
		for _, name := range file.FindAllString(text, -1) {
			if !strings.Contains(all, "/"+name+"\n") {
				t.Errorf("%s names %s, which is not there", page, name)
			}
		}
		for _, name := range function.FindAllString(text, -1) {
			if !strings.Contains(all, "func "+name+"(") {
				t.Errorf("%s names %s, which is not there", page, name)
			}
		}
	}
}

// TestDocFiles checks that the files of code that pages name are there.
func TestDocFiles(t *testing.T) {
	there := map[string]bool{"dipwell.sql": true} // what migrate print writes
	var pages []string
	err := fs.WalkDir(os.DirFS("."), ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			for at := name; ; { // the name from each of its folders on
				there[at] = true
				_, rest, more := strings.Cut(at, "/")
				if !more {
					break
				}
				at = rest
			}
			if path.Ext(name) == ".md" && !strings.Contains(name, "/results/") && name != "CHANGELOG.md" && name != "THIRD_PARTY_LICENSES.md" {
				pages = append(pages, name)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	file := regexp.MustCompile("`([\\w/]+\\.(?:go|sql|lua))`")
	for _, page := range pages {
		for _, m := range file.FindAllStringSubmatch(readText(t, page), -1) {
			if !there[m[1]] {
				t.Errorf("%s names %s, which is not there", page, m[1])
			}
		}
	}
}

// TestFirstCommands checks that the pages that newcomers read first give the way by a clone
// before the one that works once there is a release, and say that there is none yet.
func TestFirstCommands(t *testing.T) {
	for _, page := range []string{"README.md", "docs/tutorial/sql.md", "docs/tutorial/go.md"} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		clone := strings.Index(string(text), "git clone https://github.com/dipwell/dipwell")
		none := strings.Index(string(text), "There is no release yet")
		published := strings.Index(string(text), "`go install github.com/dipwell/dipwell/cmd/dipwell@latest`")
		if page == "docs/tutorial/go.md" {
			published = strings.Index(string(text), "`go get github.com/dipwell/dipwell`")
		}
		if clone < 0 || none < clone || published < none {
			t.Errorf("%s: a clone is at %d, that there is no release at %d, the way with one at %d", page, clone, none, published)
		}
	}
}
