package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/dipwell/dipwell/internal/texts"
	"go.yaml.in/yaml/v4"
)

// Bounds of a YAML file.
const (
	MaxYAML   = 4 << 20
	maxNodes  = 400000 // settings in a file, counting those that aliases repeat
	maxMerges = 32     // depth of nested merge keys
	maxErrors = 100    // mistakes reported
)

// YAMLError is a mistake in a file.
type YAMLError struct {
	File    string
	Line    int    // line of the mistake; 0 for the whole file
	Setting string // name of the setting, such as "listen" or "limits[2].burst"; may be empty
	Reason  string
}

func (e *YAMLError) Error() string {
	s := e.File
	if e.Line > 0 {
		s += ":" + strconv.Itoa(e.Line)
	}
	if e.Setting != "" {
		s += ": " + e.Setting
	}
	return s + ": " + e.Reason
}

// LoadYAML returns the content of a file, at most MaxSize.
func LoadYAML(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, MaxYAML+1))
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	return b, tooLarge(path, b)
}

func tooLarge(path string, b []byte) error {
	if len(b) > MaxYAML {
		return &YAMLError{File: path, Reason: "has more than 4 MiB"}
	}
	return nil
}

// YAMLReader reads files and collects their mistakes.
type YAMLReader struct {
	MergeKeys bool // support merge keys (<<)

	file    string
	nodes   int // number of nodes read from this file
	errs    []error
	stopped bool
}

// Err returns the mistakes found so far, at most 101, each a *YAMLError, or nil.
func (r *YAMLReader) Err() error { return errors.Join(r.errs...) }

// Mistakes returns the number of mistakes in Err.
func (r *YAMLReader) Mistakes() int { return len(r.errs) }

// Stop ends the reading of lists until the next document.
func (r *YAMLReader) Stop() { r.stopped = true }

// Fail adds a mistake at the line of n, or for the whole file if n is nil.
func (r *YAMLReader) Fail(n *yaml.Node, setting, format string, args ...any) {
	line := 0
	if n != nil {
		line = n.Line
	}
	r.fail(&YAMLError{r.file, line, setting, fmt.Sprintf(format, args...)})
}

func (r *YAMLReader) fail(err error) {
	r.stopped = r.stopped || len(r.errs) >= maxErrors
	if len(r.errs) <= maxErrors {
		r.errs = append(r.errs, err)
	}
}

// Document parses a file, called name in errors. If that fails it adds a mistake and
// returns false. For an empty file it returns nil and true.
func (r *YAMLReader) Document(name string, b []byte) (n *yaml.Node, ok bool) {
	r.file, r.nodes, r.stopped = name, 0, false
	if err := tooLarge(name, b); err != nil {
		r.fail(err)
		return nil, false
	}
	dec := yaml.NewDecoder(bytes.NewReader(b))
	var doc, more yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, true
	case err != nil:
		r.fail(syntaxError(name, err))
		return nil, false
	}
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		r.fail(&YAMLError{File: name, Line: more.Line, Reason: "has more than one document"})
	}
	return doc.Content[0], true
}

// lineOf matches the line number in errors of the YAML library.
var lineOf = regexp.MustCompile(`^yaml: line (\d+): `)

func syntaxError(name string, err error) *YAMLError {
	e := &YAMLError{File: name, Reason: strings.TrimPrefix(err.Error(), "yaml: ")}
	if m := lineOf.FindStringSubmatch(err.Error()); m != nil {
		e.Line, _ = strconv.Atoi(m[1])
		e.Reason = strings.TrimPrefix(err.Error(), m[0])
	}
	return e
}

// Mapping calls f once for each member. If known is not nil, a member that it lacks is a mistake.
func (r *YAMLReader) Mapping(n *yaml.Node, where string, known []string, f func(name string, v *yaml.Node)) {
	if n = deref(n); n.Kind != yaml.MappingNode {
		r.Fail(n, strings.TrimSuffix(where, "."), "must be settings, one a line, as in '%s: ...'", slices.Concat(known, []string{"name"})[0])
		return
	}
	m := mapping{r, where, known, f, map[string]member{}, 0}
	m.read(n, 0)
}

// mapping is a YAML mapping while it is read, with its merge keys.
type mapping struct {
	*YAMLReader
	where string
	known []string
	f     func(name string, v *yaml.Node)
	seen  map[string]member
	reads int // number of mappings read: this one and those merged into it
}

// member is where a name was last seen.
type member struct{ read, line int }

func (m *mapping) read(n *yaml.Node, depth int) {
	var merges []*yaml.Node
	m.reads++
	for i := 0; i+1 < len(n.Content); i += 2 {
		if m.nodes++; m.nodes > maxNodes {
			if !m.stopped {
				m.Fail(n, "", "has more than %d settings, aliases resolved", maxNodes)
			}
			m.stopped = true
			return
		}
		name, v := n.Content[i], deref(n.Content[i+1])
		v.Line = name.Line // use the name's line, because the value may begin on a later one
		if m.MergeKeys && name.Tag == "!!merge" {
			merges = append(merges, v)
			continue
		}
		first, seen := m.seen[name.Value]
		if seen && first.read == m.reads {
			m.Fail(name, m.where+name.Value, "is given twice; first in line %d", first.line)
			continue
		}
		m.seen[name.Value] = member{m.reads, name.Line}
		if seen {
			continue
		}
		if name.Kind != yaml.ScalarNode || m.known != nil && !slices.Contains(m.known, name.Value) {
			m.Fail(name, m.where+name.Value, "unknown setting%s", texts.Nearest(name.Value, m.known))
			continue
		}
		m.f(name.Value, v)
	}
	for _, v := range merges {
		m.merge(v, depth)
	}
}

func (m *mapping) merge(n *yaml.Node, depth int) {
	switch {
	case depth > maxMerges:
		m.Fail(n, m.where+"<<", "merges more than %d deep", maxMerges)
	case n.Kind == yaml.MappingNode:
		m.read(n, depth+1)
	case n.Kind == yaml.SequenceNode && depth == 0:
		for _, item := range n.Content {
			m.merge(deref(item), 1)
		}
	default:
		m.Fail(n, m.where+"<<", "must be settings")
	}
}

// List calls f for each item, with its index in where. like ends the error "must be a list".
func (r *YAMLReader) List(n *yaml.Node, setting, like string, f func(where string, item *yaml.Node)) {
	if n.Kind != yaml.SequenceNode {
		r.Fail(n, setting, "must be a list%s", like)
		return
	}
	for i, item := range n.Content {
		if r.stopped {
			return
		}
		f(setting+"["+strconv.Itoa(i)+"]", deref(item))
	}
}

// Text returns the text of a scalar. Anything else, and null, is a mistake.
func (r *YAMLReader) Text(n *yaml.Node, setting string) (string, bool) {
	switch {
	case n.Kind != yaml.ScalarNode:
		r.Fail(n, setting, "must be one value")
	case IsNull(n):
		r.Fail(n, setting, "has no value; leave the line out for the default")
	default:
		return n.Value, true
	}
	return "", false
}

// IsNull reports whether a value is null or absent.
func IsNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

// deref returns n or, if n is an alias, its value with the line of the alias.
func deref(n *yaml.Node) *yaml.Node {
	if n.Kind != yaml.AliasNode {
		return n
	}
	there := *n.Alias
	there.Line = n.Line
	return &there
}
