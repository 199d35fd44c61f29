package config

import (
	"bytes"
	"errors"
	"io"
	"regexp"
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
// there.
func explain(b []byte, reason string) string {
	line := b[bytes.LastIndexByte(bytes.TrimRight(b, "\r\n"), '\n')+1:]
	text := strings.TrimSpace(string(line))
	switch indent, _, _ := strings.Cut(string(line), text); {
	case text == "":
		return reason
	case strings.Contains(indent, "\t"):
		reason = "is indented with a tab; YAML wants spaces"
	}
	if len(text) > maxQuoted {
		text = strings.ToValidUTF8(text[:maxQuoted], "") + "…"
	}
	return reason + ": " + strconv.Quote(text)
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
