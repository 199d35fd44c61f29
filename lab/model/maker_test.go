package model

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// A maker makes a random history. It plays the model along, to know which retry times there
// are and which holds live.
type maker struct {
	*rand.Rand
	w     *world
	from  int64
	ops   []*op
	names []string
	keys  map[string][]string
	scale int64 // µs that a token takes, about
	retry []int64
	ids   []string // of reservations
	holds []string
	n     int
	swept int64 // the last sweep
}

func newMaker(seed uint64, history int, prefix string) *maker {
	m := &maker{Rand: rand.New(rand.NewPCG(seed, uint64(history))), w: newWorld(), keys: map[string][]string{}}
	m.from = 1_700_000_000e6 + m.Int64N(100_000_000e6)
	m.w.now, m.w.prefix = m.from, prefix
	return m
}

func pick[T any](m *maker, of ...T) T { return of[m.IntN(len(of))] }

func (m *maker) one(in int) bool { return m.IntN(in) == 0 }

func (m *maker) history(n int) []*op {
	m.begin()
	for len(m.ops) < n {
		m.step()
	}
	return m.ops
}

// add plays an op on the model and adds it to the history.
func (m *maker) add(o *op) answer {
	if by := m.w.ahead(o.kind == kDefine); by > 0 && o.kind != kClock {
		m.add(&op{kind: kClock, by: by})
	}
	m.ops = append(m.ops, o)
	a := m.w.do(o)
	for _, x := range a.levels {
		if x.retry > 0 {
			m.retry = append(m.retry, m.w.now+x.retry)
		}
		if x.delay > 0 {
			m.retry = append(m.retry, m.w.now+x.delay)
		}
	}
	return a
}

func (m *maker) limit(name string, s settings, keys ...string) {
	s.name = name
	m.add(&op{kind: kDefine, settings: s})
	m.names = append(m.names, name)
	m.keys[name] = keys
}

// begin defines the limits of a history.
func (m *maker) begin() {
	m.scale = pick(m, int64(1e3), 1e5, 1e6, 7e6, 60e6, 3600e6)
	if m.one(3) {
		m.tree()
	}
	kinds := m.Perm(6)
	for _, k := range kinds[:1+m.IntN(3)] {
		switch k {
		case 0:
			m.limit("bucket", m.block(m.bucket()), "a", "b")
		case 1:
			m.limit("window", m.block(m.window(fixedWindow)), "a", "c")
		case 2:
			m.limit("interval", m.block(m.window(interval)), "a", "b")
		case 3:
			m.limit("leaky", m.block(m.leaky()), "a", "b")
		case 4:
			s := m.slots()
			if m.one(2) {
				room := m.slots()
				room.shared = m.one(2)
				if !room.shared {
					room.parts = 1
				}
				m.limit("room", m.forChildren(room), map[bool][]string{true: {""}, false: {"a", "b"}}[room.shared]...)
				s = m.child(s, "room")
				m.limit("slots", s, map[bool][]string{true: {"a", "b"}, false: {"a/u", "a/v", "b/u"}}[room.shared]...)
				break
			}
			m.limit("slots", s, "a")
		case 5:
			m.limit("sliding", m.sliding(), "a", "b")
		}
	}
	if !m.hasBuckets("") {
		m.limit("bucket", m.bucket(), "a", "b")
	}
}

func (m *maker) tree() {
	root := m.bucket()
	root.shared = m.one(2)
	if root.shared {
		m.limit("root", m.forChildren(root), "")
		m.limit("mid", m.child(m.forChildren(m.bucket()), "root"), "a", "b")
		m.limit("leaf", m.block(m.child(m.bucket(), "mid")), "a/u", "a/v", "b/u")
		return
	}
	if m.one(2) {
		root = m.window(pick(m, fixedWindow, interval))
	}
	root.parts = 1
	m.limit("root", m.forChildren(root), "a", "b")
	m.limit("leaf", m.block(m.child(pick(m, m.bucket(), m.window(fixedWindow), m.leaky()), "root")), "a/u", "a/v", "b/u")
	if m.one(2) {
		m.limit("twin", m.block(m.child(pick(m, m.bucket(), m.window(interval)), "root")), "a/u", "b/u")
	}
}

