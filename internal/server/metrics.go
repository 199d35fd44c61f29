package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/bounded"
	"github.com/dipwell/dipwell/internal/front"
	"github.com/dipwell/dipwell/store"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	dto "github.com/prometheus/client_model/go"
)

// metrics counts in atomics, found by the limit's name, and makes Prometheus
// metrics of them only at a scrape. Labels have names of limits, never keys.
type metrics struct {
	limits sync.Map   // by name: limitCounts
	mu     sync.Mutex // held while a limit is added
	named  int        // number of limits in limits
	storeErrors,
	left,
	unknown,
	shed atomic.Uint64
	unkeyed  *prometheus.CounterVec   // by keySources
	denied   *prometheus.CounterVec   // by denialReasons
	took     *prometheus.HistogramVec // by verb
	takes    prometheus.Observer      // the observer of took for a take, kept to avoid a search
	store    string                   // value of the label store
	refusals *refusals                // used for denials too; nil if refusals are not logged
	denials  *refusals
	keys     *keyCounts            // nil before CountKeys
	labels   map[string]string     // the constant labels
	reg      prometheus.Registerer // adds them
	gather   prometheus.Gatherer
}

// bucketCount is the number of buckets of a histogram. Bucket i counts durations up to
// 2^(8+i) ns, from 256 ns to 4.3 s, and the last one all longer ones.
const bucketCount = 26

// maxLabels is how many limits have their own label. The others share otherLabel,
// so that a client that may define limits cannot overload a monitoring system.
const (
	maxLabels  = 10000
	otherLabel = "_other"
)

// limitCounts are the counters of one limit, in a copy for each processor.
type limitCounts = bounded.Copies[limitCopy]

// It counts decisions in the order of resultNames; then those refused, and those allowed by
// shadow mode, because the store did not answer; and those made without the store in the order
// of fallbackNames. It fills a cache line.
type limitCopy [8]atomic.Uint64

const (
	unanswered = 2 // added to a result that was made because the store did not answer
	fallbacks  = 5
)

func sumOf(c limitCounts) (n [8]uint64) {
	for i := range c {
		for j := range n {
			n[j] += c[i][j].Load()
		}
	}
	return n
}

var (
	resultNames   = [...]string{"allowed", "refused", "shadow"} // shadow: allowed, but enforcing would have refused
	fallbackNames = [...]string{"open", "closed", "local"}
	keySources    = [...]string{"header", "address"}
)

var (
	descDecisions = prometheus.NewDesc("dipwell_decisions_total", "Decisions, by limit and result. A call with several limits counts for each.", []string{"limit", "result"}, nil)
	descFallbacks = prometheus.NewDesc("dipwell_fallbacks_total", "Decisions made without the store, by limit and kind.", []string{"limit", "kind"}, nil)
)

func newMetrics(storeName string, labels map[string]string, ofStore func() []store.Metric) *metrics {
	own, others := prometheus.NewRegistry(), prometheus.NewRegistry()
	m := &metrics{labels: labels, reg: prometheus.WrapRegistererWith(labels, own), gather: prometheus.Gatherers{own, others}, store: cmp.Or(storeName, "memory")}
	if ofStore != nil {
		prometheus.WrapRegistererWith(labels, others).MustRegister(storeMetrics(ofStore))
	}
	m.unkeyed = newCounters("dipwell_keyless_requests_total", "Requests of forward-auth and of the proxy that were refused because they did not tell whose bucket they take from, by where that should stand.", "by", keySources[:])
	m.denied = newCounters("dipwell_denied_total", "Calls answered 401 or 403 because of who made them or where, by reason.", "reason", denialReasons)
	m.took = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "dipwell_decision_seconds", Help: "How long decisions took, by store and verb, without reading and writing the request.",
		ConstLabels: prometheus.Labels{"store": m.store}, Buckets: prometheus.ExponentialBuckets(256e-9, 2, bucketCount-1)}, []string{"verb"})
	m.takes = m.took.WithLabelValues(store.VerbTake.String())
	m.reg.MustRegister(m, m.unkeyed, m.denied, m.took, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.counter("dipwell_store_errors_total", "Calls that the store could not answer.", m.storeErrors.Load)
	m.counter("dipwell_abandoned_calls_total", "Calls whose callers hung up before they were answered.", m.left.Load)
	m.counter("dipwell_unknown_limit_total", "Calls for limits that are not defined.", m.unknown.Load)
	m.counter("dipwell_shed_total", "Calls turned away, because max_in_flight others were in flight or another bound of what clients can hold was reached.", m.shed.Load)
	return m
}

// newCounters returns a counter for each value of a label.
func newCounters(name, help, label string, values []string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	for _, value := range values {
		c.WithLabelValues(value)
	}
	return c
}

// counter adds a metric for a number that never decreases.
func (m *metrics) counter(name, help string, n func() uint64) {
	m.reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(n()) }))
}

// Gauge adds a gauge to /metrics and GET /v1/top. f is called at each scrape. The name
// must be unique. Gauge must be called before the server runs.
func (s *Server) Gauge(name, help string, f func() float64) {
	s.gauges[name] = f
	s.metrics.reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, f))
}

// storeMetrics collects the metrics of a store. It is an unchecked collector: the
// metrics may depend on a server that the store has not reached yet.
type storeMetrics func() []store.Metric

func (f storeMetrics) Describe(chan<- *prometheus.Desc) {}

func (f storeMetrics) Collect(ch chan<- prometheus.Metric) {
	for _, m := range f() {
		kind := prometheus.GaugeValue
		if m.Counter {
			kind = prometheus.CounterValue
		}
		if metric, err := prometheus.NewConstMetric(prometheus.NewDesc(m.Name, m.Help, nil, nil), kind, m.Value); err == nil {
			ch <- metric
		}
	}
}

