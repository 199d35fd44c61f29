package store_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
	"github.com/dipwell/dipwell/testdata/golden"
)

// A callKind is the limits of a kind of history, and what its callers do.
type callKind struct {
	name   string
	limits []string
	calls  []string // "LIMIT[:PLAN]" that callers name
	acts   []string // what they do, one as often as another
	floors bool
	plans  []string // of overrides
	begins string   // how the first limit begins, which is what a define changes
	over   []string // limits whose keys have overrides; nil: the first
}

var bucketPlans = []string{
	"a=4/1s,burst=10,max_debt=20,plans=pro:rate=9;burst=30|free:mode=unlimited|banned:mode=blocked|seen:mode=shadow",
	"w=5/7s,algorithm=fixed_window,start=0s,burst=9,plans=pro:rate=8;burst=20",
	"i=2/1s,algorithm=interval,start=0s,burst=8,max_debt=6,plans=less:burst=3",
}

// All features stand in these trees. The holds of desk may be beside those of user.
var together = []string{
	"org=9/1s,burst=30,parts=1,max_debt=12,plans=big:burst=45|seen:mode=shadow",
	"team=12/5s,algorithm=fixed_window,start=0s,burst=18,parent=org,plans=pro:rate=20;burst=30",
	"user=4/1s,burst=10,parent=team,plans=pro:rate=9;burst=25|free:mode=unlimited|banned:mode=blocked|seen:mode=shadow",
	"pool=6,algorithm=concurrency,parts=1,plans=big:burst=9",
	"desk=4,algorithm=concurrency,parent=pool,plans=big:burst=7|free:mode=unlimited",
}

// The fourth level is the lowest. Each level refuses sometimes.
var trees = []string{
	"tenant=6/1s,burst=14,parts=1,max_debt=9",
	"user=3/1s,burst=8,max_debt=2,parent=tenant,plans=pro:rate=6;burst=15|free:mode=unlimited",
	"org=9/1s,burst=30,parts=1",
	"unit=7/1s,burst=22,parent=org",
	"team=5/1s,burst=16,parent=unit,plans=big:burst=40",
	"member=4/1s,burst=7,parent=team,plans=big:burst=40",
}

