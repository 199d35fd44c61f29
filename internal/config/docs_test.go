package config_test

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/dipwell/dipwell/internal/config"
)

var update = flag.Bool("update", false, "write the tables of docs/")

// table is the table of settings in a page.
var table = regexp.MustCompile(`(?s)<!-- settings -->\n.*?<!-- end -->`)

var quoted = regexp.MustCompile(`(^|[ (\[])'([^']+)'`)

// TestDocs checks that the table of docs/reference/configuration.md has what the table of
// settings has.
func TestDocs(t *testing.T) {
	const path = "../../docs/reference/configuration.md"
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := table.ReplaceAllLiteralString(string(b), "<!-- settings -->\n"+settingsTable()+"<!-- end -->")
	switch {
	case !table.Match(b):
		t.Errorf("%s has no table of settings", path)
	case *update:
		err = os.WriteFile(path, []byte(want), 0o600)
	case want != string(b):
		t.Errorf("%s is not what the settings say: go generate ./internal/config", path)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func code(text string) string { return quoted.ReplaceAllString(text, "$1`$2`") }

func settingsTable() string {
	var b strings.Builder
	var live []string
	b.WriteString("| setting | default | |\n| --- | --- | --- |\n")
	for _, s := range config.Settings {
		names := "`" + s.Name + "`"
		switch {
		case !s.InFile:
			names = "`--" + s.Flag + "`, `" + s.Variable() + "`"
		case s.Flag == "":
			names += " (file only)"
		case s.Flag != strings.ReplaceAll(s.Name, "_", "-"):
			names += ", `--" + s.Flag + "`, `" + s.Variable() + "`"
		}
		if s.Live {
			live = append(live, "`"+s.Name+"`")
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", names, code(s.Absent()), code(s.Tag.Get("help")))
	}
	b.WriteString("\nA change of " + strings.Join(live, ", ") + " in the file takes effect at once, any other after a restart.\n")
	return b.String()
}
