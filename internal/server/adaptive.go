package server

import (
	"github.com/dipwell/dipwell"
	"github.com/prometheus/client_golang/prometheus"
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
