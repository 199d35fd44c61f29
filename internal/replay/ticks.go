//go:build !js

package replay

import (
	"math"
	"strconv"
	"time"

	"gonum.org/v1/plot"
)

// timeSteps are the possible distances of labels on a time axis, in µs.
var timeSteps = []int64{1e3, 2e3, 5e3, 10e3, 20e3, 50e3, 100e3, 200e3, 500e3, second, 2 * second, 5 * second, 10 * second, 15 * second, 30 * second,
	minute, 2 * minute, 5 * minute, 10 * minute, 15 * minute, 30 * minute, hour, 2 * hour, 3 * hour, 6 * hour, 12 * hour,
	day, 2 * day, 7 * day, 14 * day, 28 * day, 91 * day, 182 * day, 364 * day, 5 * 364 * day, 50 * 364 * day}

const maxTimeLabels = 11

// timeTicks labels a time axis at round times in UTC. The date is below the first
// label and wherever it changes.
func timeTicks(low, high float64) (ticks []plot.Tick) {
	step := timeSteps[len(timeSteps)-1]
	for _, s := range timeSteps {
		if (high-low)/float64(s) <= maxTimeLabels {
			step = s
			break
		}
	}
	layout := "15:04"
	switch {
	case step >= day:
		layout = "2 Jan"
	case step < second:
		layout = "15:04:05.000"
	case step < minute:
		layout = "15:04:05"
	}
	date := ""
	for t := (int64(low) + step - 1) / step * step; float64(t) <= high; t += step {
		at := time.UnixMicro(t).UTC()
		label := at.Format(layout)
		under := at.Format("2 Jan 2006")
		if step >= day {
			under = at.Format("2006")
		}
		if under == date {
			under = " " // keeps the labels on one line
		} else {
			date = under
		}
		label += "\n" + under
		ticks = append(ticks, plot.Tick{Value: float64(t), Label: label})
	}
	return ticks
}

// countTicks labels an axis of whole numbers from low to most, in at most five
// steps of 1, 2 or 5 times a power of ten.
func countTicks(low, most float64) (ticks []plot.Tick) {
	step := 1.0
	for next := []float64{2, 2.5, 2}; (most-low)/step > 5; next = append(next[1:], next[0]) {
		step *= next[0]
	}
	for v := math.Ceil(low/step) * step; v <= most+step/100; v += step {
		ticks = append(ticks, plot.Tick{Value: v, Label: axisNumber(v)})
	}
	return ticks
}

// axisNumber formats a large number with a suffix such as k.
func axisNumber(v float64) string {
	for _, u := range []struct {
		size float64
		name string
	}{{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e4, "k"}} {
		if math.Abs(v) >= u.size {
			if u.name == "k" {
				u.size = 1e3
			}
			return strconv.FormatFloat(v/u.size, 'g', 4, 64) + u.name
		}
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}
