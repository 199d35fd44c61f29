package simulate

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/dipwell/dipwell/internal/breaker"
	"github.com/dipwell/dipwell/internal/denycache"
	"github.com/dipwell/dipwell/internal/fallback"
	"github.com/dipwell/dipwell/internal/lease"
	"github.com/dipwell/dipwell/store"
)

// A process asks the store through decorators of its own.
type process struct {
	w     *world
	id    int
	store store.Store
	defs  map[string]*store.Definition // the limits as it knows them

	drift  int64 // parts per million by which its clocks are fast
	origin int64 // its monotonic clock when the history begins
	skew   int64 // µs that its wall clock is ahead of the true time

	answered int64 // true time: when it last heard an answer of the store
	opened   int64 // true time: when its breaker opened; 0: it is closed

	memory *fallback.Store  // decides while the store does not answer; or nil
	alone  map[string]alone // by key of the limit "hot"

	stopped int64 // true time until which it stands still
	stood   int64 // µs: how long it has stood still, at most
	cut     int64 // true time until which nothing passes between it and the store
	tasks   map[*task]struct{}
	lives   int // how often it has begun
	asks    int // tasks in the background so far
}

// monotonic returns its monotonic clock in µs.
func (p *process) monotonic() int64 { return p.origin + p.w.now + p.w.now*p.drift/1e6 }

// begin starts the process with empty decorators.
func (p *process) begin() {
	p.tasks = map[*task]struct{}{}
	p.defs = map[string]*store.Definition{}
	for _, d := range p.w.node.reg.All() {
		p.defs[d.Name] = d
	}
	p.store = link{p}
	p.opened = 0
	if p.w.guarded {
		p.guard()
	}
	if p.w.cached { // with one set of slots, so that the seed of its hash says nothing about the order in which they are used
		var err error
		if p.store, err = denycache.New(p.store, denycache.Config{Clock: p.monotonic, Keys: 8}); err != nil {
			panic(err)
		}
	}
	p.lives++
	if p.w.leased {
		var err error
		if p.store, err = lease.New(p.store, lease.Config{
			Clock:   func() int64 { return p.monotonic() * 1000 },
			Wall:    func() int64 { return (epoch + p.w.now + p.skew) * 1000 },
			Go:      p.background,
			After:   func(d time.Duration, f func()) { p.unlessCrashed(d.Microseconds()+1, f) },
			Gate:    func() lease.Gate { return &gate{p: p} },
			ID:      func(id *store.Reservation) { p.w.task.identify(id) },
			Stripes: 1, // which processor runs is not in the seed
		}); err != nil {
			panic(err)
		}
	}
	p.close()
	if p.w.local {
		var err error
		if p.memory, err = fallback.New(p.store, fallback.Config{
			MaxKeys: 64, Clock: p.monotonic,
			Wall: func() int64 { return epoch + p.w.now + p.skew },
		}); err != nil {
			panic(err)
		}
		p.store, p.alone = p.memory, map[string]alone{}
	}
}

// close releases memory.
func (p *process) close() {
	if p.memory != nil {
		_ = p.memory.Close()
		p.memory = nil
	}
}

// An alone is what a process knows of a key: the last answer of the store, and the tokens
// that the process granted by itself since.
type alone struct {
	op      store.Op
	ts      int64 // of the row as it knows it; older answers do not count
	granted int64
}

// checkAlone checks that a process which decides alone grants no more than it would know
// to be there, if all of what came back since the store's last answer were its own. A
// thousandth of the time is for the drift of both clocks.
func (p *process) checkAlone(op *store.Op) {
	a := p.alone[op.Key]
	switch op.Source {
	case store.SourceStore:
		if op.Def.OnStoreError == store.FailLocal && op.TS > a.ts {
			p.alone[op.Key] = alone{op: *op, ts: op.TS}
		}
	case store.SourceFallbackLocal:
		a.granted, a.ts = a.granted+op.Granted, max(a.ts, op.TS)
		p.alone[op.Key] = a
		if a.op.Def == nil || p.w.node.backs > 0 {
			return
		}
		r := &op.Def.Rule
		back := float64(op.Def.Rate) * (float64(p.w.node.time()-a.op.TS) + 0.001*float64(p.w.now)) / 1e6
		if free := float64(r.Cap-a.op.Used)/float64(r.Unit) + back + 1; float64(a.granted) > max(free, 0) {
			p.w.fail("alone", "process %d: %d of %s %q were granted without the store, which had %.1f", p.id, a.granted, op.Def.Name, op.Key, free)
		}
	}
}

