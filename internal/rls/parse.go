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
	"go.yaml.in/yaml/v4"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/config"
	"github.com/dipwell/dipwell/internal/texts"
	"github.com/dipwell/dipwell/store"
)

// Bounds of a configuration.
const (
	maxFiles = 1000
	maxRules = 10000
	maxDepth = 32 // nested descriptors
)

// Settings that each block may have. The last ones are dipwell's additions.
var (
	rootSettings       = []string{"domain", "descriptors", "all_or_nothing", "allow_override"}
	descriptorSettings = []string{"key", "value", "rate_limit", "descriptors", "shadow_mode", "quota_mode",
		"detailed_metric", "value_to_metric", "share_threshold", "metadata", "allow_override"}
	limitSettings = []string{"unit", "requests_per_unit", "unlimited", "name", "replaces",
		"unit_multiplier", "algorithm", "burst", "start", "on_change", "on_store_error", "timeout"}
	replaceSettings = []string{"name"}
)

// settingsAnywhere are settings of envoyproxy/ratelimit, which accepts each of them in
// every block and ignores it where it has no meaning.
var settingsAnywhere = []string{"domain", "descriptors", "key", "value", "rate_limit", "shadow_mode", "quota_mode", "detailed_metric",
	"value_to_metric", "share_threshold", "metadata", "unit", "requests_per_unit", "unlimited", "name", "replaces"}

// maxNotes bounds the settings without effect that are noted.
const maxNotes = 100

// Defaults hold for a file that does not set them.
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
	Odd  bool // the file lies in a directory, and its name does not end in .yaml or .yml
}

// Parse parses the files of a configuration. Its error joins all mistakes, each a
// *config.YAMLError.
func Parse(def Defaults, files ...File) (*Rules, error) {
	if len(files) > maxFiles {
		return nil, fmt.Errorf("%d files; at most %d", len(files), maxFiles)
	}
	def.NearLimit = cmp.Or(def.NearLimit, 0.8)
	p := &parser{Defaults: def, YAMLReader: config.YAMLReader{MergeKeys: true}, out: &Rules{domains: map[string]*domain{}}, seenIn: map[string]string{}}
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
	config.YAMLReader
	out       *Rules
	seenIn    map[string]string // file in which each domain was seen
	file      string
	misplaced int
}

func (p *parser) document(f File) {
	p.file = f.Name
	before := p.Mistakes()
	switch n, ok := p.Document(f.Name, f.YAML); {
	case !ok:
	case n == nil:
		p.Fail(nil, "domain", "is missing: the file is empty")
	default:
		p.root(n, f.Name)
	}
	switch {
	case f.Odd && p.Mistakes() > before:
		p.Fail(nil, "", "is read because it is in a directory of descriptors, whatever its name; move it elsewhere, or begin its name with a dot")
	case f.Odd:
		p.note(0, "", "is read, although its name does not end in .yaml or .yml: every file of the directory is, as by envoyproxy/ratelimit")
	}
}

// note adds a note about a setting of the present file.
func (p *parser) note(line int, setting, text string) {
	p.out.notes = append(p.out.notes, (&config.YAMLError{File: p.file, Line: line, Setting: setting, Reason: text}).Error())
}

// settings calls f for each setting of a block. A setting that belongs to another block is
// noted.
func (p *parser) settings(n *yaml.Node, where string, known []string, f func(name string, v *yaml.Node)) {
	p.Mapping(n, where, slices.Concat(known, settingsAnywhere), func(name string, v *yaml.Node) {
		if slices.Contains(known, name) {
			f(name, v)
			return
		}
		if p.misplaced++; p.misplaced <= maxNotes {
			p.note(v.Line, where+name, "has no effect here; the settings of this block are "+strings.Join(known, ", "))
		}
	})
}

func (p *parser) root(n *yaml.Node, file string) {
	d := &domain{chargeAll: p.ChargeAll, near: p.NearLimit}
	d.override = p.AllowOverride
	var list *yaml.Node
	p.settings(n, "", rootSettings, func(name string, v *yaml.Node) {
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
	if list == nil || config.IsNull(list) {
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
	p.settings(n, where+".", descriptorSettings, func(name string, v *yaml.Node) {
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
	d.metric = e.composite()
	starred := strings.Contains(d.metric, "*")
	if sharing && !starred {
		p.Fail(share, where+".share_threshold", "is only for values with a *, as in 'value: files/*'")
	}
	if sharing {
		d.shared = cmp.Or(e.value, e.key)
	}
	if !p.place(parent, d, e, starred) {
		p.Fail(n, where, "there is another descriptor with key %s and value %q on this level", e.key, e.value)
		return
	}
	below := path{above.metric + "." + d.metric, above.depth + 1, above.byValue || d.byValue, d.override}
	if limit != nil && !config.IsNull(limit) {
		d.rule = p.rateLimit(limit, where+".rate_limit", shadow)
	}
	if d.rule != nil {
		d.rule.metric, d.rule.detailed, d.rule.byValue = below.metric, detailed, below.byValue
	}
	p.descriptors(d, list, where+".descriptors", below)
}

// place adds a node to its parent. place returns false if the parent already has a node
// with the same entry.
func (p *parser) place(parent, d *node, e entry, starred bool) bool {
	switch {
	case starred:
		if slices.ContainsFunc(parent.wild, func(w wildcard) bool { return w.entry == e }) {
			return false
		}
		parent.wild = append(parent.wild, newWildcard(e, d))
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

// rateLimit parses a rate_limit. rateLimit returns nil if there are mistakes.
func (p *parser) rateLimit(n *yaml.Node, where string, shadow bool) *rule {
	before := p.Mistakes()
	b := limitBlock{parser: p, where: where, multiplier: 1, values: map[string]*yaml.Node{}}
	b.limit.Algorithm, b.limit.Name = dipwell.FixedWindow, "x"
	if shadow {
		b.limit.Mode = dipwell.Shadow
	}
	p.settings(n, where+".", limitSettings, b.set)
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
		b.Fail(v, at, "%q is not one of %s%s", text, strings.Join(units, ", "), texts.Nearest(strings.ToLower(text), units))
	}
	return pb.RateLimitResponse_RateLimit_Unit(u)
}

func (b *limitBlock) readReplaces(v *yaml.Node, at string) {
	if config.IsNull(v) {
		return
	}
	b.List(v, at, ", each '- name: ...'", func(where string, item *yaml.Node) {
		name := ""
		b.settings(item, where+".", replaceSettings, func(_ string, v *yaml.Node) { name = b.text(v, where+".name") })
		if name == "" {
			b.Fail(item, where+".name", "is missing or empty")
		}
		b.r.replaces = append(b.r.replaces, name)
	})
}

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
		l.Algorithm = dipwell.FixedWindow // set, because one mistake is enough
	case r.windowed && l.Start == "":
		l.Start = "0s"
	}
}

// planOfNone returns the plans of a limit whose requests_per_unit is 0. In shadow mode a
// blocked plan would still refuse, so there the plan is a bucket without room.
func planOfNone(mode store.Mode) store.Plans {
	if mode == dipwell.Shadow {
		return dipwell.NewPlans(dipwell.Plan{Name: nonePlan, Burst: dipwell.NoBurst, MaxDebt: 1})
	}
	return dipwell.NewPlans(dipwell.Plan{Name: nonePlan, Mode: dipwell.Blocked})
}

// failLimit reports a limit's error at the setting that the error names, if the block has it.
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
