package simulate

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/dipwell/dipwell/internal/shards"
	"github.com/dipwell/dipwell/store"
)

// In an eighth of the histories, processes also take from the limit "orders", which has
// shards, in transactions that stay open for some time. The protocol is that of
// internal/shards, on a table of its own, by the clock of the home region's store. The
// limit is a bucket, a window, or a bucket to which next to nothing comes back: of that,
// all tokens can be counted.

// Kinds of steps of the limit "orders".
const (
	dealing    kind = iota + 100 // process makes n transactions, gap µs apart
	reshard                      // the limit gets other numbers, and s.times shards
	dealsSweep                   // full rows are deleted
)

// A dealer is the database of the limit "orders".
type dealer struct {
	w        *world
	n        *node // whose clock it has
	reg      store.Registry
	table    *shards.Table
	limit    store.Limit
	bound    bound
	slow     bool // next to nothing comes back
	versions []version
	units    []int64 // in a token, by version
	open     []*deal
	byTx     map[*shards.Tx]*deal
	tallies  map[shards.Key]*tally
	order    []shards.Key // of tallies
	asking   []*asking    // calls that are being decided
	began    int64        // number of transactions
	idle     [][]*shards.Session
	sessions int64
	random   *rand.Rand
}

// A tally is what is known of a key.
type tally struct {
	grants []*grant // of transactions that were committed
	level  int64    // tokens in use, if nothing comes back
	apart  bool     // it was charged, refunded or reset
}

// A deal is a transaction.
type deal struct {
	*dealer
	p      *process
	t      *task
	tx     *shards.Tx
	id     int64
	change map[shards.Key]int64 // of the level, if it commits
	grants []*grant
	called map[shards.Key]int // number of calls
	waits  int                // number of waits so far
	ended  bool
}

// An asking is a call that is being decided, and what its transaction has seen meanwhile.
type asking struct {
	d     *deal
	k     shards.Key
	seen  [][]store.State
	least int64 // that the store's clock showed during the call
	most  int64
}

func (h *history) isDealing() bool { return h.seed%8 == 6 }

// drawDeals adds the steps of the limit "orders" to a history with n others.
func (h *history) drawDeals(n int, length int64, active map[string]bool) {
	if !h.isDealing() {
		return
	}
	for i := range n / 6 {
		r := rand.New(rand.NewPCG(h.seed, 1<<41|uint64(i)))
		s := step{id: n + i, kind: dealing, limit: "orders", process: r.IntN(h.processes), key: "a", n: 1 + r.IntN(12), gap: 100 + r.Int64N(3000),
			cost: 1 + r.Int64N(3), span: 500 + r.Int64N(40_000), back: r.Int64N(1 << 30), rate: r.Int64N(1 << 20)}
		s.at = min(length/4, 500_000)*int64(i%4) + r.Int64N(min(length/8, 250_000)) // close together, so that transactions meet
		if i%5 == 0 {
			s.key = "b"
		}
		switch pick := r.IntN(100); {
		case pick < 8 && active["define"]:
			s.kind, s.times = reshard, []int{4, 8, 3, 5, 2}[s.rate%5]
		case pick < 14 && active["sweep"]:
			s.kind = dealsSweep
		}
		h.steps = append(h.steps, s)
	}
}

// newDealer makes the table, and the limit of a history.
func newDealer(w *world) *dealer {
	r := rand.New(rand.NewPCG(w.seed, 1<<42))
	d := &dealer{w: w, n: w.nodes[0], byTx: map[*shards.Tx]*deal{}, tallies: map[shards.Key]*tally{}, idle: make([][]*shards.Session, w.processes), random: r}
	d.limit = store.Limit{Name: "orders", Rate: 20 + r.Int64N(300), Period: time.Second, Burst: 17 + r.Int64N(60), Shards: []int64{2, 3, 4, 5, 8}[r.IntN(5)]}
	switch w.seed / 8 % 3 {
	case 1:
		d.limit.Algorithm, d.limit.Period = store.FixedWindow, time.Duration(50+r.IntN(600))*time.Millisecond
		d.limit.Rate = 9 + r.Int64N(40)
		d.limit.Burst = max(d.limit.Rate+r.Int64N(2)*r.Int64N(30), 17)
		if w.seed/24%2 == 0 {
			d.limit.Start = "0s"
		}
	case 2:
		d.slow, d.limit.Rate, d.limit.Period, d.limit.Burst = true, 1, time.Hour, 100+r.Int64N(900)
	}
	d.table = shards.NewTable(&d.reg)
	d.table.Unlogged = r.IntN(2) == 0
	d.table.Now = d.n.time
	d.table.Pause = d.pause
	d.table.Sleep = func(x *shards.Tx, span int64) { d.byTx[x].after(span) }
	d.table.Wait = func(x *shards.Tx) { d.byTx[x].wait() }
	d.table.Wake = d.wake
	d.table.Deadlock = d.deadlock
	d.table.Random = r.Int64N
	d.define()
	return d
}

