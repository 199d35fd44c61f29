package main

import (
	"cmp"
	"errors"
	"maps"
	"math"
	"slices"

	"github.com/dipwell/dipwell/store"
)

type violation struct {
	Check string // name of the check: promise, level, retry, refusal, stuck, error, …
	What  string
}

func (v *violation) Error() string { return v.Check + ": " + v.What }

// A grant is tokens that a caller may use from a given time on.
//
// After the store's clock was set back, the same time comes again, and so do the tokens
// of a key that has no row. So the field at counts only how far the clock has moved
// forward. For windows at is the clock's time, and grants are compared only if the
// clock was not set back between them.
type grant struct {
	k       at
	at      int64
	told    int64  // when the tokens may be used, on the store's clock
	early   int64  // parts that come back from the exact time at which it is due until told, which is rounded up to a µs
	taken   int64  // number of tokens that the store took
	tokens  int64  // those of taken that were not given back
	backs   int    // how often the clock had been set back before
	due     int64  // due time of a reservation, on the store's clock
	expires int64  // expiry of a hold that was not settled, on the store's clock
	ended   bool   // the hold has expired
	apart   bool   // the promise does not cover this grant
	ends    int64  // when the hold ended
	fate    string // "heard", or the fault that lost the answer
	node    *node

	process int               // number of the process that asked
	sent    int64             // when the process asked, on its monotonic clock
	made    int64             // true time of the store's decision
	waits   int64             // µs after made during which the tokens must not be used
	left    int64             // for a chunk of a lease: tokens that were neither used nor given back
	def     *store.Definition // that decided

	origin *origin // in a history that coalesces: the call that the grant was for
	lives  int     // how often the process that asked had started by then
	end    string  // for the limit "customer": what became of the tokens
	use    *grant  // for a leased limit: the entry of the book's uses, unless it is a chunk
}

const (
	heard  = "heard"
	leased = "leased" // the grant belongs to a lease of a process
)

// unlimited is the plan that charges nothing.
const unlimited = "staff"

func (g *grant) giveBack(left int64) {
	if g.tokens > left {
		g.tokens = left
	}
	if g.use != nil {
		g.use.tokens = g.tokens
	}
}

// expired gives back an expired hold, once.
func (g *grant) expired() {
	g.giveBack(0)
	g.ended, g.ends, g.expires = true, g.expires, 0
}

type part struct {
	*grant
	limit, key string
	plan       string // plan that the call named
	cost       int64
	free       bool // no tokens were taken
	reset      bool
	unsure     bool // it is not known whether the part was reset or had ended before
}

// A record is a hold or a reservation as its caller knows it.
type record struct {
	parts     []*part
	due       int64 // due time of a reservation
	ttl       int64
	expires   int64
	backs     int // how often the clock had been set back when the record was made
	settled   bool
	cancelled bool
	costs     []int64
}

// A book is what the checks know about a key.
type book struct {
	level    *level
	grants   []*grant
	uses     []*grant // for a leased limit: when callers got tokens
	flow     []*grant // for the limit "customer": the grants, and with negative numbers what came back
	parts    []*part  // parts of holds and reservations since the last reset
	apart    bool     // the key was charged, refunded or reset, so the promise does not cover it
	reserved int64    // tokens of the largest reservation that had to wait
	queue    int64    // when the last reservation is due, if nothing was given back since
	number   uint32   // number of the definition of that last reservation
	loosened []loosening
	refused  map[int]int64 // by process: true time of the store's last refusal of its calls

	unsureReturns bool // it is not known which chunks of a lease were given back
}

// A loosening is an event after which a remembered refusal of the key may be wrong.
type loosening struct {
	at   int64 // true time
	m    *message
	late bool // the caller has already been told of an error
}

func (n *node) book(limit, key string) *book {
	k := at{limit, key}
	b := n.books[k]
	if b == nil {
		b = &book{level: &level{n: n, k: k, rates: n.rates[limit], off: n.rates[limit].sliding}, refused: map[int]int64{}}
		n.books[k] = b
	}
	return b
}

// loosenAll records that a remembered refusal of any key may now be wrong.
func (n *node) loosenAll() {
	for _, b := range n.books {
		b.loosen(n.w.now, nil)
	}
}

