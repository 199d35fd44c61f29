package replay

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/dipwell/dipwell/internal/front"
)

// jsonLines reads a JSON object in each line. A line may be broken after the members that are
// read.
type jsonLines struct {
	times times
	time  member
	list  []field
	wants []member // of list
}

// A member is a field to find, by one of its names.
type member struct {
	paths []string
	last  int // the path that was found last, which is tried first
}

// newMember returns a member with names such as request.uri: of the member uri of an inner
// object, or with the dot in its name.
func newMember(names []string) (m member) {
	for _, name := range names {
		whole := gjson.Escape(name)
		if path := strings.ReplaceAll(whole, `\.`, "."); path != whole {
			m.paths = append(m.paths, path)
		}
		m.paths = append(m.paths, whole)
	}
	return m
}

func newJSON(o *Options, list []field) parser {
	j := &jsonLines{times: newTimes(false), time: newMember(o.timeNames()), list: list}
	for _, f := range list {
		j.wants = append(j.wants, newMember(namesOf(f.name)))
	}
	return j
}

func (j *jsonLines) parse(line []byte, t *int64, values []value) error {
	s := strings.TrimLeft(string(line), " \t")
	if s == "" || s[0] != '{' {
		return malformed("it is not a JSON object")
	}
	err := j.time.find(s, "time", func(text []byte) (err error) {
		*t, err = j.times.parse(text)
		return err
	})
	for i := range values {
		v := &values[i]
		v.err = j.wants[i].find(s, j.list[i].name, func(text []byte) error { v.text = text; return nil })
	}
	return err
}

// find calls use with each value of the member, as text, until use returns nil. find
// returns the first error.
func (m *member) find(s, name string, use func([]byte) error) (err error) {
	for i := -1; i < len(m.paths); i++ {
		at := i
		if i < 0 {
			at = m.last
		}
		r := gjson.Get(s, m.paths[at])
		if !r.Exists() {
			continue
		}
		text, bad := scalar(s, r)
		if bad == nil {
			bad = use(text)
		}
		if bad == nil {
			m.last = at
			return nil
		}
		if err == nil {
			err = bad
		}
	}
	if err == nil {
		err = missing(s, name)
	}
	return err
}

// missing says why a line has no field of a name.
func missing(s, name string) error {
	if !gjson.Valid(s) {
		return errBroken
	}
	hint := ""
	if name == "ip" {
		gjson.Parse(s).ForEach(func(key, value gjson.Result) bool {
			if _, err := front.ParseAddr(value.Str); err == nil {
				hint = fmt.Sprintf("; the member %.40q has an address: --by ip=%.40s", key.Str, key.Str)
			}
			return hint == ""
		})
		if gjson.Get(s, "log").Type == gjson.String {
			hint = "; the line is inside the member log: unpack it (jq -r .log), or use --pattern"
		}
	}
	return malformed("there is no "+name+" in it") + malformed(hint)
}

// scalar returns a string without quotes and escapes, or a number or a boolean unchanged.
func scalar(s string, r gjson.Result) ([]byte, error) {
	switch {
	case r.Type == gjson.Null:
		return nil, errNull
	case r.IsObject():
		return nil, malformed("a field is an object and not text or a number")
	case r.IsArray():
		return nil, malformed("a field is an array and not text or a number")
	case !gjson.Valid(r.Raw) || r.Type == gjson.Number && r.Index+len(r.Raw) == len(s): // cut off, perhaps within the value
		return nil, errBroken
	case r.Type == gjson.String:
		return []byte(r.Str), nil
	}
	return []byte(r.Raw), nil
}

// jsonArray reads the elements of an array as lines.
type jsonArray struct {
	*lineReader
	most io.LimitedReader
	dec  *json.Decoder
}

func (a *jsonArray) next() ([]byte, error) {
	if a.dec.InputOffset() == 0 {
		if _, err := a.dec.Token(); err != nil {
			return nil, err
		}
	}
	a.most.N = maxLine // at most this many bytes for each element
	var element json.RawMessage
	if a.dec.More() {
		err := a.dec.Decode(&element)
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return element, err
	}
	if end, err := a.dec.Token(); err != nil || end != json.Delim(']') {
		return nil, fmt.Errorf("the array of JSON does not end: %w", io.ErrUnexpectedEOF)
	}
	return nil, io.EOF
}
