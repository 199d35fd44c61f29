package yamlfile

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxBack bounds how far before the line at which the parser gave up the
// beginning of a mistake is looked for.
const maxBack = 64

// lineReader hands out a line at a time and counts them. The parser reads no
// further than it must, so the count says where it gave up.
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

// lineOf finds the line in the YAML library's own errors, which carry it as text.
var lineOf = regexp.MustCompile(`^yaml: line (\d+): `)

// syntaxError is the library's error at the line where the mistake begins. The
// library names the line where the structure around it began, or none: the line
// wanted is the first that cannot be added to what comes before.
func syntaxError(name string, b []byte, stopped int, err error) *Error {
	e := &Error{File: name, Line: 1, Reason: strings.TrimPrefix(err.Error(), "yaml: ")}
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
	return e
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
