package config

import (
	"errors"
	"strconv"

	"go.yaml.in/yaml/v3"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/yamlfile"
	"github.com/dipwell/dipwell/store"
)

// maxLimits is the most limits in a file.
const maxLimits = 10000

func (p *parser) limits(n *yaml.Node) {
	if n.Kind == yaml.SequenceNode && len(n.Content) > maxLimits {
		p.Fail(n, "limits", "has %d limits; at most %d", len(n.Content), maxLimits)
		return
	}
	p.Limits = []dipwell.Limit{} // not nil, since the file has the setting
	lines := map[string]int{}
	p.List(n, "limits", ", each limit beginning with '- name: ...'", func(where string, item *yaml.Node) {
		l, ok := p.limit(where, item)
		if !ok {
			return
		}
		if line, twice := lines[l.Name]; twice {
			p.Fail(item, where+".name", "there are two limits called %s; the first is in line %d", l.Name, line)
			return
		}
		lines[l.Name] = item.Line
		p.Limits = append(p.Limits, l)
	})
}

// limit reads one limit. It returns false if the limit has mistakes.
func (p *parser) limit(where string, n *yaml.Node) (l dipwell.Limit, ok bool) {
	if n.Kind != yaml.MappingNode {
		p.Fail(n, where, "must be settings such as {name: login, rate: 5, per: 1m}, not %s; NAME=RATE/PER is for command lines", kindOf(n))
		return l, false
	}
	before := p.Mistakes()
	values := map[string]*yaml.Node{}
	p.Mapping(n, where+".", nil, func(name string, value *yaml.Node) {
		text, ok := p.Text(value, where+"."+name)
		if !ok {
			return
		}
		values[name] = value
		if err := l.Set(name, text); err != nil {
			p.failLimit(where, value, values, err)
		}
	})
	if p.Mistakes() > before {
		return l, false
	}
	for _, name := range []string{"name", "rate", "per"} {
		if values[name] == nil {
			p.Fail(n, where+"."+name, "is missing")
		}
	}
	if p.Mistakes() > before {
		return l, false
	}
	if _, err := store.NewDefinition(l); err != nil {
		p.failLimit(where, n, values, err)
		return l, false
	}
	return l, true
}

// failLimit adds a limit's error as a mistake of the setting that it names, if the
// file has it, else of n.
func (p *parser) failLimit(where string, n *yaml.Node, values map[string]*yaml.Node, err error) {
	var bad *dipwell.LimitError
	if !errors.As(err, &bad) {
		p.Fail(n, where, "%v", err)
		return
	}
	if at := values[bad.Field]; at != nil {
		n = at
	}
	reason := bad.Reason
	if bad.Limit != "" {
		reason += " (limit " + bad.Limit + ")"
	}
	p.Fail(n, where+"."+bad.Field, "%s", reason)
}

// kindOf describes a value that should have been a mapping.
func kindOf(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case yamlfile.IsNull(n):
		return "nothing"
	}
	return strconv.Quote(n.Value)
}
