package config

import (
	"reflect"
	"strings"

	"go.yaml.in/yaml/v4"
)

const maxCallers = 256

// A Caller may call the service with its token. Its tags are a table of settings, as File's.
type Caller struct {
	Name        string   `name:"name" in:"file" pattern:"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$" want:"1 to 64 letters, digits, dots, dashes and underscores, beginning with a letter or digit"`
	TokenFile   string   `name:"token_file" in:"file"`
	TokenSHA256 string   `name:"token_sha256" in:"file" pattern:"^[0-9a-fA-F]{64}$" want:"the SHA-256 of a token, 64 hexadecimal digits" secret:"yes"` // if TokenFile is ""
	Role        string   `name:"role" in:"file" oneof:"use,read,support,admin"`
	Limits      []string `name:"limits" in:"file" kind:"login" pattern:"^[!-~]([ -~]{0,126}[!-~])?$" want:"the name of a limit"` // nil: all
}

var callerSettings = rows(reflect.TypeFor[Caller]())

// Names and tokens that a caller may not have.
const (
	adminCaller = "admin-token"                                                      // the name of the caller with the admin token
	noToken     = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" // SHA-256 of an empty token
)

func (p *parser) callers(n *yaml.Node) {
	p.Callers = []Caller{} // not nil, because the file has the setting
	p.named(n, "caller", maxCallers, func(where string, item *yaml.Node) (string, bool) {
		c, ok := p.caller(where, item)
		p.Callers = append(p.Callers, c) // two callers with the same token are found when the tokens are read
		return c.Name, ok
	})
}

// caller reads one caller. caller returns false if the caller has mistakes.
func (p *parser) caller(where string, n *yaml.Node) (c Caller, ok bool) {
	if n.Kind != yaml.MappingNode {
		p.Fail(n, where, "must be settings such as {name: web, token_file: /run/secrets/web, role: use}, not %s", kindOf(n))
		return c, false
	}
	before := p.Mistakes()
	c.Role = "use"
	given := p.block(&c, callerSettings, n, where+".")
	if p.Mistakes() > before {
		return c, false
	}
	c.TokenSHA256 = strings.ToLower(c.TokenSHA256)
	switch {
	case !given["name"]:
		p.Fail(n, where+".name", "is missing")
	case c.Name == adminCaller:
		p.Fail(n, where+".name", "%s is the caller that has the admin token", adminCaller)
	case given["token_file"] == given["token_sha256"]:
		p.Fail(n, where+".token_file", "give either it or token_sha256")
	case c.TokenSHA256 == noToken:
		p.Fail(n, where+".token_sha256", "is the SHA-256 of an empty token")
	case given["limits"] && c.Limits == nil:
		p.Fail(n, where+".limits", "has no entries; leave it out for all limits")
	}
	return c, p.Mistakes() == before
}