// guard puts a circuit breaker in front of the store.
func (p *process) guard() {
	var err error
	if p.store, err = breaker.New(p.store, breaker.Config{
		OnChange: p.breaks,
		Clock:    func() time.Duration { return time.Duration(p.monotonic()) * time.Microsecond },
		Go:       p.background,
		After: func(d time.Duration, f func()) func() bool {
			stopped := false
			p.unlessCrashed(d.Microseconds(), func() {
				if !stopped {
					f()
				}
			})
			return func() bool { was := stopped; stopped = true; return !was }
		},
		Sleep: func(_ context.Context, d time.Duration) error {
			p.later(p.w.task, d.Microseconds())
			return nil
		},
	}); err != nil {
		panic(err)
	}
}

// breaks checks that the breaker opens only if nothing has been answered for as long as
// a probe may take, and remembers when it opened.
func (p *process) breaks(why error) {
	if p.opened = 0; why == nil {
		return
	}
	p.opened = p.w.now
	p.w.tracef("process %d: the breaker opens", p.id)
	if p.answered > 0 && p.w.now-p.answered < opensAfter {
		p.w.fail("breaker", "process %d: the breaker opens %d µs after an answer of the store", p.id, p.w.now-p.answered)
	}
}

// checkOpen checks that the breaker fails calls only until the store answers.
func (p *process) checkOpen() {
	if p.opened == 0 || p.answered > p.opened {
		p.w.fail("breaker", "process %d: the breaker fails a call; it opened at %d, and the store has answered at %d", p.id, p.opened, p.answered)
	}
}

// opensAfter is the time in µs for which a probe must have no answer, on a clock that
// is fast.
const opensAfter = 299_800

// background runs f as a task of its own, once whoever calls waits or has ended.
func (p *process) background(f func()) {
	p.unlessCrashed(0, func() {
		p.asks++
		p.w.start(p, p.w.random(1<<30+p.id, p.asks), true, func(*task) { f() })
	})
}

// unlessCrashed runs f some time from now, unless the process has crashed by then.
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

// crash ends all calls, and everything that the process knows.
func (p *process) crash() {
	for t := range p.tasks {
		t.stop()
	}
	p.begin()
}

// deliver runs f as soon as the process does not stand still, unless it has crashed
// by then.
func (p *process) deliver(f func()) {
	if p.stopped > p.w.now {
		p.w.at(p.stopped, func() { p.deliver(f) })
		return
	}
	f()
}

// A link is the store as a process sees it: across a network.
type link struct{ p *process }

// Abilities returns none but the limits.
func (l link) Abilities() store.Abilities { return store.Abilities{Store: l, Limits: l} }

// Registry implements store.Definer.
func (l link) Registry() *store.Registry { return &l.p.w.node.reg }

// Define implements store.Definer.
func (l link) Define(context.Context, store.Limit, string) (*store.Definition, error) {
	return nil, store.ErrNotSupported
}

// Drop implements store.Definer.
func (l link) Drop(context.Context, string, string) error { return store.ErrNotSupported }

// patience is how long a caller waits for an answer, in µs.
const patience = 400_000

// errLate is the error of a call whose answer does not come in time.
var errLate = fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, context.DeadlineExceeded)

// Apply sends the batch to the store, and waits for its answer.
func (l link) Apply(_ context.Context, b *store.Batch) error {
	w, t := l.p.w, l.p.w.task
	m := &message{w: w, t: t, p: l.p, groups: copyGroups(b.Groups)} // the store may decide it after the caller has left
	m.send()
	w.after(patience, func() {
		l.p.deliver(func() { m.answer(nil, errLate) })
	})
	for !m.done {
		t.wait()
	}
	if m.err == nil {
		for i := range b.Groups {
			copyAnswer(&b.Groups[i], &m.reply[i])
		}
	}
	return m.err
}

