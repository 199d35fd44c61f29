package simulate

import (
	"bytes"
	"fmt"
	"html"
	"io"
	"slices"
)

// A picture has what a plot of a history shows. It is filled while the history is played.
type picture map[at]*track

// A track is what happened to a key.
type track struct {
	answers []told
	levels  []sample
	above   []sample // tokens granted above the rate
	bound   bound
}

// A told is an answer that a caller got.
type told struct{ at, granted, refused int64 }

// A sample is a number of tokens at a true time.
type sample struct {
	at     int64
	tokens float64
}

func (p picture) of(k at) *track {
	t := p[k]
	if t == nil {
		t = &track{}
		p[k] = t
	}
	return t
}

// tell records what a caller was told about an op.
func (p picture) tell(k at, now, granted int64, refused bool) {
	t := told{at: now, granted: granted}
	if refused {
		t.refused = 1
	}
	p.of(k).answers = append(p.of(k).answers, t)
}

// level enters what is in use of a key.
func (n *node) picture(k at) {
	if n.w.picture == nil || n.id > 0 {
		return
	}
	t := n.w.picture.of(k)
	s := sample{at: n.w.now}
	if row, records, _ := n.table.Row(k.limit, k.key); row.Version != 0 {
		s.tokens = float64(n.used(k, row, records, n.time())) / float64(n.rates[k.limit].parts(1))
	}
	t.levels = append(t.levels, s)
}

// promised computes, for each key, the tokens granted above the largest rate of its
// limit, since that was least. The promise is that this is at most the largest burst.
func (w *world) promised() {
	for k, t := range w.picture {
		b := w.nodes[0].book(k.limit, k.key)
		grants := b.grants
		if len(b.uses) > 0 {
			grants = b.uses
		}
		grants = inOrder(slices.Clone(grants))
		if t.bound = *w.nodes[0].bounds[k.limit]; t.bound.window || t.bound.counts || b.apart && len(b.uses) == 0 {
			continue
		}
		t.bound.burst = max(t.bound.burst, b.reserved)
		level, last := 0.0, int64(epoch)
		for _, g := range grants {
			level = max(0, level-float64(g.at-last)*float64(t.bound.rate)/float64(t.bound.period))
			t.above = append(t.above, sample{g.at - epoch, level})
			level += float64(g.tokens)
			t.above = append(t.above, sample{g.at - epoch, level})
			last = g.at
		}
	}
}

// Plot plays the steps of a result again, and draws what happens as SVG. For the most
// requested key of each limit it shows the tokens that callers were granted, the calls
// that were refused, and what was in use. Faults are bands and lines.
func (r *Result) Plot(w io.Writer, o Options) error {
	h := o.history(r.Seed)
	h.steps = r.steps
	h.picture = picture{}
	h.play(nil)
	var b bytes.Buffer
	h.draw(&b)
	_, err := w.Write(b.Bytes())
	return err
}

// Sizes in points.
const (
	plotWidth   = 900
	plotLeft    = 60
	plotRight   = 15
	panelHeight = 130
	panelSpace  = 34
	faultHeight = 62
	plotBins    = 120
)

// The colours of replay's plots.
const (
	grantedColor = "#56b4e9"
	refusedColor = "#d55e00"
	usedColor    = "#0072b2"
	aboveColor   = "#cc79a7"
	faultColor   = "#e69f00"
)

// A canvas draws panels below each other.
type canvas struct {
	*bytes.Buffer
	end int64 // true time at the right
	top float64
}

func (c *canvas) x(t int64) float64 {
	return plotLeft + float64(t)/float64(c.end)*(plotWidth-plotLeft-plotRight)
}

func (c *canvas) text(x, y float64, anchor, color, s string) {
	fmt.Fprintf(c, `<text x="%.1f" y="%.1f" text-anchor="%s" fill="%s">%s</text>`+"\n", x, y, anchor, color, html.EscapeString(s))
}

func (h *history) draw(b *bytes.Buffer) {
	c := &canvas{Buffer: b, end: 1, top: 24}
	keys := h.busiest()
	for _, k := range keys {
		t := h.picture[k]
		c.end = max(c.end, t.answers[len(t.answers)-1].at)
	}
	height := 24 + faultHeight + 2*(panelHeight+panelSpace)*len(keys) + 10
	fmt.Fprintf(c, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="11">`+"\n", plotWidth, height)
	fmt.Fprintf(c, `<title>A simulated history, seed %d</title><rect width="%d" height="%d" fill="#fff"/>`+"\n", h.seed, plotWidth, height)
	c.text(plotLeft, 15, "start", "#333", fmt.Sprintf("seed %d: %d processes, %d steps; bands and lines are faults and changes", h.seed, h.processes, len(h.steps)))
	h.drawFaults(c, float64(height-20))
	for _, k := range keys {
		h.drawKey(c, k)
	}
	c.WriteString("</svg>\n")
}

// busiest returns the most requested key of each limit.
func (h *history) busiest() (keys []at) {
	for _, l := range h.limits {
		var best at
		for k, t := range h.picture {
			if k.limit != l.Name || len(t.answers) == 0 {
				continue
			}
			if n := len(t.answers); best.limit == "" || n > len(h.picture[best].answers) || n == len(h.picture[best].answers) && k.key < best.key {
				best = k
			}
		}
		if best.limit != "" {
			keys = append(keys, best)
		}
	}
	return keys
}

// drawFaults marks the faults over the whole height, with their names in rows on top.
func (h *history) drawFaults(c *canvas, bottom float64) {
	row := 0
	for i := range h.steps {
		s := &h.steps[i]
		if s.kind <= holds || s.at > c.end {
			continue
		}
		left, width := c.x(s.at), max(1, c.x(min(c.end, s.at+s.lasts()))-c.x(s.at))
		fmt.Fprintf(c, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s" fill-opacity="0.3"><title>%.3f s: %s</title></rect>`+"\n",
			left, c.top, width, bottom-c.top, faultColor, float64(s.at)/1e6, html.EscapeString(s.String()))
		anchor := "start"
		if left > plotWidth-120 {
			anchor = "end"
		}
		c.text(left, c.top+10+float64(row%5)*11, anchor, "#a06000", s.kind.String())
		row++
	}
	c.top += faultHeight
}