func (b *book) loosen(now int64, m *message) {
	b.loosened = slices.DeleteFunc(b.loosened, func(l loosening) bool { return now-l.at > unseen })
	b.loosened = append(b.loosened, loosening{now, m, m != nil && m.done})
	b.queue = 0
}

// unseen is for how many µs a refusal from memory may be wrong, because another
// process gave something back: the age limit of a refusal, on a slow clock.
const unseen = 1_000_501

// A look is the state of a group's rows before the group was decided.
type look struct {
	k     at
	row   store.State
	asked *store.Definition
}

func (n *node) looks(g *store.Group) []look {
	var list []look
	if r := n.recordOf(g); r != nil && (g.Cancel || g.Settles()) {
		for _, p := range r.parts {
			row, _ := n.table.Row(p.limit, p.key)
			list = append(list, look{k: at{p.limit, p.key}, row: row})
		}
		return list
	}
	for i := range g.Ops {
		op := &g.Ops[i]
		row, _ := n.table.Row(op.Def.Name, op.Key)
		list = append(list, look{at{op.Def.Name, op.Key}, row, op.Def})
	}
	return list
}

func (n *node) recordOf(g *store.Group) *record {
	switch {
	case g.Hold != nil:
		return n.records[g.Hold.ID]
	case g.Cancel:
		return n.records[g.ID.String()]
	}
	return nil
}

// checkDecision checks a group that was decided. before has its rows as they were before.
func (n *node) checkDecision(g *store.Group, m *message, before []look) {
	switch {
	case g.Cancel:
		n.cancelled(g, m)
	case g.Settles():
		n.settled(g, m)
	case g.Hold != nil && g.Hold.Repeated:
		n.repeated(g, m)
	default:
		n.decided(g, m, before)
	}
	for i := range before {
		l := &before[i]
		row, _ := n.table.Row(l.k.limit, l.k.key)
		b := n.book(l.k.limit, l.k.key)
		n.follow(l.k)
		if l.row.Version != 0 && row.Version != l.row.Version {
			if a := l.asked; a != nil && !g.Allowed && row.Version == a.Number {
				n.w.Seen["a refusal moves a row"]++
			}
			b.loosen(n.w.now, m) // until now the row refilled at another rate
		}
		n.checkLevel(l.k, "a call")
	}
}

// decided checks a decided group of takes, or of other verbs.
func (n *node) decided(g *store.Group, m *message, before []look) {
	var made *record
	if g.Allowed && (g.Hold != nil || g.Reserved) {
		made = &record{due: n.time() + g.Due(), backs: n.backs}
		id := g.ID.String()
		if g.Hold != nil {
			id, made.ttl, made.expires = g.Hold.ID, g.Hold.TTL, g.Hold.Expires
			if old := n.records[id]; old != nil {
				n.w.fail("hold", "hold %s is made again", id)
			}
		}
		n.records[id] = made
	}
	for i := range g.Ops {
		op, was := &g.Ops[i], &before[i]
		b := n.book(op.Def.Name, op.Key)
		n.checkBlock(op, was, b)
		n.checkDefinition(op, was, b)
		n.checkAdmission(op, g, b)
		if g.Allowed && op.Takes != 0 && op.Takes == g.Ops[0].Takes && op.Granted != g.Ops[0].Granted {
			n.w.fail("levels", "%s %d of %s %q: %d were granted, and %d of its parent", op.Verb, op.Cost, g.Ops[0].Def.Name, op.Key, g.Ops[0].Granted, op.Granted)
		}
		if !g.Allowed {
			b.refused[m.c.p.id] = n.w.now
			n.checkRetry(op, was.asked, g)
			continue
		}
		row, _ := n.table.Row(op.Def.Name, op.Key)
		var gr *grant
		switch parts := n.rates[op.Def.Name].parts(op.Cost); {
		case op.Verb == store.VerbReset:
			n.reset(b, m)
		case op.Verb == store.VerbRefund:
			if op.Def.Lease > 0 {
				n.checkReturn(op, was.asked, m, g, b)
			} else if op.Def.Name == "customer" {
				n.refunded(b, m.caller(g), op)
			}
			b.apart = true
			b.loosen(n.w.now, m)
			if b.level.at(n.time()) > 0 { // otherwise nothing is written
				b.level.add(n.time(), -parts, nil, &row)
			}
		case op.Verb == store.VerbCharge:
			b.apart = true
			b.level.add(n.time(), parts, nil, &row)
		case op.Took() > 0:
			gr = n.granted(op, g, m, b, &row)
			n.checkHeld(op, b.level)
		}
		if made != nil {
			p := &part{grant: gr, limit: op.Def.Name, key: op.Key, plan: was.asked.Plan, cost: op.Cost, free: gr == nil}
			made.parts = append(made.parts, p)
			b.parts = append(b.parts, p)
		}
	}
}

