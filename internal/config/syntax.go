package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxBack is how many lines before the parser's stop the mistake is searched.
const maxBack = 64

// lineReader returns one line at a time and counts them, so that the count is where
// the parser stopped.
type lineReader struct {
	rest  []byte
	lines int
}

func (r *lineReader) Read(to []byte) (int, error) {
	if len(r.rest) == 0 {
		return 0, io.EOF
	}
	n := min(len(r.rest), len(to))
	if end := bytes.IndexByte(r.rest[:n], '\n'); end >= 0 {
		n = end + 1
		r.lines++
	} else if n == len(r.rest) {
		r.lines++
	}
	copy(to, r.rest[:n])
	r.rest = r.rest[n:]
	return n, nil
}

// lineOf matches the line number in errors of the YAML library.
var lineOf = regexp.MustCompile(`^yaml: line (\d+): `)

// syntaxError returns the library's error with the line of the mistake. The library
// has the line where the surrounding structure begins, or none. The line of the
// mistake is the first for which the lines up to it are not valid YAML.
func syntaxError(name string, b []byte, stopped int, err error) *YAMLError {
	e := &YAMLError{File: name, Line: 1, Reason: strings.TrimPrefix(err.Error(), "yaml: ")}
	if m := lineOf.FindStringSubmatch(err.Error()); m != nil {
		e.Line, _ = strconv.Atoi(m[1])
		e.Reason = strings.TrimPrefix(err.Error(), m[0])
	}
	for n := stopped - 1; n >= max(0, stopped-maxBack); n-- {
		if valid(firstLines(b, n)) {
			e.Line = n + 1
			break
		}
	}
	e.Reason = explain(firstLines(b, e.Line), e.Reason)
	return e
}

// maxQuoted bounds the part of a line that an error shows, in bytes.
const maxQuoted = 60

// explain returns the library's reason for a mistake in the last line of b, with what stands
// there and, if it is indented like nothing above it, what is above it.
func explain(b []byte, reason string) string {
	lines := strings.Split(strings.TrimRight(string(b), "\r\n"), "\n")
	above, line := lines[:len(lines)-1], strings.TrimRight(lines[len(lines)-1], " \r")
	text := strings.TrimLeft(line, " \t")
	indent := line[:len(line)-len(text)]
	if text == "" {
		return reason
	}
	quoted := quote(text)
	open := begins(above)
	_, fits := open[len(indent)]
	fits = fits || len(open) == 0
	switch {
	case strings.Contains(indent, "\t"):
		return quoted + " is indented with a tab; YAML wants spaces"
	case reason == "could not find expected ':'":
		return quoted + " has no ': ' between a setting and its value"
	case reason == "mapping values are not allowed in this context" && fits:
		return quoted + " has ': ' in its value; put the value in quotes"
	case slices.Contains(ofIndents, reason):
		var columns []string
		for _, column := range slices.Sorted(maps.Keys(open)) {
			columns = append(columns, fmt.Sprintf("%d (%s)", column+1, quote(open[column])))
		}
		return fmt.Sprintf("%s does not fit in column %d; the lines above it begin in column %s", quoted, len(indent)+1, strings.Join(columns, ", "))
	}
	return reason + ": " + quoted
}

// ofIndents are the library's reasons if a line begins in a wrong column.
var ofIndents = []string{"mapping values are not allowed in this context", "did not find expected key", "did not find expected '-' indicator", "block sequence entries are not allowed in this context"}

// begins returns what begins in each column, counted from 0, in which the next line could
// begin: of the lines that it might belong to.
func begins(lines []string) map[int]string {
	open := map[int]string{}
	for _, line := range lines {
		text := strings.TrimSpace(line)
		if text == "" || text[0] == '#' {
			continue
		}
		column := len(line) - len(strings.TrimLeft(line, " "))
		maps.DeleteFunc(open, func(c int, _ string) bool { return c >= column })
		open[column] = text
		for item, ok := strings.CutPrefix(text, "- "); ok; item, ok = strings.CutPrefix(text, "- ") {
			column, text = column+len(text)-len(strings.TrimLeft(item, " ")), strings.TrimLeft(item, " ")
			open[column] = text
		}
	}
	return open
}

func quote(s string) string {
	if len(s) > maxQuoted {
		s = strings.ToValidUTF8(s[:maxQuoted], "") + "…"
	}
	return strconv.Quote(s)
}

// firstLines returns the first n lines of b.
func firstLines(b []byte, n int) []byte {
	end := 0
	for range n {
		i := bytes.IndexByte(b[end:], '\n')
		if i < 0 {
			return b
		}
		end += i + 1
	}
	return b[:end]
}

func valid(b []byte) bool {
	var doc yaml.Node
	err := yaml.NewDecoder(bytes.NewReader(b)).Decode(&doc)
	return err == nil || errors.Is(err, io.EOF)
}
