package redisstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"

	"github.com/dipwell/dipwell/internal/bounded"
	"github.com/dipwell/dipwell/store"
)

// This file makes and settles holds in one call of a script where that is possible. The
// scripts decide and write. Under the id of a hold they store what DecideIn would store if
// all rows were full.

// maxHolds bounds the holds that a program remembers, about 400 bytes each, in two
// generations of this size.
const maxHolds = 8192

// knownHolds remembers holds that this program has made, by their ids.
type knownHolds struct {
	setting sync.Mutex                      // of setSlot
	slots   bounded.Map[string, uint16]     // in a cluster: slot by id, also of holds about to be made; severalSlots if holds in several slots have the id
	live    bounded.Map[string, store.Hold] // holds that this program can settle without reading them first; another program may have changed them
}

// severalSlots marks an id that has holds in several slots.
const severalSlots = slots

// setSlot records the slot of a hold that this program is about to make.
func (k *knownHolds) setSlot(id string, at uint16) {
	k.setting.Lock()
	defer k.setting.Unlock()
	if was, known := k.slots.Get(id); known && was != at {
		at = severalSlots
	}
	k.slots.Put(id, at)
}

// quick reports whether hold.lua and settle.lua can compute with a definition's rule.
func quick(d *store.Definition) bool {
	return d.Mode == store.Enforce && d.Override == nil && d.Block == 0 && (d.Rule.Every == 1 && !d.Rule.Leaky || d.Algorithm == store.Concurrency)
}

// addOf returns the units that come back at a tick, or 0 if only holds return them.
func addOf(d *store.Definition) int64 {
	if d.Algorithm == store.Concurrency {
		return 0
	}
	return d.Rule.Add
}

// canHold reports whether hold.lua can decide a group that makes a hold.
func canHold(g *store.Group, known []*entry) bool {
	if g.Hold == nil || g.Hold.Verb != store.MakeHold {
		return false
	}
	for i := range g.Ops {
		if op := &g.Ops[i]; op.Verb != store.VerbTake || op.Cost == 0 || !quick(known[i].def) {
			return false
		}
	}
	return len(g.Ops) > 0
}

// makeHold makes a hold by hold.lua. If done is false, nothing was done.
func (s *Store) makeHold(ctx context.Context, g *store.Group, known []*entry) (done bool, err error) {
	if g.Hold.Check(g.Ops) != nil { // DecideIn returns this error
		return false, nil
	}
	t := s.newTable()
	restore, err := t.openHold(g)
	if err != nil {
		return false, err
	}
	defer restore()
	hold := g.NewHold(0)
	args := t.holdArgs(g, known, hold)
	c, err := s.process(ctx, s.call(ctx, s.scripts.hold, true, args))
	if err != nil || c.str() == "" {
		return false, err
	}
	now, err := scriptAnswer(g, c.str())
	if err != nil {
		return false, err
	}
	hold.Expires, hold.Forget = now+hold.Expires, now+hold.Forget
	g.Hold.Expires = hold.Expires
	s.holds.live.Put(g.Hold.ID, hold)
	return true, nil
}

// holdArgs returns the arguments of hold.lua. hold has times as if it was made at time 0.
func (t *table) holdArgs(g *store.Group, known []*entry, hold store.Hold) []any {
	s, n := t.s, len(g.Ops)
	args := make([]any, 3, 3+3*n+1+3+1)
	for i := range g.Ops {
		args = append(args, known[i].row(g.Ops[i].Key))
	}
	for i := range g.Ops {
		args = append(args, s.names.of(s.names.records, known[i].def.Name, g.Ops[i].Key))
	}
	for i := range g.Ops {
		args = append(args, s.names.of(s.names.free, known[i].def.Name, g.Ops[i].Key))
	}
	args[2] = 3*n + 1
	numbers := newPacked(27 + 63*n)
	numbers.add(g.Hold.TTL, store.ForgetAfter(g.Hold.TTL), rand.Int64N(1<<48-1)+1)
	for i := range g.Ops {
		d := known[i].def
		units, room := takeArgs(&g.Ops[i])
		keeps := int64(0)
		if d.KeepExpired {
			keeps = 1
		}
		numbers.add(int64(d.Number), addOf(d), units, room, refill(d), keeps, d.Rule.Unit)
	}
	return append(args, s.names.hold(t.tag, g.Hold.ID), holdField+g.Hold.ID, holdText(hold, 2), numbers.array(&packed{}))
}

// settleHold settles a hold by settle.lua. If done is false, nothing was done.
func (s *Store) settleHold(ctx context.Context, g *store.Group) (done bool, err error) {
	t := s.newTable()
	restore, err := t.openHold(g)
	if err != nil {
		return false, err
	}
	defer restore()
	if h, known := s.holds.live.Get(g.Hold.ID); known {
		if done, err = t.settle(ctx, g, h); done || err != nil {
			return done, err
		}
	}
	text, err := s.db.Get(ctx, s.names.hold(t.tag, g.Hold.ID)).Result()
	if err != nil && !missed(err) {
		return false, storeError(err, false)
	}
	h, err := decodeHold(text)
	if err != nil || h.Settled || len(h.Parts) == 0 {
		return false, nil
	}
	return t.settle(ctx, g, h)
}