var callKinds = []callKind{
	{name: "plans", limits: bucketPlans, calls: []string{"a", "a", "a:pro", "a:pro", "a:free", "a:banned", "a:seen", "w", "w:pro", "i", "i:less"},
		acts: []string{"take", "take", "take", "check", "take_up_to", "reserve", "charge", "refund", "reset", "cancel"}},
	{name: "overrides", limits: bucketPlans, calls: []string{"a", "a", "a:pro", "a:free", "w", "i"}, plans: []string{"pro", "free", "banned", "seen"}, begins: "a=4/1s,burst=10",
		acts: []string{"take", "take", "take", "take", "check", "take_up_to", "reserve", "charge", "reset", "cancel", "override", "override", "end_override", "define", "hold", "settle"}},
	{name: "holds", limits: []string{
		"a=3/1s,burst=12,max_debt=15,max_charge=9,plans=pro:burst=20|free:mode=unlimited|seen:mode=shadow",
		"kept=2/1s,burst=9,on_expire=keep",
		"w=6/5s,algorithm=fixed_window,start=0s,burst=12"},
		calls: []string{"a", "a", "a", "a:pro", "a:free", "a:seen", "kept", "kept", "w"},
		acts:  []string{"hold", "hold", "hold", "hold", "settle", "settle", "settle", "extend", "take", "check", "take_up_to", "reserve", "cancel", "reset"}},
	{name: "concurrency", limits: []string{"c=6,algorithm=concurrency,plans=free:mode=unlimited|big:burst=10|banned:mode=blocked", "a=2/1s,burst=10"},
		calls: []string{"c", "c", "c", "c", "c", "c:big", "c:big", "c:free", "c:banned"}, plans: []string{"big", "free", "banned"},
		acts: []string{"hold", "hold", "hold", "hold", "hold", "settle", "settle", "extend", "check", "hold", "override", "end_override"}},
	{name: "levels", limits: trees, calls: []string{"user", "user", "user:pro", "user:free", "tenant", "member", "member", "member", "member", "member:big", "team", "unit", "user", "member"},
		acts: []string{"take", "take", "take", "check", "take_up_to", "take_up_to", "take_up_to", "reserve", "reserve", "charge", "refund", "reset", "cancel", "hold", "settle"}},
	{name: "floor", limits: append(slices.Clone(bucketPlans[:2]), trees[:2]...), calls: []string{"a", "a", "a:pro", "w", "user", "user", "tenant"}, floors: true,
		acts: []string{"take", "take", "take", "check", "hold", "settle", "take_up_to"}},
	{name: "together", limits: together, calls: []string{"user", "user", "user:pro", "user:pro", "user:free", "user:banned", "user:seen", "team", "team:pro", "org", "org:big"}, floors: true,
		begins: "org=9/1s,burst=30", over: []string{"org", "team", "user", "user", "user", "desk", "pool"},
		acts: []string{"take", "take", "take", "take", "check", "take_up_to", "take_up_to", "reserve", "charge", "refund", "reset", "cancel", "hold", "hold", "hold", "settle", "settle", "extend",
			"override", "override", "override", "end_override", "define"}},
	{name: "blocks", limits: []string{
		"login=1/3s,burst=5,max_debt=2,block=2s,plans=pro:rate=9;burst=15;callable=false|banned:mode=blocked;callable=false|seen:mode=shadow;callable=false",
		"w=5/4s,algorithm=fixed_window,start=0s,burst=5,block=3s,plans=more:burst=9;callable=false",
		"first=4/3s,algorithm=fixed_window,start=first_call,block=1500ms",
		"plain=1/1s,burst=5",
		"top=1/1s,burst=8,parts=1",
		"low=1/1s,burst=6,parent=top,block=900ms"},
		calls: []string{"login", "login", "login", "login", "login", "login", "login", "login", "w", "w", "first", "first", "plain", "low", "low", "low"}, floors: true, over: []string{"login", "login", "login", "w"},
		acts: []string{"take", "take", "take", "take", "take", "take", "take", "take_up_to", "take_up_to", "reserve", "check", "check", "check", "hold", "settle", "cancel", "charge", "reset", "reset", "override", "override", "end_override", "end_override"}},
}

const (
	historiesPerKind = 34
	stepsPerHistory  = 32
	goldenEpoch      = int64(1767225600e6)
)

// A callPlay makes a History: it draws steps and answers them by DecideIn.
type callPlay struct {
	*bench
	*callKind
	rnd  *rand.Rand
	n    int // number of the history, which is in its keys and ids
	h    golden.History
	ids  map[int]store.Reservation // by step
	held []string
	late map[string]bool // keys that have had expired holds: a store may have given them back or not
	at   []int64         // times at which something ends or begins to fit
}

func callVectors(t *testing.T) (lines []any) {
	rnd := rand.New(rand.NewPCG(6, 7))
	for i := range callKinds {
		for n := range historiesPerKind {
			p := &callPlay{bench: newBench(t), callKind: &callKinds[i], rnd: rnd, n: n, ids: map[int]store.Reservation{}, late: map[string]bool{}}
			p.now = goldenEpoch + int64(n)*3600e6
			p.h = golden.History{Kind: p.name, Limits: p.limits}
			for _, l := range p.limits {
				p.define(l)
			}
			for range stepsPerHistory {
				p.step()
			}
			lines = append(lines, &p.h)
		}
	}
	return lines
}

// pass moves the clock, often to the time at which something ends, or a µs from it.
func (p *callPlay) pass() {
	later := slices.DeleteFunc(slices.Clone(p.at), func(at int64) bool { return at-1 <= p.now })
	n := p.rnd.IntN(12)
	if p.name == "blocks" { // less often for long
		n = n * 10 / 11
	}
	switch {
	case n < 5:
	case n < 7 && len(later) > 0:
		at := slices.Min(later)
		if p.rnd.IntN(6) == 0 {
			at = later[p.rnd.IntN(len(later))]
		}
		p.now = at - 1 + p.rnd.Int64N(3)
	case n < 11:
		p.now += p.rnd.Int64N(300e3)
	default:
		p.now += p.rnd.Int64N(4e6)
	}
}

