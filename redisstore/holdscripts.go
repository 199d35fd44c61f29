package redisstore

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"

	"github.com/dipwell/dipwell/internal/bounded"
	"github.com/dipwell/dipwell/store"
)

// This file makes and settles holds in one call of a script where that is possible. The
// scripts decide and write. Then DecideIn computes the answers from the rows that the
// scripts found.

// found is a store.Table of the rows that a script found. What DecideIn writes into it is
// dropped.
type found struct {
	rows    map[[2]string]store.State
	records map[[2]string][]store.Record
	hold    store.Hold // as Hold returns it; SetHold sets it
}

func (t *found) Row(limit, key string) (store.State, error) {
	return t.rows[[2]string{limit, key}], nil
}
func (t *found) Record(limit, key string, id store.RecordID) (store.Record, error) {
	return store.FindRecord(t.records[[2]string{limit, key}], id), nil
}
func (t *found) Records(limit, key string) ([]store.Record, error) {
	return t.records[[2]string{limit, key}], nil
}
func (t *found) SetRow(string, string, store.State) error                     { return nil }
func (t *found) SetRecord(string, string, store.RecordID, store.Record) error { return nil }
func (t *found) Live(string, string, int64) (int, error)                      { return 0, nil } // counted by the script
func (t *found) Pending(store.Reservation) (store.Pending, error)             { return store.Pending{}, nil }
func (t *found) SetPending(store.Reservation, store.Pending) error            { return nil }
func (t *found) SetOverride(string, string, *store.Override) error            { return nil }
func (t *found) Hold(string) (store.Hold, error)                              { return t.hold, nil }
func (t *found) SetHold(_ string, h store.Hold) error {
	t.hold = h
	return nil
}

// put adds a row. text is the row as the script found it; last is when the last other hold
// expires, or 0. ours are the records that this program knows.
func (t *found) put(d *store.Definition, key, text string, last int64, ours ...store.Record) (ok bool) {
	var row storedRow
	if ok = text == ""; !ok {
		row, ok = parseRow(text)
	}
	if d.Algorithm == store.Concurrency && last > 0 {
		ours = append(ours, store.Record{Hold: "~", Expires: last, Ends: store.MaxInt, Slack: slackNone, Unit: 1})
	}
	if row.Lows != nil {
		row.Lows = row.Lows.Count(ours)
	}
	t.rows[[2]string{d.Name, key}], t.records[[2]string{d.Name, key}] = row.State, ours
	return ok
}

func newFound() *found {
	return &found{rows: map[[2]string]store.State{}, records: map[[2]string][]store.Record{}}
}

// maxHolds bounds the holds whose slots a program remembers, in two generations of this
// size.
const maxHolds = 8192

// knownHolds remembers the slots of the holds that this program has made in a cluster.
type knownHolds struct {
	mu    sync.Mutex
	slots bounded.Map[string, uint16] // by id; severalSlots if holds in several have the id
}

// severalSlots is not a slot.
const severalSlots = slots

// setSlot records the slot of a hold that this program is about to make.
func (k *knownHolds) setSlot(id string, at uint16) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if was, known := k.slots.Get(id); known && was != at {
		at = severalSlots
	}
	k.slots.Put(id, at)
}

// slot returns the slot of a hold that this program may have made.
func (k *knownHolds) slot(id string) (at uint16, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	at, ok = k.slots.Get(id)
	return at, ok && at != severalSlots
}