// block lets some limits block their keys. No plan of these is one that callers name.
func (m *maker) block(s settings) settings {
	if !m.one(3) {
		return s
	}
	s.block = 1000 + m.Int64N(pick(m, int64(1), 5, 20)*m.scale)
	for i := range s.plans {
		s.plans[i].callable = no
	}
	return s
}

func (m *maker) child(s settings, parent string) settings {
	s.parent, s.shared, s.parts = parent, false, 0
	return s
}

// forChildren lets some plans be chosen by children.
func (m *maker) forChildren(s settings) settings {
	for i := range s.plans {
		if m.one(2) {
			s.plans[i].callable = children
		}
	}
	return s
}

// numbers are random ones of a bucket. per 0 keeps that of the limit.
func (m *maker) numbers(window bool) numbers {
	n := unwritten
	n.rate = pick(m, int64(1), 1, 2, 3, 5, 7, 10, 60)
	n.burst = pick(m, int64(absent), 1, 2, 5, 10, 20, 50)
	n.debt = pick(m, int64(absent), absent, 0, 1, 5, 100, limitless)
	if !window {
		n.per = m.scale * pick(m, int64(1), 1, 3, 10, 60)
	}
	return n
}

func (m *maker) base() settings {
	s := settings{onChange: pick(m, policies...), ttl: 86400e6, keeps: m.one(4)}
	s.shared = false
	return s
}

func (m *maker) bucket() settings {
	s := m.base()
	s.numbers = m.numbers(false)
	if m.one(12) {
		s.burst, s.debt = 0, pick(m, int64(5), 100)
	}
	s.finish(m)
	return s
}

// finish gives a limit a mode, a largest charge and plans.
func (s *settings) finish(m *maker) {
	s.charge = pick(m, int64(absent), absent, 1, 30)
	if m.one(8) {
		s.mode = shadow
	}
	if m.one(2) && s.burst != 0 {
		s.plans = m.plans(s.algorithm != tokenBucket)
	}
}

func (m *maker) plans(window bool) (plans []plan) {
	for _, name := range []string{"basic", "pro", "staff", "banned", "trial"} {
		if m.one(2) {
			continue
		}
		p := plan{name: name, numbers: unwritten, callable: pick(m, yes, yes, yes, no)}
		switch name {
		case "staff":
			p.moded, p.mode = true, unlimited
		case "banned":
			p.moded, p.mode = true, blocked
		default:
			p.numbers = m.part(window)
			if m.one(6) {
				p.moded, p.mode = true, shadow
			}
		}
		plans = append(plans, p)
	}
	return plans
}

// part is some of the numbers, at least one.
func (m *maker) part(window bool) numbers {
	n := m.numbers(window)
	if m.one(3) {
		n.per = 0
	}
	switch m.IntN(3) {
	case 0:
		n.rate = 0
		if n.burst == absent {
			n.burst = 8
		}
	case 1:
		n.burst = absent
	}
	return n
}

func (m *maker) window(a algorithm) settings {
	s := m.base()
	s.algorithm, s.numbers = a, m.numbers(true)
	s.per = m.scale * pick(m, int64(1), 10, 60)
	s.start.kind = pick(m, spread, offset, firstCall)
	s.start.off = m.Int64N(1000)
	if m.scale >= 60e6 && m.one(2) {
		m.calendar(&s)
	}
	s.finish(m)
	return s
}

