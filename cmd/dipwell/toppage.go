package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/rivo/uniseg"
)

// Widths in columns of a terminal.
const (
	reportWidth = 100 // without a terminal
	column      = 12  // least width of a column of numbers
)

// topLine is a line of a page. Titles are bold.
type topLine struct {
	text  string
	title bool
}

// topPage builds a report for people.
type topPage struct {
	width int
	lines []topLine
}

// page formats a report in lines of at most width columns.
func (c *TopCmd) page(r *topReport, width int) []topLine {
	p := &topPage{width: max(width, 1)}
	all := &r.PerSecond
	share := 0.0
	if all.Decisions > 0 {
		share = 100 * all.Refused / all.Decisions
	}
	p.text(true, "decisions %s/s, refused %s/s (%.1f %%), store errors %s/s", rate(all.Decisions), rate(all.Refused), share, rate(r.Errors))
	if r.Shed > 0 {
		p.text(false, "%s turned away since the start: too many were in flight", howMany(r.Shed, "call"))
	}
	p.limits(r, c.N)
	if r.Process != "" {
		p.add(false, "")
		p.text(false, "counted by %s alone", plain(r.Process))
	}
	within := (time.Duration(r.Window/1e6) * time.Second).String()
	p.keys("BUSIEST KEYS", within, &r.Busiest)
	p.keys("MOST REFUSED KEYS", within, &r.Refused)
	return p.lines
}

// page formats the lists of an hour.
func (h *topHour) page(width int) []topLine {
	p := &topPage{width: width}
	if len(h.Processes) == 0 {
		p.text(false, "nothing is kept of the hour %s", h.Hour)
		return p.lines
	}
	p.text(true, "hour %s, %s: %s", h.Hour, howMany(len(h.Processes), "service"), plain(strings.Join(h.Processes, ", ")))
	p.keys("BUSIEST KEYS", "1h", &h.Busiest)
	p.keys("MOST REFUSED KEYS", "1h", &h.Refused)
	return p.lines
}

func (p *topPage) add(title bool, text string) {
	p.lines = append(p.lines, topLine{fit(text, p.width), title})
}

// text adds a sentence, wrapped between words.
func (p *topPage) text(title bool, format string, args ...any) {
	line := ""
	for _, word := range strings.Fields(fmt.Sprintf(format, args...)) {
		switch {
		case line == "":
			line = word
		case columns(line)+1+columns(word) > p.width:
			p.add(title, line)
			line = word
		default:
			line += " " + word
		}
	}
	p.add(title, line)
}

func (p *topPage) limits(r *topReport, n int) {
	var rows [][]string
	for i := range r.ByLimit[:min(len(r.ByLimit), n)] {
		l := &r.ByLimit[i]
		rows = append(rows, []string{plain(l.Limit), rate(l.Decisions), rate(l.Refused), rate(l.Shadow), rate(l.Fallback)})
	}
	p.add(false, "")
	p.table([]string{"LIMIT", "DECISIONS/S", "REFUSED/S", "SHADOW/S", "FALLBACK/S"}, rows)
	if more := len(r.ByLimit) - n; more > 0 {
		p.text(false, "and %s", howMany(more, "more limit"))
	}
}

func (p *topPage) keys(title, within string, t *topList) {
	var rows [][]string
	for _, k := range t.Keys {
		key := "(shared)"
		if k.Key != nil {
			key = *k.Key
		}
		rows = append(rows, []string{plain(k.Limit) + " " + plain(key), count(k.Count), count(k.Error), count(k.Count - k.Error),
			fmt.Sprintf("%.1f %%", 100*float64(k.Count)/float64(max(t.Counted, 1)))})
	}
	p.add(false, "")
	p.table([]string{title + ", " + within, "COUNT", "ERROR", "AT LEAST", "OF ALL"}, rows)
	if t.Unlisted > 0 {
		p.text(false, "each other key at most %d", t.Unlisted)
	}
}

// table adds rows below heads. The first column is aligned left, and has the width
// that the other columns leave; these are aligned right.
func (p *topPage) table(heads []string, rows [][]string) {
	widths := make([]int, len(heads))
	left := p.width
	for i := 1; i < len(heads); i++ {
		for _, row := range append(rows, heads) {
			widths[i] = max(widths[i], columns(row[i])+1, column)
		}
		left -= widths[i]
	}
	left = max(left, 1)
	line := func(title bool, cells []string) {
		text := fit(cells[0], left)
		text += blank(left - columns(text))
		for i, s := range cells[1:] {
			text += blank(widths[i+1]-columns(s)) + s
		}
		p.add(title, text)
	}
	line(true, heads)
	for _, row := range rows {
		line(false, row)
	}
}

func count(n uint64) string { return strconv.FormatUint(n, 10) }

func rate(f float64) string {
	if f > 0 && f < 100 {
		return strconv.FormatFloat(f, 'f', 1, 64)
	}
	return strconv.FormatFloat(f, 'f', 0, 64)
}

// plain quotes a text with control characters, because keys are chosen by clients.
func plain(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.QuoteToGraphic(s)
	}
	return s
}

// columns returns the width of a text on a terminal.
func columns(s string) int { return uniseg.StringWidth(s) }

// fit cuts a text to width columns. It ends with … if it was cut.
func fit(s string, width int) string {
	if columns(s) <= width {
		return s
	}
	end, used, state := 0, 0, -1
	for rest := s; used < width-1; {
		var c string
		var w int
		if c, rest, w, state = uniseg.FirstGraphemeClusterInString(rest, state); used+w > width-1 {
			break
		}
		end, used = end+len(c), used+w
	}
	return s[:end] + "…"
}

func blank(n int) string { return strings.Repeat(" ", max(0, n)) }
