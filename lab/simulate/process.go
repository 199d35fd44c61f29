package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"github.com/dipwell/dipwell/internal/away"
	"github.com/dipwell/dipwell/store"
)

// A process calls the store through decorators of its own.
type process struct {
	w     *world
	id    int
	store store.Store
	defs  map[string]*store.Definition // the limits as the process knows them
	usual int64                        // µs that a message usually takes

	answered int64 // true time of the last answer that it got
	opened   int64 // true time at which its breaker opened; 0: it is closed
	cut      int64 // true time until which no message passes between it and the store

	memory *away.Fallback   // decides while the store does not answer; or nil
	alone  map[string]alone // by key of the limit "hot"

	drift  int64 // parts per million by which its clocks are fast
	origin int64 // its monotonic clock when the history begins
	skew   int64 // µs that its wall clock is ahead of the true time

	stopped int64 // true time until which it stands still
	stood   int64 // µs: the longest time that it has stood still
	tasks   map[*task]struct{}
	lives   int // how often it has started
	asks    int // number of background tasks so far
}

// process makes a process.
func (w *world) process(i int) *process {
	p := &process{w: w, id: i, drift: w.drifts[i+1], origin: int64(i+1) * 1e12, usual: w.faults.usual + w.way}
	p.begin()
	return p
}

// begin starts the process with empty decorators.
func (p *process) begin() {
	p.tasks = map[*task]struct{}{}
	p.lives++
	p.connect()
}

// monotonic returns its monotonic clock in µs.
func (p *process) monotonic() int64 { return p.origin + p.w.now + p.w.now*p.drift/1e6 }

// background runs f as a task of its own, once the present task waits or has ended.
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

// deliver runs f once the process does not stand still, unless it has crashed by then.
func (p *process) deliver(f func()) {
	if p.stopped > p.w.now {
		p.w.at(p.stopped, func() { p.deliver(f) })
		return
	}
	f()
}

// call makes call i of a step.
func (p *process) call(s *step, i int) {
	p.w.start(p, p.w.random(s.id, i), false, func(t *task) {
		if s.leave > 0 {
			t.ctx, t.cancel = context.WithCancel(t.ctx)
			p.whileLives(t, s.leave, t.leave)
		}
		var b store.Batch
		p.batch(s, t, i, &b)
		for try := 0; ; try++ {
			if p.ask(s, &b) != nil {
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

// batch sends b as call i of a step.
func (p *process) batch(s *step, t *task, i int, b *store.Batch) {
	g, op := b.Single()
	*op = store.Op{Def: p.definition(s), Key: s.key, Verb: s.verb, Cost: s.cost, Floor: s.floor}
	if s.rests(i) && i == s.n-s.n/3 {
		op.Verb, op.Cost, op.Floor = store.VerbTakeUpTo, 1e6, 0
	}
	if s.both {
		g.Ops = append(g.Ops, store.Op{Def: p.defs[s.second()], Key: s.key, Verb: s.verb, Cost: 1})
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

// ask makes a call, and checks the answer.
func (p *process) ask(s *step, b *store.Batch) error {
	began := p.w.now
	err := p.apply(b)
	if p.tell(s, &b.Groups[0], err); err == nil {
		p.checkAnswer(&b.Groups[0], began)
	}
	return err
}

// identify sets the id of a reservation.
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
		if i > 0 && s.n%2 == 0 { // it is refused, unless the first one did not arrive
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
	b := store.Batch{Groups: []store.Group{g}}
	if err := p.apply(&b); err != nil {
		what += ": " + err.Error()
	} else if p.memory != nil {
		for i := range b.Groups[0].Ops {
			p.checkAlone(&b.Groups[0].Ops[i], true)
		}
	}
	p.w.tracef("process %d: %s", p.id, what)
}

// definition returns the definition that a call names: the limit or one of its plans.
func (p *process) definition(s *step) *store.Definition {
	d := p.defs[s.limit]
	if v := d.WithPlan(s.plan); v != nil {
		return v
	}
	return d
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

// tell records an answer in the history, and checks it.
func (p *process) tell(s *step, g *store.Group, err error) {
	op := &g.Ops[0]
	p.w.calls++
	if p.w.trace != nil {
		p.w.tracef("process %d: %s", p.id, answerText(s, g, err))
	}
	if err != nil {
		return
	}
	if len(g.Ops) == 1 && !op.Allowed && op.Source == store.SourceDenyCache {
		p.checkRefusal(op, g.Hold)
	}
	if p.memory != nil && len(g.Ops) == 1 {
		p.checkAlone(op, g.Hold != nil)
	}
	if !g.Allowed {
		return
	}
	if g.Hold != nil && g.Hold.Repeated {
		if r := p.w.node.records[g.Hold.ID]; r != nil {
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
			p.useLease(op)
		} else if op.Source == store.SourceStore && op.Verb < store.VerbCharge {
			p.w.heard += op.Took()
		}
	}
}

func answerText(s *step, g *store.Group, err error) string {
	op := &g.Ops[0]
	what := fmt.Sprintf("step %d, %s %d of %s %q: ", s.id, op.Verb, op.Cost, op.Def.Name, op.Key)
	switch {
	case err != nil:
		return what + err.Error()
	case !g.Allowed:
		what += fmt.Sprintf("refused for %d µs", op.Retry)
	default:
		what += fmt.Sprintf("%d, %d left, in %d µs", op.Granted, op.Remaining, op.Delay)
	}
	return what + " (" + op.Source.String() + ")"
}

// random returns randomness that depends on the seed and the step only.
func (w *world) random(step, i int) *rand.Rand {
	return rand.New(rand.NewPCG(w.seed, uint64(step)<<20|uint64(i)+1))
}