// checkReturn checks that a lease gives tokens back only once, and of a chunk at
// most what time has not returned since, and not while a hold lives that was made before
// the lease asked for the key's holds. A message that takes longer than a lease is an
// exception, because its sender has stopped waiting for it. The check needs a limit
// that had no other version when the message was sent.
func (n *node) checkReturn(op *store.Op, asked *store.Definition, m *message, g *store.Group, b *book) {
	n.w.refunded += op.Cost
	if asked.Number != op.Def.Base().Number && m.sent > n.rates[op.Def.Name].defined {
		n.w.fail("return", "process %d gives back %d of %s %q, which it took before the limit was changed", m.c.p.id, op.Cost, op.Def.Name, op.Key)
	}
	looked := m.caller(g).looked
	if n.w.heldHot && looked == 0 {
		n.w.fail("return", "process %d gives back %d of %s %q, and has not asked whether it is held", m.c.p.id, op.Cost, op.Def.Name, op.Key)
	}
	for _, h := range b.level.held {
		if h.made < looked && h.expires > n.time() {
			n.w.fail("return", "process %d gives back %d of %s %q, although %d of it are held", m.c.p.id, op.Cost, op.Def.Name, op.Key, h.tokens)
		}
	}
	if n.backs > 0 || n.w.now-m.sent > op.Def.Lease.Microseconds() {
		b.unsureReturns = true
	}
	for _, g := range b.grants {
		if g.fate == leased && g.process == m.c.p.id && g.left-g.def.Rate*(n.time()-g.at)/1e6 >= op.Cost {
			g.left = 0 // nobody may give these tokens back again
			return
		}
	}
	if !b.unsureReturns {
		n.w.fail("return", "process %d gives back %d of %s %q, but has no chunk of which so many are neither given back nor returned by time", m.c.p.id, op.Cost, op.Def.Name, op.Key)
	}
}

func (n *node) granted(op *store.Op, g *store.Group, m *message, b *book, row *store.State) *grant {
	n.w.Taken += op.Granted
	gr := &grant{k: b.level.k, at: max(op.TS, n.time()+op.Delay), told: n.time() + op.Delay, taken: op.Granted, tokens: op.Granted, backs: n.backs, node: n, process: m.c.p.id, sent: m.sentMono, made: n.w.now, waits: op.Delay, left: op.Granted, def: op.Def, lives: m.c.p.lives}
	if g.Hold != nil {
		gr.expires = g.Hold.Expires
	}
	if g.Reserved {
		gr.due = n.time() + g.Due()
	}
	if b.level.expire(n.time()); b.level.gaveBack || row.Version != b.number {
		b.queue, b.level.gaveBack, b.number = 0, false, row.Version
	}
	if due := n.time() + op.Delay; op.Delay > 0 {
		if g.ID == (store.Reservation{}) {
			n.w.fail("reservation", "%s %q: a reservation that has to wait has no id", op.Def.Name, op.Key)
		}
		b.reserved = max(b.reserved, op.Granted)
		if due < b.queue && n.backs == 0 { // otherwise a hold that had expired before may be given back
			n.w.fail("order", "%s %q: a reservation is due at %.6f s, before an earlier one that is due at %.6f s", op.Def.Name, op.Key, float64(due-epoch)/1e6, float64(b.queue-epoch)/1e6)
		}
		b.queue = due
	}
	m.got = append(m.got, gr)
	if op.Def.Lease > 0 && !m.t.ask {
		gr.use = &grant{at: n.time() + n.back, tokens: op.Granted, process: m.c.p.id}
		b.uses = append(b.uses, gr.use)
	}
	b.grants = append(b.grants, gr)
	if gr.origin = n.w.origin(g); gr.origin != nil {
		gr.origin.takes(gr)
	}
	if op.Def.Name == "customer" {
		b.flow = append(b.flow, gr)
	}
	b.level.add(n.time(), 0, gr, row)
	if op.Delay > 0 {
		if n.rates[op.Def.Name].period == 0 {
			gr.early = (gr.told-op.TS)*op.Def.Rate - (op.Used-op.Def.Rule.Cap)*n.rates[op.Def.Name].parts(1)/op.Def.Rule.Unit
		}
		b.level.atMost, b.level.delayed = true, append(b.level.delayed, gr)
		if g.Reserved && op.Def.Override == nil && op.Granted <= op.Def.Burst {
			b.level.waits = append(b.level.waits, gr)
		}
	}
	n.w.tracef("%v at %.6f s: %d of %s %q for process %d, from %.6f s on", n, float64(n.time()-epoch)/1e6, gr.tokens, op.Def.Name, op.Key, m.c.p.id, float64(gr.at-epoch)/1e6)
	if !n.bounds[op.Def.Name].window {
		gr.at += n.back
	}
	return gr
}

