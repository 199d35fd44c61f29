package rls

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/period"
	"github.com/dipwell/dipwell/internal/suggest"
	"github.com/dipwell/dipwell/internal/yamlfile"
	"github.com/dipwell/dipwell/store"
)

// Bounds of a configuration.
const (
	maxFiles = 1000
	maxRules = 10000
	maxDepth = 32 // nested descriptors
)

// Settings of each block. The last ones are dipwell's additions.
var (
	rootSettings       = []string{"domain", "descriptors", "all_or_nothing", "allow_override"}
	descriptorSettings = []string{"key", "value", "rate_limit", "descriptors", "shadow_mode", "quota_mode",
		"detailed_metric", "value_to_metric", "share_threshold", "allow_override"}
	limitSettings = []string{"unit", "requests_per_unit", "unlimited", "name", "replaces",
		"unit_multiplier", "algorithm", "burst", "start", "on_change", "on_store_error", "timeout", "quota"}
)

// Defaults are the defaults of a configuration.
type Defaults struct {
	ChargeAll     bool    // charge every descriptor of a request even if another is over; set by all_or_nothing in a file
	AllowOverride bool    // a request may bring its own limit; set by allow_override in a file
	MergeDomains  bool    // several files may have the same domain
	NearLimit     float64 // share of a limit above which hits count as near it; default 0.8
}

// A File is one file of a configuration.
type File struct {
	Name string
	YAML []byte
}

// Parse parses the files of a configuration. Its error joins all mistakes, each a
// *yamlfile.Error.
func Parse(def Defaults, files ...File) (*Rules, error) {
	if len(files) > maxFiles {
		return nil, fmt.Errorf("%d files; at most %d", len(files), maxFiles)
	}
	def.NearLimit = cmp.Or(def.NearLimit, 0.8)
	p := &parser{Defaults: def, Reader: yamlfile.Reader{MergeKeys: true}, out: &Rules{domains: map[string]*domain{}}, seenIn: map[string]string{}}
	for _, f := range files {
		p.document(f)
	}
	if err := p.Err(); err != nil {
		return nil, err
	}
	p.nameLimits()
	return p.out, nil
}

type parser struct {
	Defaults
	yamlfile.Reader
	out    *Rules
	seenIn map[string]string // file of each domain
}

func (p *parser) document(f File) {
	switch n, ok := p.Document(f.Name, f.YAML); {
	case !ok:
	case n == nil:
		p.Fail(nil, "domain", "is missing: the file is empty")
	default:
		p.root(n, f.Name)
	}
}

func (p *parser) root(n *yaml.Node, file string) {
	d := &domain{chargeAll: p.ChargeAll, near: p.NearLimit}
	d.override = p.AllowOverride
	var list *yaml.Node
	p.Mapping(n, "", rootSettings, func(name string, v *yaml.Node) {
		switch name {
		case "domain":
			d.name = p.text(v, name)
		case "descriptors":
			list = v
		case "all_or_nothing":
			d.chargeAll = !p.boolean(v, name)
		case "allow_override":
			d.override = p.boolean(v, name)
		}
	})
	if d.name == "" {
		p.Fail(n, "domain", "is missing or empty")
		return
	}
	if old := p.out.domains[d.name]; old != nil {
		if !p.MergeDomains {
			p.Fail(n, "domain", "%q is also in %s; files with the same domain are merged only with rls_merge_domains", d.name, p.seenIn[d.name])
			return
		}
		d = old
	}
	p.out.domains[d.name], p.seenIn[d.name] = d, file
	p.descriptors(&d.node, list, "descriptors", path{metric: d.name, depth: 1, override: d.override})
}

// path describes the parents of a descriptor.
type path struct {
	metric   string
	depth    int
	byValue  bool
	override bool
}

func (p *parser) descriptors(parent *node, list *yaml.Node, where string, above path) {
	if list == nil || yamlfile.IsNull(list) {
		return
	}
	if above.depth > maxDepth {
		p.Fail(list, where, "is nested more than %d deep", maxDepth)
		return
	}
	p.List(list, where, ", each beginning with '- key: ...'", func(where string, item *yaml.Node) { p.descriptor(parent, item, where, above) })
}

