package main

import (
	"embed"
	"slices"
	"strings"
	"text/template"

	"github.com/alecthomas/kong"
)

type CompletionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish,man" help:"bash, zsh or fish; or man for the manual page."`
}

//go:embed completion
var completionFiles embed.FS

var completions = template.Must(template.New("").Funcs(template.FuncMap{
	"quote":  strings.NewReplacer("'", "’", "\n", " ").Replace, // help inside single quotes of a shell, in one line
	"colons": strings.NewReplacer(":", `\:`).Replace,           // a name for zsh, where a colon ends it
	"roff":   roff,
}).ParseFS(completionFiles, "completion/*.tmpl"))

type completed struct {
	*kong.Node
	Path, Parent string // such as "migrate up" and its parent "migrate"
	Usage        string
	Children     []*kong.Node
	Flags        []*kong.Flag
}

func (c *CompletionCmd) Run(e *env, k *kong.Kong) error {
	data := struct {
		Description string
		Commands    []completed
	}{Description: description}
	var walk func(n *kong.Node, path, parent string)
	walk = func(n *kong.Node, path, parent string) {
		c := completed{Node: n, Path: path, Parent: parent, Usage: strings.TrimPrefix(n.Summary(), "dipwell ")}
		for _, child := range n.Children {
			if !child.Hidden {
				c.Children = append(c.Children, child)
			}
		}
		for _, group := range n.AllFlags(true) {
			c.Flags = append(c.Flags, group...)
		}
		slices.SortFunc(c.Flags, func(a, b *kong.Flag) int { return strings.Compare(a.Name, b.Name) })
		data.Commands = append(data.Commands, c)
		for _, child := range c.Children {
			walk(child, strings.TrimSpace(path+" "+child.Name), path)
		}
	}
	walk(k.Model.Node, "", "")
	return completions.ExecuteTemplate(e.stdout, c.Shell+".tmpl", data)
}

// roff writes text for man: no line is taken for a request, and a hyphen can be copied as one.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s)
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}
