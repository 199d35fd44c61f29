package server

import (
	"math"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dipwell/dipwell"
)

// adaptiveMetrics collects the present rates of adaptive limits.
type adaptiveMetrics struct{ limiter *dipwell.Limiter }

var (
	descRate   = prometheus.NewDesc("dipwell_adaptive_rate", "Rate of an adaptive limit that this process uses at present, in tokens per its period.", []string{"limit"}, nil)
	descReason = prometheus.NewDesc("dipwell_adaptive_reason", "1 for why the rate of an adaptive limit changed last: defined, latency, errors, used or unobserved.", []string{"limit", "reason"}, nil)
)

func (m adaptiveMetrics) Describe(ch chan<- *prometheus.Desc) { ch <- descRate; ch <- descReason }

func (m adaptiveMetrics) Collect(ch chan<- prometheus.Metric) {
	n := 0
	for _, d := range m.limiter.Limits() {
		if d.Adaptive.Floor == 0 {
			continue
		}
		if n++; n > maxLabels {
			return
		}
		rate, reason, _ := m.limiter.PresentRate(d.Name)
		ch <- prometheus.MustNewConstMetric(descRate, prometheus.GaugeValue, float64(rate), d.Name)
		ch <- prometheus.MustNewConstMetric(descReason, prometheus.GaugeValue, 1, d.Name, reason)
	}
}

// observe answers POST /v1/observe, which reports how calls behind an adaptive limit went.
// It needs no admin right: whoever may take from a limit may also report what happened.
func (a *api) observe(w http.ResponseWriter, _ *http.Request, x *exchange) error {
	q := &x.req
	ok := q.ok || !q.has(hasOK)
	if !q.has(hasCount) {
		q.count = 1
	}
	took := time.Duration(min(q.latency, math.MaxInt64/1000)) * time.Microsecond
	err := a.limiter.Observe(q.take.Limit, took, ok, q.count)
	if err == nil {
		w.WriteHeader(http.StatusNoContent)
	}
	return err
}