// copyAnswer copies an answer into the group that was asked, in place.
func copyAnswer(to, from *store.Group) {
	ops, hold := to.Ops, to.Hold
	*to = *from
	if len(ops) > 0 && len(ops) == len(from.Ops) {
		copy(ops, from.Ops)
		to.Ops = ops
	}
	if hold != nil {
		*hold = *from.Hold
		to.Hold = hold
	}
}

func copyGroups(groups []store.Group) []store.Group {
	out := append([]store.Group(nil), groups...)
	for i := range out {
		out[i].Ops = append([]store.Op(nil), out[i].Ops...)
		if h := out[i].Hold; h != nil {
			c := *h
			out[i].Hold = &c
		}
	}
	return out
}

// A message is a batch on its way to the store and back.
type message struct {
	w      *world
	t      *task
	p      *process
	groups []store.Group // as sent
	copies int           // of it that may arrive
	sent   int64         // true time

	sentMono int64 // the sender's monotonic clock
	reply    []store.Group
	done     bool
	err      error
	got      []*grant // by the copy that is being decided
}

// A fate is what happens to one copy of a message, drawn when it is sent.
type fate struct {
	there, back        int64 // µs
	lost, answerIsLost bool
}

func (m *message) send() {
	r, f := m.t.rng, &m.w.faults
	m.copies, m.sent, m.sentMono = 1, m.w.now, m.p.monotonic()
	if f.happens(r, f.duplicates) && !m.t.ask { // nobody may repeat a Refund
		m.copies = 2
	}
	for i := range m.copies {
		x := fate{there: f.delay(r), back: f.delay(r), lost: f.happens(r, f.lost), answerIsLost: f.happens(r, f.lostAnswers)}
		if i > 0 && m.groups[0].ID != (store.Reservation{}) {
			x.there *= 64 // the bucket may have become full in between
		}
		switch {
		case m.p.cut > m.w.now:
			m.w.tracef("process %d: cut off, nothing arrives", m.p.id)
		case x.lost:
			m.w.tracef("process %d: a request is lost", m.p.id)
		default:
			m.w.after(x.there, func() { m.arrive(x, i > 0) })
		}
	}
}

// arrive decides one copy of the message.
func (m *message) arrive(x fate, again bool) {
	w := m.w
	if until := w.faults.stalled; until > w.now {
		w.at(until, func() { m.arrive(x, again) })
		return
	}
	groups := m.groups
	if m.copies > 1 {
		groups = copyGroups(groups)
	}
	if again {
		w.tracef("process %d: the next request is there twice", m.p.id)
	}
	m.got = nil
	for i := range groups {
		w.node.decide(&groups[i], m)
	}
	got := m.got
	lose := func(why string) {
		for _, g := range got {
			if g.fate == "" {
				g.fate = why
				w.tracef("process %d: %d tokens lost: %s", m.p.id, g.taken, why)
			}
		}
	}
	_, lives := m.p.tasks[m.t]
	switch {
	case again:
		lose("request twice")
	case m.done:
		lose("late answer")
	case !lives:
		lose("crash")
	case x.answerIsLost:
		lose("lost answer")
	case m.p.cut > w.now:
		lose("partition")
	default:
		w.after(x.back, func() {
			m.p.deliver(func() {
				if _, lives := m.p.tasks[m.t]; m.done {
					lose("late answer")
				} else if !lives {
					lose("crash")
				} else {
					for _, g := range got {
						if g.fate = heard; m.t.ask {
							g.fate = leased
						}
					}
					m.answer(groups, nil)
				}
			})
		})
	}
}

// answer ends the wait of the task, if it still waits.
func (m *message) answer(groups []store.Group, err error) {
	if _, lives := m.p.tasks[m.t]; !lives || m.done {
		return
	}
	if m.done, m.err = true, err; err == nil {
		if m.reply = groups; groups[0].Err == nil {
			m.p.answered = m.w.now
		}
	}
	m.t.resume()
}

