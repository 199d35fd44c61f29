// Command licenses writes THIRD_PARTY_LICENSES.md for a release: the licences of all
// modules that are linked into dipwell, on any of the systems for which it is released, and
// of the packages of npm in its page.
// It fails on a licence that it does not know.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// systems are those of .goreleaser.yaml; some modules are linked on only one of
// them.
var systems = []string{"linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64", "windows/amd64"}

// module is a module as listed by go list.
type module struct{ Path, Version, Dir string }

// embedded are packages of npm that the page contains. Dir is relative to the root.
var embedded = []module{
	{"htm (npm)", "3.1.1", "internal/ui/third_party/htm"},
	{"preact (npm)", "10, in htm 3.1.1", "internal/ui/third_party/preact"},
}

func main() {
	out := flag.String("o", "", "write to this file")
	flag.Parse()
	text, err := list("github.com/dipwell/dipwell/cmd/dipwell")
	switch {
	case err != nil:
	case *out != "":
		err = os.WriteFile(*out, text, 0o644)
	default:
		_, err = os.Stdout.Write(text)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "licenses:", err)
		os.Exit(1)
	}
}

// list returns the text of the file: a table, and each licence text once.
func list(program string) ([]byte, error) {
	modules, err := linked(program)
	if err != nil {
		return nil, err
	}
	root, err := exec.CommandContext(context.Background(), "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return nil, fmt.Errorf("go list -m: %w", err)
	}
	for _, m := range embedded {
		m.Dir = filepath.Join(strings.TrimSpace(string(root)), m.Dir)
		modules = append(modules, m)
	}
	var table, texts bytes.Buffer
	first := map[string]int{} // by text: the number of its section
	for _, m := range modules {
		kinds, text, err := licenseOf(m)
		if err != nil {
			return nil, err
		}
		n, known := first[text]
		if !known {
			n = len(first) + 1
			first[text] = n
			fmt.Fprintf(&texts, "\n## Text %d\n\n`````text\n%s\n`````\n", n, text)
		}
		fmt.Fprintf(&table, "| %s | %s | %s | [%d](#text-%d) |\n", m.Path, m.Version, strings.Join(kinds, ", "), n, n)
	}
	var b bytes.Buffer
	b.WriteString("# Third-party licences\n\nThe program `dipwell` links the modules below, on one system or another, its page contains two packages of npm, and it contains Go's standard library and runtime, which have the licence of golang.org/x/sys. A Go program that imports dipwell links fewer.\n\n| module | version | licence | text |\n| --- | --- | --- | --- |\n")
	b.Write(table.Bytes())
	b.Write(texts.Bytes())
	return b.Bytes(), nil
}

// linked lists the modules linked into a program, except its own, sorted by
// path.
func linked(program string) ([]module, error) {
	all := map[string]module{}
	for _, system := range systems {
		goos, goarch, _ := strings.Cut(system, "/")
		cmd := exec.CommandContext(context.Background(), "go", "list", "-deps", "-json=Module", program)
		cmd.Env = append(os.Environ(), "GOOS="+goos, "GOARCH="+goarch, "CGO_ENABLED=0", "GOFLAGS=-mod=readonly")
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("go list, %s: %w", system, err)
		}
		for dec := json.NewDecoder(bytes.NewReader(out)); ; {
			var p struct{ Module *module }
			if err := dec.Decode(&p); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return nil, err
			}
			if p.Module != nil && p.Module.Version != "" {
				all[p.Module.Path] = *p.Module
			}
		}
	}
	var out []module
	for _, m := range all {
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b module) int { return strings.Compare(a.Path, b.Path) })
	return out, nil
}

// licenseOf returns the licences of a module, and their notices.
func licenseOf(m module) (kinds []string, text string, err error) {
	var files, texts []string
	for _, pattern := range []string{"LICENSE*", "LICENCE*", "COPYING*", "NOTICE*", "licenses/ftl.txt"} {
		found, err := filepath.Glob(filepath.Join(m.Dir, pattern))
		if err != nil {
			return nil, "", err
		}
		files = append(files, found...)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "LOGO") {
			continue // licence of a picture that is not linked
		}
		b, err := os.ReadFile(name)
		if err != nil {
			return nil, "", err
		}
		text := strings.ReplaceAll(strings.TrimSpace(string(b)), "\r\n", "\n")
		lines := strings.Split(text, "\n")
		for i := range lines {
			lines[i] = strings.TrimRight(lines[i], " \t")
		}
		texts = append(texts, strings.Join(lines, "\n"))
		if base := strings.ToUpper(filepath.Base(name)); strings.HasPrefix(base, "NOTICE") || strings.Contains(base, "3RD-PARTY") {
			continue // licence of something else in the module
		}
		kind := kindOf(text)
		if kind == "" {
			return nil, "", fmt.Errorf("%s %s: %s is none of the licences that kindOf knows; see whether it may be linked", m.Path, m.Version, filepath.Base(name))
		}
		if !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind)
		}
	}
	if len(kinds) == 0 {
		return nil, "", fmt.Errorf("%s %s has no file LICENSE or COPYING", m.Path, m.Version)
	}
	return kinds, strings.Join(texts, "\n\n"), nil
}

// kindOf returns the SPDX identifier of a licence text, or "".
func kindOf(text string) string {
	words := strings.Join(strings.Fields(text), " ")
	for _, k := range []struct{ says, kind string }{
		{"Use of the Freetype-Go software is subject to your choice", "FTL"}, // or the GPL
		{"The FreeType Project LICENSE", "FTL"},
		{"SIL OPEN FONT LICENSE", "OFL-1.1"},
		{"Creative Commons Attribution 4.0 International", "CC-BY-4.0"},
		{"Apache License Version 2.0", "Apache-2.0"},
		{"Licensed under the Apache License, Version 2.0", "Apache-2.0"},
		{"Mozilla Public License Version 2.0", "MPL-2.0"},
		{"Permission is hereby granted, free of charge", "MIT"},
		{"Neither the name", "BSD-3-Clause"},
		{"Redistribution and use in source and binary forms", "BSD-2-Clause"},
		{"dedicated to the public domain", "public domain"},
		{"in the public domain", "public domain"},
		{"Permission to use, copy, modify, and/or distribute this software", "ISC"},
		{"Permission to use, copy, modify, and distribute this software", "ISC"},
	} {
		if strings.Contains(words, k.says) {
			return k.kind
		}
	}
	return ""
}