func (p *callPlay) step() {
	p.pass()
	s := golden.Step{At: p.now, Do: p.acts[p.rnd.IntN(len(p.acts))]}
	switch s.Do {
	case "hold":
		p.makeHold(&s)
	case "settle", "extend":
		if len(p.held) == 0 && p.rnd.IntN(10) > 0 {
			s.Do = "hold"
			p.makeHold(&s)
			break
		}
		p.changeHold(&s)
	case "cancel":
		p.cancel(&s)
	case "override", "end_override":
		p.override(&s)
	case "define":
		if s.Do = "check"; p.rnd.IntN(4) == 0 { // once in several histories
			name, _, _ := strings.Cut(p.begins, "=")
			s.Do, s.Limit = "define", strings.Replace(p.limits[0], p.begins, fmt.Sprintf("%s=%d/1s,burst=%d", name, 2+p.rnd.Int64N(6), 6+p.rnd.Int64N(9)), 1)
			p.define(s.Limit)
			break
		}
		p.ask(&s, store.VerbCheck)
	case "reset", "refund":
		if p.rnd.IntN(3) > 0 && p.name != "holds" {
			s.Do = "take"
		}
		p.ask(&s, verbOf(s.Do))
	default:
		p.ask(&s, verbOf(s.Do))
	}
	p.h.Steps = append(p.h.Steps, s)
}

// keyOf returns a key with as many parts as the limit's level asks for.
func (p *callPlay) keyOf(limit string) string {
	key := fmt.Sprintf("k%d", p.n)
	d := p.reg.Lookup(limit)
	if !d.Paths {
		return key + []string{"", "b"}[p.rnd.IntN(5)/4]
	}
	for ; d.Parent != ""; d = p.reg.Lookup(d.Parent) {
		key += "/" + []string{"x", "y"}[p.rnd.IntN(4)/3]
	}
	return key
}

func (p *callPlay) take(verb store.Verb) golden.Take {
	limit, plan, _ := strings.Cut(p.calls[p.rnd.IntN(len(p.calls))], ":")
	if verb > store.VerbReserve {
		plan = ""
	}
	t := golden.Take{Limit: limit, Plan: plan, Key: p.keyOf(limit), Cost: p.rnd.Int64N(8)}
	if burst := p.reg.Lookup(limit).Rule.Burst; p.name == "concurrency" {
		t.Cost = 1 + p.rnd.Int64N(3)
		if p.rnd.IntN(4) == 0 {
			t.Cost = 1 + p.rnd.Int64N(12)
		}
	} else if p.rnd.IntN(4) == 0 {
		t.Cost = 1 + p.rnd.Int64N(burst+2)
	}
	if verb == store.VerbTakeUpTo && p.rnd.IntN(2) == 0 {
		t.Cost = p.reg.Lookup(limit).WithPlan(plan).Rule.Burst
	}
	if p.name == "blocks" && p.rnd.IntN(3) > 0 { // that fits into an empty bucket
		t.Cost = 2 + p.rnd.Int64N(3)
	}
	if verb == store.VerbReset {
		t.Cost = 0
	}
	if verb == store.VerbCharge {
		t.Cost = min(t.Cost, 8)
	}
	switch {
	case verb > store.VerbCheck:
	case p.floors && p.rnd.IntN(3) > 0:
		t.Floor = p.rnd.Int64N(8)
	case p.name == "concurrency" && p.rnd.IntN(5) == 0:
		t.Floor = p.rnd.Int64N(3)
	}
	return t
}

