//go:build !js

package replay

import (
	"image/color"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// stack draws bins as bars: granted below, refused on top.
type stack struct{ bins *bins }

// Plot implements plot.Plotter.
func (s *stack) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	for i, b := range s.bins.bin[:s.bins.n] {
		from := s.bins.start + int64(i)*s.bins.width()
		left, right := x(float64(from)), x(float64(from+s.bins.width()))
		if right-left > 4 {
			right -= 0.5
		}
		bar(c, grantedColor, left, right, y(0), y(float64(b.granted)))
		bar(c, refusedColor, left, right, y(float64(b.granted)), y(float64(b.granted+b.refused)))
	}
}

func bar(c draw.Canvas, col color.Color, left, right, bottom, top vg.Length) {
	if top > bottom {
		c.FillPolygon(col, []vg.Point{{X: left, Y: bottom}, {X: left, Y: top}, {X: right, Y: top}, {X: right, Y: bottom}})
	}
}

// levelLine draws the level of a bucket.
type levelLine struct {
	points []point
	color  color.Color
}

// Plot implements plot.Plotter.
func (l *levelLine) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	pts := make([]vg.Point, len(l.points))
	for i, pt := range l.points {
		pts[i] = vg.Point{X: x(float64(pt.t)), Y: y(pt.level)}
	}
	c.StrokeLines(draw.LineStyle{Color: l.color, Width: 1.3}, pts)
}

// grid draws a line at each labelled tick.
type grid struct{}

// Plot implements plot.Plotter.
func (grid) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	style := draw.LineStyle{Color: gridColor, Width: 0.5}
	for _, t := range p.Y.Tick.Marker.Ticks(p.Y.Min, p.Y.Max) {
		if t.Label != "" && t.Value > p.Y.Min {
			c.StrokeLine2(style, c.Min.X, y(t.Value), c.Max.X, y(t.Value))
		}
	}
	for _, t := range p.X.Tick.Marker.Ticks(p.X.Min, p.X.Max) {
		if t.Label != "" && t.Value > p.X.Min && t.Value < p.X.Max {
			c.StrokeLine2(style, x(t.Value), c.Min.Y, x(t.Value), c.Max.Y)
		}
	}
}

// legend draws names above the data, in as many rows as they need.
type legend []legendEntry

type legendEntry struct {
	name  string
	color color.Color
	box   bool // drawn as a box, not a line
}

// Sizes in points.
const (
	legendRow   = 14  // height of a row
	legendLine  = 16  // width of the symbol before a name
	legendSpace = 18  // space after a name
	dataWidth   = 620 // least width of a panel inside its axes
	dataHeight  = 120
)

// rows breaks a legend into rows that fit a panel.
func (l legend) rows(style draw.TextStyle) (rows []legend) {
	var width vg.Length
	for _, e := range l {
		w := legendLine + style.Width(e.name) + legendSpace
		if len(rows) == 0 || width+w > dataWidth {
			rows, width = append(rows, nil), 0
		}
		rows[len(rows)-1] = append(rows[len(rows)-1], e)
		width += w
	}
	return rows
}

// Plot implements plot.Plotter.
func (l legend) Plot(c draw.Canvas, p *plot.Plot) {
	style := p.X.Tick.Label
	style.XAlign, style.YAlign = draw.XLeft, draw.YCenter
	for i, row := range l.rows(style) {
		row.plot(c, style, vg.Point{X: c.Min.X + 8, Y: c.Max.Y - 9 - vg.Length(i)*legendRow})
	}
}

func (l legend) plot(c draw.Canvas, style draw.TextStyle, at vg.Point) {
	for _, e := range l {
		if e.box {
			bar(c, e.color, at.X, at.X+9, at.Y-4.5, at.Y+4.5)
		} else {
			c.StrokeLine2(draw.LineStyle{Color: e.color, Width: 2}, at.X-2, at.Y, at.X+11, at.Y)
		}
		at.X += legendLine
		c.FillText(style, at, e.name)
		at.X += style.Width(e.name) + legendSpace
	}
}
