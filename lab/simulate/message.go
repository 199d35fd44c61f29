package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/dipwell/dipwell/store"
)

// A link is the store as a process sees it: across a network. Nothing calls the methods of
// its Definer that change limits.
type link struct {
	store.Definer
	c *client
}

// Abilities returns no ability but the limits, and the ability Holds in histories with both
// holds and leases.
func (l link) Abilities() store.Abilities {
	ab := store.Abilities{Store: l, Limits: l}
	if l.c.p.w.heldHot {
		ab.Holds = l.holds
	}
	return ab
}

// Registry implements store.Definer.
func (l link) Registry() *store.Registry { return &l.c.node.reg }

// patience is how long a caller waits for an answer, in µs.
const patience = 400_000

// errLate is the error of a call whose answer does not come in time.
var errLate = fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, context.DeadlineExceeded)

// Apply sends the batch to the store, and waits for its answer.
func (l link) Apply(_ context.Context, b *store.Batch) error {
	w, t := l.c.p.w, l.c.p.w.task
	if t.stopped { // a coalescer would turn a panic of the store into an error
		panic(stopped{})
	}
	m := &message{w: w, t: t, c: l.c, groups: copyGroups(b.Groups)} // groups are a copy, because the store may decide them after the caller has left
	m.send()
	w.after(patience, func() {
		l.c.p.deliver(func() { m.answer(nil, errLate) })
	})
	t.leaving = func() { m.answer(nil, fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, t.ctx.Err())) }
	for !m.done {
		t.wait()
	}
	t.leaving = nil
	if m.err == nil {
		for i := range b.Groups {
			copyAnswer(&b.Groups[i], &m.reply[i])
		}
	}
	return m.err
}

// copyAnswer copies an answer into the group that was sent, in place.
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
	out := slices.Clone(groups)
	for i := range out {
		out[i].Ops = slices.Clone(out[i].Ops)
		if h := out[i].Hold; h != nil {
			c := *h
			out[i].Hold = &c
		}
	}
	return out
}

type message struct {
	w      *world
	t      *task
	c      *client
	groups []store.Group // as sent
	copies int           // number of copies that may arrive
	sent   int64         // true time

	sentMono int64 // sending time on the sender's monotonic clock
	reply    []store.Group
	done     bool
	err      error
	got      []*grant // grants made by the copy that is being decided
}

// A fate is what happens to one copy of a message, drawn when it is sent.
type fate struct {
	there, back        int64 // µs
	lost, answerIsLost bool
}

func (m *message) send() {
	r, f := m.t.rng, &m.w.faults
	m.copies, m.sent, m.sentMono = 1, m.w.now, m.c.p.monotonic()
	if happens(r, f.duplicates) && !m.once() { // a Refund must not be repeated
		m.copies = 2
	}
	for i := range m.copies {
		x := fate{there: f.delay(r, m.c.usual), back: f.delay(r, m.c.usual), lost: happens(r, f.lost), answerIsLost: happens(r, f.lostAnswers)}
		if i > 0 && m.groups[0].ID != (store.Reservation{}) {
			x.there *= 64 // so late that the bucket may have become full in between
		}
		switch {
		case m.c.cut > m.w.now:
			m.w.tracef("process %d: cut off, nothing arrives", m.c.p.id)
		case x.lost:
			m.w.tracef("process %d: a request is lost", m.c.p.id)
		default:
			m.w.after(x.there, func() { m.arrive(x, i > 0) })
		}
	}
}

// once reports whether the message must not arrive twice.
func (m *message) once() bool {
	return slices.ContainsFunc(m.groups, func(g store.Group) bool { t := m.caller(&g); return t.ask || t.once })
}

// caller returns the task that made the call of a group of the message.
func (m *message) caller(g *store.Group) *task {
	if o := m.w.origin(g); o != nil {
		return o.t
	}
	return m.t
}

func (m *message) arrive(x fate, again bool) {
	w := m.w
	if until := m.c.node.stall; until > w.now {
		w.at(until, func() { m.arrive(x, again) })
		return
	}
	groups := m.groups
	if m.copies > 1 {
		groups = copyGroups(groups)
	}
	if again {
		w.tracef("process %d: the next request is there twice", m.c.p.id)
	}
	m.got = nil
	for i := range groups {
		m.c.node.decide(&groups[i], m)
	}
	got := m.got
	lose := func(why string) {
		for _, g := range got {
			if g.fate == "" {
				g.fate = why
				w.tracef("process %d: %d tokens lost: %s", m.c.p.id, g.taken, why)
			}
		}
	}
	_, lives := m.c.p.tasks[m.t]
	switch {
	case again:
		lose("request twice")
	case m.done:
		lose("late answer")
	case !lives:
		lose("crash")
	case x.answerIsLost:
		lose("lost answer")
	case m.c.cut > w.now:
		lose("partition")
	default:
		w.after(x.back, func() {
			m.c.p.deliver(func() {
				if _, lives := m.c.p.tasks[m.t]; m.done {
					lose("late answer")
				} else if !lives {
					lose("crash")
				} else {
					m.t.got = got
					for _, g := range got {
						if o := g.origin; o != nil {
							if o.told = append(o.told, g); o.ended {
								o.settle()
							}
						} else if g.fate = heard; m.t.ask {
							g.fate = leased
						}
					}
					m.answer(groups, nil)
				}
			})
		})
	}
}

// answer ends the task's wait, if the task still waits.
func (m *message) answer(groups []store.Group, err error) {
	if _, lives := m.c.p.tasks[m.t]; !lives || m.done {
		return
	}
	if m.done, m.err = true, err; err == nil {
		if m.reply = groups; groups[0].Err == nil && !m.w.coalesces {
			m.c.answered = m.w.now
		}
	}
	m.t.resume()
}
