package replay

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"

	"github.com/dipwell/dipwell/internal/front"
)

type wordFormat struct{ name, columns string }

// wordFormats are the formats that replay knows by name, in the order in which they are
// tried. Columns are in brackets or quotes as in the log. * stands for any number of words.
var wordFormats = []wordFormat{
	{"alb", `type time elb ip target request_time target_time response_time status target_status received bytes "request" "agent"`},
	{"elb", `time elb ip backend request_time backend_time response_time status backend_status received bytes "request" "agent"`},
	{"envoy", `[time] "request" status flags received bytes duration upstream_time "ip" "agent" "request_id" "host" "upstream"`},
	{"haproxy", `* ip [time] frontend backend timers status bytes request_cookie response_cookie flags connections queues "request"`},
	{"combined", `ip ident user [time] "request" status bytes "referer" "agent"`},
	{"vhost_combined", `host ip ident user [time] "request" status bytes "referer" "agent"`},
}

// words reads a format of words. It reads a line only up to the last field that it needs.
type words struct {
	name    string
	before  []string // columns that come before [time]
	after   []string // the others
	bracket bool     // the time is in brackets
	time    int      // its column
	list    []field
	columns []column // of list
	need    int      // columns
	times   times
	cols    [][]byte
}

func newWords(f wordFormat, list []field) (*words, error) {
	w := &words{name: f.name, list: list, times: newTimes(true)}
	var header []string
	for _, c := range strings.Fields(f.columns) {
		if c == "[time]" {
			w.bracket, w.before, w.after = true, w.after, nil
		} else {
			w.after = append(w.after, c)
		}
		header = append(header, strings.Trim(c, `"[]`))
	}
	at, _ := findColumn("time", header)
	w.time, w.need = at.at, at.at+1
	for _, x := range list {
		c, ok := findColumn(x.name, header)
		if !ok && x.name == "host" { // the log may have names of hosts in place of addresses
			c, ok = findColumn("ip", header)
		}
		if !ok {
			known := strings.Join(slices.Concat(header, requestParts), ", ")
			return nil, badOption(x.option, "%q is no field of a log in %s format; they are %s", x.name, f.name, strings.TrimPrefix(known, "*, "))
		}
		w.columns = append(w.columns, c)
		w.need = max(w.need, c.at+1)
	}
	return w, nil
}

func (w *words) parse(line []byte, t *int64, values []value) (err error) {
	w.cols = w.cols[:0]
	if w.bracket {
		us, open, end, err := w.findTime(line)
		if err != nil {
			return err
		}
		w.split(line[:open], w.before, true)
		w.cols, line, *t = append(w.cols, line[open:end]), line[end:], us
	}
	if n := w.need - len(w.cols); n > 0 {
		w.split(line, w.after[:n], false)
	}
	if !w.bracket {
		*t, err = w.times.parse(w.cols[w.time])
	}
	for i, c := range w.columns {
		values[i].set(c.of(w.cols), w.list[i].name)
	}
	return err
}

// findTime finds the first bracket followed by a time, since names of users may have brackets
// too. findTime tries at most 8 brackets.
func (w *words) findTime(line []byte) (us int64, open, end int, err error) {
	err = errNoTime
	for at, tries := 0, 0; tries < 8; tries++ {
		i := bytes.IndexByte(line[at:], '[')
		if i < 0 {
			break
		}
		open, err = at+i, errBadTime
		at = open + 1
		if n := bytes.IndexByte(line[at:], ']'); n >= 0 {
			if us, err = w.times.parse(line[at : at+n]); err == nil {
				return us, open, at + n + 1, nil
			}
		}
	}
	return 0, 0, 0, err
}

// split appends the words of text for columns; a missing one is nil. If all is set, the last
// column has all of the rest: a user's name may have spaces.
func (w *words) split(text []byte, columns []string, all bool) {
	for i, c := range columns {
		text = bytes.TrimLeft(text, " ")
		var word []byte
		switch {
		case c == "*": // all words but the last
			text = bytes.TrimRight(text, " ")
			text = text[bytes.LastIndexByte(text, ' ')+1:]
		case c[0] == '"':
			word, text = quoted(text)
		case all && i == len(columns)-1:
			word = bytes.TrimRight(text, " ")
		default:
			word, text, _ = bytes.Cut(text, []byte{' '})
		}
		if len(word) == 0 && c[0] != '"' {
			word = nil
		}
		w.cols = append(w.cols, word)
	}
}

// quoted returns the first quoted text of b, with its escapes, and what follows it. A
// backslash escapes a quote.
func quoted(b []byte) (text, rest []byte) {
	from := bytes.IndexByte(b, '"') + 1
	for at := from; from > 0 && at < len(b); at++ {
		switch b[at] {
		case '\\':
			at++
		case '"':
			return b[from:at], b[at+1:]
		}
	}
	return nil, nil
}

// fits reports whether a line has a time where the format has it, and an address.
func (w *words) fits(line []byte) (time, address bool) {
	var t int64
	var ip [1]value
	if w.parse(line, &t, ip[:]) != nil {
		return false, false
	}
	_, err := front.ParseAddr(firstOf(ip[0].text))
	switch w.name {
	case "haproxy": // other logs may also have an address before the time, but not a port
		_, err = netip.ParseAddrPort(string(ip[0].text))
	case "envoy":
		if line[0] != '[' {
			return false, false
		}
	case "vhost_combined": // a list of addresses, which may be missing, is not a host
		return false, err == nil && string(w.cols[0]) != "-"
	}
	return true, err == nil
}