// takes draws one take, or several of different keys.
func (p *callPlay) takes(verb store.Verb, several bool) (list []golden.Take) {
	list = append(list, p.take(verb))
	for several && len(list) < 3 && p.rnd.IntN(3) == 0 {
		t := p.take(verb)
		if !slices.ContainsFunc(list, func(o golden.Take) bool {
			return o.Limit == t.Limit && o.Key == t.Key || p.above(o, t) || p.above(t, o)
		}) {
			list = append(list, t)
		}
	}
	if p.name == "concurrency" && several && p.rnd.IntN(3) == 0 {
		list = append(list, golden.Take{Limit: "a", Key: p.keyOf("a"), Cost: p.rnd.Int64N(4)})
	}
	return list
}

// above reports whether take b takes from the bucket of take a as well, so that one call
// cannot have both.
func (p *callPlay) above(a, b golden.Take) bool {
	for d := p.reg.Lookup(b.Limit); d.Parent != ""; {
		d, b.Key = p.reg.Lookup(d.Parent), b.Key[:strings.LastIndexByte(b.Key, '/')]
		if d.Name == a.Limit && b.Key == a.Key {
			return true
		}
	}
	return false
}

// desk draws a take of the lower of two concurrency limits.
func (p *callPlay) desk() golden.Take {
	t := golden.Take{Limit: "desk", Plan: []string{"", "", "big", "free"}[p.rnd.IntN(4)], Key: p.keyOf("desk"), Cost: 1 + p.rnd.Int64N(5)}
	if p.rnd.IntN(4) == 0 {
		t.Floor = p.rnd.Int64N(3)
	}
	return t
}

// groupOf returns the ops of takes, then those of the parents of their limits, and the
// index of each take's own op.
func (p *callPlay) groupOf(verb store.Verb, takes []golden.Take) (ops []store.Op, own []int) {
	add := func(op store.Op) int {
		for i := range ops {
			if same := &ops[i]; same.Def.Name == op.Def.Name && same.Key == op.Key {
				same.Cost, same.Takes = same.Cost+op.Cost, same.Takes|op.Takes
				return i
			}
		}
		ops = append(ops, op)
		return len(ops) - 1
	}
	for i, t := range takes {
		d := p.reg.Lookup(t.Limit).WithPlan(t.Plan)
		own = append(own, add(store.Op{Def: d, Key: t.Key, Verb: verb, Cost: t.Cost, Floor: t.Floor, Takes: 1 << i}))
	}
	for i, t := range takes {
		key := t.Key
		for d := p.reg.Lookup(t.Limit); d.Parent != "" && verb != store.VerbReset; {
			d, key = p.reg.Lookup(d.Parent), key[:strings.LastIndexByte(key, '/')]
			add(store.Op{Def: d, Key: key, Verb: verb, Cost: t.Cost, Takes: 1 << i})
		}
	}
	return ops, own
}

func (p *callPlay) ask(s *golden.Step, verb store.Verb) {
	s.Takes = p.takes(verb, verb <= store.VerbReserve && verb != store.VerbTakeUpTo)
	g := &store.Group{ID: store.Reservation{6, byte(p.n), byte(p.n >> 8), byte(len(p.h.Steps))}}
	var own []int
	g.Ops, own = p.groupOf(verb, s.Takes)
	p.answer(s, g, own)
	if s.Want.Reserved = g.Reserved; g.Reserved {
		p.ids[len(p.h.Steps)] = g.ID
		p.at = append(p.at, p.now+g.Due())
	}
}

