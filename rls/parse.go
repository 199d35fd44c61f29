package rls

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/config"
)

// Bounds of a configuration.
const (
	maxSize   = 4 << 20 // bytes of a file
	maxFiles  = 1000
	maxRules  = 10000
	maxNodes  = 200000 // YAML nodes read in a file, with those that aliases repeat
	maxDepth  = 32     // descriptors in each other
	maxErrors = 100    // shown
)

// Settings of each block. The last ones are our own.
var (
	rootSettings       = []string{"domain", "descriptors", "all_or_nothing", "allow_override"}
	descriptorSettings = []string{"key", "value", "rate_limit", "descriptors", "shadow_mode", "quota_mode",
		"detailed_metric", "value_to_metric", "share_threshold", "allow_override"}
	limitSettings = []string{"unit", "requests_per_unit", "unlimited", "name", "replaces",
		"unit_multiplier", "algorithm", "burst", "start", "on_change", "on_store_error", "timeout"}
)

// Defaults are for what a configuration does not say.
type Defaults struct {
	ChargeAll     bool    // charge every descriptor of a request, also when another is over; a file says all_or_nothing
	AllowOverride bool    // a request may bring a limit of its own; a file says allow_override
	MergeDomains  bool    // several files may be about one domain
	NearLimit     float64 // the share of a limit above which hits count as near it; default 0.8
}

// A File is one file of a configuration.
type File struct {
	Name string
	YAML []byte
}

// Parse reads the files of a configuration. The error has all mistakes, each a
// *config.Error on a line of its own.
func Parse(def Defaults, files ...File) (*Rules, error) {
	if len(files) > maxFiles {
		return nil, fmt.Errorf("%d files; at most %d", len(files), maxFiles)
	}
	def.NearLimit = cmp.Or(def.NearLimit, 0.8)
	p := &parser{Defaults: def, out: &Rules{domains: map[string]*domain{}}, seenIn: map[string]string{}}
	for _, f := range files {
		p.file, p.nodes, p.tooMany = f.Name, 0, false
		p.document(f.YAML)
	}
	if len(p.errs) == 0 {
		p.nameLimits()
	}
	if len(p.errs) > 0 {
		return nil, errors.Join(p.errs...)
	}
	return p.out, nil
}

type parser struct {
	Defaults
	out     *Rules
	seenIn  map[string]string // the file of a domain
	file    string
	nodes   int
	tooMany bool
	errs    []error
}

func (p *parser) fail(n *yaml.Node, setting, format string, args ...any) {
	if p.tooMany = p.tooMany || len(p.errs) >= maxErrors; len(p.errs) > maxErrors {
		return
	}
	line := 0
	if n != nil {
		line = n.Line
	}
	p.errs = append(p.errs, &config.Error{File: p.file, Line: line, Setting: setting, Reason: fmt.Sprintf(format, args...)})
}

// lineOf finds the line in the YAML library's own errors, which carry it as text.
var lineOf = regexp.MustCompile(`^yaml: line (\d+): `)

func (p *parser) document(b []byte) {
	if len(b) > maxSize {
		p.fail(nil, "", "has more than 4 MiB")
		return
	}
	dec := yaml.NewDecoder(bytes.NewReader(b))
	var doc, more yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		p.fail(nil, "domain", "is missing: the file is empty")
		return
	case err != nil:
		e := &config.Error{File: p.file, Reason: strings.TrimPrefix(err.Error(), "yaml: ")}
		if m := lineOf.FindStringSubmatch(err.Error()); m != nil {
			e.Line, _ = strconv.Atoi(m[1])
			e.Reason = strings.TrimPrefix(err.Error(), m[0])
		}
		p.errs = append(p.errs, e)
		return
	}
	p.root(doc.Content[0])
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		p.fail(nil, "", "has more than one document")
	}
}

