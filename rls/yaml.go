package rls

import (
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/dipwell/dipwell"
)

// mapping calls f for each known member of a mapping, once. Members of a merge
// key (<<) count where the mapping has none of their name.
func (p *parser) mapping(n *yaml.Node, where string, known []string, f func(name string, v *yaml.Node)) {
	if n = deref(n); n.Kind != yaml.MappingNode {
		p.fail(n, strings.TrimSuffix(where, "."), "must be settings, one a line, as in '%s: ...'", known[0])
		return
	}
	p.members(n, where, known, map[string]int{}, 0, f)
}

func (p *parser) members(n *yaml.Node, where string, known []string, seen map[string]int, depth int, f func(name string, v *yaml.Node)) {
	var merges []*yaml.Node
	own := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if p.nodes++; p.nodes > maxNodes {
			if !p.tooMany {
				p.fail(n, "", "has more than %d settings, aliases resolved", maxNodes)
			}
			p.tooMany = true
			return
		}
		name, v := n.Content[i], deref(n.Content[i+1])
		if name.Tag == "!!merge" {
			merges = append(merges, v)
			continue
		}
		if line, twice := own[name.Value]; twice {
			p.fail(name, where+name.Value, "is given twice; first in line %d", line)
			continue
		}
		own[name.Value] = name.Line
		if _, overridden := seen[name.Value]; overridden {
			continue
		}
		seen[name.Value] = name.Line
		if !contains(known, name.Value) || name.Kind != yaml.ScalarNode {
			p.fail(name, where+name.Value, "unknown setting%s", dipwell.Suggest(name.Value, known))
			continue
		}
		f(name.Value, v)
	}
	for _, m := range merges {
		p.merge(m, where, known, seen, depth, f)
	}
}

// merge reads what a merge key adds.
func (p *parser) merge(m *yaml.Node, where string, known []string, seen map[string]int, depth int, f func(name string, v *yaml.Node)) {
	switch {
	case depth > maxDepth:
		p.fail(m, where+"<<", "merges more than %d deep", maxDepth)
	case m.Kind == yaml.MappingNode:
		p.members(m, where, known, seen, depth+1, f)
	case m.Kind == yaml.SequenceNode && depth == 0:
		for _, item := range m.Content {
			p.merge(deref(item), where, known, seen, 1, f)
		}
	default:
		p.fail(m, where+"<<", "must be settings")
	}
}

func contains(list []string, s string) bool {
	for _, l := range list {
		if l == s {
			return true
		}
	}
	return false
}

func deref(n *yaml.Node) *yaml.Node {
	if n.Kind != yaml.AliasNode {
		return n
	}
	there := *n.Alias
	there.Line = n.Line // a mistake is where the value is used
	return &there
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

// text is a scalar as it was written; an absent one is empty.
func (p *parser) text(n *yaml.Node, at string) string {
	if n.Kind != yaml.ScalarNode {
		p.fail(n, at, "must be one value")
		return ""
	}
	if isNull(n) {
		return ""
	}
	return n.Value
}

// booleans as YAML 1.1 has them: existing files use all of them.
var booleans = map[string]bool{"true": true, "yes": true, "on": true, "y": true, "false": false, "no": false, "off": false, "n": false}

func (p *parser) boolean(n *yaml.Node, at string) bool {
	text := p.text(n, at)
	v, ok := booleans[strings.ToLower(text)]
	if !ok && n.Kind == yaml.ScalarNode && !isNull(n) {
		p.fail(n, at, "%q is neither true nor false", text)
	}
	return v
}

func (p *parser) number(n *yaml.Node, at string, low, high int64) int64 {
	text := p.text(n, at)
	if text == "" && isNull(n) {
		return low
	}
	v, err := strconv.ParseInt(strings.ReplaceAll(text, "_", ""), 0, 64)
	if n.Kind == yaml.ScalarNode && (err != nil || v < low || v > high) {
		p.fail(n, at, "%q is not a whole number from %d to %d", text, low, high)
		return low
	}
	return v
}