// descriptor parses a descriptor and those below it.
func (p *parser) descriptor(parent *node, n *yaml.Node, where string, above path) {
	d := &node{override: above.override}
	var e entry
	var limit, list, share *yaml.Node
	var detailed, shadow, sharing bool
	before := p.Mistakes()
	p.Mapping(n, where+".", descriptorSettings, func(name string, v *yaml.Node) {
		at := where + "." + name
		switch name {
		case "key":
			e.key = p.text(v, at)
		case "value":
			e.value = p.text(v, at)
		case "rate_limit":
			limit = v
		case "descriptors":
			list = v
		case "shadow_mode", "quota_mode": // both allow requests, and count them
			shadow = p.boolean(v, at) || shadow
		case "detailed_metric":
			detailed = p.boolean(v, at)
		case "value_to_metric":
			d.byValue = p.boolean(v, at)
		case "share_threshold":
			sharing, share = p.boolean(v, at), v
		case "allow_override":
			d.override = p.boolean(v, at)
		}
	})
	if p.Mistakes() > before {
		return // mistakes in descriptors below would only repeat this one
	}
	if e.key == "" {
		p.Fail(n, where+".key", "is missing or empty")
		return
	}
	if d.metric = e.key; e.value != "" {
		d.metric += "_" + e.value
	}
	starred := strings.HasSuffix(d.metric, "*")
	if sharing && !starred {
		p.Fail(share, where+".share_threshold", "is only for values that end in *, as in 'value: files/*'")
	}
	if sharing {
		d.shared = cmp.Or(e.value, e.key)
	}
	if !p.place(parent, d, e, starred) {
		p.Fail(n, where, "there is another descriptor with key %s and value %q on this level", e.key, e.value)
		return
	}
	below := path{above.metric + "." + d.metric, above.depth + 1, above.byValue || d.byValue, d.override}
	if limit != nil && !yamlfile.IsNull(limit) {
		d.rule = p.rateLimit(limit, where+".rate_limit", shadow)
	}
	if d.rule != nil {
		d.rule.metric, d.rule.detailed, d.rule.byValue = below.metric, detailed, below.byValue
	}
	p.descriptors(d, list, where+".descriptors", below)
}

// place adds a node to its parent. It returns false if the parent has one with the same
// entry.
func (p *parser) place(parent, d *node, e entry, starred bool) bool {
	switch {
	case starred:
		w := wildcard{prefix: entry{e.key, strings.TrimSuffix(e.value, "*")}, node: d}
		if e.value == "" {
			w.prefix.key, w.onKey = strings.TrimSuffix(e.key, "*"), true
		}
		for _, other := range parent.wild {
			if other.prefix == w.prefix && other.onKey == w.onKey {
				return false
			}
		}
		parent.wild = append(parent.wild, w)
	case e.value != "":
		if parent.exact[e] != nil {
			return false
		}
		if parent.exact == nil {
			parent.exact = map[entry]*node{}
		}
		parent.exact[e] = d
	default:
		if parent.any[e.key] != nil {
			return false
		}
		if parent.any == nil {
			parent.any = map[string]*node{}
		}
		parent.any[e.key] = d
	}
	return true
}

// rateLimit parses a rate_limit. It returns nil if there are mistakes.
func (p *parser) rateLimit(n *yaml.Node, where string, shadow bool) *rule {
	before := p.Mistakes()
	b := limitBlock{parser: p, where: where, multiplier: 1, values: map[string]*yaml.Node{}}
	b.limit.Algorithm, b.limit.Name = dipwell.FixedWindow, "x"
	if shadow {
		b.limit.Mode = dipwell.Shadow
	}
	p.Mapping(n, where+".", limitSettings, b.set)
	if p.Mistakes() > before {
		return nil
	}
	r := b.rule(n)
	if p.Mistakes() > before {
		return nil
	}
	if len(p.out.rules) == maxRules {
		p.Fail(n, where, "is one of more than %d", maxRules)
		p.Stop()
		return nil
	}
	if !r.unlimited {
		p.out.rules = append(p.out.rules, r)
	}
	return r
}

// limitBlock is a rate_limit block while it is being parsed.
type limitBlock struct {
	*parser
	where      string
	values     map[string]*yaml.Node
	limit      dipwell.Limit
	unit       pb.RateLimitResponse_RateLimit_Unit
	multiplier int64
	requests   int64
	r          rule
}

