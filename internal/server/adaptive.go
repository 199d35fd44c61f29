package server

import (
	"time"

	"github.com/dipwell/dipwell"
	"github.com/prometheus/client_golang/prometheus"
)

// adaptiveMetrics collects the present rates of adaptive limits.
type adaptiveMetrics struct{ limiter *dipwell.Limiter }

var (
	descRate   = prometheus.NewDesc("dipwell_adaptive_rate", "Present rate of an adaptive limit, in tokens per its period.", []string{"limit"}, nil)
	descReason = prometheus.NewDesc("dipwell_adaptive_reason", "1 for why the rate of an adaptive limit changed last: defined, latency, errors, used or unobserved.", []string{"limit", "reason"}, nil)
)

// Describe implements prometheus.Collector.
func (m adaptiveMetrics) Describe(ch chan<- *prometheus.Desc) { ch <- descRate; ch <- descReason }

// Collect implements prometheus.Collector.
func (m adaptiveMetrics) Collect(ch chan<- prometheus.Metric) {
	now, n := time.Now().UnixMicro(), 0
	for _, d := range m.limiter.Limits() {
		if d.Rule.Pace == nil {
			continue
		}
		if n++; n > maxLabels {
			return
		}
		rate, reason, _ := d.CurrentRate(now)
		ch <- prometheus.MustNewConstMetric(descRate, prometheus.GaugeValue, float64(rate), d.Name)
		ch <- prometheus.MustNewConstMetric(descReason, prometheus.GaugeValue, 1, d.Name, reason)
	}
}
