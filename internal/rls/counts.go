package rls

import (
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// counts are the counters of a rule, in hits, with the meaning that they have in
// envoyproxy/ratelimit. counts fill a cache line, so that rules do not slow each other down.
type counts [8]atomic.Uint64

const (
	allHits = iota
	withinHits
	nearHits
	overHits
	cachedHits // of overHits
	shadowHits // of overHits
)

// Bounds of the metrics that are named after values in requests. Values beyond these
// bounds, and longer ones, are counted for the rule. Such a metric is never removed,
// and each scrape has it six times.
const (
	maxDetailed    = 1000
	maxDetailedLen = 512
)

// metrics finds the counts of a rule by its name, with values only where a file asks for that.
type metrics struct {
	rules    sync.Map   // by metricKey: *counts
	mu       sync.Mutex // guards detailed
	detailed int

	loads, badLoads, unknownDomain, overridesIgnored, shadowed atomic.Uint64
}

type metricKey struct{ domain, rule string }

// of returns the counts of a rule, and makes them if there are none.
func (m *metrics) of(domain, rule string) *counts {
	c, _ := m.rules.LoadOrStore(metricKey{domain, rule}, new(counts))
	return c.(*counts)
}

// ofValues is of for a name with values of a request, or fallback if there are too many.
func (m *metrics) ofValues(domain, rule string, fallback *counts) *counts {
	key := metricKey{domain, rule}
	if c, ok := m.rules.Load(key); ok {
		return c.(*counts)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.detailed == maxDetailed || len(rule) > maxDetailedLen {
		return fallback
	}
	c, old := m.rules.LoadOrStore(key, new(counts))
	if !old { // true if no other request was faster
		m.detailed++
	}
	return c.(*counts)
}

// each calls f for every rule below a node of the tree.
func (n *node) each(f func(*rule)) {
	if n.rule != nil {
		f(n.rule)
	}
	for _, next := range n.exact {
		next.each(f)
	}
	for _, w := range n.wild {
		w.each(f)
	}
}

// add counts hits by their decision. A key with at most near hits is not near its limit.
func (c *counts) add(near int64, d *dipwell.Decision, hits int64) {
	if hits == 0 {
		return
	}
	c[allHits].Add(uint64(hits))
	over := int64(0)
	switch {
	case !d.Allowed || d.Shadow:
		over = hits - d.Granted
	case d.Granted == 0 && d.Source == store.SourceStore:
		return // another limit refused, so nothing was taken from this one
	default:
		c[withinHits].Add(uint64(hits))
	}
	if over > 0 {
		c[overHits].Add(uint64(over))
		if d.Source == store.SourceDenyCache {
			c[cachedHits].Add(uint64(over))
		}
		if d.Shadow {
			c[shadowHits].Add(uint64(over))
		}
	}
	after := d.Capacity - d.Remaining
	if taken := min(after-near, d.Granted); taken > 0 {
		c[nearHits].Add(uint64(taken))
	}
}

var descRules = [...]*prometheus.Desc{
	allHits:    descRule("hits_total", "Hits asked for, by rule."),
	withinHits: descRule("within_limit_total", "Hits that were within their limit, by rule."),
	nearHits:   descRule("near_limit_total", "Hits within their limit but above the near-limit ratio of it, by rule."),
	overHits:   descRule("over_limit_total", "Hits over their limit, by rule."),
	cachedHits: descRule("over_limit_with_local_cache_total", "Hits over their limit that the deny cache refused without asking the store, by rule."),
	shadowHits: descRule("shadow_mode_total", "Hits over their limit that shadow mode let pass, by rule."),
}

func descRule(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("dipwell_rls_"+name, help, []string{"domain", "rule"}, nil)
}

var (
	descLoads    = prometheus.NewDesc("dipwell_rls_config_loads_total", "Configurations that were read, by result.", []string{"result"}, nil)
	descUnknown  = prometheus.NewDesc("dipwell_rls_domain_not_found_total", "Requests about a domain that no configuration names.", nil, nil)
	descShadowed = prometheus.NewDesc("dipwell_rls_global_shadow_mode_total", "Requests over a limit that passed because the whole service is in shadow mode.", nil, nil)
	descOverride = prometheus.NewDesc("dipwell_rls_overrides_ignored_total", "Limits brought by requests where allow_override does not permit it.", nil, nil)
)

func (s *Service) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range append(descRules[:], descLoads, descUnknown, descOverride, descShadowed) {
		ch <- d
	}
}

func (s *Service) Collect(ch chan<- prometheus.Metric) {
	counter := func(d *prometheus.Desc, n *atomic.Uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n.Load()), labels...)
	}
	m := &s.metrics
	m.rules.Range(func(k, c any) bool {
		for i, d := range descRules {
			counter(d, &c.(*counts)[i], k.(metricKey).domain, k.(metricKey).rule)
		}
		return true
	})
	counter(descLoads, &m.loads, "ok")
	counter(descLoads, &m.badLoads, "error")
	counter(descUnknown, &m.unknownDomain)
	counter(descOverride, &m.overridesIgnored)
	counter(descShadowed, &m.shadowed)
}