// define defines the limit as it is in d.limit.
func (d *dealer) define() {
	def, err := d.reg.Define(d.n.time(), d.limit, store.OwnerCode)
	if err != nil {
		d.w.fail("define", "%v", err)
		return
	}
	l := &d.limit
	d.bound = bound{burst: max(d.bound.burst, l.Burst), rate: max(d.bound.rate, l.Rate), period: l.Period.Microseconds(), window: l.Algorithm == store.FixedWindow}
	if int(def.Number) > len(d.versions) {
		d.versions = append(d.versions, version{def.Since, l.Rate, l.Burst})
		d.units = append(d.units, def.Rule.Unit)
	}
}

// reshard gives the limit another number of shards, and other numbers.
func (d *dealer) reshard(s *step) {
	d.limit.Shards = int64(s.times)
	if s.rate/5%2 == 0 {
		d.limit.Burst += s.rate / 10 % 9
	}
	if s.rate/100%3 == 0 && !d.slow {
		d.limit.Rate = max(9, d.limit.Rate+s.rate/300%21-10)
	}
	if d.bound.window {
		d.limit.Burst = max(d.limit.Burst, d.limit.Rate)
	}
	d.define()
}

// sweep sweeps in a transaction of its own.
func (d *dealer) sweep(s *step) {
	p := d.w.procs[s.process]
	p.deliver(func() {
		d.w.start(p, d.w.random(s.id, 0), false, func(t *task) {
			x := d.begin(p, t)
			x.tx.Sweep()
			x.end(true)
		})
	})
}

// begin begins a transaction of a process.
func (d *dealer) begin(p *process, t *task) *deal {
	var s *shards.Session
	if idle := d.idle[p.id]; len(idle) > 0 {
		s, d.idle[p.id] = idle[len(idle)-1], idle[:len(idle)-1]
	} else {
		d.sessions += 1 + d.sessions%3
		s = &shards.Session{PID: d.sessions}
	}
	d.began++
	x := &deal{dealer: d, p: p, t: t, tx: d.table.Begin(s), id: d.began, change: map[shards.Key]int64{}, called: map[shards.Key]int{}}
	d.byTx[x.tx] = x
	d.open = append(d.open, x)
	return x
}

// crashed rolls back, after a while, what a process that crashed has left open.
func (d *dealer) crashed(p *process) {
	d.idle[p.id] = nil
	for _, x := range d.open {
		if x.p == p && !x.lives() {
			d.w.after(1+d.random.Int64N(5000), func() { x.end(false) })
		}
	}
}

// lives reports whether the process that began the transaction has not crashed since.
func (x *deal) lives() bool {
	_, lives := x.p.tasks[x.t]
	return lives
}

// end ends a transaction.
func (x *deal) end(commits bool) {
	if x.ended {
		return
	}
	d := x.dealer
	x.ended = true
	if commits {
		d.w.tracef("transaction %d of process %d commits", x.id, x.p.id)
		x.tx.Commit()
		for k, change := range x.change {
			d.tally(k).level += change
		}
		for _, g := range x.grants {
			b := d.tally(shards.Key{Limit: g.k.limit, Key: g.k.key})
			b.grants = append(b.grants, g)
		}
	} else {
		d.w.tracef("transaction %d of process %d is rolled back", x.id, x.p.id)
		x.tx.Rollback()
	}
	d.open = slices.DeleteFunc(d.open, func(o *deal) bool { return o == x })
	delete(d.byTx, x.tx)
	if x.lives() {
		d.idle[x.p.id] = append(d.idle[x.p.id], x.tx.Session)
	}
	d.asking = slices.DeleteFunc(d.asking, func(a *asking) bool { return a.d == x })
	for _, a := range d.asking {
		a.look()
	}
	for _, k := range d.order {
		d.checkAll(k)
	}
}

func (d *dealer) tally(k shards.Key) *tally {
	if d.tallies[k] == nil {
		d.tallies[k] = &tally{}
		d.order = append(d.order, k)
	}
	return d.tallies[k]
}

// pause lets a few µs pass between two statements, and more while the store stands still.
func (d *dealer) pause(tx *shards.Tx) {
	x := d.byTx[tx]
	span := x.t.rng.Int64N(40)
	if x.t.rng.IntN(50) == 0 {
		span *= 100
	}
	x.after(span + max(0, d.n.stall-d.w.now))
}

// after suspends the transaction for some µs.
func (x *deal) after(span int64) {
	x.waits++
	n := x.waits
	x.w.after(span, func() { x.resume(n) })
	x.t.wait()
	x.readClock()
}

// readClock notes what the clock shows to the call of the transaction.
func (x *deal) readClock() {
	for _, a := range x.asking {
		if a.d == x {
			a.clock()
		}
	}
}

