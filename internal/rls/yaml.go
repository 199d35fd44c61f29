package rls

import (
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/dipwell/dipwell/internal/config"
)

// text returns a scalar unchanged, or "" if it is null.
func (p *parser) text(n *yaml.Node, at string) string {
	if config.IsNull(n) {
		return ""
	}
	text, _ := p.Text(n, at)
	return text
}

// booleans are the words of YAML 1.1, which existing files use.
var booleans = map[string]bool{"true": true, "yes": true, "on": true, "y": true, "false": false, "no": false, "off": false, "n": false}

func (p *parser) boolean(n *yaml.Node, at string) bool {
	text := p.text(n, at)
	v, ok := booleans[strings.ToLower(text)]
	if !ok && n.Kind == yaml.ScalarNode && !config.IsNull(n) {
		p.Fail(n, at, "%q is neither true nor false", text)
	}
	return v
}

func (p *parser) number(n *yaml.Node, at string, low, high int64) int64 {
	text := p.text(n, at)
	if text == "" && config.IsNull(n) {
		return low
	}
	v, err := strconv.ParseInt(strings.ReplaceAll(text, "_", ""), 0, 64)
	if n.Kind == yaml.ScalarNode && (err != nil || v < low || v > high) {
		p.Fail(n, at, "%q is not a whole number from %d to %d", text, low, high)
		return low
	}
	return v
}
