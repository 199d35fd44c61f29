package redisstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"

	"github.com/dipwell/dipwell/internal/bounded"
	"github.com/dipwell/dipwell/internal/texts"
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
	setting sync.Mutex                     // of setSlot
	slots   bounded.Map[string, uint16]    // in a cluster: slot by id, also of holds about to be made; severalSlots if holds in several slots have the id
	live    bounded.Map[string, knownHold] // holds that this program can settle without reading them first; another program may have changed them
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

// A knownHold is a hold with its JSON after the field of its expiry.
type knownHold struct {
	store.Hold
	rest string
}

func newKnownHold(h store.Hold) knownHold {
	bare := h
	bare.Forget, bare.Expires = 0, 0
	return knownHold{h, encodeHold(&bare)[1:]}
}

// makeHold makes a hold by hold.lua. If done is false, nothing was done.
func (s *Store) makeHold(ctx context.Context, g *store.Group, known []*entry) (done bool, err error) {
	if g.Hold.Check(g.Ops) != nil { // DecideIn returns this error
		return false, nil
	}
	tag, restore, err := s.openHold(g)
	if err != nil {
		return false, err
	}
	defer restore()
	hold := newKnownHold(g.NewHold(0))
	c, err := s.process(ctx, s.call(ctx, s.scripts.hold, true, s.holdArgs(g, known, tag, hold.rest)))
	if err != nil || c.str() == "" {
		return false, err
	}
	now, err := scriptAnswer(g, c.str(), g.Hold.TTL)
	if err != nil {
		return false, err
	}
	hold.Expires, hold.Forget = now+hold.Expires, now+hold.Forget
	g.Hold.Expires = hold.Expires
	s.holds.live.Put(g.Hold.ID, hold)
	return true, nil
}

// holdArgs returns the arguments of hold.lua. rest is the JSON of the hold after its expiry.
func (s *Store) holdArgs(g *store.Group, known []*entry, tag, rest string) []any {
	n := len(g.Ops)
	args := make([]any, 3, 3+3*n+2)
	for i := range g.Ops {
		args = append(args, known[i].row(g.Ops[i].Key))
	}
	for _, kind := range [...]string{s.names.records, s.names.free} {
		for i := range g.Ops {
			args = append(args, s.names.of(kind, known[i].def.Name, g.Ops[i].Key))
		}
	}
	args[2] = 3*n + 1
	p := make(packed, 0, 128+len(rest)+112*n)
	p.add(g.Hold.TTL, store.ForgetAfter(g.Hold.TTL))
	p.text(holdField+g.Hold.ID, rest, strconv.FormatInt(rand.Int64N(1<<48-1)+1, 10))
	for i := range g.Ops {
		d := known[i].def
		units, room := takeArgs(&g.Ops[i])
		keeps := int64(0)
		if d.KeepExpired {
			keeps = 1
		}
		p.text(known[i].version)
		p.words(slackNone, units, 0, d.Rule.Unit)
		p.add(addOf(d), units, room, refill(d), keeps)
	}
	return append(args, s.names.hold(tag, g.Hold.ID), []byte(p))
}

// settleHold settles a hold by settle.lua. If done is false, nothing was done.
func (s *Store) settleHold(ctx context.Context, g *store.Group) (done bool, err error) {
	tag, restore, err := s.openHold(g)
	if err != nil {
		return false, err
	}
	defer restore()
	if h, known := s.holds.live.Get(g.Hold.ID); known {
		if done, err = s.settle(ctx, g, tag, h); done || err != nil {
			return done, err
		}
	}
	text, err := s.db.Get(ctx, s.names.hold(tag, g.Hold.ID)).Result()
	if err != nil && !missed(err) {
		return false, storeError(err, false)
	}
	h, err := decodeHold(text)
	if err != nil || h.Settled || len(h.Parts) == 0 {
		return false, nil
	}
	return s.settle(ctx, g, tag, newKnownHold(h))
}

