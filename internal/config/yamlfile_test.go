package config_test

import (
	"fmt"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/dipwell/dipwell/internal/config"
)

// read reads a mapping of texts and lists of texts, and returns its members in
// the order in which they were read.
func read(r *config.YAMLReader, text string, known ...string) (members []string) {
	n, ok := r.Document("f.yaml", []byte(text))
	if !ok || n == nil {
		return nil
	}
	r.Mapping(n, "", known, func(name string, v *yaml.Node) {
		if v.Kind == yaml.SequenceNode {
			r.List(v, name, "", func(where string, item *yaml.Node) {
				value, _ := r.Text(item, where)
				members = append(members, fmt.Sprintf("%d %s=%s", item.Line, where, value))
			})
			return
		}
		value, _ := r.Text(v, name)
		members = append(members, fmt.Sprintf("%d %s=%s", v.Line, name, value))
	})
	return members
}

func TestReader(t *testing.T) {
	for _, tc := range []struct {
		name, yaml string
		merge      bool
		want       string // the members, or the mistake
	}{
		{"texts and lists", "a: 1\nb:\n  - x\n  - y\n", false, "1 a=1, 3 b[0]=x, 4 b[1]=y"},
		{"a value on a later line", "a:\n  1\n", false, "1 a=1"},
		{"an alias, at its line", "a: &x 1\nb: *x\n", false, "1 a=1, 2 b=1"},
		{"nothing", "# nothing\n", false, ""},
		{"a merge key", "a: 1\n<<: {a: 2, b: 3}\n", true, "1 a=1, 2 b=3"},
		{"merge keys of a list: the first counts", "<<: [{a: 1}, {a: 2, b: 3}]\n", true, "1 a=1, 1 b=3"},
		{"a merge key that is none", "<<: {a: 1}\n", false, "f.yaml:1: <<: unknown setting; did you mean a?"},
		{"a merge of a text", "<<: x\n", true, "f.yaml:1: <<: must be settings"},
		{"unknown", "aa: 1\n", false, "f.yaml:1: aa: unknown setting; did you mean a?"},
		{"twice", "a: 1\na: 2\n", false, "f.yaml:2: a: is given twice; first in line 1"},
		{"no value", "a:\n", false, "f.yaml:1: a: has no value; leave the line out for the default"},
		{"no text", "a: {}\n", false, "f.yaml:1: a: must be one value"},
		{"no mapping", "- a\n", false, "f.yaml:1: must be settings, one a line, as in 'a: ...'"},
		{"two documents", "a: 1\n---\nb: 1\n", false, "f.yaml:2: has more than one document"},
		{"a kind alone", "kind: x\n", false, "f.yaml:1: kind: unknown setting"},
		{"no YAML", "a: 1\nb: [\n", false, "f.yaml:3: did not find expected node content"},
		{"no UTF-8", "a: \xff\n", false, "f.yaml: invalid leading UTF-8 octet (value: 255)"},
		{"too large", "a: " + strings.Repeat("x", config.MaxYAML) + "\n", false, "f.yaml: has more than 4 MiB"},
	} {
		r := &config.YAMLReader{MergeKeys: tc.merge}
		got := strings.Join(read(r, tc.yaml, "a", "b"), ", ")
		if err := r.Err(); err != nil {
			got = err.Error()
		}
		if got != tc.want && (!strings.HasSuffix(tc.want, " ") || !strings.HasPrefix(got, tc.want)) {
			t.Errorf("%s: %.200q, want %q", tc.name, got, tc.want)
		}
	}
}

// What a small file can make of itself is bounded.
func TestBounds(t *testing.T) {
	r := &config.YAMLReader{}
	read(r, strings.Repeat("- x\n", 10)+"a: 1\n", "a") // mistakes of one file count for the next
	before := r.Mistakes()
	read(r, "b: ["+strings.Repeat("{}, ", 1000)+"]\n", "b")
	if before == 0 || r.Mistakes() != 101 {
		t.Errorf("%d mistakes, then %d", before, r.Mistakes())
	}

	var bomb strings.Builder
	bomb.WriteString("a0: &a0 {k: 1, l: 1, m: 1}\n")
	for i := range 6 {
		fmt.Fprintf(&bomb, "a%d: &a%[1]d [*a%[2]d, *a%[2]d, *a%[2]d, *a%[2]d, *a%[2]d, *a%[2]d, *a%[2]d, *a%[2]d, *a%[2]d, *a%[2]d]\n", i+1, i)
	}
	r = &config.YAMLReader{}
	members := 0
	var count func(v *yaml.Node)
	count = func(v *yaml.Node) {
		if v.Kind == yaml.SequenceNode {
			r.List(v, "x", "", func(_ string, item *yaml.Node) { count(item) })
			return
		}
		r.Mapping(v, "", nil, func(string, *yaml.Node) { members++ })
	}
	n, _ := r.Document("f.yaml", []byte(bomb.String()))
	r.Mapping(n, "", nil, func(_ string, v *yaml.Node) { count(v) })
	if err := r.Err(); err == nil || !strings.Contains(err.Error(), "aliases resolved") || members > 400000 {
		t.Errorf("%d members, %v", members, err)
	}
}