// calendar gives a window a start by the wall clock.
func (m *maker) calendar(s *settings) {
	s.start = start{kind: wall, zone: pick(m, "UTC", "Europe/Rome", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "America/Asuncion", "Atlantic/Azores"), clock: pick(m, int64(0), 0, 30, 60, 90, 150, 360, 1439)}
	s.per = pick(m, int64(86400e6), 86400e6, 7*86400e6, 14*86400e6, month, month, 3*month, 6*month, 12*month)
	if s.per < 0 && m.one(2) {
		s.start.day = pick(m, 1, 17, 28, 29, 30, 31)
		if s.per != month {
			s.start.month = 1 + m.IntN(12)
			s.start.day = min(s.start.day, 28)
		}
	}
}

func (m *maker) leaky() settings {
	s := m.base()
	s.algorithm, s.numbers, s.ttl, s.keeps = leakyBucket, unwritten, 0, false
	s.rate, s.per, s.debt = pick(m, int64(1), 3, 10), m.scale, pick(m, int64(absent), 0, 3, 10)
	if m.one(8) {
		s.mode = shadow
	}
	return s
}

func (m *maker) slots() settings {
	s := m.base()
	s.algorithm, s.numbers, s.onChange, s.keeps = concurrency, unwritten, keep, false
	s.burst = pick(m, int64(1), 2, 5, 10)
	if m.one(8) {
		s.mode = shadow
	}
	if m.one(3) {
		for _, p := range m.plans(true) {
			if !p.mode.takesNothing() {
				p.rate, p.per, p.debt, p.burst = 0, 0, absent, pick(m, int64(1), 3, 8)
			}
			s.plans = append(s.plans, p)
		}
	}
	return s
}

func (m *maker) sliding() settings {
	s := m.base()
	s.algorithm, s.numbers, s.onChange, s.ttl, s.keeps = slidingWindow, unwritten, keep, 0, false
	s.rate, s.per = pick(m, int64(1), 3, 10, 100), m.scale*pick(m, int64(1), 10, 60)
	s.start.kind = pick(m, spread, offset)
	s.start.off = m.Int64N(1000)
	if m.one(8) {
		s.mode = shadow
	}
	if m.one(2) {
		for i, p := range m.plans(true) {
			if !p.mode.takesNothing() {
				p.burst, p.debt, p.rate = absent, absent, int64(1+i*7)
			}
			s.plans = append(s.plans, p)
		}
	}
	return s
}

// step adds a step or a few.
func (m *maker) step() {
	switch n := m.IntN(100); {
	case n < 30:
		m.clock()
	case n < 60:
		m.call()
	case n < 64:
		m.add(&op{kind: kCall, verb: vCharge, takes: m.takes(vCharge, 1)})
	case n < 67:
		m.add(&op{kind: kCall, verb: vRefund, takes: m.takes(vRefund, 1)})
	case n < 68:
		m.add(&op{kind: kCall, verb: vReset, takes: m.takes(vReset, 1)})
	case n < 74:
		m.cancel()
	case n < 82:
		m.hold()
	case n < 89:
		m.settle()
	case n < 91:
		m.extend()
	case n < 93:
		if m.one(3) {
			m.dropped()
		} else {
			m.change()
		}
	case n < 97:
		m.setOverride()
	case n < 98:
		m.endOverride()
	default:
		m.look()
	}
}

// clock moves it: mostly forward, often to an instant that matters.
func (m *maker) clock() {
	by := m.Int64N(m.scale)
	switch m.IntN(8) {
	case 0:
		by = m.Int64N(20 * m.scale)
	case 1, 2, 3:
		if len(m.retry) > 0 {
			at := m.retry[max(0, len(m.retry)-1-m.IntN(4))]
			by = max(0, at-m.w.now-pick(m, int64(0), 0, 1))
		}
	case 4:
		by = m.Int64N(3)
	case 5:
		back := 1 + m.Int64N(5*m.scale)
		for back > 0 && !m.w.calm(back) {
			back /= 4
		}
		by = -back
	case 6:
		if m.one(2) {
			m.add(&op{kind: kSweep})
			m.swept = m.w.now
		}
	}
	if by < 0 && m.w.now+by < m.swept {
		by = 0
	}
	if m.w.now+by > m.from+10*365*86400e6 {
		by = 0
	}
	m.add(&op{kind: kClock, by: by})
}