func (p *callPlay) makeHold(s *golden.Step) {
	s.Hold, s.TTL = fmt.Sprintf("%s-%d-%d", p.name, p.n, len(p.h.Steps)), 1000+p.rnd.Int64N(8e6)
	if p.rnd.IntN(12) == 0 { // its record stays for more than a minute after its end
		s.TTL += 60e6
	}
	s.Takes = p.takes(store.VerbTake, true)
	if p.name == "together" && p.rnd.IntN(3) == 0 {
		desk := p.desk()
		s.Takes = append(slices.DeleteFunc(s.Takes[p.rnd.IntN(len(s.Takes)+1):], func(o golden.Take) bool { return p.above(o, desk) }), desk)
	}
	if !slices.ContainsFunc(s.Takes, func(t golden.Take) bool { return t.Cost > 0 }) && p.rnd.IntN(4) > 0 { // else an error
		s.Takes[0].Cost = 1 + p.rnd.Int64N(7)
	}
	if len(p.held) > 0 && p.rnd.IntN(8) == 0 { // a repeat, or another call
		i := slices.IndexFunc(p.h.Steps, func(x golden.Step) bool { return x.Do == "hold" && x.Hold == p.held[len(p.held)-1] })
		s.Hold, s.TTL, s.Takes = p.h.Steps[i].Hold, p.h.Steps[i].TTL, p.h.Steps[i].Takes
		if p.rnd.IntN(3) == 0 {
			s.TTL++
		}
	}
	g := &store.Group{Hold: &store.HoldCall{Verb: store.MakeHold, ID: s.Hold, TTL: s.TTL}}
	var own []int
	g.Ops, own = p.groupOf(store.VerbTake, s.Takes)
	if p.answer(s, g, own); s.Want.Error == "" && g.Allowed && !g.Hold.Repeated {
		p.held = append(p.held, s.Hold)
	}
}

func (p *callPlay) changeHold(s *golden.Step) {
	s.Hold = "none"
	if n := len(p.held); n > 0 && p.rnd.IntN(20) > 0 {
		s.Hold = p.held[max(0, n-1-p.rnd.IntN(3))]
	}
	c := &store.HoldCall{Verb: store.SettleHold, ID: s.Hold}
	h := p.table.holds[s.Hold]
	if s.Do == "extend" {
		s.TTL = 1000 + p.rnd.Int64N(6e6)
		c.Verb, c.TTL = store.ExtendHold, s.TTL
	} else if p.rnd.IntN(6) > 0 {
		var takes uint16
		for _, part := range h.Parts {
			takes |= part.Takes
		}
		for ; takes > 0; takes >>= 1 {
			s.Costs = append(s.Costs, p.rnd.Int64N(7))
		}
		if p.rnd.IntN(4) == 0 {
			clear(s.Costs)
		}
		if len(s.Costs) > 0 && p.rnd.IntN(10) == 0 {
			s.Costs[0] = 200 // more than any max_charge
		}
		c.Costs = s.Costs
	}
	p.answer(s, &store.Group{Hold: c}, nil)
}

func (p *callPlay) cancel(s *golden.Step) {
	var list []int
	for i := range p.ids {
		list = append(list, i)
	}
	if len(list) == 0 {
		s.Do = "reserve"
		p.ask(s, store.VerbReserve)
		return
	}
	slices.Sort(list)
	s.Of = list[p.rnd.IntN(len(list))]
	_, err := p.decide(&store.Group{ID: p.ids[s.Of], Cancel: true})
	s.Want.Error = p.classOf(err)
}

func (p *callPlay) override(s *golden.Step) {
	s.Limit = p.limits[0][:1]
	if p.over != nil {
		s.Limit = p.over[p.rnd.IntN(len(p.over))]
	}
	s.Override = &golden.Override{Key: p.keyOf(s.Limit)}
	plans := p.plans
	for _, plan := range p.reg.Lookup(s.Limit).Plans.All() {
		if p.plans == nil {
			plans = append(plans, plan.Name)
		}
	}
	d, err := p.reg.Lookup(s.Limit), error(nil)
	if s.Do == "override" {
		if p.rnd.IntN(2) == 0 {
			s.Override.Plan = plans[p.rnd.IntN(len(plans))]
		} else if s.Override.Burst = 1 + p.rnd.Int64N(25); p.reg.Lookup(s.Limit).Algorithm != store.Concurrency {
			s.Override.Rate = 1 + p.rnd.Int64N(9)
			if p.name == "blocks" { // it runs out
				s.Override.Rate, s.Override.Burst = 1, (s.Override.Burst+3)/4
			}
		}
		if p.rnd.IntN(2) == 0 {
			s.Override.Until = p.now + 1 + p.rnd.Int64N(3e6)
			p.at = append(p.at, s.Override.Until)
		}
		o := store.Override{Plan: s.Override.Plan, Rate: s.Override.Rate, Burst: s.Override.Burst, Until: s.Override.Until}
		_, err = d.SetOverrideIn(p.table, s.Override.Key, o, p.now)
	} else {
		_, err = d.EndOverrideIn(p.table, s.Override.Key, store.AnyOverride, p.now)
	}
	if err != nil {
		p.t.Fatalf("%+v %+v: %v", s, s.Override, err)
	}
}

