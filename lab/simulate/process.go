package main

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/dipwell/dipwell/store"
)

// A process calls one store, or the stores of its region and of the home region.
type process struct {
	w         *world
	id        int
	home, own *client // home: the home region's store; own: its own region's; the same if there is only one store

	drift  int64 // parts per million by which the clocks of the process are fast
	origin int64 // what its monotonic clock shows when the history begins
	skew   int64 // µs by which its wall clock is ahead of the true time

	stopped int64 // true time until which the process stands still
	stood   int64 // longest time that the process has stood still, in µs
	tasks   map[*task]struct{}
	lives   int // how often the process has started
	asks    int // number of its background tasks so far
}

func (p *process) begin() {
	p.tasks = map[*task]struct{}{}
	p.lives++
	for _, c := range p.clients() {
		c.begin()
	}
}

func (p *process) clients() []*client { return slices.Compact([]*client{p.home, p.own}) }

func (p *process) client(limit string) *client {
	if limit == "hot" {
		return p.home
	}
	return p.own
}

// monotonic returns the process's monotonic clock in µs.
func (p *process) monotonic() int64 { return p.origin + p.w.now + p.w.now*p.drift/1e6 }

// background runs f as a separate task, once the present task waits or has ended.
func (p *process) background(f func()) {
	p.unlessCrashed(0, func() {
		p.asks++
		p.w.start(p, p.w.random(1<<30+p.id, p.asks), true, func(*task) { f() })
	})
}

// unlessCrashed runs f after d µs, unless the process has crashed by then.
func (p *process) unlessCrashed(d int64, f func()) {
	lives := p.lives
	p.w.after(d, func() {
		p.deliver(func() {
			if p.lives == lives {
				f()
			}
		})
	})
}

// crash ends all calls, and makes the process forget everything.
func (p *process) crash() {
	for t := range p.tasks {
		t.stop()
	}
	p.begin()
}

// deliver runs f when the process no longer stands still, unless it has crashed by then.
func (p *process) deliver(f func()) {
	if p.stopped > p.w.now {
		p.w.at(p.stopped, func() { p.deliver(f) })
		return
	}
	f()
}

// call makes call number i of a step.
func (p *process) call(s *step, i int) {
	p.w.start(p, p.w.random(s.id, i), false, func(t *task) {
		if s.leave > 0 {
			t.ctx, t.cancel = context.WithCancel(t.ctx)
			p.whileLives(t, s.leave, t.leave)
		}
		if p.w.regional && s.limit == "hot" && !s.rests(i) {
			t.both = true
			p.takeBoth(s, t)
			return
		}
		var b store.Batch
		c := p.client(s.limit)
		p.batch(s, t, i, &b)
		for try := 0; ; try++ {
			if c.ask(s, &b) != nil {
				return
			}
			g := &b.Groups[0]
			op := &g.Ops[0]
			if g.Allowed {
				p.giveBack(s, t, g)
				return
			}
			if !s.patient || try == 5 || op.Never || op.Retry > 2e6 {
				return
			}
			p.later(t, op.Retry)
			p.batch(s, t, i, &b)
		}
	})
}

// batch sends b as call number i of a step.
func (p *process) batch(s *step, t *task, i int, b *store.Batch) {
	g, op := b.Single()
	own := p.client(s.limit).defs[s.limit]
	*op = store.Op{Def: cmp.Or(own.WithPlan(s.plan), own), Key: s.key, Verb: s.verb, Cost: s.cost, Floor: s.floor}
	if s.rests(i) && i == s.n-s.n/3 {
		op.Verb, op.Cost, op.Floor = store.VerbTakeUpTo, 1e6, 0
	}
	if s.both {
		g.Ops = append(g.Ops, store.Op{Def: p.own.defs[s.second()], Key: s.key, Verb: s.verb, Cost: 1})
	}
	if s.nested {
		for i := range g.Ops {
			g.Ops[i].Cost, g.Ops[i].Takes = s.cost, 1
		}
	}
	if s.verb == store.VerbReserve {
		t.identify(&g.ID)
	}
	if s.kind == holds {
		g.Hold = &store.HoldCall{ID: fmt.Sprintf("%d.%d", s.id, i), TTL: s.span}
	}
}

// ask makes a call, and checks that a refusal by the store was decided after the call began. The
// refusal may have been for another call of the same process.
func (c *client) ask(s *step, b *store.Batch) error {
	began := c.p.w.now
	err := c.apply(b)
	g := &b.Groups[0]
	c.tell(s, g, err)
	if op := &g.Ops[0]; err == nil && len(g.Ops) == 1 && !g.Allowed && op.Source == store.SourceStore {
		if at := c.node.book(op.Def.Name, op.Key).refused[c.p.id]; at < began {
			c.node.w.fail("answer", "process %d: %s %d of %s %q is refused; the store refused a call of the process %d µs before this one came", c.p.id, op.Verb, op.Cost, op.Def.Name, op.Key, began-at)
		}
	}
	return err
}

