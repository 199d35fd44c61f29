package rls

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// counts are the counters of a rule, in hits, with the meaning that they have in
// envoyproxy/ratelimit.
type counts struct {
	total, within, near, over, local, shadow atomic.Uint64
	_                                        [16]byte // padding to a cache line, so that rules do not slow each other down
}

// Bounds of the metrics that are named after values in requests. Values beyond them, and
// longer ones, are counted for the rule. A metric is never removed, and is in every
// scrape six times.
const (
	maxDetailed    = 1000
	maxDetailedLen = 512
)

// metrics are found by a rule's name. Values are part of the name only where a
// configuration asks for that.
type metrics struct {
	mu       sync.Mutex
	rules    atomic.Pointer[map[metricKey]*counts]
	detailed int

	loads, badLoads, unknownDomain, overridesIgnored, shadowed atomic.Uint64
}

type metricKey struct{ domain, rule string }

func newMetrics() *metrics {
	m := &metrics{}
	m.rules.Store(&map[metricKey]*counts{})
	return m
}

// of returns the counts of a rule, and makes them if there are none.
func (m *metrics) of(domain, rule string) *counts {
	key := metricKey{domain, rule}
	if c := (*m.rules.Load())[key]; c != nil {
		return c
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.add(key)
}

func (m *metrics) add(key metricKey) *counts {
	old := *m.rules.Load()
	if c := old[key]; c != nil {
		return c
	}
	next := maps.Clone(old)
	c := new(counts)
	next[key] = c
	m.rules.Store(&next)
	return c
}

// ofValues is of for a name made from values of a request. If there are too many such
// names, it returns fallback.
func (m *metrics) ofValues(domain, rule string, fallback *counts) *counts {
	key := metricKey{domain, rule}
	if c := (*m.rules.Load())[key]; c != nil {
		return c
	}
	if len(rule) > maxDetailedLen {
		return fallback
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if c := (*m.rules.Load())[key]; c != nil { // another request was faster
		return c
	}
	if m.detailed >= maxDetailed {
		return fallback
	}
	m.detailed++
	return m.add(key)
}

// attach gives the counts to all rules of a configuration, in one step.
func (m *metrics) attach(rules *Rules) {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := maps.Clone(*m.rules.Load())
	for _, d := range rules.domains {
		d.each(func(r *rule) {
			key := metricKey{d.name, r.metric}
			if next[key] == nil {
				next[key] = new(counts)
			}
			r.counts = next[key]
		})
	}
	m.rules.Store(&next)
}

// each calls f for every rule below a node.
func (n *node) each(f func(*rule)) {
	if n.rule != nil {
		f(n.rule)
	}
	for _, next := range n.exact {
		next.each(f)
	}
	for _, next := range n.any {
		next.each(f)
	}
	for _, w := range n.wild {
		w.each(f)
	}
}

// add counts hits by their decision.
func (c *counts) add(near int64, d *dipwell.Decision, hits int64) {
	if hits == 0 {
		return
	}
	c.total.Add(uint64(hits))
	over := int64(0)
	switch {
	case !d.Allowed || d.Shadow:
		over = hits - d.Granted
	case d.Granted == 0 && d.Source == store.SourceStore:
		return // another limit refused, so nothing was taken from this one
	default:
		c.within.Add(uint64(hits))
	}
	if over > 0 {
		c.over.Add(uint64(over))
		if d.Source == store.SourceDenyCache {
			c.local.Add(uint64(over))
		}
		if d.Shadow {
			c.shadow.Add(uint64(over))
		}
	}
	after := d.Capacity - d.Remaining
	if taken := min(after-near, d.Granted); taken > 0 {
		c.near.Add(uint64(taken))
	}
}

var (
	labels       = []string{"domain", "rule"}
	descTotal    = prometheus.NewDesc("dipwell_rls_hits_total", "Hits asked for, by rule.", labels, nil)
	descWithin   = prometheus.NewDesc("dipwell_rls_within_limit_total", "Hits that were within their limit, by rule.", labels, nil)
	descNear     = prometheus.NewDesc("dipwell_rls_near_limit_total", "Hits within their limit but above the near-limit ratio of it, by rule.", labels, nil)
	descOver     = prometheus.NewDesc("dipwell_rls_over_limit_total", "Hits over their limit, by rule.", labels, nil)
	descLocal    = prometheus.NewDesc("dipwell_rls_over_limit_with_local_cache_total", "Hits over their limit that the deny cache refused without asking the store, by rule.", labels, nil)
	descShadow   = prometheus.NewDesc("dipwell_rls_shadow_mode_total", "Hits over their limit that shadow mode let pass, by rule.", labels, nil)
	descLoads    = prometheus.NewDesc("dipwell_rls_config_loads_total", "Configurations that were read, by result.", []string{"result"}, nil)
	descUnknown  = prometheus.NewDesc("dipwell_rls_domain_not_found_total", "Requests about a domain that no configuration names.", nil, nil)
	descShadowed = prometheus.NewDesc("dipwell_rls_global_shadow_mode_total", "Requests over a limit that passed because the whole service is in shadow mode.", nil, nil)
	descOverride = prometheus.NewDesc("dipwell_rls_overrides_ignored_total", "Limits brought by requests where allow_override does not permit it.", nil, nil)
)

// Describe implements prometheus.Collector.
func (s *Service) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descTotal, descWithin, descNear, descOver, descLocal, descShadow, descLoads, descUnknown, descOverride, descShadowed} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (s *Service) Collect(ch chan<- prometheus.Metric) {
	counter := func(d *prometheus.Desc, n *atomic.Uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n.Load()), labels...)
	}
	m := s.metrics
	for key, c := range *m.rules.Load() {
		counter(descTotal, &c.total, key.domain, key.rule)
		counter(descWithin, &c.within, key.domain, key.rule)
		counter(descNear, &c.near, key.domain, key.rule)
		counter(descOver, &c.over, key.domain, key.rule)
		counter(descLocal, &c.local, key.domain, key.rule)
		counter(descShadow, &c.shadow, key.domain, key.rule)
	}
	counter(descLoads, &m.loads, "ok")
	counter(descLoads, &m.badLoads, "error")
	counter(descUnknown, &m.unknownDomain)
	counter(descOverride, &m.overridesIgnored)
	counter(descShadowed, &m.shadowed)
}