func (p *callPlay) classOf(err error) string {
	var field *store.FieldError
	switch {
	case err == nil:
		return ""
	case errors.Is(err, store.ErrReservation):
		return "reservation"
	case errors.Is(err, store.ErrUnknownHold):
		return "unknown hold"
	case errors.Is(err, store.ErrHoldConflict):
		return "conflict"
	case errors.As(err, &field):
		return "field"
	}
	p.t.Fatal(err)
	return ""
}

// answer decides a group and sets what the step wants. own has the index of each take's
// own op; nil means all of them.
func (p *callPlay) answer(s *golden.Step, g *store.Group, own []int) {
	swept := p.swept(g)
	_, err := p.decide(g)
	if s.Want.Error = p.classOf(err); err != nil {
		return
	}
	if s.Want.Allowed = g.Allowed; g.Hold != nil && g.Allowed {
		s.Want.Repeated = g.Hold.Repeated
		s.Want.Expires = g.Hold.Expires
		p.at = append(p.at, s.Want.Expires, p.table.holds[g.Hold.ID].Forget)
	}
	order := slices.Clone(own)
	for i := range g.Ops {
		if !slices.Contains(own, i) {
			order = append(order, i)
		}
	}
	for n, i := range order {
		op := &g.Ops[i]
		part := partOf(op)
		part.Early = p.late[op.Def.Name+"/"+op.Key] && (op.Allowed && !op.Shadow || op.Never || op.Def.Mode == store.Blocked)
		at := partOf(&swept.Ops[i])
		at.Early = part.Early
		if part.Early { // the same but for what the expired holds took
			part.Remaining, part.Reset = at.Remaining, at.Reset
		}
		if at.Bound = part.Bound; at != part {
			p.t.Fatalf("%s history %d, step %d: %+v; after a sweep %+v\n%+v", p.name, p.n, len(p.h.Steps), part, at, s)
		}
		if n < len(own) {
			part.Granted = min(part.Granted, s.Takes[n].Cost)
		}
		if o := op.Def.Override; own != nil && o != nil && op.Def.Mode == store.Blocked {
			part.Blocked = o.Until
			p.at = append(p.at, o.Until)
		}
		if op.Retry > 0 && op.Retry < 10e6 {
			p.at = append(p.at, p.now+op.Retry)
		}
		s.Want.Limits = append(s.Want.Limits, part)
	}
}

// swept decides a copy of a group in a copy of the table, of which all rows have been
// swept, and notes which keys had expired holds.
func (p *callPlay) swept(g *store.Group) *store.Group {
	table := newMapTable()
	maps.Copy(table.rows, p.table.rows)
	maps.Copy(table.overrides, p.table.overrides)
	maps.Copy(table.pending, p.table.pending)
	maps.Copy(table.holds, p.table.holds)
	for at, records := range p.table.records {
		table.records[at] = slices.Clone(records)
		if slices.ContainsFunc(records, func(r store.Record) bool { return r.Hold != "" && !r.Rest && r.Expires <= p.now }) {
			p.late[at] = true
			limit, key, _ := strings.Cut(at, "/")
			if _, err := store.SweepRow(table, &p.reg, limit, key, p.now); err != nil {
				p.t.Fatal(err)
			}
		}
	}
	c := *g
	if c.Ops = slices.Clone(g.Ops); g.Hold != nil {
		call := *g.Hold
		c.Hold = &call
	}
	err := c.DecideIn(table, &p.reg, p.now)
	p.classOf(err)
	return &c
}