func (b *limitBlock) set(name string, v *yaml.Node) {
	at := b.where + "." + name
	b.values[name] = v
	switch name {
	case "unit":
		b.unit = b.readUnit(v, at)
	case "requests_per_unit":
		b.requests = b.number(v, at, 0, math.MaxUint32)
	case "unit_multiplier":
		b.multiplier = b.number(v, at, 1, math.MaxUint32)
	case "unlimited":
		b.r.unlimited = b.boolean(v, at)
	case "name":
		b.r.name = b.text(v, at)
	case "replaces":
		b.readReplaces(v, at)
	case "quota":
		b.readQuota(v, at)
	default:
		if text := b.text(v, at); text != "" {
			if err := b.limit.Set(name, text); err != nil {
				b.failLimit(v, err)
			}
		}
	}
}

var units = []string{"second", "minute", "hour", "day", "week", "month", "year"}

func (b *limitBlock) readUnit(v *yaml.Node, at string) pb.RateLimitResponse_RateLimit_Unit {
	text := b.text(v, at)
	u := pb.RateLimitResponse_RateLimit_Unit_value[strings.ToUpper(text)]
	if u == 0 && text != "" && !strings.EqualFold(text, "unknown") {
		b.Fail(v, at, "%q is not one of %s%s", text, strings.Join(units, ", "), suggest.Name(strings.ToLower(text), units))
	}
	return pb.RateLimitResponse_RateLimit_Unit(u)
}

func (b *limitBlock) readReplaces(v *yaml.Node, at string) {
	if yamlfile.IsNull(v) {
		return
	}
	b.List(v, at, ", each '- name: ...'", func(where string, item *yaml.Node) {
		name := ""
		b.Mapping(item, where+".", []string{"name"}, func(_ string, v *yaml.Node) { name = b.text(v, where+".name") })
		if name == "" {
			b.Fail(item, where+".name", "is missing or empty")
		}
		b.r.replaces = append(b.r.replaces, name)
	})
}

// Bounds of a quota. An Envoy counts its time in whole seconds.
const (
	leastQuota = time.Second
	mostQuota  = 5 * time.Second
)

func (b *limitBlock) readQuota(v *yaml.Node, at string) {
	text := b.text(v, at)
	if text == "" {
		return
	}
	d, err := period.ParseDuration(text)
	if err != nil || d < leastQuota || d > mostQuota || d%time.Second != 0 {
		b.Fail(v, at, "%q is not a number of whole seconds from 1s to 5s", text)
		return
	}
	b.r.quota = d
}

// carve makes the limit of a rule with a quota smaller by the tokens that come back while
// an Envoy may use an assignment. Then no more is used in any length of time than the
// burst and what comes back in it.
func (b *limitBlock) carve(rule *store.Rule) {
	if b.r.quota == 0 {
		return
	}
	l, fail := &b.limit, func(reason string, args ...any) {
		b.Fail(b.values["quota"], b.where+".quota", reason, args...)
	}
	back := comesBack(l.Rate, l.Period, b.r.quota)
	switch {
	case b.r.none || l.Mode == dipwell.Shadow: // nothing is taken in advance
		return
	case l.Algorithm != store.TokenBucket:
		fail("is only for 'algorithm: token_bucket'")
	case rule.Every > mostQuotaTick:
		fail("is not possible for a limit whose tokens come back in steps of more than 1ms; choose a shorter unit or a smaller burst")
	case back > rule.Burst/2:
		fail("%s is too long for a burst of %d: %d tokens come back in it and in the %v that an assignment may be on its way, more than half of the burst", period.Format(b.r.quota), rule.Burst, back, delivery)
	default:
		l.Burst, l.KeepExpired = rule.Burst-back, true
	}
}

// mostQuotaTick is in µs. With coarser ticks, more would come back than comesBack
// returns.
const mostQuotaTick = 1000