// wait suspends the transaction until it is woken.
func (x *deal) wait() {
	x.waits++
	x.w.tracef("transaction %d of process %d waits for a lock", x.id, x.p.id)
	x.t.wait()
	x.readClock()
}

func (d *dealer) wake(tx *shards.Tx) {
	if x := d.byTx[tx]; x != nil {
		n := x.waits
		d.w.after(x.t.rng.Int64N(100), func() { x.resume(n) })
	}
}

// resume ends wait n, unless it has ended before.
func (x *deal) resume(n int) {
	if x.lives() && n == x.waits {
		x.waits++
		x.t.resume()
	}
}

// deal makes transaction i of a step: one to three calls, with work between them.
func (p *process) deal(s *step, i int) {
	p.w.start(p, p.w.random(s.id, i), false, func(t *task) {
		x := p.w.dealer.begin(p, t)
		more := 1
		if s.back%4 == 0 {
			more += t.rng.IntN(3)
		}
		for j := range more {
			op := x.draw(s, j)
			if !x.call(&op) {
				return
			}
			if j > 0 || t.rng.IntN(4) > 0 {
				p.later(t, t.rng.Int64N(s.span))
			}
		}
		x.end(t.rng.IntN(6) > 0)
	})
}

// draw draws call i. Only the key "b" is charged, refunded and reset.
func (x *deal) draw(s *step, i int) store.Op {
	def, r := x.reg.Lookup("orders"), x.t.rng
	op := store.Op{Def: def, Key: s.key, Cost: s.cost}
	if i > 0 && s.rate%3 == 0 {
		op.Key = "b" // after a, so that this alone is no deadlock
	}
	pick := r.IntN(100)
	switch {
	case pick < 6:
		op.Cost = 1 + r.Int64N(def.Burst)
	case pick < 10:
		op.Verb, op.Cost = store.VerbTakeUpTo, 1+r.Int64N(9)
	case pick < 14:
		op.Verb = store.VerbCheck
	case pick < 16:
		op.Floor = 1 + r.Int64N(5)
	case op.Key == "b" && pick < 40:
		op.Verb = []store.Verb{store.VerbCharge, store.VerbRefund, store.VerbRefund, store.VerbCharge, store.VerbReset}[pick%5]
	}
	if op.Verb == store.VerbReset {
		op.Cost = 0
	}
	return op
}

// call makes a call, and checks it. It reports false if the transaction was rolled back,
// because it was a deadlock's victim.
func (x *deal) call(op *store.Op) bool {
	k := shards.Key{Limit: op.Def.Name, Key: op.Key}
	b := x.tally(k)
	x.called[k]++
	a := &asking{d: x, k: k, least: math.MaxInt64}
	x.asking = append(x.asking, a)
	a.look()
	a.clock()
	change := x.tx.Watch(k)
	now, err := x.tx.Call(op)
	x.asking = slices.DeleteFunc(x.asking, func(o *asking) bool { return o == a })
	x.w.calls++
	x.tell(op, err)
	switch {
	case err != nil:
		if !errors.Is(err, shards.ErrDeadlock) {
			x.w.fail("error", "%v", err)
		}
		x.end(false)
		return false
	case !op.Allowed:
		x.checkRefused(a, op, now)
	default:
		before, after := change.Rows()
		if op.Verb > store.VerbCharge && slices.Equal(before, after) {
			break // nothing was in use when it looked
		}
		x.count(b, k, op, now)
		x.checkChange(a, before, after, op, now)
	}
	return true
}

// tell records an answer in the history.
func (x *deal) tell(op *store.Op, err error) {
	if x.w.trace == nil {
		return
	}
	text := fmt.Sprintf("refused for %.3f ms", float64(op.Retry)/1000)
	switch {
	case err != nil:
		text = err.Error()
	case op.Allowed:
		text = fmt.Sprintf("%d, %d left", op.Granted, op.Remaining)
	}
	x.w.tracef("transaction %d of process %d: %s %d of %s %q: %s", x.id, x.p.id, op.Verb, op.Cost, op.Def.Name, op.Key, text)
}

// count records what a call took.
func (x *deal) count(b *tally, k shards.Key, op *store.Op, now int64) {
	level := b.level + x.change[k]
	switch op.Verb {
	case store.VerbTake, store.VerbTakeUpTo:
		x.change[k] += op.Granted
		g := &grant{k: at{k.Limit, k.Key}, at: max(op.TS, now), taken: op.Granted, tokens: op.Granted, backs: x.n.backs}
		if !x.bound.window {
			g.at += x.n.back
		}
		x.grants = append(x.grants, g)
	case store.VerbCharge:
		b.apart = true
		x.change[k] += op.Cost
	case store.VerbRefund:
		b.apart = true
		x.change[k] -= min(op.Cost, level)
	case store.VerbReset:
		b.apart = true
		x.change[k] -= level
	}
}