func (p *parser) root(n *yaml.Node) {
	d := &domain{chargeAll: p.ChargeAll, near: p.NearLimit}
	d.override = p.AllowOverride
	var list *yaml.Node
	p.mapping(n, "", rootSettings, func(name string, v *yaml.Node) {
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
		p.fail(n, "domain", "is missing or empty")
		return
	}
	if old := p.out.domains[d.name]; old != nil {
		if !p.MergeDomains {
			p.fail(n, "domain", "%q is in %s as well; the files of one domain must be merged on purpose", d.name, p.seenIn[d.name])
			return
		}
		d = old
	}
	p.out.domains[d.name], p.seenIn[d.name] = d, p.file
	p.descriptors(&d.node, list, "descriptors", path{metric: d.name, depth: 1, override: d.override})
}

// path is what a descriptor has above it.
type path struct {
	metric   string
	depth    int
	byValue  bool
	override bool
}

func (p *parser) descriptors(parent *node, list *yaml.Node, where string, above path) {
	if list == nil || isNull(list) {
		return
	}
	if list.Kind != yaml.SequenceNode {
		p.fail(list, where, "must be a list, each beginning with '- key: ...'")
		return
	}
	if above.depth > maxDepth {
		p.fail(list, where, "is nested more than %d deep", maxDepth)
		return
	}
	for i, item := range list.Content {
		if p.tooMany {
			return
		}
		p.descriptor(parent, deref(item), fmt.Sprintf("%s[%d]", where, i), above)
	}
}

// descriptor reads one entry of a list and what is below it.
func (p *parser) descriptor(parent *node, n *yaml.Node, where string, above path) {
	d := &node{override: above.override}
	var e entry
	var limit, list, share *yaml.Node
	var detailed, shadow, sharing bool
	before := len(p.errs)
	p.mapping(n, where+".", descriptorSettings, func(name string, v *yaml.Node) {
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
		case "shadow_mode", "quota_mode": // both let the request pass and count
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
	if len(p.errs) > before {
		return // what is below would only repeat it
	}
	if e.key == "" {
		p.fail(n, where+".key", "is missing or empty")
		return
	}
	if d.metric = e.key; e.value != "" {
		d.metric += "_" + e.value
	}
	starred := strings.HasSuffix(d.metric, "*")
	if sharing && !starred {
		p.fail(share, where+".share_threshold", "is for values that end in *, as in 'value: files/*'")
	}
	if sharing {
		d.shared = cmp.Or(e.value, e.key)
	}
	if !p.place(parent, d, e, starred) {
		p.fail(n, where, "there is another descriptor with key %s and value %q beside it", e.key, e.value)
		return
	}
	below := path{above.metric + "." + d.metric, above.depth + 1, above.byValue || d.byValue, d.override}
	if limit != nil && !isNull(limit) {
		d.rule = p.rateLimit(limit, where+".rate_limit", shadow)
	}
	if d.rule != nil {
		d.rule.metric, d.rule.detailed, d.rule.byValue = below.metric, detailed, below.byValue
	}
	p.descriptors(d, list, where+".descriptors", below)
}

// place puts a node under its parent. Not ok: its place is taken.
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

// rateLimit reads a rate_limit. nil: it has mistakes, and they are noted.
func (p *parser) rateLimit(n *yaml.Node, where string, shadow bool) *rule {
	before := len(p.errs)
	b := limitBlock{parser: p, where: where, multiplier: 1, values: map[string]*yaml.Node{}}
	b.limit.Algorithm, b.limit.Name = dipwell.FixedWindow, "x"
	p.mapping(n, where+".", limitSettings, b.set)
	if len(p.errs) > before {
		return nil
	}
	r := b.rule(n)
	if len(p.errs) > before {
		return nil
	}
	if shadow {
		r.limit.Mode = dipwell.Shadow
	}
	if len(p.out.rules) == maxRules {
		p.fail(n, where, "is one of more than %d", maxRules)
		p.tooMany = true
		return nil
	}
	if !r.unlimited {
		p.out.rules = append(p.out.rules, r)
	}
	return r
}

// limitBlock is a rate_limit while it is read.
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
		b.fail(v, at, "%q is not one of %s%s", text, strings.Join(units, ", "), dipwell.Suggest(strings.ToLower(text), units))
	}
	return pb.RateLimitResponse_RateLimit_Unit(u)
}

func (b *limitBlock) readReplaces(v *yaml.Node, at string) {
	if isNull(v) {
		return
	}
	if v.Kind != yaml.SequenceNode {
		b.fail(v, at, "must be a list, each '- name: ...'")
		return
	}
	for i, item := range v.Content {
		name := ""
		where := fmt.Sprintf("%s[%d]", at, i)
		b.mapping(deref(item), where+".", []string{"name"}, func(_ string, v *yaml.Node) { name = b.text(v, where+".name") })
		if name == "" {
			b.fail(item, where+".name", "is missing or empty")
		}
		b.r.replaces = append(b.r.replaces, name)
	}
}

// rule checks the block as a whole.
func (b *limitBlock) rule(n *yaml.Node) *rule {
	r := &b.r
	if r.name != "" && slices.Contains(r.replaces, r.name) {
		b.fail(b.values["replaces"], b.where+".replaces", "names this very limit, %s", r.name)
	}
	if r.unlimited {
		if b.unit != 0 {
			b.fail(b.values["unit"], b.where+".unit", "contradicts unlimited: true")
		}
		return r
	}
	if b.unit == 0 {
		b.fail(cmp.Or(b.values["unit"], n), b.where+".unit", "is missing; it is one of %s", strings.Join(units, ", "))
		return r
	}
	b.complete()
	compiled, _, err := b.limit.Compile()
	if err != nil {
		b.failLimit(n, err)
	}
	r.limit = b.limit
	if r.near = nearLimit(b.NearLimit, compiled.Burst); r.none {
		r.near = 0
	}
	r.answer = &pb.RateLimitResponse_RateLimit{Name: r.name, RequestsPerUnit: uint32(b.requests), Unit: b.unit}
	if b.values["unit_multiplier"] != nil {
		r.answer.UnitMultiplier = wrapperspb.UInt32(uint32(b.multiplier))
	}
	return r
}

// complete makes the block a limit: by default a fixed window, aligned to its unit.
func (b *limitBlock) complete() {
	l, r := &b.limit, &b.r
	length := unitLength(b.unit)
	if b.multiplier > int64(maxPeriod/length) {
		b.fail(b.values["unit_multiplier"], b.where+".unit_multiplier", "%d %ss is longer than 285 years", b.multiplier, strings.ToLower(b.unit.String()))
		return
	}
	l.Period = length * time.Duration(b.multiplier)
	if l.Rate = b.requests; b.requests == 0 {
		l.Rate, r.none = 1, true
		if b.values["burst"] != nil {
			b.fail(b.values["burst"], b.where+".burst", "has no meaning when requests_per_unit is 0")
		}
	}
	switch r.windowed = l.Algorithm == dipwell.FixedWindow || l.Algorithm == dipwell.Interval; {
	case l.Algorithm == dipwell.LeakyBucket:
		b.fail(b.values["algorithm"], b.where+".algorithm", "leaky_bucket answers with a delay, which this protocol cannot carry; token_bucket with burst: 1 refuses instead")
	case r.windowed && l.Start == "":
		l.Start = "0s"
	}
}

// failLimit notes a limit's mistake at the setting it names, where the block has
// that under its own name or ours.
func (b *limitBlock) failLimit(n *yaml.Node, err error) {
	setting, reason := "", err.Error()
	if bad, ok := errors.AsType[*dipwell.LimitError](err); ok {
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
	b.fail(cmp.Or(b.values[setting], n), at, "%s", reason)
}

func nearLimit(ratio float64, limit int64) int64 {
	return int64(float32(limit) * float32(ratio))
}

// nameLimits gives each rule's limit its name. Those whose metric names are
// alike are told apart by where they are.
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