// takes are n costs for keys.
func (m *maker) takes(v verb, n int) (takes []take) {
	for range n {
		name := m.names[m.IntN(len(m.names))]
		s := m.w.limits[name].now()
		if s.algorithm == concurrency && v != vReset && (n > 1 || v != vCheck) || s.algorithm == slidingWindow && v == vReserve {
			continue
		}
		t := m.take(name, v)
		if n > 1 { // the costs of a key and of a parent add up
			t.cost = min(t.cost, 1000)
		}
		if clashes(m.w, takes, t) {
			continue
		}
		takes = append(takes, t)
	}
	if len(takes) == 0 {
		return m.takes(v, 1)
	}
	return takes
}

// clashes reports whether a parent is beside its child, or one key is under two plans.
func clashes(w *world, takes []take, t take) bool {
	has := func(name, of string) bool {
		for of != "" {
			if of = w.limits[of].now().parent; of == name {
				return true
			}
		}
		return false
	}
	for _, x := range takes {
		same := x.limit == t.limit && x.key == t.key || w.limits[x.limit].now().parent != "" && w.limits[t.limit].now().parent != ""
		if has(x.limit, t.limit) || has(t.limit, x.limit) || same && x.plan != t.plan {
			return true
		}
	}
	return false
}

func (m *maker) take(name string, v verb) take {
	s := m.w.limits[name].now()
	keys := m.keys[name]
	t := take{limit: name, key: keys[m.IntN(len(keys))]}
	burst := max(1, min(s.compile(s.numbers, s.prefix, t.key, s.every).burst, 60))
	t.cost = pick(m, int64(1), 1, 2, 1+m.Int64N(burst), 1+m.Int64N(burst), burst+m.Int64N(3), 0)
	if t.cost == 0 && (v == vTakeUpTo || m.one(2)) {
		t.cost = 1
	}
	if m.one(200) && v <= vTakeUpTo {
		t.cost = maxInt
	}
	if t.cost = min(t.cost, maxInt); v >= vCharge || s.algorithm == concurrency {
		t.cost = min(t.cost, 20)
	}
	if v >= vCharge {
		return t
	}
	if v <= vCheck && s.algorithm != leakyBucket && s.algorithm != slidingWindow && s.algorithm != concurrency && m.one(6) {
		t.floor = 1 + m.Int64N(burst)
	}
	if m.one(2) {
		if p := m.callable(name); p != "" {
			t.plan = p
		}
	}
	return t
}

