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

// A setting of a block, and where its value goes: a *string, a *bool or a **yaml.Node, or a
// function that is called with the name and the value. Nil is for a setting that is ignored.
type setting struct {
	name string
	to   any
}

// settings reads the settings of a block, and returns their nodes by name. A setting that
// belongs to another block is noted.
func (p *parser) settings(n *yaml.Node, where string, known []setting) map[string]*yaml.Node {
	var names []string
	for _, s := range known {
		names = append(names, s.name)
	}
	given := map[string]*yaml.Node{}
	p.Mapping(n, where, slices.Concat(names, settingsAnywhere), func(name string, v *yaml.Node) {
		i := slices.Index(names, name)
		if i < 0 {
			if p.misplaced++; p.misplaced <= maxNotes {
				p.note(v.Line, where+name, "has no effect here; the settings of this block are "+strings.Join(names, ", "))
			}
			return
		}
		given[name] = v
		switch to := known[i].to.(type) {
		case *string:
			*to = p.text(v, where+name)
		case *bool:
			*to = p.boolean(v, where+name)
		case **yaml.Node:
			*to = v
		case func(name string, v *yaml.Node):
			to(name, v)
		}
	})
	return given
}

func (p *parser) root(n *yaml.Node, file string) {
	d := &domain{near: p.NearLimit}
	d.override = p.AllowOverride
	var list *yaml.Node
	together := !p.ChargeAll
	p.settings(n, "", []setting{{"domain", &d.name}, {"descriptors", &list}, {"all_or_nothing", &together}, {"allow_override", &d.override}})
	if d.name == "" {
		p.Fail(n, "domain", "is missing or empty")
		return
	}
	d.chargeAll = !together
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

func (p *parser) descriptor(parent *node, n *yaml.Node, where string, above path) {
	d := &node{override: above.override}
	var e entry
	var limit, list *yaml.Node
	var detailed, shadow, quota, sharing bool // shadow and quota both allow requests, and count them
	before := p.Mistakes()
	given := p.settings(n, where+".", []setting{{"key", &e.key}, {"value", &e.value}, {"rate_limit", &limit}, {"descriptors", &list},
		{"shadow_mode", &shadow}, {"quota_mode", &quota}, {"detailed_metric", &detailed}, {"value_to_metric", &d.byValue},
		{"share_threshold", &sharing}, {"metadata", nil}, {"allow_override", &d.override}})
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
		p.Fail(given["share_threshold"], where+".share_threshold", "is only for values with a *, as in 'value: files/*'")
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
		d.rule = p.rateLimit(limit, where+".rate_limit", shadow || quota)
	}
	if d.rule != nil {
		d.rule.metric, d.rule.detailed, d.rule.byValue = below.metric, detailed, below.byValue
	}
	p.descriptors(d, list, where+".descriptors", below)
}

// place adds a node to its parent, or returns false if that has one with the same entry.
func (p *parser) place(parent, d *node, e entry, starred bool) bool {
	if starred {
		if slices.ContainsFunc(parent.wild, func(w wildcard) bool { return w.entry == e }) {
			return false
		}
		parent.wild = append(parent.wild, newWildcard(e, d))
		return true
	}
	if parent.exact[e] != nil {
		return false
	}
	if parent.exact == nil {
		parent.exact = map[entry]*node{}
	}
	parent.exact[e] = d
	return true
}

// rateLimit parses a rate_limit. rateLimit returns nil if there are mistakes.
func (p *parser) rateLimit(n *yaml.Node, where string, shadow bool) *rule {
	before := p.Mistakes()
	b := limitBlock{parser: p, where: where}
	b.r.limit.Algorithm, b.r.limit.Name = dipwell.FixedWindow, "x"
	if shadow {
		b.r.limit.Mode = dipwell.Shadow
	}
	known := []setting{{"unit", b.readUnit}, {"requests_per_unit", b.readNumber}, {"unlimited", &b.r.unlimited}, {"name", &b.r.name},
		{"replaces", b.readReplaces}, {"unit_multiplier", b.readNumber}}
	for _, name := range [...]string{"algorithm", "burst", "start", "on_change", "on_store_error", "timeout"} { // dipwell's additions
		known = append(known, setting{name, b.set})
	}
	b.values = p.settings(n, where+".", known)
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
	unit       pb.RateLimitResponse_RateLimit_Unit
	multiplier int64
	requests   int64
	r          rule
}

// set sets a setting that envoyproxy/ratelimit does not have.
func (b *limitBlock) set(name string, v *yaml.Node) {
	if text := b.text(v, b.where+"."+name); text != "" {
		if err := b.r.limit.Set(name, text); err != nil {
			b.failLimit(v, err)
		}
	}
}

