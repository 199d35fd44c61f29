package replay

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/dipwell/dipwell"
)

// csvLines reads comma-, semicolon- or tab-separated values with a header. Each
// line is a record, so that a missing closing quote affects only one line.
type csvLines struct {
	o       *Options
	list    []field
	times   textTimes
	sep     byte   // 0 until the header has been read
	columns []int  // of the time, and then of the fields
	buf     []byte // for fields with doubled quotes
}

func newCSV(o *Options, list []field) (parser, error) {
	c := &csvLines{o: o, list: list}
	if o.Columns == "" {
		return c, nil
	}
	return c, c.header([]byte(o.Columns))
}

// header finds the columns by their names.
func (c *csvLines) header(line []byte) error {
	c.sep = separator(line)
	var names []string
	for rest := line; rest != nil; {
		var name []byte
		var err error
		if name, rest, err = c.cut(rest); err != nil {
			return &dipwell.FieldError{Field: "log", Reason: fmt.Sprintf("the header %s: %v", excerpt(line), err)}
		}
		names = append(names, strings.TrimSpace(string(name)))
	}
	c.columns = c.columns[:0]
	for _, f := range append([]field{{"time-field", orDefault(c.o.TimeField, "time")}}, c.list...) {
		i, err := column(f.option, f.name, names)
		if err != nil {
			return err
		}
		c.columns = append(c.columns, i)
	}
	return nil
}

// column returns the column whose header is the first of the field's aliases.
func column(option, name string, header []string) (int, error) {
	for _, alias := range wantField(name).names {
		for i, h := range header {
			if strings.EqualFold(h, alias) {
				return i, nil
			}
		}
	}
	shown := header[:min(len(header), 20)]
	return 0, &dipwell.FieldError{Field: option, Reason: fmt.Sprintf("there is no column %q in the log; its columns are %.300q", name, shown)}
}

// separator returns the separator that is most frequent in line.
func separator(line []byte) byte {
	best, most := byte(','), 0
	for _, sep := range []byte{',', ';', '\t'} {
		if n := bytes.Count(line, []byte{sep}); n > most {
			best, most = sep, n
		}
	}
	return best
}

func (c *csvLines) parse(line []byte, t *int64, values []value) (err error) {
	if c.sep == 0 {
		if len(bytes.TrimSpace(line)) == 0 {
			return errHeader
		}
		if err := c.header(line); err != nil {
			return err
		}
		return errHeader
	}
	c.buf = c.buf[:0]
	var at []byte
	last := slices.Max(c.columns)
	for i, rest := 0, line; i <= last; i++ {
		if rest == nil {
			return malformed(fmt.Sprintf("it has %s; %d are needed", count(int64(i), "field"), last+1))
		}
		text, more, err := c.cut(rest)
		if err != nil {
			return err
		}
		if i == c.columns[0] {
			at = text
		}
		for k, column := range c.columns[1:] {
			if i == column {
				values[k].text = text
			}
		}
		rest = more
	}
	*t, err = c.times.parse(bytes.TrimSpace(at))
	return err
}

// cut returns the first field of b and the rest, which is nil after the last field.
func (c *csvLines) cut(b []byte) (field, rest []byte, err error) {
	if len(b) == 0 || b[0] != '"' {
		end := bytes.IndexByte(b, c.sep)
		if end < 0 {
			return b, nil, nil
		}
		return b[:end], b[end+1:], nil
	}
	end := 1
	doubled := false
	for {
		i := bytes.IndexByte(b[end:], '"')
		if i < 0 {
			return nil, nil, malformed("a quoted field is not closed on its line")
		}
		if end += i + 1; end == len(b) || b[end] != '"' {
			break
		}
		doubled = true
		end++
	}
	if field = b[1 : end-1]; doubled {
		from := len(c.buf)
		for len(field) > 0 {
			text, more, ok := bytes.Cut(field, []byte(`""`))
			c.buf = append(c.buf, text...)
			if field = more; ok {
				c.buf = append(c.buf, '"')
			}
		}
		field = c.buf[from:]
	}
	switch {
	case end == len(b):
		return field, nil, nil
	case b[end] != c.sep:
		return nil, nil, malformed("there is text after a closing quote")
	}
	return field, b[end+1:], nil
}