// callable is a plan that callers of a limit may name, if there is one.
func (m *maker) callable(name string) string {
	var names []string
	for _, p := range m.w.limits[name].now().plans {
		if p.callable == yes {
			names = append(names, p.name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return names[m.IntN(len(names))]
}

// call adds a call, with a check of the same before it.
func (m *maker) call() {
	v := pick(m, vTake, vTake, vTake, vTakeUpTo, vReserve, vReserve, vCheck)
	n := 1
	if v != vTakeUpTo && m.one(4) {
		n = 2 + m.IntN(2)
	}
	takes := m.takes(v, n)
	if v == vTake && m.one(2) || v == vReserve && m.one(4) {
		m.add(&op{kind: kCall, verb: vCheck, takes: takes})
	}
	o := &op{kind: kCall, verb: v, takes: takes}
	if v == vReserve || v == vTake {
		m.n++
		o.id = fmt.Sprint("r", m.n)
	}
	if a := m.add(o); a.reserved {
		m.ids = append(m.ids, o.id)
	}
}

// look reads buckets.
func (m *maker) look() {
	for _, name := range m.names {
		for _, key := range m.keys[name] {
			m.add(&op{kind: kCall, verb: vCheck, takes: []take{{limit: name, key: key}}})
		}
	}
}

func (m *maker) cancel() {
	if len(m.ids) == 0 {
		return
	}
	i := max(0, len(m.ids)-1-m.IntN(4))
	m.add(&op{kind: kCancel, id: m.ids[i]})
}

func (m *maker) hold() {
	var takes []take
	for range 1 + m.IntN(3)/2 {
		name := m.names[m.IntN(len(m.names))]
		if a := m.w.limits[name].now().algorithm; a == leakyBucket || a == slidingWindow {
			continue
		}
		t := m.take(name, vTake)
		if t.cost == maxInt {
			t.cost = 1
		}
		if !clashes(m.w, takes, t) {
			takes = append(takes, t)
		}
	}
	if m.one(20) {
		m.again()
		return
	}
	some := false
	for _, t := range takes {
		some = some || t.cost > 0
	}
	if !some {
		return
	}
	m.n++
	o := &op{kind: kHold, id: fmt.Sprint("d", m.n), takes: takes, ttl: m.ttl()}
	if a := m.add(o); a.allowed {
		m.holds = append(m.holds, o.id)
		m.retry = append(m.retry, a.expires)
		if m.one(6) {
			m.add(o)
		}
	}
}

// again repeats a call that made a hold, if its limits have its plans and parents still.
func (m *maker) again() {
	var made []*op
	for _, o := range m.ops {
		if o.kind == kHold && m.w.holds[o.id] != nil && m.asBefore(o) {
			made = append(made, o)
		}
	}
	if len(made) > 0 {
		m.add(made[max(0, len(made)-1-m.IntN(6))])
	}
}

func (m *maker) asBefore(o *op) bool {
	h := m.w.holds[o.id]
	parts := map[string]bool{}
	for _, p := range h.parts {
		parts[p.limit+" "+p.key] = true
	}
	for _, t := range o.takes {
		l := m.w.limits[t.limit]
		if l == nil || l.now().algorithm == leakyBucket || l.now().algorithm == slidingWindow || t.plan != "" && (l.now().plan(t.plan) == nil || l.now().plan(t.plan).callable != yes) || t.floor > 0 && l.now().algorithm == concurrency {
			return false
		}
	}
	n := 0
	for _, x := range m.w.levels(o.takes, true) {
		if n++; !parts[x.limit+" "+x.key] {
			return false
		}
	}
	return n == len(h.parts)
}

func (m *maker) ttl() int64 {
	return 1000 + min(m.Int64N(pick(m, int64(1), 5, 20)*m.scale), 86400e6-1000)
}

// live is the id of a hold whose record the stores still have.
func (m *maker) live() *hold {
	if len(m.holds) == 0 {
		return nil
	}
	h := m.w.holds[m.holds[max(0, len(m.holds)-1-m.IntN(5))]]
	if h == nil || m.w.now >= h.forget() {
		return nil
	}
	return h
}

func (m *maker) settle() {
	h := m.live()
	if h == nil {
		return
	}
	var costs []int64
	for i := range h.takes {
		for _, p := range h.parts {
			if len(p.takes) > 0 && p.takes[0] == i && len(costs) == i {
				costs = append(costs, m.actual(h.given[i]))
			}
		}
		if len(costs) == i {
			costs = append(costs, m.actual(h.given[i]))
		}
	}
	m.add(&op{kind: kSettle, id: h.id, costs: costs})
	if m.one(5) {
		again := slices.Clone(costs)
		if !slices.Contains(h.given, 0) && m.one(2) { // others of the same sum
			slices.Reverse(again)
		}
		m.add(&op{kind: kSettle, id: h.id, costs: again})
	}
}

// actual is what a take of a hold may have cost.
func (m *maker) actual(held int64) int64 {
	if held == 0 {
		return 0
	}
	return pick(m, 0, held, m.Int64N(held+1), held+m.Int64N(10))
}

func (m *maker) extend() {
	if h := m.live(); h != nil {
		m.add(&op{kind: kExtend, id: h.id, ttl: m.ttl()})
		m.retry = append(m.retry, h.expires)
	}
}

// change defines a limit again.
func (m *maker) change() {
	name := m.names[m.IntN(len(m.names))]
	s := m.w.limits[name].now().settings
	var n settings
	switch s.algorithm {
	case tokenBucket:
		n = m.bucket()
	case fixedWindow, interval:
		n = m.window(s.algorithm)
	case leakyBucket:
		n = m.leaky()
	case concurrency:
		n = m.slots()
	case slidingWindow:
		n = m.sliding()
		if m.one(2) {
			n.per, n.start = s.per, s.start
		}
	}
	if m.one(4) && s.algorithm != concurrency && !m.overridden(name) {
		n = m.another(name, s)
		for n.algorithm == concurrency || n.algorithm == slidingWindow && (m.isParent(name) || s.shared || !m.hasBuckets(name)) || n.algorithm == leakyBucket && m.isParent(name) {
			n = m.another(name, s)
		}
	}
	n.name, n.parent, n.parts, n.shared = s.name, s.parent, s.parts, s.shared
	if n.algorithm == slidingWindow {
		n.parent = ""
	}
	if m.overridden(name) || m.one(2) && n.algorithm == s.algorithm {
		n.plans = m.withPlans(n, s)
	}
	if n.algorithm != leakyBucket && m.isParent(name) {
		n = m.forChildren(n)
	}
	if len(n.plans) > 0 && n.burst == 0 {
		n.burst = 1
	}
	if n.algorithm != concurrency && n.algorithm != slidingWindow && !m.isParent(name) && !n.shared {
		n = m.block(n)
	}
	if m.w.limits[name].begun() && n.algorithm == s.algorithm { // the start of an override fits the period
		n.per, n.start = s.per, s.start
	}
	if n.rate == s.rate && n.algorithm == s.algorithm && n.algorithm != concurrency { // a change of how it counts
		n.rate++
	}
	m.add(&op{kind: kDefine, settings: n})
}

// dropped drops a limit and mostly defines it again, at once or later, in some other way.
func (m *maker) dropped() {
	name := m.names[m.IntN(len(m.names))]
	if m.isParent(name) || len(m.names) < 2 && m.one(2) {
		return
	}
	old := m.w.limits[name].now().settings
	if by := m.w.ahead(true); by > 0 {
		m.add(&op{kind: kClock, by: by})
	}
	m.add(&op{kind: kDrop, settings: settings{name: name}})
	if m.one(2) {
		m.add(&op{kind: kClock, by: m.Int64N(m.scale)})
		for range m.IntN(4) {
			m.settle()
			m.cancel()
			m.extend()
		}
	}
	n := m.another(name, old)
	if a := n.algorithm; (a == concurrency || a == slidingWindow) && !m.hasBuckets(name) {
		n = m.bucket()
	}
	n.name, n.parent, n.parts, n.shared = name, old.parent, old.parts, old.shared
	if n.algorithm == slidingWindow || m.one(3) {
		n.parent = ""
	} else if n.algorithm != concurrency && m.w.limits["root"] != nil && old.parent == "" && m.w.limits["root"].now().shared && !old.shared && name != "mid" && name != "leaf" {
		n.parent = "root"
	}
	m.add(&op{kind: kDefine, settings: n})
}

// hasBuckets reports whether a limit beside the one with a name has all verbs.
func (m *maker) hasBuckets(name string) bool {
	for _, other := range m.names {
		if other == name {
			continue
		}
		if a := m.w.limits[other].now().algorithm; a != concurrency && a != slidingWindow {
			return true
		}
	}
	return false
}

// another are settings of some algorithm for a limit.
func (m *maker) another(name string, old settings) (n settings) {
	switch k := m.IntN(9); {
	case old.algorithm == concurrency && (old.shared || old.parts > 0 || old.parent != ""):
		n = m.slots()
	case old.shared:
		n = m.forChildren(m.bucket())
	case k == 0 && old.parent == "":
		n = m.slots()
	case k == 1 && old.parent == "":
		n = m.sliding()
	case k == 2:
		n = m.leaky()
	case k <= 4:
		n = m.window(pick(m, fixedWindow, interval))
	default:
		n = m.bucket()
	}
	return n
}

func (m *maker) isParent(name string) bool {
	for _, l := range m.w.limits {
		if l.now().parent == name {
			return true
		}
	}
	return false
}

// overridden reports whether a key has an override, or had one that is still stored.
func (m *maker) overridden(name string) bool {
	for key := range m.w.limits[name].rows {
		if r := m.w.row(m.w.limits[name], key); r.standing != nil || r.temporary != nil && !r.temporary.block {
			return true
		}
	}
	return false
}

// begun reports whether an override says when the windows of a key begin.
func (l *limit) begun() bool {
	for _, r := range l.rows {
		if r.standing != nil && r.standing.start != nil {
			return true
		}
	}
	return false
}

// withPlans keeps what overrides and children have of plans.
func (m *maker) withPlans(n, old settings) []plan {
	if len(old.plans) == 0 {
		return nil
	}
	plans := append([]plan(nil), old.plans...)
	for i := range plans {
		if p := &plans[i]; !p.mode.takesNothing() && m.one(2) {
			p.numbers = m.part(n.algorithm != tokenBucket)
			if n.algorithm == concurrency {
				p.numbers = unwritten
				p.burst = pick(m, int64(1), 3, 8)
			}
			if n.algorithm == slidingWindow {
				p.burst, p.debt, p.rate = absent, absent, 1+m.Int64N(20)
			}
		}
	}
	return plans
}

func (m *maker) setOverride() {
	if by := m.w.ahead(false); by > 0 {
		m.add(&op{kind: kClock, by: by})
	}
	name := m.names[m.IntN(len(m.names))]
	s := m.w.limits[name].now()
	o := &override{numbers: unwritten}
	if len(s.plans) > 0 && m.one(2) {
		p := s.plans[m.IntN(len(s.plans))]
		if p.callable == children {
			return
		}
		o.plan = p.name
	} else if s.algorithm == leakyBucket || s.algorithm == slidingWindow {
		o.rate = pick(m, int64(1), 2, 5)
	} else if s.algorithm == concurrency {
		o.burst = pick(m, int64(1), 3, 12)
	} else {
		o.numbers = m.part(s.algorithm != tokenBucket)
		o.debt = absent
	}
	key := m.keys[name][m.IntN(len(m.keys[name]))]
	if m.one(2) {
		o.until = m.w.now + 1 + m.Int64N(10*m.scale)
		if r := m.w.limits[name].rows[key]; r != nil && r.used > 0 {
			o.until += max(0, r.ts-m.w.now) // not an end before the row's own time
		}
		m.retry = append(m.retry, o.until)
	} else if a := s.algorithm; (a == fixedWindow || a == interval || a == slidingWindow) && m.one(2) {
		o.start = m.startOf(s.settings)
	}
	m.add(&op{kind: kOverride, takes: []take{{limit: name, key: key}}, override: o})
}

// startOf is when the windows of a key of a limit may begin.
func (m *maker) startOf(s settings) *start {
	if s.start.kind == wall {
		per := s.per
		for m.calendar(&s); s.per != per; m.calendar(&s) {
		}
		return &s.start
	}
	begin := start{kind: offset, off: m.Int64N(1000)}
	if s.algorithm != slidingWindow && m.one(3) {
		begin.kind, begin.off = firstCall, 0
	}
	return &begin
}

func (m *maker) endOverride() {
	name := m.names[m.IntN(len(m.names))]
	key := m.keys[name][m.IntN(len(m.keys[name]))]
	o := &op{kind: kEndOverride, takes: []take{{limit: name, key: key}}, temporary: true, standing: true}
	switch m.IntN(4) {
	case 0:
		o.temporary = false
	case 1:
		o.standing = false
	case 2:
		o.temporary, o.standing, o.block = false, false, true
	}
	m.add(o)
}

// policies are those of changes.
var policies = []policy{keep, keep, proportional, reset}