// rule checks the whole block and returns its rule.
func (b *limitBlock) rule(n *yaml.Node) *rule {
	r := &b.r
	if r.name != "" && slices.Contains(r.replaces, r.name) {
		b.Fail(b.values["replaces"], b.where+".replaces", "names the limit itself, %s", r.name)
	}
	if r.unlimited {
		if b.unit != 0 {
			b.Fail(b.values["unit"], b.where+".unit", "contradicts unlimited: true")
		}
		return r
	}
	if b.unit == 0 {
		b.Fail(cmp.Or(b.values["unit"], n), b.where+".unit", "is missing; it is one of %s", strings.Join(units, ", "))
		return r
	}
	b.complete()
	var burst int64
	if compiled, err := store.NewDefinition(b.limit); err != nil {
		b.failLimit(n, err)
	} else {
		burst = compiled.Rule.Burst
		b.carve(&compiled.Rule)
	}
	r.limit = b.limit
	if r.near = nearLimit(b.NearLimit, burst); r.none {
		r.near = 0
	}
	r.answer = &pb.RateLimitResponse_RateLimit{Name: r.name, RequestsPerUnit: uint32(b.requests), Unit: b.unit}
	if b.values["unit_multiplier"] != nil {
		r.answer.UnitMultiplier = wrapperspb.UInt32(uint32(b.multiplier))
	}
	return r
}

// complete sets the limit. By default it is a fixed window, aligned to its unit.
func (b *limitBlock) complete() {
	l, r := &b.limit, &b.r
	length := unitLength(b.unit)
	if b.multiplier > int64(maxPeriod/length) {
		b.Fail(b.values["unit_multiplier"], b.where+".unit_multiplier", "%d %ss is longer than 285 years", b.multiplier, strings.ToLower(b.unit.String()))
		return
	}
	l.Period = length * time.Duration(b.multiplier)
	if l.Rate = b.requests; b.requests == 0 {
		l.Rate, r.none = 1, true
		l.Plans = planOfNone(l.Mode)
		if b.values["burst"] != nil {
			b.Fail(b.values["burst"], b.where+".burst", "has no effect if requests_per_unit is 0")
		}
	}
	switch r.windowed = l.Algorithm == dipwell.FixedWindow || l.Algorithm == dipwell.Interval; {
	case l.Algorithm == dipwell.LeakyBucket:
		b.Fail(b.values["algorithm"], b.where+".algorithm", "leaky_bucket answers with a delay, which this protocol cannot carry; token_bucket with burst: 1 refuses instead")
	case l.Algorithm == dipwell.Concurrency:
		b.Fail(b.values["algorithm"], b.where+".algorithm", "concurrency counts held tokens, and this protocol has no call that releases them; use the HTTP API or httplimit")
		l.Algorithm = dipwell.FixedWindow // one mistake is enough
	case r.windowed && l.Start == "":
		l.Start = "0s"
	}
}

// planOfNone returns the plans of a limit whose requests_per_unit is 0. In shadow mode a
// blocked plan would still refuse, so there it is a bucket without room.
func planOfNone(mode store.Mode) store.Plans {
	if mode == dipwell.Shadow {
		return dipwell.NewPlans(dipwell.Plan{Name: nonePlan, Burst: dipwell.NoBurst, MaxDebt: 1})
	}
	return dipwell.NewPlans(dipwell.Plan{Name: nonePlan, Mode: dipwell.Blocked})
}

// failLimit adds a limit's error as a mistake of the setting that it names, if the
// block has it.
func (b *limitBlock) failLimit(n *yaml.Node, err error) {
	setting, reason := "", err.Error()
	if bad, ok := errors.AsType[*dipwell.FieldError](err); ok {
		setting, reason = bad.Field, bad.Reason
	}
	switch setting {
	case "rate":
		setting = "requests_per_unit"
	case "per":
		setting = "unit"
	}
	at := b.where
	if setting != "" {
		at += "." + setting
	}
	b.Fail(cmp.Or(b.values[setting], n), at, "%s", reason)
}

func nearLimit(ratio float64, limit int64) int64 {
	return int64(float32(limit) * float32(ratio))
}

// nameLimits sets the names of all limits. Rules with the same metric name are
// distinguished by their order.
func (p *parser) nameLimits() {
	seen := map[string]int{}
	for _, r := range p.out.rules {
		seen[nameOf(r.metric, "")]++
	}
	again := map[string]int{}
	for _, r := range p.out.rules {
		name := nameOf(r.metric, "")
		if seen[name] > 1 {
			again[name]++
			name = nameOf(r.metric, strconv.Itoa(again[name]))
		}
		r.limit.Name = name
	}
}
