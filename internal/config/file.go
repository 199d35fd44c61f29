package config

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"reflect"
	"regexp"

	"go.yaml.in/yaml/v4"
)

// Load reads a file. The error joins all mistakes, each a *YAMLError.
func Load(path string) (*File, error) {
	b, err := LoadYAML(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, b)
}

// Parse parses a file, called name in errors. Settings that it lacks have their defaults.
func Parse(name string, b []byte) (*File, error) {
	p := parser{File: Defaults()}
	p.Digest = digest(b)
	p.document(name, b)
	if err := p.Err(); err != nil {
		return nil, err
	}
	return p.File, nil
}

type parser struct {
	*File
	YAMLReader
}

// digest returns the first half of the SHA-256 of a file, in hex.
func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}

// DigestOf returns the digest of the present content of a file.
func DigestOf(path string) (string, error) {
	b, err := LoadYAML(path)
	if err != nil {
		return "", err
	}
	return digest(b), nil
}

// bareMemory matches `store: memory:` without quotes, which YAML parses as a nested
// mapping. The name may be misspelt, so that the mistake is reported as that.
var bareMemory = regexp.MustCompile(`(?m)^([ \t]*\w+:[ \t]+)memory:([ \t\r]*(?:#.*)?)$`)

// quoteMemory puts quotes around such a memory:. The pattern matches only lines that
// contain the word, because a file may have 100,000 lines.
func quoteMemory(b []byte) []byte {
	quoted := make([]byte, 0, len(b)+len(`""`))
	for line := range bytes.Lines(b) {
		if bytes.Contains(line, []byte("memory:")) {
			line = bareMemory.ReplaceAll(line, []byte(`$1"memory:"$2`))
		}
		quoted = append(quoted, line...)
	}
	return quoted
}

func (p *parser) document(name string, b []byte) {
	n, ok := p.Document(name, quoteMemory(b))
	switch {
	case !ok:
		return
	case n == nil || n.Tag == "!!null" || n.Kind == yaml.MappingNode && len(n.Content) == 0:
		p.Fail(nil, "", "is empty; for a service without limits write limits: []")
		return
	}
	p.block(p.File, Settings, n, "")
	if p.Store != "" && p.Data != "" {
		p.Fail(n, "data", "store and data both name the place of the buckets; give one")
	}
}

// block reads the settings of to, a *File or *Caller, and returns the names that are given.
func (p *parser) block(to any, rows []*Setting, n *yaml.Node, where string) map[string]bool {
	settings, given := map[string]*Setting{}, map[string]bool{}
	var names []string
	for _, s := range rows {
		if s.InFile {
			settings[s.Name], names = s, append(names, s.Name)
		}
	}
	p.Mapping(n, where, names, func(name string, v *yaml.Node) {
		given[name] = true
		p.setting(to, settings[name], where+name, v)
	})
	return given
}

// setting reads a setting of to, a *File or *Caller. where is its name in errors.
func (p *parser) setting(to any, s *Setting, where string, n *yaml.Node) {
	switch {
	case where == "limits":
		p.limits(n)
	case where == "callers":
		p.callers(n)
	case s.Type.Kind() == reflect.Slice:
		p.List(n, where, " such as ["+s.Tag.Get("kind")+"]", func(where string, item *yaml.Node) { p.value(to, s, "", where, item) })
	case s.Type.Kind() == reflect.Map:
		p.Mapping(n, where+".", nil, func(name string, v *yaml.Node) { p.value(to, s, name, where+"."+name, v) })
	default:
		p.value(to, s, "", where, n)
	}
}

// value reads one value of a setting. name is that of a label, or "".
func (p *parser) value(to any, s *Setting, name, where string, n *yaml.Node) {
	text, ok := p.Text(n, where)
	if !ok {
		return
	}
	if text == "" && name == "" {
		p.Fail(n, where, "is empty")
	} else if err := s.add(to, name, text); err != nil {
		p.Fail(n, where, "%v", err)
	}
}
