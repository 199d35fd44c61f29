package check

import (
	"bytes"
	"fmt"
	"html"
	"math"
	"strconv"
	"time"
)

const (
	column = 40.0 // of the dashboard's 24, in units of the drawing
	row    = 24.0
	margin = 44.0 // left of a panel's axis
)

// Colours of the Okabe-Ito palette, which colour-blind people can tell apart.
var colours = []string{"#0072b2", "#d55e00", "#009e73", "#e69f00", "#cc79a7", "#56b4e9", "#666", "#000"}

// drawBoard draws panels where the dashboard has them, as an SVG.
func drawBoard(panels []panel, began time.Time) []byte {
	high := 0.0
	for _, p := range panels {
		high = max(high, p.GridPos.Y+p.GridPos.H)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" font-family="sans-serif" font-size="10" fill="#333">`+"\n", 24*column, high*row)
	fmt.Fprintln(&b, `<rect width="100%" height="100%" fill="#fff"/>`)
	for _, p := range panels {
		fmt.Fprintf(&b, `<g transform="translate(%g %g)">`+"\n", p.GridPos.X*column, p.GridPos.Y*row)
		p.draw(&b, began)
		fmt.Fprintln(&b, "</g>")
	}
	fmt.Fprintln(&b, "</svg>")
	return b.Bytes()
}

func (p *panel) draw(b *bytes.Buffer, began time.Time) {
	wide, high := p.GridPos.W*column, p.GridPos.H*row
	fmt.Fprintf(b, `<rect x="3" y="3" width="%g" height="%g" rx="3" fill="none" stroke="#ccc"/>`+"\n", wide-6, high-6)
	fmt.Fprintf(b, `<text x="10" y="18" font-size="11" font-weight="bold">%s</text>`+"\n", html.EscapeString(p.Title))
	most := 0.0
	for _, l := range p.lines {
		for _, pt := range l.points {
			if !math.IsNaN(pt.F) && !math.IsInf(pt.F, 0) {
				most = max(most, pt.F)
			}
		}
	}
	if p.Type == "stat" {
		fmt.Fprintf(b, `<text x="%g" y="%g" font-size="30" text-anchor="middle">%s</text>`+"\n", wide/2, high/2+14, p.number(most))
		return
	}
	top, bottom := 28.0, high-36
	x := func(ms int64) float64 {
		return margin + (wide-margin-16)*float64(ms-began.UnixMilli())/float64(length.Milliseconds())
	}
	most = round(most)
	y := func(v float64) float64 { return bottom - (bottom-top)*v/most }
	for i := range 5 {
		v := most * float64(i) / 4
		fmt.Fprintf(b, `<path d="M%g %.1fH%g" stroke="#e4e4e4"/><text x="%g" y="%.1f" text-anchor="end">%s</text>`+"\n", margin, y(v), wide-16, margin-4, y(v)+3, p.number(v))
	}
	for s := 0; s <= int(length.Seconds()); s += 15 {
		fmt.Fprintf(b, `<text x="%.1f" y="%g" text-anchor="middle">%d s</text>`+"\n", x(began.UnixMilli()+int64(s)*1000), bottom+12, s)
	}
	at := 10.0
	for i, l := range p.lines {
		colour := colours[i%len(colours)]
		fmt.Fprintf(b, `<path fill="none" stroke="%s" stroke-width="1.4" d="%s"/>`+"\n", colour, l.path(x, y))
		if at+float64(len(l.name))*5.6+20 > wide {
			continue // no room in the legend
		}
		fmt.Fprintf(b, `<path d="M%g %gh10" stroke="%s" stroke-width="3"/><text x="%g" y="%g">%s</text>`+"\n", at, high-14, colour, at+14, high-10, html.EscapeString(l.name))
		at += float64(len(l.name))*5.6 + 26
	}
}

func (l *line) path(x func(int64) float64, y func(float64) float64) string {
	var b bytes.Buffer
	move := byte('M')
	for _, pt := range l.points {
		if math.IsNaN(pt.F) || math.IsInf(pt.F, 0) {
			move = 'M'
			continue
		}
		fmt.Fprintf(&b, "%c%.1f %.1f", move, x(pt.T), y(pt.F))
		move = 'L'
	}
	return b.String()
}

// round returns the next of 1, 2, 4 and 8 times a power of ten.
func round(v float64) float64 {
	if v <= 0 {
		return 1
	}
	unit := math.Pow(10, math.Floor(math.Log10(v)))
	for _, n := range []float64{1, 2, 4, 8} {
		if v <= n*unit {
			return n * unit
		}
	}
	return 10 * unit
}

// number writes a value in the panel's unit.
func (p *panel) number(v float64) string {
	short := func(v float64) string { return strconv.FormatFloat(v, 'g', 3, 64) }
	switch unit := p.FieldConfig.Defaults.Unit; {
	case unit == "s" && v < 1e-3:
		return short(v*1e6) + " µs"
	case unit == "s" && v < 1:
		return short(v*1e3) + " ms"
	case unit == "bytes":
		return strconv.FormatFloat(v/1e6, 'g', 2, 64) + " MB"
	case v >= 1e4:
		return short(v/1e3) + "k"
	default:
		return short(v)
	}
}
