package replay

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/dipwell/dipwell"
)

// csvLines reads comma-, semicolon- or tab-separated values with a header. Each
// line is a record, so that a missing closing quote affects only one line.
type csvLines struct {
	o              *Options
	times          textTimes
	sep            byte // 0 until the header has been read
	time, by, cost int  // columns, or -1
	fixed          int64
	buf            []byte // for fields with doubled quotes
}

func newCSV(o *Options) (parser, error) {
	c := &csvLines{o: o}
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
	var err error
	if c.time, err = column("time-field", orDefault(c.o.TimeField, "time"), names); err != nil {
		return err
	}
	if c.by = -1; c.o.By != "none" {
		if c.by, err = column("by", c.o.By, names); err != nil {
			return err
		}
	}
	fixed, constant, err := constantCost(c.o.Cost)
	if c.fixed, c.cost = fixed, -1; err == nil && !constant {
		c.cost, err = column("cost", c.o.Cost, names)
	}
	return err
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

func (c *csvLines) parse(line []byte, rec *record) error {
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
	var at, key, cost []byte
	last := max(c.time, c.by, c.cost)
	for i, rest := 0, line; i <= last; i++ {
		if rest == nil {
			return malformed(fmt.Sprintf("it has %s; %d are needed", count(int64(i), "field"), last+1))
		}
		value, more, err := c.cut(rest)
		if err != nil {
			return err
		}
		if i == c.time {
			at = value
		}
		if i == c.by {
			key = value
		}
		if i == c.cost {
			cost = value
		}
		rest = more
	}
	return c.fill(rec, at, key, cost)
}

func (c *csvLines) fill(rec *record, at, key, cost []byte) (err error) {
	if rec.t, err = c.times.parse(bytes.TrimSpace(at)); err != nil {
		return err
	}
	rec.key, rec.cost = key, c.fixed
	if c.cost >= 0 {
		rec.cost, err = parseCost(bytes.TrimSpace(cost))
	}
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
