package replay

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"slices"
	"strings"
)

// csvLines reads comma-, semicolon- or tab-separated values with a header, and W3C logs,
// whose header is in lines that begin with #Fields. Each line is a record, so that a missing
// closing quote affects only one line.
type csvLines struct {
	o       *Options
	list    []field
	w3c     bool
	times   times
	time    int      // column of the time, or -1 until the header has been read
	date    int      // column of the date, if time has only the time of day; or -1
	columns []column // of list
	src     bytes.Reader
	in      *csv.Reader
	cols    [][]byte
	buf     []byte
}

func newCSV(o *Options, list []field, w3c bool) parser {
	c := &csvLines{o: o, list: list, w3c: w3c, times: newTimes(false), time: -1, buf: []byte{}}
	c.in = csv.NewReader(&c.src)
	c.in.LazyQuotes, c.in.FieldsPerRecord, c.in.ReuseRecord = true, -1, true
	return c
}

func (c *csvLines) header(line []byte) error {
	names := strings.Fields(string(line))
	if !c.w3c {
		c.in.Comma = rune(separator(line))
		cols, err := c.cut(line)
		if err != nil {
			return badOption("log", "the header %s: %v", excerpt(line), err)
		}
		names = nil
		for _, name := range cols {
			names = append(names, string(bytes.TrimSpace(name)))
		}
	}
	is := func(want string) func(string) bool {
		return func(name string) bool { return strings.EqualFold(name, want) }
	}
	c.time = -1
	for _, name := range c.o.timeNames() {
		if c.time < 0 {
			c.time = slices.IndexFunc(names, is(name))
		}
	}
	if c.date = slices.IndexFunc(names, is("date")); c.o.TimeField != "" || c.date == c.time {
		c.date = -1
	}
	if c.time < 0 {
		return c.noColumn("time-field", cmp.Or(c.o.TimeField, "time"), names)
	}
	c.columns = c.columns[:0]
	for _, f := range c.list {
		at, ok := findColumn(f.name, names)
		if !ok {
			return c.noColumn(f.option, f.name, names)
		}
		c.columns = append(c.columns, at)
	}
	return nil
}

func (c *csvLines) noColumn(option, name string, header []string) error {
	hint := ""
	if name == "ip" {
		hint = "; --by ip=NAME takes the addresses of another column"
	}
	return badOption(option, "there is no column %q in the log; its columns are %.300q%s", name, header[:min(len(header), 20)], hint)
}

// separator returns the separator that occurs most often in a line.
func separator(line []byte) byte {
	best, most := byte(','), 0
	for _, sep := range []byte{',', ';', '\t'} {
		if n := bytes.Count(line, []byte{sep}); n > most {
			best, most = sep, n
		}
	}
	return best
}

func (c *csvLines) parse(line []byte, t *int64, values []value) error {
	if c.time < 0 || c.w3c {
		if err := c.heading(line); err != nil {
			return err
		}
	}
	cols, err := c.cut(line)
	if err != nil {
		return err
	}
	for i, column := range c.columns {
		values[i].set(column.of(cols), c.list[i].name)
	}
	stamp := bytes.TrimSpace(at(cols, c.time))
	if c.date >= 0 && len(stamp) <= len("15:04:05.000000") {
		stamp = append(append(append([]byte{}, at(cols, c.date)...), ' '), stamp...)
	}
	*t, err = c.times.parse(stamp)
	return err
}

// heading returns an error for a line that is not a request: the header, or a comment of a
// W3C log.
func (c *csvLines) heading(line []byte) (err error) {
	header, isHeader := line, !c.w3c && len(bytes.TrimSpace(line)) > 0
	if c.w3c {
		header, isHeader = bytes.CutPrefix(line, []byte("#Fields:"))
		c.in.Comma = ' '
		if bytes.IndexByte(line, '\t') >= 0 {
			c.in.Comma = '\t'
		}
	}
	switch {
	case isHeader:
		err = c.header(header)
	case c.w3c && !bytes.HasPrefix(line, []byte("#")) && c.time < 0:
		err = malformed("there is no line #Fields before it")
	case c.w3c && !bytes.HasPrefix(line, []byte("#")):
		return nil
	}
	if err == nil {
		err = errHeader
	}
	return err
}

// cut returns the fields of a line, valid until the next call.
func (c *csvLines) cut(line []byte) ([][]byte, error) {
	c.src.Reset(line)
	record, err := c.in.Read()
	if err != nil {
		return nil, malformed("its quotes or separators are broken")
	}
	c.cols, c.buf = c.cols[:0], c.buf[:0]
	for _, text := range record {
		from := len(c.buf)
		c.buf = append(c.buf, text...)
		c.cols = append(c.cols, c.buf[from:])
	}
	return c.cols, nil
}