// reset ends all that is known about the records of a key.
func (n *node) reset(b *book, m *message) {
	b.apart = true
	b.loosen(n.w.now, m)
	b.level.expire(n.time())
	for _, p := range b.parts {
		if p.grant != nil && p.ended { // before
			p.unsure = p.ends > n.time() // true if the clock was set back since the end
			continue
		}
		p.reset = true
		if p.grant != nil {
			p.due, p.expires = 0, 0
		}
	}
	b.parts = b.parts[:0]
	b.level.clear()
}

// repeated checks the answer for a hold that was made before.
func (n *node) repeated(g *store.Group, m *message) {
	r := n.recordOf(g)
	if r == nil || r.settled || r.backs == n.backs && r.expires <= n.time() {
		n.w.fail("hold", "hold %s is a repeated one, but it is not held", g.Hold.ID)
		return
	}
	for _, p := range r.parts {
		if p.grant != nil {
			m.got = append(m.got, p.grant)
		}
	}
}

func (n *node) cancelled(g *store.Group, m *message) {
	r := n.recordOf(g)
	switch {
	case r == nil || r.cancelled:
		n.w.fail("cancel", "a reservation is cancelled that was not made, or cancelled before")
		return
	case r.due <= n.time():
		n.w.fail("cancel", "a reservation is cancelled that was due %d µs ago", n.time()-r.due)
	case slices.ContainsFunc(r.parts, func(p *part) bool { return p.reset }):
		n.w.fail("cancel", "a reservation is cancelled although a key of it was reset")
	}
	r.cancelled = true
	for _, p := range r.parts {
		if p.grant != nil {
			p.giveBack(0)
		}
		n.book(p.limit, p.key).loosen(n.w.now, m)
		n.w.tracef("%v: %s %q: a reservation is cancelled", n, p.limit, p.key)
	}
}

// settled checks the answer for a hold that was settled or extended.
func (n *node) settled(g *store.Group, m *message) {
	r, now := n.recordOf(g), n.time()
	if r == nil {
		n.w.fail("hold", "hold %s is settled, but it was not made", g.Hold.ID)
		return
	}
	if g.Hold.Verb == store.ExtendHold {
		if r.settled || r.backs == n.backs && r.expires <= now {
			n.w.fail("hold", "hold %s is extended, but it has ended", g.Hold.ID)
		}
		r.expires = now + r.ttl
		for _, p := range r.parts {
			if p.grant != nil && !p.reset {
				p.extended(r.expires)
			}
		}
		return
	}
	if g.Hold.Repeated != r.settled || r.settled && !slices.Equal(r.costs, g.Hold.Costs) {
		n.w.fail("hold", "hold %s is settled to %v, and was settled to %v: repeated %v", g.Hold.ID, g.Hold.Costs, r.costs, g.Hold.Repeated)
	}
	if r.settled {
		return
	}
	r.settled, r.costs = true, slices.Clone(g.Hold.Costs)
	for i, p := range r.parts {
		b := n.book(p.limit, p.key)
		b.loosen(n.w.now, m)
		if p.reset || p.free {
			continue
		}
		b.level.expire(now)
		cost, counted := r.costs[min(i, len(r.costs)-1)], p.cost // the parts of a take have the same cost
		if r.expires <= now {                                    // the hold gave everything back then, and the cost is now a Charge
			counted = 0
		}
		if p.unsure || p.ended && r.expires > now { // the clock was set back since it ended
			b.level.off = true
		}
		if n.counts(p.limit) { // a concurrency limit releases it whatever it cost
			cost, counted = 0, 0
		}
		p.giveBack(min(cost, counted))
		p.expires = 0
		if cost > counted || p.ended {
			b.apart = true
		}
		plan := p.plan
		if kind := b.level.over.at(now); kind != 0 {
			plan = b.level.over.plan(kind)
		}
		if cost > counted && plan != unlimited {
			row, _ := n.table.Row(p.limit, p.key)
			b.level.add(now, n.rates[p.limit].parts(cost-counted), nil, &row)
		}
	}
}

