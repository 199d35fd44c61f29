package limittest

import (
	"time"

	"github.com/dipwell/dipwell"
)

// Adaptive is a shared adaptive limit for Observed.
var Adaptive = dipwell.Limit{Name: "up", Rate: 100, Period: time.Second, Burst: 1, Shared: true,
	Adaptive: dipwell.Adaptive{Floor: 50, Latency: 500 * time.Millisecond, Errors: 0.1, Window: time.Minute}}

// Observed returns what a front end observes of calls that take from Adaptive: "latency",
// "errors", "good" or "nothing". Observed makes 30 such calls in each of two windows, and
// so is for virtual time.
func Observed(l *dipwell.Limiter, call func()) string {
	window := func() string {
		for range 30 {
			call()
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		_, reason, _ := l.PresentRate(Adaptive.Name)
		return reason
	}
	l.PresentRate(Adaptive.Name) // begins the first window
	if reason := window(); reason != "defined" {
		return reason
	}
	_ = l.Observe(Adaptive.Name, 0, false, 1000)
	time.Sleep(time.Minute)
	if window() == "used" {
		return "good"
	}
	return "nothing"
}