func (b *limitBlock) readNumber(name string, v *yaml.Node) {
	to, least := &b.requests, int64(0)
	if name == "unit_multiplier" {
		to, least = &b.multiplier, 1
	}
	*to = b.number(v, b.where+"."+name, least, math.MaxUint32)
}

var units = []string{"second", "minute", "hour", "day", "week", "month", "year"}

func (b *limitBlock) readUnit(name string, v *yaml.Node) {
	at := b.where + "." + name
	text := b.text(v, at)
	b.unit = pb.RateLimitResponse_RateLimit_Unit(pb.RateLimitResponse_RateLimit_Unit_value[strings.ToUpper(text)])
	if b.unit == 0 && text != "" && !strings.EqualFold(text, "unknown") {
		b.Fail(v, at, "%q is not one of %s%s", text, strings.Join(units, ", "), texts.Nearest(strings.ToLower(text), units))
	}
}

func (b *limitBlock) readReplaces(name string, v *yaml.Node) {
	if config.IsNull(v) {
		return
	}
	b.List(v, b.where+"."+name, ", each '- name: ...'", func(where string, item *yaml.Node) {
		name := ""
		b.settings(item, where+".", []setting{{"name", &name}})
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
	if compiled, err := store.NewDefinition(b.r.limit); err != nil {
		b.failLimit(n, err)
	} else {
		burst = compiled.Rule.Burst
	}
	if r.near = nearLimit(b.NearLimit, burst); r.none {
		r.near = 0
	}
	return r
}

// complete sets the limit. By default it is a fixed window, aligned to its unit.
func (b *limitBlock) complete() {
	r := &b.r
	l := &r.limit
	length := unitLength(b.unit)
	if b.multiplier > int64(maxPeriod/length) {
		b.Fail(b.values["unit_multiplier"], b.where+".unit_multiplier", "%d %ss is longer than 285 years", b.multiplier, strings.ToLower(b.unit.String()))
		return
	}
	r.setRate(uint32(b.requests), uint32(b.multiplier), b.unit)
	if r.none && b.values["burst"] != nil {
		b.Fail(b.values["burst"], b.where+".burst", "has no effect if requests_per_unit is 0")
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

// setRate sets what follows from the requests and the unit. The multiplier is 0 if none is given.
func (r *rule) setRate(requests, multiplier uint32, unit pb.RateLimitResponse_RateLimit_Unit) {
	r.limit.Rate, r.limit.Period = max(1, int64(requests)), unitLength(unit)*time.Duration(max(1, multiplier))
	switch r.none = requests == 0; {
	case r.none && r.limit.Mode == dipwell.Shadow: // a blocked plan would still refuse, so the plan is a bucket without room
		r.limit.Plans = dipwell.NewPlans(dipwell.Plan{Name: nonePlan, Burst: dipwell.NoBurst, MaxDebt: 1})
	case r.none:
		r.limit.Plans = dipwell.NewPlans(dipwell.Plan{Name: nonePlan, Mode: dipwell.Blocked})
	}
	r.answer = &pb.RateLimitResponse_RateLimit{Name: r.name, RequestsPerUnit: requests, Unit: unit}
	if multiplier > 0 {
		r.answer.UnitMultiplier = wrapperspb.UInt32(multiplier)
	}
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

// text returns a scalar unchanged, or "" if it is null.
func (p *parser) text(n *yaml.Node, at string) string {
	if config.IsNull(n) {
		return ""
	}
	text, _ := p.Text(n, at)
	return text
}

// booleans are the words of YAML 1.1, which existing files use.
var booleans = map[string]bool{"true": true, "yes": true, "on": true, "y": true, "false": false, "no": false, "off": false, "n": false}

func (p *parser) boolean(n *yaml.Node, at string) bool {
	text := p.text(n, at)
	v, ok := booleans[strings.ToLower(text)]
	if !ok && n.Kind == yaml.ScalarNode && !config.IsNull(n) {
		p.Fail(n, at, "%q is neither true nor false", text)
	}
	return v
}

func (p *parser) number(n *yaml.Node, at string, low, high int64) int64 {
	text := p.text(n, at)
	if text == "" && config.IsNull(n) {
		return low
	}
	v, err := strconv.ParseInt(strings.ReplaceAll(text, "_", ""), 0, 64)
	if n.Kind == yaml.ScalarNode && (err != nil || v < low || v > high) {
		p.Fail(n, at, "%q is not a whole number from %d to %d", text, low, high)
		return low
	}
	return v
}