// extended records that a hold was extended. If the hold had already given tokens back
// and the store's clock was set back since, the number in use is unknown.
func (g *grant) extended(expires int64) {
	if g.ended {
		g.ends = expires
		g.node.book(g.k.limit, g.k.key).level.off = true
		return
	}
	g.expires = expires
}

// checkError checks a group that could not be decided.
func (n *node) checkError(g *store.Group) {
	r, now := n.recordOf(g), n.time()
	if r == nil || r.backs != n.backs {
		return
	}
	reset := slices.ContainsFunc(r.parts, func(p *part) bool { return p.reset })
	switch {
	case g.Cancel && !r.cancelled && now < r.due && !reset:
		n.w.fail("cancel", "a reservation that is due in %d µs cannot be cancelled: %v", r.due-now, g.Err)
	case g.Settles() && g.Hold.Verb == store.SettleHold && errors.Is(g.Err, store.ErrUnknownHold),
		g.Settles() && g.Hold.Verb == store.SettleHold && errors.Is(g.Err, store.ErrHoldConflict) && (!r.settled || slices.Equal(r.costs, g.Hold.Costs)):
		n.w.fail("hold", "hold %s cannot be settled to %v: %v", g.Hold.ID, g.Hold.Costs, g.Err)
	case g.Hold != nil && g.Hold.Verb != store.SettleHold && !r.settled && now < r.expires && !reset:
		n.w.fail("hold", "hold %s, which expires in %d µs, can be neither repeated nor extended: %v", g.Hold.ID, r.expires-now, g.Err)
	}
}

// checkDefinition checks that the override of the key decides until its end, or else
// the definition that the caller named.
func (n *node) checkDefinition(op *store.Op, was *look, b *book) {
	t := n.time()
	d, kind := op.Def, b.level.over.at(t)
	o := b.level.over.of(kind)
	n.layers(&b.level.over, o)
	blocked := o != nil && o.block
	switch {
	case o == nil != (d.Override == nil) || o != nil && kind != d.Override.Kind(),
		o != nil && !blocked && (o.plan != "" && d.Plan != o.plan || o.plan == "" && (d.Rate != o.rate || d.Burst != o.burst)):
		n.w.fail("override", "%s of %s %q at %d: decided by %s, %d a period and burst %d, under %+v; want %s %+v", op.Verb, d.Name, op.Key, t, d.Plan, d.Rate, d.Burst, d.Override, kind, o)
	case blocked && (d.Mode != store.Blocked || op.Allowed):
		n.w.fail("block", "%s %d of %s %q at %d: decided by %s %v, although the key is blocked until %d", op.Verb, op.Cost, d.Name, op.Key, t, d.Mode, op.Allowed, o.until)
	case o == nil && op.Verb != store.VerbCharge && d.Plan != was.asked.Plan:
		n.w.fail("override", "%s of %s %q: decided by the plan %q; want %q", op.Verb, d.Name, op.Key, d.Plan, was.asked.Plan)
	}
}

