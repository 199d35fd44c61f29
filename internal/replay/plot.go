package replay

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Colours of the Okabe-Ito palette, which colour-blind people can tell apart.
const (
	sky       = "#56b4e9"
	vermilion = "#d55e00"
	ink       = "#333"
)

// Sizes in points.
const (
	width      = 900
	left       = 64 // left edge of the data in a limit's chart
	right      = width - 16
	dataHeight = 120
	textRow    = 15  // height of a line of text
	char       = 6.3 // about the width of a character; there is no font to ask
)

// plot is what has been drawn so far: for each limit a chart, all with the same time axis.
type plot struct {
	bytes.Buffer
	from, to float64 // range of the time axis
	top      float64
}

// WritePlot draws for each limit the requests granted and refused over time, as SVG.
func (r *Report) WritePlot(w io.Writer) error {
	p := &plot{to: 1e6, top: textRow}
	if r.First != nil {
		p.from, p.to = float64(*r.First), float64(max(*r.Last, *r.First+1e3))
	}
	for i := range r.Limits {
		if b := &r.Limits[i].bins; b.n > 0 { // the axis has whole bins at both ends
			p.from, p.to = min(p.from, float64(b.start)), max(p.to, float64(b.start+int64(b.n)*b.width()))
		}
	}
	title := clip(filepath.Base(r.Log), 90) + " by " + clip(r.By, 40)
	p.text(left, p.top, "start", title)
	for i := range r.Limits {
		p.drawLimit(&r.Limits[i])
	}
	var head bytes.Buffer
	fmt.Fprintf(&head, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %.0f" font-family="Arial,Helvetica,sans-serif" font-size="11">`+"\n<title>", width, p.top+5)
	_ = xml.EscapeText(&head, []byte(title))
	fmt.Fprintf(&head, "</title>"+`<rect width="%d" height="%.0f" fill="#fff"/>`+"\n", width, p.top+5)
	p.WriteString("</svg>\n")
	_, err := w.Write(append(head.Bytes(), p.Bytes()...))
	return err
}

func (p *plot) x(at float64) float64 {
	return left + (at-p.from)/(p.to-p.from)*(right-left)
}

// text draws a line of text. It replaces characters that XML does not allow.
func (p *plot) text(x, y float64, anchor, s string) {
	fmt.Fprintf(p, `<text x="%.1f" y="%.1f" text-anchor="%s" fill="%s">`, x, y, anchor, ink)
	_ = xml.EscapeText(p, []byte(s)) // writing to a Buffer does not fail
	p.WriteString("</text>\n")
}

// drawLimit draws the requests of a limit as bars: refused on top of granted.
func (p *plot) drawLimit(l *Limit) {
	all, high := l.Granted+l.Refused+l.RefusedByOther, 1.0
	for _, b := range l.bins.bin[:l.bins.n] {
		high = max(high, float64(b.granted+b.refused))
	}
	p.top += textRow + 3
	p.text(left, p.top, "start", clip(l.Limit, 130))
	p.top += textRow
	next := p.legend(left, sky, "granted "+share(l.Granted, all))
	p.legend(next, vermilion, "refused "+share(l.Refused+l.RefusedByOther, all))
	bottom := p.top + 8 + dataHeight
	y := func(v float64) float64 { return bottom - v/high*dataHeight }
	for _, v := range steps(high) {
		p.line(left, y(v), right, y(v), "#e4e4e4")
		p.text(left-6, y(v)+4, "end", axisText(v))
	}
	fmt.Fprintf(p, `<text transform="translate(14 %.1f) rotate(-90)" text-anchor="middle" fill="%s">requests in %s</text>`+"\n", bottom-dataHeight/2, ink, binName(l.bins.width()))
	p.bars(&l.bins, y, vermilion, func(b bin) (low, high int64) { return b.granted, b.granted + b.refused })
	p.bars(&l.bins, y, sky, func(b bin) (low, high int64) { return 0, b.granted })
	p.line(left, bottom, right, bottom, ink)
	lines := 1
	for _, t := range timeTicks(p.from, p.to) {
		x := p.x(t.At)
		p.line(x, bottom, x, bottom+4, ink)
		for i, label := range strings.Split(t.Label, "\n") {
			p.text(x, bottom+textRow*float64(i+1), "middle", label)
			lines = max(lines, i+1)
		}
	}
	p.top = bottom + textRow*float64(lines) + 5
}

// legend draws the name of a colour at x, and returns where the next one begins.
func (p *plot) legend(x float64, color, name string) (next float64) {
	fmt.Fprintf(p, `<rect x="%.1f" y="%.1f" width="9" height="9" fill="%s"/>`, x, p.top-8, color)
	p.text(x+13, p.top, "start", name)
	return x + 32 + char*float64(len(name))
}

// bars draws the bins between two of their values.
func (p *plot) bars(bins *bins, y func(float64) float64, color string, of func(bin) (low, high int64)) {
	for i, b := range bins.bin[:bins.n] {
		from := float64(bins.start + int64(i)*bins.width())
		x, w := p.x(from), p.x(from+float64(bins.width()))-p.x(from)
		if w > 4 {
			w -= 0.5
		}
		if low, high := of(b); high > low {
			fmt.Fprintf(p, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`+"\n", x, y(float64(high)), w, y(float64(low))-y(float64(high)), color)
		}
	}
}

func (p *plot) line(x1, y1, x2, y2 float64, color string) {
	fmt.Fprintf(p, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"/>`+"\n", x1, y1, x2, y2, color)
}

// steps returns at most six values from 0 to high, in steps of at least 1 that are 1, 2
// or 5 times a power of ten.
func steps(high float64) (values []float64) {
	step := 1.0
	for next := []float64{2, 2.5, 2}; high/step > 5; next = append(next[1:], next[0]) {
		step *= next[0]
	}
	for v := 0.0; v <= high+step/100; v += step {
		values = append(values, v)
	}
	return values
}

// axisText formats a large number with a suffix such as k.
func axisText(v float64) string {
	for _, u := range []struct {
		least, size float64
		name        string
	}{{1e12, 1e12, "T"}, {1e9, 1e9, "G"}, {1e6, 1e6, "M"}, {1e4, 1e3, "k"}} {
		if v >= u.least {
			return strconv.FormatFloat(v/u.size, 'g', 4, 64) + u.name
		}
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}

// tick is a label below the time axis, of one line or two.
type tick struct {
	At    float64
	Label string
}

const maxTimeLabels = 11

// timeTicks labels a time axis at round times in UTC. The date is below the first
// label and wherever it changes.
func timeTicks(low, high float64) (ticks []tick) {
	step := binWidths[len(binWidths)-1]
	for _, s := range binWidths {
		if (high-low)/float64(s) <= maxTimeLabels {
			step = s
			break
		}
	}
	layout, below := "15:04", "2 Jan 2006"
	switch {
	case step >= day:
		layout, below = "2 Jan", "2006"
	case step < second:
		layout = "15:04:05.000"
	case step < minute:
		layout = "15:04:05"
	}
	date := ""
	for t := (int64(low) + step - 1) / step * step; float64(t) <= high; t += step {
		at := time.UnixMicro(t).UTC()
		label := at.Format(layout)
		if under := at.Format(below); under != date {
			label, date = label+"\n"+under, under
		}
		ticks = append(ticks, tick{At: float64(t), Label: label})
	}
	return ticks
}

func clip(s string, most int) string {
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return s
}

func binName(us int64) string {
	for _, u := range []struct {
		len  int64
		name string
	}{{day, "d"}, {hour, "h"}, {minute, "min"}, {second, "s"}} {
		if us%u.len == 0 {
			return fmt.Sprintf("%d %s", us/u.len, u.name)
		}
	}
	return fmt.Sprintf("%d ms", us/1e3)
}