func (t *task) identify(id *store.Reservation) {
	binary.BigEndian.PutUint64(id[:], t.rng.Uint64())
	binary.BigEndian.PutUint64(id[8:], t.rng.Uint64())
}

// giveBack settles a hold or cancels a reservation, as the step says.
func (p *process) giveBack(s *step, t *task, made *store.Group) {
	if s.back == 0 || s.kind != holds && !made.Reserved {
		return
	}
	if s.extend && s.kind == holds {
		p.later(t, s.back/2)
		p.end(s, store.Group{Hold: &store.HoldCall{Verb: store.ExtendHold, ID: made.Hold.ID, TTL: s.span}})
		p.later(t, s.back-s.back/2)
	} else {
		p.later(t, s.back)
	}
	for i := range s.times {
		if s.kind != holds {
			p.end(s, store.Group{ID: made.ID, Cancel: true})
			continue
		}
		costs := []int64{s.settle}
		if i > 0 && s.n%2 == 0 { // the repeated end is refused, unless the first one did not arrive
			costs[0]++
		}
		if s.both && !s.nested {
			costs = append(costs, s.settle%2)
		}
		p.end(s, store.Group{Hold: &store.HoldCall{Verb: store.SettleHold, ID: made.Hold.ID, Costs: costs}})
	}
}

// end sends a call that settles or extends a hold, or cancels a reservation.
func (p *process) end(s *step, g store.Group) {
	what := "cancels a reservation of " + s.limit
	if h := g.Hold; h != nil && h.Verb == store.ExtendHold {
		what = "extends hold " + h.ID
	} else if h != nil {
		what = fmt.Sprintf("settles hold %s to %v", h.ID, h.Costs)
	}
	c, b := p.client(s.limit), store.Batch{Groups: []store.Group{g}}
	if err := c.apply(&b); err != nil {
		what += ": " + err.Error()
	} else if c.memory != nil {
		for i := range b.Groups[0].Ops {
			c.checkAlone(&b.Groups[0].Ops[i], true)
		}
	}
	p.w.tracef("process %d: %s", p.id, what)
}

// later makes a task wait for d µs.
func (p *process) later(t *task, d int64) {
	p.whileLives(t, d, t.resume)
	t.wait()
}

// whileLives runs f after d µs, unless a task has ended by then.
func (p *process) whileLives(t *task, d int64, f func()) {
	p.w.after(d, func() {
		p.deliver(func() {
			if _, lives := p.tasks[t]; lives {
				f()
			}
		})
	})
}

func (c *client) tell(s *step, g *store.Group, err error) {
	p, op := c.p, &g.Ops[0]
	p.w.Calls++
	if t := p.w.task; t.both {
		t.follow(g, err)
	}
	if p.w.trace != nil {
		p.w.tracef("process %d: %s", p.id, answerText(s, g, err))
	}
	if err != nil {
		return
	}
	if len(g.Ops) == 1 && !op.Allowed && op.Source == store.SourceDenyCache {
		c.checkRefusal(op, g.Hold)
	}
	if c.memory != nil && len(g.Ops) == 1 {
		c.checkAlone(op, g.Hold != nil)
	}
	if !g.Allowed {
		return
	}
	if g.Hold != nil && g.Hold.Repeated {
		if r := c.node.records[g.Hold.ID]; r != nil {
			for _, part := range r.parts {
				if part.grant != nil {
					p.w.heard += part.taken
				}
			}
		}
		return
	}
	for i := range g.Ops {
		if op := &g.Ops[i]; op.Source == store.SourceLease {
			c.useLease(op)
		} else if op.Source == store.SourceStore && op.Verb < store.VerbCharge {
			p.w.heard += op.Took()
		}
	}
}

func answerText(s *step, g *store.Group, err error) string {
	op := &g.Ops[0]
	what := fmt.Sprintf("%s %d of %s %q%s: ", op.Verb, s.cost, op.Def.Name, s.key, s.words())
	if s.kind == holds {
		what = fmt.Sprintf("holds %d of %s %q%s as %s: ", s.cost, s.limit, s.key, s.words(), g.Hold.ID)
	}
	switch {
	case err != nil:
		return what + err.Error()
	case g.Allowed:
		what += fmt.Sprintf("%d, %d left", op.Granted, op.Remaining)
		if op.Delay > 0 {
			what += fmt.Sprintf(", in %.3f ms", float64(op.Delay)/1000)
		}
	case op.Allowed:
		what += "refused by window"
	case op.Never:
		what += "never"
	default:
		what += fmt.Sprintf("refused for %.3f ms", float64(op.Retry)/1000)
	}
	return what + " (" + op.Source.String() + ")"
}

// random returns random numbers that depend on the seed and the step only.
func (w *world) random(step, i int) *rand.Rand {
	return rand.New(rand.NewPCG(w.seed, uint64(step)<<20|uint64(i)+1))
}