// settle calls settle.lua for a hold as this program knows it.
func (t *table) settle(ctx context.Context, g *store.Group, h store.Hold) (done bool, err error) {
	costs, err := g.Hold.CostsOf(&h)
	if err != nil { // DecideIn returns the error, if the hold is still there
		return false, nil //nolint:nilerr // the script did nothing
	}
	s, n := t.s, len(h.Parts)
	ops := make([]store.Op, n)
	args, records := make([]any, 3, 3+2*n+1+3+n+1), make([]any, n)
	numbers := newPacked(18 + 45*n)
	numbers.add(h.Expires, store.ForgetAfter(h.TTL))
	for i := range h.Parts {
		p := &h.Parts[i]
		e, record := t.settlePart(&h, p, costs[i], numbers)
		if e == nil {
			return false, nil
		}
		ops[i] = store.Op{Def: e.def, Key: p.Key, Cost: costs[i], Takes: p.Takes}
		args, records[i] = append(args, e.row(p.Key)), record
	}
	for i := range h.Parts {
		args = append(args, s.names.of(s.names.records, h.Parts[i].Limit, h.Parts[i].Key))
	}
	args[2] = 2*n + 1
	h.Settled, h.Costs = true, g.Hold.Costs
	args = append(args, s.names.hold(t.tag, g.Hold.ID), holdField+g.Hold.ID, holdText(h, 1), numbers.array(&packed{}))
	c, err := s.process(ctx, s.call(ctx, s.scripts.settle, true, append(args, records...)))
	if err != nil || c.str() == "" {
		return false, err
	}
	s.holds.live.Remove(g.Hold.ID)
	g.Ops, g.Hold.Expires = ops, h.Expires
	_, err = scriptAnswer(g, c.str())
	return err == nil, err
}

// settlePart adds the numbers of a part to those for settle.lua. settlePart returns the
// entry that decides the part, or nil if settle.lua cannot settle it, and the text of its
// record after number and mark: see recordText.
func (t *table) settlePart(h *store.Hold, p *store.Part, cost int64, numbers *packed) (e *entry, record string) {
	if e = t.s.limits.entry(p.Limit); e != nil && p.Plan != "" {
		e = e.plans[p.Plan]
	}
	if e == nil || !quick(e.def) || p.Free || p.Reset || t.elsewhere(p.Limit, p.Key) {
		return nil, ""
	}
	r := &e.def.Rule
	give, charge, ends := max(p.Cost-cost, 0), max(cost-p.Cost, 0), int64(store.MaxInt)
	if e.def.Algorithm == store.Concurrency {
		give, charge = p.Cost, 0
	} else if charge > r.MaxCharge {
		return nil, ""
	}
	if p.Keep {
		ends = h.Forget
	}
	numbers.add(int64(e.def.Number), addOf(e.def), give*r.Unit, charge*r.Unit, r.MaxUsed)
	return e, join([]int64{slackNone, p.Cost * r.Unit, 0, ends, r.Unit, h.Expires})
}

// scriptAnswer sets the answers of a group that a script has allowed, from the rows that
// the script wrote. now is the time of the script.
func scriptAnswer(g *store.Group, answer string) (now int64, err error) {
	lines := strings.Split(answer, "\n")
	now, _, ok := clockOf(lines[0])
	ok = ok && len(lines) == 1+len(g.Ops)
	for i := range g.Ops {
		ok = ok && present(&g.Ops[i], lines[1+i], now)
	}
	if g.Allowed, g.Reserved, g.Hold.Repeated = ok, false, false; !ok {
		err = fmt.Errorf("%w: the script answered %q", store.ErrOutcomeUnknown, answer)
	}
	return now, err
}

// present sets the answer of an op that was granted, from its row after the script.
func present(op *store.Op, text string, now int64) bool {
	row, ok := parseRow(text)
	look := store.Op{Def: op.Def, Key: op.Key, Verb: store.VerbCheck}
	_, _, err := look.Step(now, row.State, true)
	a := &look.Answer
	if op.Def.Algorithm == store.Concurrency {
		a.Reset = max(row.till-now, 0)
	}
	op.Answer = store.Answer{Allowed: true, Granted: op.Cost, Remaining: a.Remaining, Reset: a.Reset, Used: a.Used, TS: a.TS}
	return ok && err == nil
}

// holdText returns the JSON of a hold after its first fields.
func holdText(h store.Hold, fields int) string {
	text := encodeHold(&h)
	for range fields {
		_, text, _ = strings.Cut(text, ",")
	}
	return text
}
