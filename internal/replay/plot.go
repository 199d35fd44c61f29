package replay

import (
	"fmt"
	"io"
	"path/filepath"
	"time"
)

// WritePlot draws for each limit the requests granted and refused over time, as SVG.
func (r *Report) WritePlot(w io.Writer) error {
	c := chart{Title: clip(filepath.Base(r.Log), 90) + " by " + clip(r.By, 40), To: 1e6}
	if r.First != nil {
		c.From, c.To = float64(*r.First), float64(max(*r.Last, *r.First+1e3))
	}
	for i := range r.Limits {
		l := &r.Limits[i]
		if b := &l.bins; b.n > 0 { // whole bins at both ends
			c.From, c.To = min(c.From, float64(b.start)), max(c.To, float64(b.start+int64(b.n)*b.width()))
		}
		c.Panels = append(c.Panels, l.requestsPanel())
	}
	c.Ticks = timeTicks(c.From, c.To)
	return c.writeSVG(w)
}

// requestsPanel draws requests as bars: refused on top of granted.
func (l *Limit) requestsPanel() panel {
	all, width := l.Granted+l.Refused+l.RefusedByOther, l.bins.width()
	granted := series{Name: "granted " + share(l.Granted, all), Color: sky}
	refused := series{Name: "refused " + share(l.Refused+l.RefusedByOther, all), Color: vermilion}
	most := 1.0
	for i, b := range l.bins.bin[:l.bins.n] {
		from := float64(l.bins.start + int64(i)*width)
		g, top := float64(b.granted), float64(b.granted+b.refused)
		granted.Bars = append(granted.Bars, bar{From: from, To: from + float64(width), High: g})
		refused.Bars = append(refused.Bars, bar{From: from, To: from + float64(width), Low: g, High: top})
		most = max(most, top)
	}
	return panel{Title: clip(l.Limit, 130), Unit: "requests in " + binName(width), High: most, Series: []series{granted, refused}}
}

// timeSteps are the possible distances of labels on a time axis, in µs.
var timeSteps = []int64{1e3, 2e3, 5e3, 10e3, 20e3, 50e3, 100e3, 200e3, 500e3, second, 2 * second, 5 * second, 10 * second, 15 * second, 30 * second,
	minute, 2 * minute, 5 * minute, 10 * minute, 15 * minute, 30 * minute, hour, 2 * hour, 3 * hour, 6 * hour, 12 * hour,
	day, 2 * day, 7 * day, 14 * day, 28 * day, 91 * day, 182 * day, 364 * day, 5 * 364 * day}

const maxTimeLabels = 11

// timeTicks labels a time axis at round times in UTC. The date is below the first
// label and wherever it changes.
func timeTicks(low, high float64) (ticks []tick) {
	step := timeSteps[len(timeSteps)-1]
	for _, s := range timeSteps {
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