// observe counts a decision or its error. If the caller has left, which ends ctx, a call
// that the store did not decide is counted apart: it says little about the store.
func (m *metrics) observe(ctx context.Context, verb store.Verb, d *dipwell.Decision, err error, took time.Duration) {
	if d.Source >= store.SourceFallbackOpen && errors.Is(ctx.Err(), context.Canceled) {
		m.left.Add(1)
		return
	}
	if m.counted(d, err, usesOf[verb]) {
		of := m.takes
		if verb != store.VerbTake {
			of = m.took.WithLabelValues(verb.String())
		}
		of.Observe(took.Seconds())
	}
}

// counted counts a decision or an error. counted returns false for an invalid call, which is
// not counted, and for a call whose caller has left. as says what the call used of its keys.
func (m *metrics) counted(d *dipwell.Decision, err error, as uses) bool {
	if err != nil && errors.Is(err, context.Canceled) {
		m.left.Add(1)
		return false
	}
	if errors.Is(err, dipwell.ErrStore) {
		m.storeErrors.Add(1)
	} else if err != nil {
		if errors.Is(err, dipwell.ErrUnknownLimit) {
			m.unknown.Add(1)
		}
		return false
	}
	if d.Repeated {
		as = usesNothing
	}
	if d.Limits == nil {
		m.count(d, as, d.Allowed)
	}
	for i := range d.Limits {
		m.count(&d.Limits[i], as, d.Allowed)
	}
	return true
}

// keyless counts and logs a request that has no key because of err. address tells whether
// the key would have been the client's address rather than a header field.
func (m *metrics) keyless(limit string, address bool, err error) {
	by := keySources[0]
	if address {
		by = keySources[1]
	}
	m.unkeyed.WithLabelValues(by).Inc()
	if m.refusals != nil {
		m.refusals.note("limit", limit, err.Error())
	}
}

// deny counts and logs a denied call, from an address if it is known.
func (m *metrics) deny(d *denial, from string) {
	m.denied.WithLabelValues(d.reason).Inc()
	if m.denials != nil {
		m.denials.note("from", from, d.detail)
	}
}

// count counts the decision of one limit. allowed tells whether the whole call is allowed.
func (m *metrics) count(d *dipwell.Decision, as uses, allowed bool) {
	if d.Limit == "" {
		return
	}
	c, result := m.of(d.Limit).Mine(), 0
	switch {
	case d.Shadow:
		result = 2
	case !d.Allowed:
		result = 1
		if m.refusals != nil {
			m.refusals.add(d)
		}
	}
	if result > 0 && !front.Known(d) {
		result += unanswered
	}
	c[result].Add(1)
	if m.keys != nil {
		m.keys.add(d, as, allowed)
	}
	if d.Source >= store.SourceFallbackOpen {
		c[fallbacks+d.Source-store.SourceFallbackOpen].Add(1)
	}
}

// of returns the counters of a limit, or of otherLabel if there are maxLabels others.
func (m *metrics) of(limit string) limitCounts {
	if c, ok := m.limits.Load(limit); ok {
		return c.(limitCounts)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.named >= maxLabels {
		limit = otherLabel
	}
	if c, ok := m.limits.Load(limit); ok {
		return c.(limitCounts)
	}
	c := bounded.NewCopies[limitCopy]()
	m.limits.Store(limit, c)
	m.named++
	return c
}

// durations returns how many decisions fell into each bucket.
func (m *metrics) durations() (n [bucketCount]uint64) {
	of := make(chan prometheus.Metric)
	go func() { m.took.Collect(of); close(of) }()
	for metric := range of {
		var d dto.Metric
		_ = metric.Write(&d) // never fails
		below := uint64(0)
		for i, b := range d.Histogram.Bucket {
			n[i] += b.GetCumulativeCount() - below
			below = b.GetCumulativeCount()
		}
		n[bucketCount-1] += d.Histogram.GetSampleCount() - below
	}
	return n
}

// every yields the counters of all limits.
func (m *metrics) every(yield func(limit string, c limitCounts) bool) {
	m.limits.Range(func(limit, c any) bool { return yield(limit.(string), c.(limitCounts)) })
}

func (m *metrics) Describe(ch chan<- *prometheus.Desc) { ch <- descDecisions; ch <- descFallbacks }

func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	counter := func(d *prometheus.Desc, n uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	for limit, c := range m.every {
		n := sumOf(c)
		n[1], n[2] = n[1]+n[1+unanswered], n[2]+n[2+unanswered]
		for i, name := range resultNames {
			counter(descDecisions, n[i], limit, name)
		}
		for i, name := range fallbackNames {
			counter(descFallbacks, n[fallbacks+i], limit, name)
		}
	}
}

const maxConstantLabels = 16

// ownLabels are the labels of this program's metrics.
var ownLabels = []string{"by", "code", "domain", "kind", "le", "limit", "quantile", "reason", "result", "rule", "store", "verb", "version"}

var labelName = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

// CheckLabels returns an error if labels cannot be Config.Labels.
func CheckLabels(labels map[string]string) error {
	if len(labels) > maxConstantLabels {
		return fmt.Errorf("%d labels; at most %d", len(labels), maxConstantLabels)
	}
	for name, value := range labels {
		switch {
		case !labelName.MatchString(name) || strings.HasPrefix(name, "__") || len(name) > 64:
			return fmt.Errorf("%.80q cannot be the name of a label", name)
		case slices.Contains(ownLabels, name):
			return fmt.Errorf("%q is already a label of some metrics", name)
		case value == "" || len(value) > 128 || !utf8.ValidString(value):
			return fmt.Errorf("%s: the value must be 1 to 128 bytes of UTF-8", name)
		}
	}
	return nil
}