// lasts returns how long a fault lasts, in µs.
func (s *step) lasts() int64 {
	switch s.kind {
	case cut, stall, pause:
		return s.span
	case slow:
		return 4 * s.span
	}
	return 0
}

// String returns the name of a kind of fault.
func (k kind) String() string {
	return [...]string{"calls", "holds", "cut off", "slow", "store stands still", "clock back", "wall clock set", "pause", "crash", "new rate", "override", "sweep"}[k]
}

// drawKey draws what was granted and refused, and below it what was in use.
func (h *history) drawKey(c *canvas, k at) {
	t := h.picture[k]
	var granted, refused [plotBins]int64
	most := int64(1)
	for _, a := range t.answers {
		i := min(plotBins-1, a.at*plotBins/c.end)
		granted[i] += a.granted
		refused[i] += a.refused
		most = max(most, granted[i]+refused[i])
	}
	y := c.axis(float64(most), fmt.Sprintf("%s %q", k.limit, k.key), [][2]string{{"tokens granted", grantedColor}, {"calls refused", refusedColor}})
	for i := range plotBins {
		left := c.x(int64(i) * c.end / plotBins)
		width := c.x(int64(i+1)*c.end/plotBins) - left - 0.5
		bar := func(from, to int64, color string) {
			if to > from {
				fmt.Fprintf(c, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`+"\n", left, y(float64(to)), width, y(float64(from))-y(float64(to)), color)
			}
		}
		bar(0, granted[i], grantedColor)
		bar(granted[i], granted[i]+refused[i], refusedColor)
	}
	c.top += panelHeight + panelSpace
	h.drawLevel(c, t)
}

func (h *history) drawLevel(c *canvas, t *track) {
	top := float64(t.bound.burst)
	for _, s := range append(slices.Clone(t.levels), t.above...) {
		top = max(top, s.tokens)
	}
	names := [][2]string{{"in use", usedColor}}
	if len(t.above) > 0 {
		names = append(names, [2]string{"granted above the largest rate", aboveColor}, [2]string{fmt.Sprintf("promised: at most %d", t.bound.burst), "#333"})
	}
	y := c.axis(top, "", names)
	if len(t.above) > 0 {
		fmt.Fprintf(c, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#333" stroke-dasharray="5 3"/>`+"\n", plotLeft, plotWidth-plotRight, y(float64(t.bound.burst)), y(float64(t.bound.burst)))
	}
	for _, line := range []struct {
		samples []sample
		color   string
	}{{t.above, aboveColor}, {t.levels, usedColor}} {
		fmt.Fprintf(c, `<polyline fill="none" stroke="%s" stroke-width="1.2" points="`, line.color)
		for _, s := range line.samples {
			if s.at <= c.end {
				fmt.Fprintf(c, "%.1f,%.1f ", c.x(s.at), y(s.tokens))
			}
		}
		c.WriteString(`"/>` + "\n")
	}
	for i := range 11 {
		at := c.end * int64(i) / 10
		c.text(c.x(at), c.top+panelHeight+12, "middle", "#333", fmt.Sprintf("%.2f s", float64(at)/1e6))
	}
	c.top += panelHeight + panelSpace
}

// axis draws the frame of a panel, and returns its scale.
func (c *canvas) axis(most float64, title string, names [][2]string) (y func(float64) float64) {
	top := c.top + 14
	y = func(v float64) float64 { return top + (1-v/most)*(panelHeight-14) }
	for i := range 3 {
		v := most * float64(i) / 2
		fmt.Fprintf(c, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#ddd"/>`+"\n", plotLeft, plotWidth-plotRight, y(v), y(v))
		c.text(plotLeft-5, y(v)+4, "end", "#333", fmt.Sprintf("%.4g", v))
	}
	x := float64(plotLeft)
	if title != "" {
		c.text(x, c.top+8, "start", "#333", title)
		x += 110
	}
	for _, name := range names {
		fmt.Fprintf(c, `<rect x="%.1f" y="%.1f" width="9" height="9" fill="%s"/>`, x, c.top, name[1])
		c.text(x+13, c.top+8, "start", "#333", name[0])
		x += 30 + 6*float64(len(name[0]))
	}
	return y
}
