package config

import (
	"errors"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/texts"
	"github.com/dipwell/dipwell/store"
)

const maxLimits = 10000

func (p *parser) limits(n *yaml.Node) {
	p.Limits = make([]dipwell.Limit, 0, len(n.Content)) // not nil, because the file has the setting
	nodes := make(map[string]limitNodes, len(n.Content))
	p.named(n, "limit", maxLimits, func(where string, item *yaml.Node) (string, bool) {
		at := limitNodes{where, item, map[string]*yaml.Node{}}
		l, ok := p.limit(at)
		nodes[l.Name], p.Limits, p.Lines = at, append(p.Limits, l), append(p.Lines, item.Line)
		return l.Name, ok
	})
	if p.Mistakes() > 0 {
		return // otherwise the parent of a limit may be one with a mistake
	}
	for _, err := range store.CheckTogether(p.Limits) {
		if bad, ok := errors.AsType[*dipwell.FieldError](err); ok {
			p.failLimit(nodes[bad.Limit], err)
		}
	}
}

// named reads a list of things with names, no two alike, and at most longest of them. read returns
// the name of one, and false if that one has mistakes.
func (p *parser) named(n *yaml.Node, thing string, longest int, read func(where string, item *yaml.Node) (name string, ok bool)) {
	if n.Kind == yaml.SequenceNode && len(n.Content) > longest {
		p.Fail(n, thing+"s", "has %d %ss; at most %d", len(n.Content), thing, longest)
		return
	}
	lines := make(map[string]int, len(n.Content))
	p.List(n, thing+"s", ", each "+thing+" beginning with '- name: ...'", func(where string, item *yaml.Node) {
		name, ok := read(where, item)
		if line := lines[name]; ok && line > 0 {
			p.Fail(item, where+".name", "there are two %ss called %s; the first one is in line %d", thing, name, line)
		} else if ok {
			lines[name] = item.Line
		}
	})
}

// limitNodes are the nodes of a limit and, by name, of its settings.
type limitNodes struct {
	where    string
	item     *yaml.Node
	settings map[string]*yaml.Node
}

// limit reads one limit. limit returns false if the limit has mistakes.
func (p *parser) limit(at limitNodes) (l dipwell.Limit, ok bool) {
	n, where := at.item, at.where
	if n.Kind != yaml.MappingNode {
		p.Fail(n, where, "must be settings such as {name: login, rate: 5, per: 1m}, not %s; NAME=RATE/PER is for command lines", kindOf(n))
		return l, false
	}
	before := p.Mistakes()
	p.Mapping(n, where+".", nil, func(name string, value *yaml.Node) {
		at.settings[name] = value
		switch {
		case name == "plans":
			l.Plans = p.plans(at, value)
		case name == "adaptive" && value.Kind == yaml.MappingNode:
			p.inner(value, where+".adaptive", l.Adaptive.Set)
		default:
			if text, ok := p.text(value, where+"."+name, name, l.Set); ok {
				if err := l.Set(name, text); err != nil {
					p.failLimit(at, err)
				}
			}
		}
	})
	if p.Mistakes() > before {
		return l, false
	}
	required := []string{"name", "rate", "per"}
	if l.Algorithm == dipwell.Concurrency {
		required = []string{"name", "burst"}
	}
	for _, name := range required {
		if at.settings[name] == nil {
			p.Fail(n, where+"."+name, "is missing")
		}
	}
	if p.Mistakes() > before {
		return l, false
	}
	if _, err := store.NewDefinition(l); err != nil {
		p.failLimit(at, err)
		return l, false
	}
	return l, true
}

// text returns the text of a setting's value, to be passed to set. If the value is
// not a scalar and set does not know the name, the mistake is the name.
func (p *parser) text(n *yaml.Node, where, name string, set func(name, value string) error) (string, bool) {
	if n.Kind != yaml.ScalarNode || IsNull(n) {
		if reason := texts.Unknown(set, name); reason != "" {
			p.Fail(n, where, "%s", reason)
			return "", false
		}
	}
	return p.Text(n, where)
}

// plans reads the plans of a limit: a mapping of names to settings, or to a mode alone.
func (p *parser) plans(at limitNodes, n *yaml.Node) store.Plans {
	var plans []dipwell.Plan
	p.Mapping(n, at.where+".plans.", nil, func(name string, v *yaml.Node) {
		plan, where := dipwell.Plan{Name: name}, at.where+".plans."+name
		switch {
		case v.Kind == yaml.MappingNode:
			p.inner(v, where, plan.Set)
		case v.Kind == yaml.ScalarNode && !IsNull(v):
			p.set(v, where, "mode", plan.Set)
		default:
			p.Fail(v, where, "must be settings such as {rate: 600, burst: 1000}, or a mode such as blocked, not %s", kindOf(v))
		}
		plans = append(plans, plan)
	})
	return dipwell.NewPlans(plans...)
}

// inner reads a mapping of the settings of a plan or an adaptive limit.
func (p *parser) inner(n *yaml.Node, where string, set func(name, value string) error) {
	p.Mapping(n, where+".", nil, func(name string, v *yaml.Node) { p.set(v, where+"."+name, name, set) })
}

// set sets a setting of a plan or an adaptive limit.
func (p *parser) set(n *yaml.Node, where, name string, set func(name, value string) error) {
	text, ok := p.text(n, where, name, set)
	if !ok {
		return
	}
	if err := set(name, text); err != nil {
		p.Fail(n, where, "%s", strings.TrimPrefix(err.Error(), name+": "))
	}
}

// failLimit reports an error at the setting that it names, or else at the limit.
func (p *parser) failLimit(at limitNodes, err error) {
	bad, ok := errors.AsType[*dipwell.FieldError](err)
	if !ok {
		p.Fail(at.item, at.where, "%v", err)
		return
	}
	n, reason := at.item, bad.Reason
	if of := at.settings[bad.Field]; of != nil {
		n = of
	}
	if bad.Limit != "" {
		reason += " (limit " + bad.Limit + ")"
	}
	p.Fail(n, at.where+"."+bad.Field, "%s", reason)
}

// kindOf describes, for an error, a value that should be a mapping.
func kindOf(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case IsNull(n):
		return "nothing"
	}
	return strconv.Quote(n.Value)
}