func floor(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// checkRetry repeats the call at the time that a refusal named, and 1 µs before. While a key
// has live holds the call may pass earlier, except on a concurrency limit, where the time is
// exact if no hold is settled meanwhile. At the end of an override the call may be refused
// again. A Check does not write what expired holds give back, and once a delayed reservation
// has fallen due, that may be less.
func (n *node) checkRetry(op *store.Op, asked *store.Definition, g *store.Group) {
	if op.Allowed || op.Never {
		return
	}
	o := op.Def.Override
	ends := op.Bound && o != nil && o.Until == n.time()+op.Retry
	for i, want := range []bool{false, true} {
		if ends && want {
			continue
		}
		if op.Bound && !n.counts(op.Def.Name) && (!want || op.Verb == store.VerbCheck && n.book(op.Def.Name, op.Key).level.atMost) {
			continue
		}
		later := op.Retry - 1 + int64(i)
		if again, err := n.would(op, asked, n.time()+later, g.Hold); err != nil || again.Allowed != want {
			n.w.fail("retry", "%s %d of %s %q: refused for %d µs, but %d µs later it is allowed: %v, or refused for %d µs (%v)", op.Verb, op.Cost, op.Def.Name, op.Key, op.Retry, later, again.Allowed, again.Retry, err)
		}
	}
}

// would returns the answer to an op at a later time, if nothing else happens until then.
// hold is the call if the op is part of a hold.
func (n *node) would(op *store.Op, d *store.Definition, time int64, hold *store.HoldCall) (store.Op, error) {
	g := store.Group{Ops: []store.Op{{Def: d, Key: op.Key, Verb: op.Verb, Cost: op.Cost, Bounded: op.Bounded, MaxDelay: op.MaxDelay, Floor: op.Floor}}}
	if hold != nil {
		g.Hold = &store.HoldCall{ID: "again", TTL: hold.TTL}
	}
	n.table.begin()
	defer n.table.rollback()
	if op.Verb == store.VerbCheck && time > n.time() && d.Block == 0 { // the retry is that of a take made now, which may move the row
		take := store.Group{Ops: []store.Op{g.Ops[0]}}
		take.Ops[0].Verb = store.VerbTake
		_ = take.DecideIn(&n.table, &n.reg, n.time()) // an error is ignored, because not every limit has takes
	}
	err := g.DecideIn(&n.table, &n.reg, time)
	return g.Ops[0], err
}

// drifted is the largest difference, in µs, between two clocks after the age of a refusal.
const drifted = 1001

// checkRefusal checks that the store would also refuse a call that a cache refused,
// and for about as long. A cached refusal may be longer by the round trip in which it
// arrived, during which the process may have stood still.
func (c *client) checkRefusal(op *store.Op, hold *store.HoldCall) {
	n, p, w := c.node, c.p, c.node.w
	if slices.ContainsFunc(n.book(op.Def.Name, op.Key).loosened, func(l loosening) bool {
		return w.now-l.at <= unseen && (l.m == nil || l.m.c.p != p || l.late || !l.m.done)
	}) {
		return // the refusal may be wrong, and the process has not heard why
	}
	before := n.time() - drifted
	is, err := n.would(op, op.Def, before, hold)
	switch {
	case err != nil:
	case is.TS > before: // the row has changed since, and its earlier state cannot be read
	case is.Allowed:
		w.fail("refusal", "process %d: %s %d of %s %q is refused by %s; the store would allow it", p.id, op.Verb, op.Cost, op.Def.Name, op.Key, op.Source)
	case !is.Never && (op.Never || op.Retry > is.Retry+patience+p.stood):
		w.fail("refusal", "process %d: %s %d of %s %q is refused by %s for %d µs; the store would refuse it for %d", p.id, op.Verb, op.Cost, op.Def.Name, op.Key, op.Source, op.Retry, is.Retry)
	}
}

// checkConservation compares what the store took with what callers heard of and what
// faults lost.
func (w *world) checkConservation() {
	var got, held, lost, used, returned int64
	for _, n := range w.nodes {
		for _, g := range n.grants() {
			returned += g.taken - g.tokens
			switch g.fate {
			case leased:
				held += g.taken
			case heard:
				got += g.taken
				used += g.tokens
			case "":
				w.fail("conservation", "%s %q: %d tokens were taken at %.6f s; no caller heard of them, and no fault has lost them", g.k.limit, g.k.key, g.taken, float64(g.at-epoch)/1e6)
			default:
				w.Lost[g.fate] += g.tokens
				lost += g.tokens
			}
		}
	}
	if w.Leased+w.refunded > held {
		w.fail("conservation", "%d tokens were used from leases and %d given back, of %d that were leased", w.Leased, w.refunded, held)
	}
	if w.Taken != used+returned+lost+held {
		w.fail("conservation", "%d tokens were taken; of these %d were used, %d given back, %d lost and %d leased", w.Taken, used, returned, lost, held)
	}
	if got != w.heard {
		w.fail("conservation", "callers heard of %d tokens, but the store took %d for them", w.heard, got)
	}
}

func (n *node) grants() (all []*grant) {
	for _, k := range n.keys() {
		all = append(all, n.books[k].grants...)
	}
	return all
}

func (n *node) keys() []at { return slices.SortedFunc(maps.Keys(n.books), compare) }

// checkPromise compares, for each key and between any two instants, what was granted with
// the largest burst and rate that its limit has had.
func (n *node) checkPromise() {
	for _, k := range n.keys() {
		b := n.books[k]
		b.level.expire(n.time())
		if len(b.uses) > 0 {
			n.compare(k, n.bounds[k.limit], &book{}, inOrder(b.uses))
			continue
		}
		bound := n.bounds[k.limit]
		if b.apart || bound.counts { // see checkHeld
			continue
		}
		grants := inOrder(slices.DeleteFunc(slices.Clone(b.grants), func(g *grant) bool { return g.tokens == 0 || g.apart }))
		if bound.first { // a period may begin just after the first of the two instants
			b := *bound
			b.burst += b.rate
			bound = &b
		}
		if !bound.window {
			n.compare(k, bound, b, grants)
			continue
		}
		for i := range n.backs + 1 {
			n.compare(k, bound, b, slices.DeleteFunc(slices.Clone(grants), func(g *grant) bool { return g.backs != i }))
		}
	}
}

// compare compares the grants of a key, in the order of their times, with a bound.
func (n *node) compare(k at, bound *bound, b *book, grants []*grant) {
	// For each grant: granted·period - rate·t, minus its smallest earlier value, is at
	// most burst·period.
	var total int64
	least, from := int64(math.MaxInt64), int64(0)
	start := int64(epoch)
	for _, g := range grants {
		earned := bound.rate * (g.at - start)
		scale := bound.period
		if bound.window {
			earned, scale = bound.rate*(floor(g.at, bound.period)-floor(start, bound.period)), 1
		}
		before := earned
		if bound.window && g.at%bound.period == 0 {
			before -= bound.rate // the window's boundary lies in the interval
		}
		if g.early > 0 { // the interval begins less than a µs before at
			before -= (bound.rate*g.early + g.def.Rate - 1) / g.def.Rate
		}
		if v := total*scale - before; v < least {
			least, from = v, g.at
		}
		total += g.tokens
		if over := total*scale - earned - least - max(bound.burst, b.reserved)*scale - bound.rate*bound.late; over > 0 {
			n.w.fail("promise", "%s %q: from %.6f to %.6f s %d tokens too many were granted (burst %d, %d per %d µs)", k.limit, k.key,
				float64(from-epoch)/1e6, float64(g.at-epoch)/1e6, (over+scale-1)/scale, bound.burst, bound.rate, bound.period)
			return
		}
	}
}

func compare(a, b at) int {
	return cmp.Or(cmp.Compare(a.limit, b.limit), cmp.Compare(a.key, b.key))
}

// useLease records tokens that a process gave a caller from a lease. The process must
// hold a chunk with as many tokens, which is due and was requested less than a lease ago.
// A thousandth of the time is added for the drift of both clocks. The limit itself must
// have decided the chunk's request, in the version that the caller knows, or a later one.
func (c *client) useLease(op *store.Op) {
	n, p, w := c.node, c.p, c.node.w
	w.Leased += op.Granted
	if op.Floor > 0 {
		w.fail("lease", "process %d: %d of %s %q are used from a lease, although the call has a floor, which only the store knows", p.id, op.Granted, op.Def.Name, op.Key)
	}
	b := n.book(op.Def.Name, op.Key)
	var from *grant
	for _, g := range slices.Backward(b.grants) {
		if g.fate == leased && g.process == p.id && g.left >= op.Granted && g.def.Override == nil && g.def.Number >= op.Def.Number && p.monotonic()-g.sent < op.Def.Lease.Microseconds() && w.now-g.made >= g.waits-g.waits/900-2 {
			from = g // the oldest
		} else if w.now-g.made > 2*op.Def.Lease.Microseconds() {
			break
		}
	}
	if from == nil {
		w.fail("lease", "process %d: %d of %s %q are used from a lease, but of the chunks that are due and for which it asked less than a lease ago none has so many", p.id, op.Granted, op.Def.Name, op.Key)
		return
	}
	from.left -= op.Granted
	b.uses = append(b.uses, &grant{at: n.time() + n.back, tokens: op.Granted, process: p.id})
	w.tracef("process %d: %d of %s %q from a lease at %.6f s of the store", p.id, op.Granted, op.Def.Name, op.Key, float64(n.time()-epoch)/1e6)
}
