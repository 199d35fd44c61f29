package replay

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// Colours of the Okabe-Ito palette, which colour-blind people can tell apart.
const (
	sky       = "#56b4e9"
	vermilion = "#d55e00"
	ink       = "#333"
)

// chart is panels with the same time axis.
type chart struct {
	Title    string
	From, To float64 // of the time axis
	Ticks    []tick
	Panels   []panel
}

// tick is a label below the time axis, of one line or two.
type tick struct {
	At    float64
	Label string
}

// panel has a value axis from 0 to High.
type panel struct {
	Title, Unit string
	High        float64
	Series      []series // the first is drawn last, on top of the others
}

// series is bars of one colour.
type series struct {
	Name, Color string
	Bars        []bar
}

// bar is a rectangle.
type bar struct{ From, To, Low, High float64 }

// Sizes in points.
const (
	width      = 900
	left       = 64 // of the panels' data
	right      = width - 16
	dataHeight = 120
	textRow    = 15  // a line of text
	char       = 6.3 // about the width of a character; there is no font to ask
)

// page is what has been drawn so far.
type page struct {
	*chart
	bytes.Buffer
	top float64
}

// writeSVG writes the chart as SVG.
func (c *chart) writeSVG(w io.Writer) error {
	p := &page{chart: c, top: textRow}
	if c.Title != "" {
		p.text(left, p.top, "start", c.Title)
	}
	for i := range c.Panels {
		p.drawPanel(&c.Panels[i])
	}
	head := &page{chart: c}
	fmt.Fprintf(head, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %.0f" font-family="Arial,Helvetica,sans-serif" font-size="11">`+"\n<title>", width, p.top+5)
	_ = xml.EscapeText(head, []byte(c.Title))
	fmt.Fprintf(head, "</title>"+`<rect width="%d" height="%.0f" fill="#fff"/>`+"\n", width, p.top+5)
	p.WriteString("</svg>\n")
	_, err := w.Write(append(head.Bytes(), p.Bytes()...))
	return err
}

func (p *page) x(at float64) float64 {
	return left + (at-p.From)/(p.To-p.From)*(right-left)
}

// text draws a line of text. It replaces characters that XML does not allow.
func (p *page) text(x, y float64, anchor, s string) {
	fmt.Fprintf(p, `<text x="%.1f" y="%.1f" text-anchor="%s" fill="%s">`, x, y, anchor, ink)
	_ = xml.EscapeText(p, []byte(s)) // a Buffer does not fail
	p.WriteString("</text>\n")
}

func (p *page) drawPanel(l *panel) {
	p.top += textRow + 3
	p.text(left, p.top, "start", l.Title)
	p.legend(l.Series)
	bottom := p.top + 8 + dataHeight
	y := func(v float64) float64 { return bottom - v/l.High*dataHeight }
	for _, v := range steps(l.High) {
		p.line(left, y(v), right, y(v), "#e4e4e4")
		p.text(left-6, y(v)+4, "end", axisText(v))
	}
	fmt.Fprintf(p, `<text transform="translate(14 %.1f) rotate(-90)" text-anchor="middle" fill="%s">`, bottom-dataHeight/2, ink)
	_ = xml.EscapeText(p, []byte(l.Unit))
	p.WriteString("</text>\n")
	for _, s := range slices.Backward(l.Series) {
		p.drawSeries(&s, y)
	}
	p.line(left, bottom, right, bottom, ink)
	lines := 1
	for _, t := range p.Ticks {
		x := p.x(t.At)
		p.line(x, bottom, x, bottom+4, ink)
		for i, label := range strings.Split(t.Label, "\n") {
			p.text(x, bottom+textRow*float64(i+1), "middle", label)
			lines = max(lines, i+1)
		}
	}
	p.top = bottom + textRow*float64(lines) + 5
}

// legend draws the names of series in a row.
func (p *page) legend(series []series) {
	p.top += textRow
	x := float64(left)
	for _, s := range series {
		fmt.Fprintf(p, `<rect x="%.1f" y="%.1f" width="9" height="9" fill="%s"/>`, x, p.top-8, s.Color)
		p.text(x+13, p.top, "start", s.Name)
		x += 32 + char*float64(len(s.Name))
	}
}

func (p *page) drawSeries(s *series, y func(float64) float64) {
	for _, b := range s.Bars {
		x, w := p.x(b.From), p.x(b.To)-p.x(b.From)
		if w > 4 {
			w -= 0.5
		}
		if b.High > b.Low {
			fmt.Fprintf(p, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`+"\n", x, y(b.High), w, y(b.Low)-y(b.High), s.Color)
		}
	}
}

func (p *page) line(x1, y1, x2, y2 float64, color string) {
	fmt.Fprintf(p, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"/>`+"\n", x1, y1, x2, y2, color)
}

// steps returns at most six values from 0 to high, in steps of 1, 2 or 5 times a power of
// ten, and at least of 1.
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
