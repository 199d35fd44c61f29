package recipes

import (
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the computed tables of docs/")

// checkTable compares a table of a page with what this test computed. The table
// stands between <!-- computed: NAME --> and <!-- end -->.
func checkTable(t *testing.T, page, name, want string) {
	t.Helper()
	path := "../../docs/" + page
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	place := regexp.MustCompile(`(?s)(<!-- computed: ` + name + ` -->\n).*?(<!-- end -->)`)
	if !place.Match(b) {
		t.Fatalf("%s has no table %s", page, name)
	}
	got := place.ReplaceAllString(string(b), "${1}"+strings.ReplaceAll(want, "$", "$$")+"${2}")
	switch {
	case got == string(b):
	case *update:
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s: the table %s should be\n%s(go test ./examples/recipes -update)", page, name, want)
	}
}

// row is a line of a table in Markdown.
func row(cells ...string) string { return "| " + strings.Join(cells, " | ") + " |\n" }

func rule(columns int) string { return "|" + strings.Repeat(" --- |", columns) + "\n" }