// settle calls settle.lua for a hold as this program knows it.
func (s *Store) settle(ctx context.Context, g *store.Group, tag string, h knownHold) (done bool, err error) {
	costs, err := g.Hold.CostsOf(&h.Hold)
	if err != nil { // DecideIn returns the error, if the hold is still there
		return false, nil //nolint:nilerr // the script did nothing
	}
	n := len(h.Parts)
	ops, args := make([]store.Op, n), make([]any, 3, 3+2*n+2)
	p := make(packed, 0, 192+len(h.rest)+176*n)
	p.add(h.Expires, store.ForgetAfter(h.TTL))
	p.text(holdField+g.Hold.ID, settledText(&h, g.Hold.Costs))
	for i := range h.Parts {
		part := &h.Parts[i]
		e := s.settlePart(&h.Hold, part, costs[i], tag, &p)
		if e == nil {
			return false, nil
		}
		ops[i] = store.Op{Def: e.def, Key: part.Key, Cost: costs[i], Takes: part.Takes}
		args = append(args, e.row(part.Key))
	}
	for i := range h.Parts {
		args = append(args, s.names.of(s.names.records, h.Parts[i].Limit, h.Parts[i].Key))
	}
	args[2] = 2*n + 1
	c, err := s.process(ctx, s.call(ctx, s.scripts.settle, true, append(args, s.names.hold(tag, g.Hold.ID), []byte(p))))
	if err != nil || c.str() == "" {
		return false, err
	}
	s.holds.live.Remove(g.Hold.ID)
	g.Ops, g.Hold.Expires = ops, h.Expires
	_, err = scriptAnswer(g, c.str(), store.ForgetAfter(h.TTL))
	return err == nil, err
}

// settledText returns the JSON of a hold that was settled to costs, after the time at which it is
// forgotten.
func settledText(h *knownHold, costs []int64) string {
	b := append(make([]byte, 0, 64+len(h.rest)), `"settled":true,`...)
	if costs != nil {
		b = append(append(append(b, `"costs":`...), texts.Marshal(costs)...), ',')
	}
	b = strconv.AppendInt(append(b, `"expires_us":`...), h.Expires, 10)
	return string(append(append(b, ','), h.rest...))
}

// settlePart adds a part to the arguments of settle.lua, and returns the entry that decides it,
// or nil if settle.lua cannot settle it.
func (s *Store) settlePart(h *store.Hold, part *store.Part, cost int64, tag string, p *packed) (e *entry) {
	if e = s.limits.entry(part.Limit); e != nil && part.Plan != "" {
		e = e.plans[part.Plan]
	}
	if e == nil || !quick(e.def) || part.Free || part.Reset || s.names.elsewhere(tag, part.Limit, part.Key) {
		return nil
	}
	r := &e.def.Rule
	give, charge, ends := max(part.Cost-cost, 0), max(cost-part.Cost, 0), int64(store.MaxInt)
	if e.def.Algorithm == store.Concurrency {
		give, charge = part.Cost, 0
	} else if charge > r.MaxCharge {
		return nil
	}
	if part.Keep {
		ends = h.Forget
	}
	p.text(e.version)
	p.words(slackNone, part.Cost*r.Unit, 0, r.Unit, ends, h.Expires)
	p.add(addOf(e.def), give*r.Unit, charge*r.Unit, r.MaxUsed)
	return e
}

// scriptAnswer sets the answers of a group that a script has allowed, from the rows that
// the script wrote. now is the time of the script, which answers the time that is later by the
// given µs.
func scriptAnswer(g *store.Group, answer string, later int64) (now int64, err error) {
	line, rest, _ := strings.Cut(answer, "\n")
	now, err = strconv.ParseInt(line, 10, 64)
	now, ok := now-later, err == nil
	for i := range g.Ops {
		line, rest, _ = strings.Cut(rest, "\n")
		ok = ok && present(&g.Ops[i], line, now)
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