func partOf(op *store.Op) golden.Part {
	return golden.Part{Limit: op.Def.Name, Key: op.Key, Plan: op.Def.Plan, Allowed: op.Allowed, Never: op.Never, Shadow: op.Shadow, Bound: op.Bound,
		Granted: op.Granted, Remaining: op.Remaining, Retry: op.Retry, Reset: op.Reset, Delay: op.Delay}
}

// keyBlocks are what is known of the blocks of keys in a history, by limit and key.
type keyBlocks struct {
	length       map[string]int64 // µs, by limit
	until, other map[string]int64 // when the last block ends, and the last temporary override
	byHand       map[string]bool
}

func blocksOf(t *testing.T, h *golden.History) *keyBlocks {
	b := &keyBlocks{map[string]int64{}, map[string]int64{}, map[string]int64{}, map[string]bool{}}
	for _, text := range h.Limits {
		l, err := dipwell.ParseLimit(text)
		if err != nil {
			t.Fatal(err)
		}
		b.length[l.Name] = l.Block.Microseconds()
	}
	return b
}

// count counts what a step shows of blocks.
func (b *keyBlocks) count(s *golden.Step, seen map[string]int) {
	if o := s.Override; o != nil {
		k := s.Limit + " " + o.Key
		b.byHand[k] = s.Do == "end_override" && b.until[k] > s.At
		b.until[k], b.other[k] = 0, o.Until
	}
	for i, part := range s.Want.Limits[:min(len(s.Takes), len(s.Want.Limits))] {
		k := part.Limit + " " + part.Key
		until := b.until[k]
		if until > 0 && s.At-until >= -1 && s.At <= until {
			seen[fmt.Sprintf("%+d µs from the end of a block: blocked %v", s.At-until, part.Blocked > s.At)]++
		}
		refused := !part.Allowed && !part.Never && part.Blocked == 0
		what := ""
		switch {
		case part.Blocked == s.At+b.length[part.Limit] && until <= s.At && s.Do != "check":
			b.until[k], what = part.Blocked, s.Do+" begins a block"
		case until > s.At && s.Do == "reset":
			b.until[k], what = 0, "a reset ends a block"
		case until > s.At:
			what = s.Do + " during a block"
		case b.byHand[k]:
			b.byHand[k], what = false, "a block was ended by hand"
		case b.length[part.Limit] == 0:
		case refused && s.Do == "check":
			what = "a check begins no block"
		case refused && b.other[k] > s.At:
			what = "no block under a temporary override"
		case refused && s.Takes[i].Floor > 0:
			what = "a floor begins no block"
		case part.Allowed && !s.Want.Allowed && len(s.Takes) == 1:
			what = "the parent's refusal begins no block"
		}
		seen[what]++
	}
}

