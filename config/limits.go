package config

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/dipwell/dipwell"
	"go.yaml.in/yaml/v3"
)

func (p *parser) limits(n *yaml.Node) {
	if n.Kind != yaml.SequenceNode || len(n.Content) > maxLimits {
		p.fail(n, "limits", "must be a list of at most %d limits, each beginning with '- name: ...'", maxLimits)
		return
	}
	p.Limits = []dipwell.Limit{} // named, if none: it is meant
	lines := map[string]int{}
	for i, item := range n.Content {
		l, ok := p.limit(fmt.Sprintf("limits[%d]", i), deref(item))
		if !ok {
			continue
		}
		if line, twice := lines[l.Name]; twice {
			p.fail(item, fmt.Sprintf("limits[%d].name", i), "there are two limits called %s; the first is in line %d", l.Name, line)
			continue
		}
		lines[l.Name] = item.Line
		p.Limits = append(p.Limits, l)
	}
}

// limit reads one limit. Not ok: it has mistakes, and they are noted.
func (p *parser) limit(where string, n *yaml.Node) (l dipwell.Limit, ok bool) {
	if n.Kind != yaml.MappingNode {
		p.fail(n, where, "must be settings such as {name: login, rate: 5, per: 1m}, not %s; NAME=RATE/PER is for command lines", kindOf(n))
		return l, false
	}
	before := len(p.errs)
	values := map[string]*yaml.Node{}
	p.mapping(n, where+".", func(name string, value *yaml.Node) {
		text, ok := p.scalar(where+"."+name, value)
		if !ok {
			return
		}
		values[name] = value
		if err := l.Set(name, text); err != nil {
			p.failLimit(where, value, values, err)
		}
	})
	if len(p.errs) > before {
		return l, false
	}
	for _, name := range []string{"name", "rate", "per"} {
		if values[name] == nil {
			p.fail(n, where+"."+name, "is missing")
		}
	}
	if len(p.errs) > before {
		return l, false
	}
	if _, _, err := l.Compile(); err != nil {
		p.failLimit(where, n, values, err)
		return l, false
	}
	return l, true
}

// failLimit notes a limit's mistake at the setting it names, where the file has
// that, else at n.
func (p *parser) failLimit(where string, n *yaml.Node, values map[string]*yaml.Node, err error) {
	var bad *dipwell.LimitError
	if !errors.As(err, &bad) {
		p.fail(n, where, "%v", err)
		return
	}
	if at := values[bad.Field]; at != nil {
		n = at
	}
	reason := bad.Reason
	if bad.Limit != "" {
		reason += " (limit " + bad.Limit + ")"
	}
	p.fail(n, where+"."+bad.Field, "%s", reason)
}

// kindOf describes a value that should have been a mapping.
func kindOf(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Tag == "!!null":
		return "nothing"
	}
	return strconv.Quote(n.Value)
}