// quick reports whether hold.lua and settle.lua can compute with the rule of a
// definition.
func quick(d *store.Definition) bool {
	return d.Mode == store.Enforce && d.Override == nil && d.Block == 0 && (d.Rule.Every == 1 && !d.Rule.Leaky || d.Algorithm == store.Concurrency)
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

// addOf returns the units that come back at a tick, or 0 if only holds return them.
func addOf(d *store.Definition) int64 {
	if d.Algorithm == store.Concurrency {
		return 0
	}
	return d.Rule.Add
}

// makeHold makes a hold by hold.lua. If done is false, nothing was done.
func (s *Store) makeHold(ctx context.Context, g *store.Group, known []*entry) (done bool, err error) {
	t, n := s.newTable(), len(g.Ops)
	restore, err := t.openHold(g)
	if err != nil {
		return false, err
	}
	defer restore()
	was := *g.Hold
	empty := newFound() // a store without rows, in which every hold that is possible at all succeeds
	err = g.DecideIn(empty, &s.limits.reg, s.estimateNow())
	allowed := err == nil && g.Allowed
	for i := range g.Ops {
		g.Ops[i].Def, g.Ops[i].Answer = known[i].def, store.Answer{}
	}
	if g.Hold.Expires, g.Hold.Repeated, g.Allowed = was.Expires, was.Repeated, false; !allowed {
		return false, nil
	}
	hold := &empty.hold
	args := make([]any, 3, 3+3*n+1+5+8*n+1)
	for i := range g.Ops {
		args = append(args, known[i].row(g.Ops[i].Key))
	}
	for i := range g.Ops {
		args = append(args, s.names.recordsOf(known[i].def.Name, g.Ops[i].Key))
	}
	for i := range g.Ops {
		args = append(args, s.names.freeSet(known[i].def.Name, g.Ops[i].Key))
	}
	args[2] = 3*n + 1
	args = append(args, s.names.hold(t.tag, g.Hold.ID), n, g.Hold.TTL, g.Hold.ID, fmt.Sprintf(`{"call":%q,"ttl_us":%d,`, hold.Call, hold.TTL), rand.Int64N(1<<48-1)+1)
	for i := range g.Ops {
		units, room := takeArgs(&g.Ops[i])
		keep := ""
		if hold.Parts[i].Keep {
			keep = "k"
		}
		args = append(args, known[i].version, addOf(known[i].def), units, room, refill(known[i].def), keep, known[i].def.Rule.Unit, partTail(hold.Parts[i]))
	}
	c, err := s.process(ctx, newCall(ctx, s.scripts.hold, true, s.withClock(args)))
	if err != nil || c.str() == "" {
		return false, err
	}
	lines := strings.Split(c.str(), "\n")
	now, _, ok := parseTakeOne(lines[0])
	if ok = ok && len(lines) == 1+2*n; ok {
		table := newFound()
		for i := range g.Ops {
			row, _ := parseRow(lines[1+i])
			ok = ok && table.put(known[i].def, g.Ops[i].Key, lines[1+i], row.till)
		}
		err = g.DecideIn(table, &s.limits.reg, now)
	}
	if err != nil || !ok || !g.Allowed {
		return false, badAnswer(c.str(), err)
	}
	s.held.Store(true)
	return true, nil
}

// settleHold settles a hold by settle.lua. If done is false, nothing was done.
func (s *Store) settleHold(ctx context.Context, g *store.Group) (done bool, err error) {
	t := s.newTable()
	restore, err := t.openHold(g)
	if err != nil {
		return false, err
	}
	defer restore()
	name := s.names.hold(t.tag, g.Hold.ID)
	text, err := s.db.Get(ctx, name).Result()
	if err != nil && !missed(err) {
		return false, storeError(err, false)
	}
	empty := newFound()
	h, err := decodeHold(text)
	if empty.hold = h; err != nil || h.Settled || len(h.Parts) == 0 {
		return false, nil
	}
	n := len(h.Parts)
	// This is what DecideIn would store if all rows were full. It has the costs of the
	// parts.
	ops := g.Ops
	was := *g.Hold
	err = g.DecideIn(empty, &s.limits.reg, h.Expires-1)
	g.Ops, g.Hold.Expires, g.Hold.Repeated, g.Allowed = ops, was.Expires, was.Repeated, false
	if err != nil { // an error about the costs
		return false, nil
	}
	settled := empty.hold
	args := make([]any, 3, 3+2*n+1+7+6*n+1)
	rows := make([]any, 0, 6*n)
	records := make([]store.Record, n)
	defs := make([]*store.Definition, n)
	for i := range h.Parts {
		p := &h.Parts[i]
		e := s.limits.entry(p.Limit)
		if e != nil && p.Plan != "" {
			e = e.plans[p.Plan]
		}
		if e == nil || !quick(e.def) || p.Free || p.Reset || t.elsewhere(p.Limit, p.Key) {
			return false, nil
		}
		defs[i] = e.def
		r, cost := &e.def.Rule, settled.Costs[i]
		give, charge := (p.Cost-min(cost, p.Cost))*r.Unit, int64(0)
		if more := max(cost-p.Cost, 0); e.def.Algorithm != store.Concurrency {
			if more > r.MaxCharge {
				return false, nil
			}
			charge = more * r.Unit
		}
		records[i] = store.Record{Number: p.Number, Mark: p.Mark, Units: p.Cost * r.Unit, Unit: r.Unit, Slack: slackNone,
			Ends: store.MaxInt, Hold: g.Hold.ID, Expires: h.Expires}
		if p.Keep {
			records[i].Ends = h.Forget
		}
		args = append(args, e.row(p.Key))
		rows = append(rows, e.version, addOf(e.def), records[i].Units, give, charge, r.MaxUsed)
	}
	for i := range h.Parts {
		args = append(args, s.names.recordsOf(defs[i].Name, h.Parts[i].Key))
	}
	args = append(args, name)
	args[2] = 2*n + 1
	head, tail := settledText(&settled)
	args = append(append(args, n, text, g.Hold.ID, h.Expires, head, settled.Forget-(h.Expires-1), tail), rows...)
	c, err := s.process(ctx, newCall(ctx, s.scripts.settle, true, s.withClock(args)))
	if err != nil || c.str() == "" {
		return false, err
	}
	lines := strings.Split(c.str(), "\n")
	now, _, ok := parseTakeOne(lines[0])
	if ok = ok && len(lines) == 1+2*n; ok {
		table := newFound()
		table.hold = h
		for i := range h.Parts {
			last, _ := strconv.ParseInt(lines[1+n+i], 10, 64)
			ok = ok && table.put(defs[i], h.Parts[i].Key, lines[1+i], last, records[i])
		}
		err = g.DecideIn(table, &s.limits.reg, now)
	}
	if err != nil || !ok {
		return false, badAnswer(c.str(), err)
	}
	return true, nil
}

// badAnswer returns the error for a script's answer that contradicts DecideIn. err is
// DecideIn's error, or nil.
func badAnswer(answer string, err error) error {
	return fmt.Errorf("%w: the script answered %q, and the program refuses: %v", store.ErrOutcomeUnknown, answer, err) //nolint:errorlint // its class is not the store's
}

// partTail returns the JSON of a part after what hold.lua adds itself.
func partTail(p store.Part) string {
	p.Number, p.Mark = 0, 0
	b, err := json.Marshal(storedPart(p))
	if err != nil {
		panic(err) // cannot happen with strings and numbers
	}
	return string(b[1:])
}

// settledText returns the JSON of a hold in two pieces: before and after the time at
// which it may be forgotten.
func settledText(h *store.Hold) (head, tail string) {
	head, tail, _ = strings.Cut(encodeHold(h), `"forget_us":`)
	return head + `"forget_us":`, tail[strings.IndexByte(tail, ','):]
}
