//go:build !js

package replay

import (
	"bytes"
	"fmt"
	"image/color"
	"io"
	"slices"

	xfont "golang.org/x/image/font"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

const (
	plotWidth   = 10 * vg.Inch
	panelHeight = 2.3 * vg.Inch
	plotMargin  = 0.15 * vg.Inch
	plotDPI     = 144
)

// Colours of the Okabe-Ito palette, which colour-blind people can tell apart.
var (
	grantedColor = color.RGBA{0x56, 0xb4, 0xe9, 0xff}
	refusedColor = color.RGBA{0xd5, 0x5e, 0x00, 0xff}
	inkColor     = color.RGBA{0x33, 0x33, 0x33, 0xff}
	gridColor    = color.RGBA{0xe4, 0xe4, 0xe4, 0xff}
	keyColors    = []color.RGBA{{0x00, 0x72, 0xb2, 0xff}, {0xe6, 0x9f, 0x00, 0xff}, {0xcc, 0x79, 0xa7, 0xff}, {0x00, 0x9e, 0x73, 0xff},
		{0xd5, 0x5e, 0x00, 0xff}, {0x56, 0xb4, 0xe9, 0xff}, {0x66, 0x66, 0x66, 0xff}, {0x00, 0x00, 0x00, 0xff}}
)

// writePlot draws for each limit the requests granted and refused over time and,
// if the replay had Options.Levels, the levels of the worst keys' buckets.
func (r *Report) writePlot(w io.Writer, format string) error {
	panels := r.panels()
	height := panelHeight*vg.Length(len(panels)) + 2*plotMargin
	var out interface {
		vg.CanvasSizer
		io.WriterTo
	}
	if format == "png" {
		out = vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(plotWidth, height), vgimg.UseDPI(plotDPI))}
	} else {
		out = vgsvg.New(plotWidth, height)
	}
	drawPanels(draw.New(out), panels)
	if _, svg := out.(*vgsvg.Canvas); svg {
		return writeSVG(w, out)
	}
	_, err := out.WriteTo(w)
	return err
}

// drawPanels draws the panels on a white page, from top to bottom.
func drawPanels(page draw.Canvas, panels [][]*plot.Plot) {
	page.SetColor(color.White)
	page.Fill(page.Path())
	page = draw.Crop(page, plotMargin, -2*plotMargin, plotMargin, -plotMargin)
	tiles := draw.Tiles{Rows: len(panels), Cols: 1, PadY: 0.1 * vg.Inch}
	for i, row := range plot.Align(panels, tiles, page) {
		panels[i][0].Draw(row[0])
	}
}

// writeSVG adds fallback fonts for readers without Liberation Sans.
func writeSVG(w io.Writer, out io.WriterTo) error {
	var b bytes.Buffer
	if _, err := out.WriteTo(&b); err != nil {
		return err
	}
	_, err := w.Write(bytes.ReplaceAll(b.Bytes(), []byte("font-family:Liberation Sans;"), []byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif;")))
	return err
}

func (r *Report) panels() (rows [][]*plot.Plot) {
	for i := range r.Limits {
		rows = append(rows, []*plot.Plot{r.requestsPanel(&r.Limits[i])})
		if i < len(r.tracks) && len(r.tracks[i]) > 0 {
			rows = append(rows, []*plot.Plot{r.levelsPanel(&r.Limits[i], r.tracks[i])})
		}
	}
	return rows
}

// requestsPanel draws requests as bars: refused on top of granted.
func (r *Report) requestsPanel(l *Limit) *plot.Plot {
	p := r.panel(clip(l.Limit, 90))
	width := l.bins.width()
	p.Y.Label.Text = "requests in " + binName(width)
	var most int64
	for _, b := range l.bins.bin[:l.bins.n] {
		most = max(most, b.granted+b.refused)
	}
	names := legend{
		{"granted " + share(l.Granted, l.Granted+l.Refused+l.RefusedByOther), grantedColor, true},
		{"refused " + share(l.Refused+l.RefusedByOther, l.Granted+l.Refused+l.RefusedByOther), refusedColor, true},
	}
	scaleY(p, 0, float64(most), names)
	p.Add(grid{}, &stack{&l.bins}, names)
	return p
}

// levelsPanel draws the levels of the worst keys' buckets.
func (r *Report) levelsPanel(l *Limit, tracks []*track) *plot.Plot {
	p := r.panel("")
	p.Y.Label.Text = "tokens left"
	p.X.Label.Text = "time (UTC)"
	low := 0.0
	names := legend{}
	var lines []plot.Plotter
	for i, t := range tracks {
		c := keyColors[i%len(keyColors)]
		lines = append(lines, &levelLine{t.points, c})
		names = append(names, legendEntry{clip(shown(t.key), 44), c, false})
		for _, pt := range t.points {
			low = min(low, pt.level)
		}
	}
	scaleY(p, low, float64(l.cap), names)
	slices.Reverse(lines) // draw the worst key last, on top
	p.Add(grid{}, names)
	p.Add(lines...)
	return p
}

// panel returns an empty plot whose X axis is the time of the log.
func (r *Report) panel(title string) *plot.Plot {
	p := plot.New()
	p.Title.Text = title
	p.Title.TextStyle.Font = sans(12, xfont.WeightBold)
	p.Title.TextStyle.Color = inkColor
	p.Title.Padding = 4
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.Label.TextStyle.Font = sans(10, xfont.WeightNormal)
		a.Tick.Label.Font = sans(9, xfont.WeightNormal)
		a.Label.TextStyle.Color, a.Tick.Label.Color = inkColor, inkColor
		a.Color, a.Tick.Color = inkColor, inkColor
		a.Width, a.Tick.Width = 0.6, 0.6
		a.Tick.Length = 4
		a.Padding = 0
	}
	p.X.Min, p.X.Max = 0, 1e6
	if r.First != nil {
		p.X.Min, p.X.Max = float64(*r.First), float64(max(*r.Last, *r.First+1e3))
		for i := range r.Limits { // whole bins at both ends
			b := &r.Limits[i].bins
			p.X.Min = min(p.X.Min, float64(b.start))
			p.X.Max = max(p.X.Max, float64(b.start+int64(b.n)*b.width()))
		}
	}
	p.X.Tick.Marker = plot.TickerFunc(timeTicks)
	return p
}

// scaleY sets the Y axis for data from low, at most 0, to high, with room for the
// legend above the data.
func scaleY(p *plot.Plot, low, high float64, l legend) {
	high = max(high, 1)
	rows := vg.Length(len(l.rows(p.X.Tick.Label)))
	room := float64((12 + rows*legendRow) / dataHeight)
	p.Y.Min, p.Y.Max = low, low+(high-low)/(1-room)
	p.Y.Tick.Marker = plot.TickerFunc(func(float64, float64) []plot.Tick { return countTicks(low, high) })
}

func sans(size vg.Length, weight xfont.Weight) font.Font {
	return font.Font{Typeface: "Liberation", Variant: "Sans", Size: size, Weight: weight}
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
