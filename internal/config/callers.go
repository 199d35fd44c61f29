package config

import (
	"reflect"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// maxCallers bounds the callers in a file.
const maxCallers = 256

// A Caller may call the service with its token.
type Caller struct {
	Name        string
	TokenFile   string   // file with the token; or
	TokenSHA256 string   // its SHA-256, in hex and lower case
	Role        string   // use, read, support or admin
	Limits      []string // that it may name; nil: all
}

var (
	callerSettings = []string{"name", "token_file", "token_sha256", "role", "limits"}
	callerName     = reflect.StructTag(`pattern:"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$" want:"1 to 64 letters, digits, dots, dashes and underscores, beginning with a letter or digit"`)
	callerRole     = reflect.StructTag(`oneof:"use,read,support,admin"`)
	callerDigest   = reflect.StructTag(`pattern:"^[0-9a-fA-F]{64}$"`)
)

// reserved is the name of the caller that has the admin token.
const reserved = "admin-token"

// noToken is the SHA-256 of an empty token.
const noToken = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

func (p *parser) callers(n *yaml.Node) {
	if n.Kind == yaml.SequenceNode && len(n.Content) > maxCallers {
		p.Fail(n, "callers", "has %d callers; at most %d", len(n.Content), maxCallers)
		return
	}
	p.Callers = []Caller{} // not nil, because the file has the setting
	names := map[string]int{}
	p.List(n, "callers", ", each caller beginning with '- name: ...'", func(where string, item *yaml.Node) {
		c, ok := p.caller(where, item)
		if !ok {
			return
		}
		if line := names[c.Name]; line > 0 {
			p.Fail(item, where+".name", "there are two callers called %s; the first one is in line %d", c.Name, line)
		}
		names[c.Name], p.Callers = item.Line, append(p.Callers, c) // that two have one token is seen when the tokens are read
	})
}

// caller reads one caller. It returns false if the caller has mistakes.
func (p *parser) caller(where string, n *yaml.Node) (c Caller, ok bool) {
	if n.Kind != yaml.MappingNode {
		p.Fail(n, where, "must be settings such as {name: web, token_file: /run/secrets/web, role: use}, not %s", kindOf(n))
		return c, false
	}
	before := p.Mistakes()
	c.Role = "use"
	p.Mapping(n, where+".", callerSettings, func(name string, v *yaml.Node) { p.callerSetting(&c, where+"."+name, name, v) })
	if p.Mistakes() > before {
		return c, false
	}
	switch {
	case c.Name == "":
		p.Fail(n, where+".name", "is missing")
	case c.TokenFile == "" && c.TokenSHA256 == "":
		p.Fail(n, where+".token_file", "is missing; give it or token_sha256")
	case c.TokenFile != "" && c.TokenSHA256 != "":
		p.Fail(n, where+".token_file", "is given together with token_sha256; give one of them")
	}
	return c, p.Mistakes() == before
}

func (p *parser) callerSetting(c *Caller, where, name string, v *yaml.Node) {
	if name == "limits" {
		p.callerLimits(c, where, v)
		return
	}
	text, ok := p.Text(v, where)
	if !ok {
		return
	}
	if text == "" {
		p.Fail(v, where, "is empty")
		return
	}
	var err error
	switch name {
	case "name":
		if c.Name = text; text == reserved {
			p.Fail(v, where, "%s is the caller that has the admin token", text)
			return
		}
		_, err = parseText(callerName, text)
	case "token_file":
		c.TokenFile = text
	case "token_sha256":
		c.TokenSHA256 = strings.ToLower(text)
		if _, wrong := parseText(callerDigest, text); wrong != nil { // the value may be the token itself, so the error does not have it
			p.Fail(v, where, "is not the SHA-256 of a token, 64 hexadecimal digits")
		} else if c.TokenSHA256 == noToken {
			p.Fail(v, where, "is the SHA-256 of an empty token")
		}
	case "role":
		c.Role = text
		_, err = parseText(callerRole, text)
	}
	if err != nil {
		p.Fail(v, where, "%v", err)
	}
}

func (p *parser) callerLimits(c *Caller, where string, n *yaml.Node) {
	p.List(n, where, " such as [login]", func(where string, item *yaml.Node) {
		name, ok := p.Text(item, where)
		if !ok {
			return
		}
		if _, err := store.NewDefinition(dipwell.Limit{Name: name, Rate: 1, Period: time.Second}); err != nil {
			p.Fail(item, where, "%q is not the name of a limit", name)
		}
		c.Limits = append(c.Limits, name)
	})
	if n.Kind == yaml.SequenceNode && len(n.Content) == 0 {
		p.Fail(n, where, "has no entries; leave it out for all limits")
	}
}
