package config_test

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dipwell/dipwell/internal/config"
)

var update = flag.Bool("update", false, "write the tables of docs/")

// table is a table of settings in a page: all, or those whose names begin with
// one of the words.
var table = regexp.MustCompile(`(?s)<!-- settings:(.*?) -->\n.*?<!-- end -->`)

var quoted = regexp.MustCompile(`(^|[ (\[])'([^']+)'`)

// The tables of docs/ say what the table of settings does.
func TestDocs(t *testing.T) {
	for _, page := range []string{"configuration", "grpc"} {
		path := "../../docs/reference/" + page + ".md"
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		want := table.ReplaceAllStringFunc(string(b), func(old string) string {
			words := strings.Fields(table.FindStringSubmatch(old)[1])
			return "<!-- settings:" + strings.Join(append([]string{""}, words...), " ") + " -->\n" + settingsTable(words) + "<!-- end -->"
		})
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
}

func code(text string) string { return quoted.ReplaceAllString(text, "$1`$2`") }

func settingsTable(words []string) string {
	var b strings.Builder
	b.WriteString("| setting | default | change | |\n| --- | --- | --- | --- |\n")
	for _, s := range config.Settings {
		if len(words) > 0 && !slices.ContainsFunc(words, func(w string) bool { return strings.HasPrefix(s.Name, w) }) {
			continue
		}
		names, change := "`"+s.Name+"`", "restart"
		switch {
		case !s.InFile:
			names = "`--" + s.Flag + "`, `" + s.Variable() + "`"
		case s.Flag == "":
			names += " (file only)"
		case s.Flag != strings.ReplaceAll(s.Name, "_", "-"):
			names += ", `--" + s.Flag + "`, `" + s.Variable() + "`"
		}
		if s.Live {
			change = "at once"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", names, code(s.Absent()), change, code(s.Tag.Get("help")))
	}
	return b.String()
}