// TestGoldenCallsCover checks that the histories have what they are for.
func TestGoldenCallsCover(t *testing.T) {
	seen := map[string]int{}
	for _, line := range callVectors(t) {
		h := line.(*golden.History)
		expires, cost, overridden, blocks := map[string]int64{}, map[string]int64{}, map[string]bool{}, blocksOf(t, h)
		for _, s := range h.Steps {
			w := s.Want
			seen[h.Kind+" "+s.Do]++
			if s.Override != nil {
				overridden[s.Limit+" "+s.Override.Key] = s.Do == "override"
			}
			if h.Kind == "blocks" {
				blocks.count(&s, seen)
			}
			if w.Error != "" {
				seen[s.Do+": "+w.Error]++
				continue
			}
			for i, part := range w.Limits {
				if part.Plan != "" {
					seen[fmt.Sprintf("%s under a plan", h.Kind)]++
				}
				if i < len(s.Takes) && s.Takes[i].Floor > 0 && !part.Allowed {
					seen["refused by a floor"]++
				}
				if (h.Kind == "levels" || h.Kind == "floor") && !w.Allowed && !part.Allowed {
					seen[fmt.Sprintf("%s of %s refused by %s", s.Do, s.Takes[0].Limit, part.Limit)]++
				}
				if h.Kind == "together" && i < len(s.Takes) {
					t := s.Takes[i]
					tree := t.Limit == "user" && len(w.Limits) > 2
					seen[fmt.Sprintf("together: %s of %s, allowed %v, plan %v, floor %v, override %v", s.Do, t.Limit, part.Allowed, t.Plan != "", t.Floor > 0, tree && overridden[t.Limit+" "+t.Key])]++
				}
				if part.Bound {
					seen[h.Kind+" bound"]++
				}
			}
			switch {
			case s.Do == "hold" && w.Repeated:
				seen["hold repeated"]++
			case s.Do == "hold" && w.Allowed:
				expires[s.Hold], cost[s.Hold] = w.Expires, s.Takes[0].Cost
				if len(s.Takes) > 1 {
					seen[h.Kind+" hold of several"]++
				}
			case s.Do == "hold":
				seen[h.Kind+" hold refused"]++
			case s.Do == "extend":
				expires[s.Hold] = w.Expires
			case s.Do == "settle" && w.Repeated:
				seen["settle repeated"]++
			case s.Do == "settle" && s.At >= expires[s.Hold]:
				seen["settle late"]++
			case s.Do == "settle" && len(s.Costs) == 0:
				seen["settle as held"]++
			case s.Do == "settle" && s.Costs[0] == 0:
				seen["settle zero"]++
			case s.Do == "settle" && s.Costs[0] < cost[s.Hold]:
				seen["settle below"]++
			case s.Do == "settle" && s.Costs[0] > cost[s.Hold]:
				seen["settle above"]++
			}
			for _, at := range expires {
				if d := s.At - at; d >= -1 && d <= 1 {
					seen[fmt.Sprintf("%+d µs from an expiry", d)]++
				}
			}
		}
	}
	for _, what := range []string{"settle below", "settle above", "settle zero", "settle late", "settle as held", "settle repeated", "settle: conflict", "settle: field", "settle: unknown hold",
		"hold repeated", "hold: conflict", "extend: conflict", "holds extend", "concurrency extend", "holds hold of several", "concurrency hold of several", "holds hold refused", "concurrency hold refused",
		"levels hold", "floor hold", "overrides hold", "overrides define", "overrides override", "overrides end_override", "concurrency override", "plans cancel", "overrides cancel", "levels cancel", "cancel: reservation",
		"-1 µs from an expiry", "+0 µs from an expiry", "+1 µs from an expiry", "refused by a floor", "holds bound", "concurrency bound",
		"plans under a plan", "overrides under a plan", "levels under a plan", "concurrency under a plan",
		"take of user refused by user", "take of user refused by tenant", "take of member refused by member", "take of member refused by team", "take of member refused by unit", "take of member refused by org",
		"together: take of user, allowed true, plan true, floor true, override true", "together: take of user, allowed false, plan true, floor true, override true",
		"together: hold of user, allowed true, plan true, floor true, override true", "together define", "together cancel", "together extend", "together bound",
		"together: hold of desk, allowed true, plan true, floor true, override false", "together: hold of desk, allowed false, plan false, floor false, override false",
		"take_up_to of member refused by member", "take_up_to of user refused by tenant", "reserve of user refused by user", "reserve of user refused by tenant", "hold of user refused by tenant",
		"take begins a block", "take_up_to begins a block", "reserve begins a block", "hold begins a block", "take during a block", "check during a block", "hold during a block",
		"-1 µs from the end of a block: blocked true", "+0 µs from the end of a block: blocked false", "a check begins no block", "a floor begins no block", "a reset ends a block",
		"a block was ended by hand", "no block under a temporary override", "the parent's refusal begins no block"} {
		if seen[what] == 0 {
			t.Errorf("no history has %q", what)
		}
	}
	t.Log(seen)
}
