package adaptive

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/img/adaptive.svg")

// gradient2 is the limit on calls in flight of Netflix's concurrency-limits, as it is
// described there: the limit follows the ratio of a long average of the round trip time
// and the present one, and grows by a small queue while they are alike.
type gradient2 struct{ limit, long float64 }

const (
	tolerance = 1.5
	smoothing = 0.2
	queueSize = 4
	longTerm  = 600 // samples
)

// sample gets the mean round trip time of a window, and the calls in flight.
func (g *gradient2) sample(rtt, inFlight float64) {
	if g.long == 0 {
		g.long = rtt
	}
	g.long += (rtt - g.long) * 2 / (longTerm + 1)
	if g.long/rtt > 2 {
		g.long *= 0.95
	}
	if inFlight < g.limit/2 {
		return
	}
	gradient := max(0.5, min(1, tolerance*g.long/rtt))
	g.limit = max(4, min(200, g.limit*(1-smoothing)+smoothing*(g.limit*gradient+queueSize)))
}

// An incident: the capacity falls from 400 a second to 150 for a minute.
func incident(seed uint64, set func(*rig)) (rates, served []float64) {
	r := newRig(seed, 400, 1)
	r.queue = 1
	set(r)
	r.run(60) // before
	for second := range 180 {
		r.capacity = 400
		if second >= 30 && second < 90 {
			r.capacity = 150
		}
		before := r.served
		r.rtt, r.ends = 0, 0
		r.window()
		if r.inFlight != nil && r.ends > 0 {
			r.inFlight.sample(r.rtt/float64(r.ends), float64(len(r.pending)))
		}
		rates, served = append(rates, r.rate()), append(served, float64(r.served-before))
	}
	return rates, served
}

// In an incident a fixed limit, however well it was chosen, lets the queue fill: nothing is
// served in time. The adaptive one serves more than half of what can be within the target, though its first ten seconds are lost. What
// gradient2 does is logged beside it: it limits calls in flight, and needs no target.
func TestIncident(t *testing.T) {
	var during, all [3]float64
	kinds := []func(*rig){func(*rig) {}, func(r *rig) { r.fixed = 380 }, func(r *rig) { r.inFlight = &gradient2{limit: 50} }}
	const seeds = 20
	for seed := range uint64(seeds) {
		for i, kind := range kinds {
			_, served := incident(seed, kind)
			during[i] += mean(served[30:90]) / 150 / seeds
			all[i] += mean(served) / ((150*60 + 400*120) / 180.) / seeds
		}
	}
	t.Logf("share of the capacity that was served in time, in the incident and in all: adaptive %.2f %.2f, fixed %.2f %.2f, gradient2 %.2f %.2f",
		during[0], all[0], during[1], all[1], during[2], all[2])
	if during[0] < 0.5 || all[0] < 0.7 || during[0] < during[1]+0.3 || all[0] < all[1] {
		t.Errorf("adaptive: %.2f in the incident, %.2f in all; fixed: %.2f, %.2f", during[0], all[0], during[1], all[1])
	}
	if *update {
		rates, served := incident(1, kinds[0])
		_, fixed := incident(1, kinds[1])
		if err := os.WriteFile("../../docs/img/adaptive.svg", []byte(incidentPlot(rates, served, fixed)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// incidentPlot draws the rate, and the calls that were served in time.
func incidentPlot(rates, served, fixed []float64) string {
	const width, height, left, top = 720.0, 300.0, 50.0, 30.0
	x := func(i int) float64 { return left + float64(i)*(width-left-20)/180 }
	y := func(v float64) float64 { return top + (1-v/500)*(height-top-40) }
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" font-family="sans-serif" font-size="12">`+"\n", width, height)
	fmt.Fprintf(&b, `<title>A simulated incident: the capacity of a server falls from 400 to 150 calls a second for a minute</title>`+"\n")
	fmt.Fprintf(&b, `<rect width="%.0f" height="%.0f" fill="#fff"/><rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="#f3e3e3"/>`+"\n", width, height, x(30), y(500), x(90)-x(30), y(0)-y(500))
	for v := 0.0; v <= 500; v += 100 {
		fmt.Fprintf(&b, `<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" stroke="#ddd"/><text x="%.1f" y="%.1f" text-anchor="end">%.0f</text>`+"\n", left, width-20, y(v), y(v), left-6, y(v)+4, v)
	}
	for s := 0; s <= 180; s += 30 {
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" text-anchor="middle">%d s</text>`+"\n", x(s), y(0)+16, s)
	}
	line := func(values []float64, color, name string, row float64) {
		fmt.Fprintf(&b, `<polyline fill="none" stroke="%s" stroke-width="1.5" points="`, color)
		for i, v := range values {
			fmt.Fprintf(&b, "%.1f,%.1f ", x(i), y(min(v, 500)))
		}
		fmt.Fprintf(&b, `"/><text x="%.1f" y="16" fill="%s">%s</text>`+"\n", row, color, name)
	}
	capacity := make([]float64, 180)
	for i := range capacity {
		if capacity[i] = 400; i >= 30 && i < 90 {
			capacity[i] = 150
		}
	}
	line(capacity, "#999", "capacity", left)
	line(rates, "#1f5fbf", "adaptive rate", left+80)
	line(served, "#1f9f4f", "served within 200 ms", left+190)
	line(fixed, "#bf3f1f", "the same under a fixed limit of 380 a second", left+340)
	b.WriteString("</svg>\n")
	return b.String()
}
