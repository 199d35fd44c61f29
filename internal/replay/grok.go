package replay

import (
	"errors"
	"regexp"

	"github.com/elastic/go-grok"
)

// grokLines reads lines by a grok pattern.
type grokLines struct {
	grok      *grok.Grok
	times     times
	timeNames []string
	list      []field
}

var oneName = regexp.MustCompile(`^\w+$`)

// newGrok compiles a pattern, or the library's pattern of that name. It must match from
// the beginning of a line, which is ten times as fast as searching.
func newGrok(pattern string, o *Options, list []field) (parser, error) {
	if oneName.MatchString(pattern) {
		pattern = "^%{" + pattern + "}"
	}
	g, err := grok.NewComplete()
	if err == nil {
		err = g.Compile(pattern, true)
	}
	if err == nil && !g.HasCaptureGroups() {
		err = errors.New("it captures no field, as in %{NOTSPACE:ip}")
	}
	if err != nil {
		return nil, badOption("pattern", "%.200s: %v; formats known by name are %s", pattern, err, formatNames())
	}
	return &grokLines{g, newTimes(false), o.timeNames(), list}, nil
}

func (g *grokLines) parse(line []byte, t *int64, values []value) error {
	found, err := g.grok.Parse(line)
	if err != nil || len(found) == 0 {
		return malformed("the pattern does not match it")
	}
	err = errNoTime
	for i := 0; i < len(g.timeNames) && err != nil; i++ {
		if text, ok := found[g.timeNames[i]]; ok {
			*t, err = g.times.parse(text)
		}
	}
	for i, f := range g.list {
		values[i].set(captured(f.name, found), f.name)
	}
	return err
}

func captured(name string, found map[string][]byte) []byte {
	for _, alias := range namesOf(name) {
		if text, ok := found[alias]; ok {
			return text
		}
	}
	return column{0, name}.of([][]byte{found["request"]})
}
