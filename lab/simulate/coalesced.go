package main

import (
	"context"
	"errors"
	"time"

	"github.com/dipwell/dipwell/internal/coalesce"
	"github.com/dipwell/dipwell/store"
)

// In a history that coalesces, a message may contain several callers' calls, and a caller
// may have left when the message is answered. An origin represents a caller's call to the
// coalescer, and knows which tokens were taken for the call.
type origin struct {
	t     *task
	ended bool
	err   error    // error of the call, once it has ended
	taken []*grant // grants that the store made for the call
	told  []*grant // the grants in taken of which the coalescer heard before the call ended
}

// coalesced puts the coalescer in front of the store.
func (c *client) coalesced() {
	p := c.p
	s := must(coalesce.New(store.Lanes{Stores: []store.Store{c.store}}, coalesce.Config{
		MaxBatch: 8, MaxQueue: 32, Timeout: 700 * time.Millisecond, Of: c.store,
		// The deadline is later than any machine's clock, so that no context's deadline
		// passes.
		Clock: func() time.Time { return time.Unix(1<<34, p.monotonic()*1000) },
		Go:    p.background,
		After: func(d time.Duration, f func()) { p.unlessCrashed(d.Microseconds(), f) },
		Gate:  func() coalesce.Gate { return &gate{p: p} },
	}))
	c.store = origins{c, s}
}

// origins is a store that gives each call an origin before it passes the call on.
type origins struct {
	c     *client
	inner *coalesce.Store
}

// Abilities returns the abilities of the coalescer.
func (s origins) Abilities() store.Abilities {
	ab := s.inner.Abilities()
	ab.Store = s
	return ab
}

// Apply gives the batch's groups origins and sends them.
func (s origins) Apply(ctx context.Context, b *store.Batch) error {
	w := s.c.p.w
	list := make([]*origin, len(b.Groups))
	for i := range b.Groups {
		list[i] = &origin{t: w.task}
		w.tag(&b.Groups[i], list[i])
	}
	defer func() {
		for _, o := range list {
			if !o.ended {
				o.end(stopped{})
			}
		}
	}()
	// The deadlines of requests for leases, and of probes, are of the machine's clock: on a slow
	// machine they would pass while the history stands still.
	if _, ends := ctx.Deadline(); ends {
		ctx = context.WithoutCancel(ctx)
	}
	err := s.inner.Apply(ctx, b)
	for i := range b.Groups {
		g := &b.Groups[i]
		for j := range g.Ops {
			if !g.Ops[j].Bounded {
				g.Ops[j].MaxDelay = 0
			}
		}
		if list[i].end(errors.Join(err, g.Err)); err == nil && g.Err == nil {
			s.c.answered = w.now
		}
	}
	return err
}

// tag marks a group so that the store can tell whose it is: by the bound of its delay if
// it has no other bound, and otherwise by its id.
func (w *world) tag(g *store.Group, o *origin) {
	w.tags++
	if w.origins == nil {
		w.origins, w.byID = map[int64]*origin{}, map[store.Reservation]*origin{}
	}
	w.origins[w.tags] = o
	for i := range g.Ops {
		if op := &g.Ops[i]; op.Bounded {
			w.byID[g.ID] = o
		} else {
			op.MaxDelay = w.tags
		}
	}
}

// origin returns the origin of a group, or nil if the history does not coalesce or the
// group has no ops.
func (w *world) origin(g *store.Group) *origin {
	switch {
	case len(g.Ops) == 0:
		return nil
	case g.Ops[0].Bounded:
		return w.byID[g.ID]
	}
	return w.origins[g.Ops[0].MaxDelay]
}

// takes records tokens that the store took for a caller's call.
func (o *origin) takes(g *grant) {
	o.taken = append(o.taken, g)
	o.check()
}

func (o *origin) end(err error) {
	o.ended, o.err = true, err
	o.t.got = o.told
	o.settle()
	o.check()
}

// settle records what became of the tokens of which the coalescer heard.
func (o *origin) settle() {
	for _, g := range o.told {
		switch {
		case errors.Is(o.err, stopped{}):
			g.fate = "crash"
		case o.err != nil:
			g.fate = "caller left"
		case o.t.ask:
			g.fate = leased
		default:
			g.fate = heard
		}
	}
}

// check checks that nothing was taken for a call whose error says so. A hold that was
// made by one copy of a message may have ended when the other copy arrives.
func (o *origin) check() {
	if o.err == nil || len(o.taken) == 0 {
		return
	}
	if !errors.Is(o.err, store.ErrOutcomeUnknown) && !errors.Is(o.err, store.ErrHoldConflict) && !errors.Is(o.err, stopped{}) {
		g := o.taken[0]
		g.node.w.fail("charged", "process %d: %d of %s %q were taken for a call that ended with: %v", g.process, g.taken, g.k.limit, g.k.key, o.err)
	}
}
