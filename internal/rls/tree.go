package rls

import (
	"cmp"
	"strings"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/dipwell/dipwell"
)

// Rules are the domains of a configuration. They do not change once they are in use.
type Rules struct {
	domains map[string]*domain
	rules   []*rule // rules with a limit, in the order of the files
	notes   []string
}

// Notes returns what an operator should know about the configuration, one sentence
// each: settings without effect, and files with unusual names.
func (r *Rules) Notes() []string { return r.notes }

func (r *Rules) Domains() int { return len(r.domains) }

// A domain is a tree of descriptors.
type domain struct {
	node
	name      string
	chargeAll bool    // charge every descriptor of a request even if another is over its limit
	near      float64 // NearLimit for limits that requests bring
}

// A node is a descriptor of the configuration.
type node struct {
	exact    map[entry]*node // an entry without a value is for any value
	wild     []wildcard      // wildcards in the order of the file
	rule     *rule           // nil if the descriptor has no rate_limit
	shared   string          // with share_threshold: the text that keys have in place of the value
	metric   string          // name in metrics, without the domain
	byValue  bool            // value_to_metric
	override bool            // a request may bring its own limit for this descriptor
}

type entry struct{ key, value string }

// composite returns key_value, or the key alone without a value.
func (e entry) composite() string {
	if e.value == "" {
		return e.key
	}
	return e.key + "_" + e.value
}

// A wildcard is an entry with stars, each of which stands for any text.
type wildcard struct {
	entry
	whole bool     // the key has a star: the pattern applies to key_value
	parts []string // the texts between the stars
	*node
}

func newWildcard(e entry, n *node) wildcard {
	w := wildcard{entry: e, whole: strings.Contains(e.key, "*"), node: n}
	pattern := e.value
	if w.whole {
		pattern = e.composite()
	}
	w.parts = strings.Split(pattern, "*")
	return w
}

func (w *wildcard) matches(key, value string) bool {
	if w.whole {
		return matchParts(w.parts, key+"_"+value)
	}
	return key == w.key && matchParts(w.parts, value)
}

// matchParts reports whether s has the parts, two or more, in order, with any text between.
func matchParts(parts []string, s string) bool {
	first, last := parts[0], parts[len(parts)-1]
	if len(s) < len(first)+len(last) || !strings.HasPrefix(s, first) || !strings.HasSuffix(s, last) {
		return false
	}
	s = s[len(first) : len(s)-len(last)]
	for _, part := range parts[1 : len(parts)-1] {
		_, rest, found := strings.Cut(s, part)
		if !found {
			return false
		}
		s = rest
	}
	return true
}

// A rule is a rate_limit.
type rule struct {
	limit     dipwell.Limit // has no meaning for an unlimited rule
	answer    *pb.RateLimitResponse_RateLimit
	unlimited bool
	none      bool // requests_per_unit is 0: every request is refused
	windowed  bool
	name      string // name by which other rules replace this one
	replaces  []string
	detailed  bool   // detailed_metric
	metric    string // name in metrics, with the domain
	byValue   bool   // an entry of the path has value_to_metric
	near      int64  // hits above this are near the limit
	counts    *counts
}

// find returns the child of n for an entry, and whether it is a wildcard.
func (n *node) find(key, value string) (next *node, wild bool) {
	if next = n.exact[entry{key, value}]; next != nil && value != "" {
		return next, false
	}
	for i := range n.wild {
		if w := &n.wild[i]; w.matches(key, value) {
			return w.node, true
		}
	}
	return n.exact[entry{key, ""}], false
}

// walk calls each for the entries of a descriptor and the nodes that they match, of which
// each must be on the next level. shared is the node's share_threshold, if it matches as a
// wildcard. walk returns the last node, and whether all entries match.
func (d *domain) walk(desc *common.RateLimitDescriptor, each func(e *common.RateLimitDescriptor_Entry, n *node, shared string)) (last *node, all bool) {
	last = &d.node
	for _, e := range desc.GetEntries() {
		next, wild := last.find(e.GetKey(), e.GetValue())
		if next == nil {
			return last, false
		}
		shared := ""
		if wild {
			shared = next.shared
		}
		each(e, next, shared)
		last = next
	}
	return last, true
}

// match returns the node of a descriptor, or nil, and appends the descriptor's key to b. An
// entry with share_threshold has its pattern in the key, not its value.
func (d *domain) match(desc *common.RateLimitDescriptor, b []byte) (*node, []byte) {
	n, all := d.walk(desc, func(e *common.RateLimitDescriptor_Entry, _ *node, shared string) {
		b = appendEntry(b, e.GetKey(), cmp.Or(shared, e.GetValue()))
	})
	if !all || n == &d.node {
		return nil, b
	}
	return n, b
}

// metricOf returns the name of a descriptor in metrics, with its values if configured.
func (d *domain) metricOf(r *rule, desc *common.RateLimitDescriptor) string {
	b := []byte(d.name)
	d.walk(desc, func(e *common.RateLimitDescriptor_Entry, n *node, shared string) {
		name := n.metric
		if r.detailed || n.byValue && shared == "" {
			name = e.GetKey() + "_" + cmp.Or(shared, e.GetValue())
		}
		b = append(append(b, '.'), name...)
	})
	return string(b)
}
