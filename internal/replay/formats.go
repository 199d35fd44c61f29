package replay

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
)

// A parser sets the time of a line and the values of its fields. It returns errHeader for
// a line that is not a request, and another malformed for a line that is left out.
type parser interface {
	parse(line []byte, t *int64, values []value) error
}

// otherNames are further names of formats, each read as another one.
var otherNames = map[string]string{"common": "combined", "nginx": "combined", "iis": "w3c", "cloudfront": "w3c"}

// formatNames returns the names of formats for an error.
func formatNames() string {
	names := []string{"json", "csv", "w3c (iis, cloudfront)", "common", "nginx"}
	for _, f := range wordFormats {
		names = append(names, f.name)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// newParser returns the parser of Options.Pattern, or of the format that head looks like, and
// the format's name.
func newParser(head []byte, o *Options, list []field) (p parser, name string, err error) {
	name = cmp.Or(otherNames[o.Pattern], o.Pattern)
	if name == "" {
		if name = detect(head, o); name == "" {
			return nil, "", badOption("pattern", "no line at the beginning of the log is in a format that replay knows by name (%s): a grok pattern must say where the time and the address are, as in %s", formatNames(), examplePattern)
		}
	}
	switch name {
	case "json":
		p = newJSON(o, list)
	case "csv", "w3c":
		p = newCSV(o, list, name == "w3c")
	default:
		i := slices.IndexFunc(wordFormats, func(f wordFormat) bool { return f.name == name })
		if i < 0 {
			p, err = newGrok(o.Pattern, o, list)
			return p, "grok", err
		}
		p, err = newWords(wordFormats[i], list)
	}
	return p, name, err
}

const examplePattern = `--pattern '^%{NOTSPACE:ip} \[%{HTTPDATE:time}\]'`

// detectBytes is how much of a log detect looks at.
const detectBytes = 64 << 10

// detect returns the format of the first line that looks like one, or "".
func detect(head []byte, o *Options) (name string) {
	empty := true
	for line := range bytes.Lines(head) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			continue
		}
		empty = false
		inside := bytes.TrimLeft(line[1:], " \t")
		switch {
		case line[0] == '{', line[0] == '[' && (len(inside) == 0 || inside[0] == '{'):
			return "json"
		case bytes.HasPrefix(line, []byte("#Fields:")):
			return "w3c"
		case isHeader(line, o):
			return "csv"
		}
		found, time := fitting(line)
		if found != "" {
			return found
		}
		if time { // the log may have host names in place of addresses
			name = "combined"
		}
	}
	if empty {
		return "combined"
	}
	return name
}

// fitting returns the format of words that a line fits, or else whether the line has a
// time in brackets.
func fitting(line []byte) (name string, time bool) {
	for _, f := range wordFormats {
		w, err := newWords(f, []field{{name: "ip"}})
		if err != nil {
			continue
		}
		t, address := w.fits(line)
		if address {
			return f.name, true
		}
		time = time || t && w.bracket
	}
	return "", time
}

// isHeader reports whether line is a CSV header: one of its columns is a time.
func isHeader(line []byte, o *Options) bool {
	names := strings.Split(string(line), string(separator(line)))
	return len(names) > 1 && slices.ContainsFunc(names, func(name string) bool {
		name = strings.Trim(name, ` "`)
		return name == o.TimeField || slices.ContainsFunc(aliases["time"], func(known string) bool { return strings.EqualFold(known, name) })
	})
}

// timeNames returns the field names that the time may have.
func (o *Options) timeNames() []string {
	if o.TimeField != "" {
		return []string{o.TimeField}
	}
	return aliases["time"]
}