// call makes call i of a step.
func (p *process) call(s *step, i int) {
	p.w.start(p, p.w.random(s.id, i), false, func(t *task) {
		var b store.Batch
		p.batch(s, t, i, &b)
		for try := 0; ; try++ {
			began := p.w.now
			err := p.apply(&b)
			g := &b.Groups[0]
			p.tell(s, g, err)
			if err != nil {
				return
			}
			p.w.checkAnswer(p, g, began)
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

// batch makes b call i of a step.
func (p *process) batch(s *step, t *task, i int, b *store.Batch) {
	g, op := b.Single()
	*op = store.Op{Def: p.definition(s), Key: s.key, Verb: s.verb, Cost: s.cost}
	if s.rests(i) && i == s.n-s.n/3 {
		op.Verb, op.Cost = store.VerbTakeUpTo, 1e6
	}
	if s.both {
		g.Ops = append(g.Ops, store.Op{Def: p.defs["window"], Key: s.key, Verb: s.verb, Cost: 1})
	}
	if s.verb == store.VerbReserve {
		t.identify(&g.ID)
	}
	if s.kind == holds {
		g.Hold = &store.HoldCall{ID: fmt.Sprintf("%d.%d", s.id, i), TTL: s.span}
	}
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
	for range s.times {
		if s.kind != holds {
			p.end(s, store.Group{ID: made.ID, Cancel: true})
			continue
		}
		costs := []int64{s.settle}
		if s.both {
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
	if err := p.apply(&store.Batch{Groups: []store.Group{g}}); err != nil {
		what += ": " + err.Error()
	}
	p.w.tracef("process %d: %s", p.id, what)
}

// definition returns the definition that a call names: the limit, or one of its plans.
func (p *process) definition(s *step) *store.Definition {
	d := p.defs[s.limit]
	if v := d.WithPlan(s.plan); v != nil {
		return v
	}
	return d
}

// apply is Apply of a batch of one group.
func (p *process) apply(b *store.Batch) error {
	err := p.store.Apply(context.Background(), b)
	if errors.Is(err, breaker.ErrOpen) {
		p.checkOpen()
	}
	if err == nil {
		err = b.Groups[0].Err
	}
	var field *store.FieldError // a settle beyond max_charge
	if err != nil && !errors.As(err, &field) && !errors.Is(err, store.ErrStore) && !errors.Is(err, store.ErrReservation) && !errors.Is(err, store.ErrUnknownHold) && !errors.Is(err, store.ErrHoldConflict) {
		p.w.fail("error", "process %d: %v", p.id, err)
	}
	return err
}

// later suspends a task for some time.
func (p *process) later(t *task, d int64) {
	p.w.after(d, func() {
		p.deliver(func() {
			if _, lives := p.tasks[t]; lives {
				t.resume()
			}
		})
	})
	t.wait()
}

// tell writes an answer into the history, and checks it.
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
		p.w.checkRefusal(p, op)
	}
	if p.w.local && len(g.Ops) == 1 {
		p.checkAlone(op)
	}
	if p.w.picture != nil {
		for i := range g.Ops {
			op := &g.Ops[i]
			p.w.picture.tell(at{op.Def.Name, op.Key}, p.w.now, op.Took(), !g.Allowed)
		}
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
			p.w.useLease(p, op)
		} else if op.Source == store.SourceStore && op.Verb < store.VerbCharge {
			p.w.heard += op.Took()
		}
	}
}

func answerText(s *step, g *store.Group, err error) string {
	op := &g.Ops[0]
	what := fmt.Sprintf("%s %d of %s %q%s: ", op.Verb, s.cost, s.limit, s.key, s.words())
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

// random returns randomness that depends on the seed and the step only.
func (w *world) random(step, i int) *rand.Rand {
	return rand.New(rand.NewPCG(w.seed, uint64(step)<<20|uint64(i)+1))
}
