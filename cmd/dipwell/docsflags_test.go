package main

import (
	"io/fs"
	"os"
	"path"
	"regexp"
	"testing"

	"github.com/alecthomas/kong"
)

// ofOthers are flags of other programs that pages name: of pg_dump, Alembic and the simulator.
var ofOthers = map[string]bool{"exclude-table-data": true, "no-unlogged-table-data": true, "sql": true,
	"faults": true, "seed": true, "seeds": true, "steps": true}

// TestDocFlags checks that the flags in the text of README.md and docs/ are flags of
// dipwell. TestDocCommands runs the commands in blocks.
func TestDocFlags(t *testing.T) {
	parser, err := kong.New(&commands{Serve: ServeCmd{Plugins: kong.Plugins{serveFlags()}}}, append(readers(), kong.Vars{"timeout": "10s", "for": ""})...)
	must(t, err)
	flags := map[string]bool{"version": true} // which stands for the command
	for _, leaf := range parser.Model.Leaves(true) {
		for _, group := range leaf.AllFlags(true) {
			for _, f := range group {
				flags[f.Name] = true
			}
		}
	}
	code, flag := regexp.MustCompile("`[^`\n]+`"), regexp.MustCompile("(?:^|[` (])--([a-z][a-z0-9-]+)")
	seen := 0
	check := func(page string) {
		text, err := os.ReadFile("../../" + page)
		must(t, err)
		for _, span := range code.FindAllString(string(text), -1) {
			for _, m := range flag.FindAllStringSubmatch(span, -1) {
				if seen++; !flags[m[1]] && !ofOthers[m[1]] {
					t.Errorf("%s names --%s, which no command of dipwell has", page, m[1])
				}
			}
		}
	}
	check("README.md")
	must(t, fs.WalkDir(os.DirFS("../.."), "docs", func(name string, _ fs.DirEntry, err error) error {
		if path.Ext(name) == ".md" {
			check(name)
		}
		return err
	}))
	if seen < 100 {
		t.Errorf("only %d flags were found", seen)
	}
}
