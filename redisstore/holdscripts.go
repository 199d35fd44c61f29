package redisstore

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/dipwell/dipwell/internal/bounded"
	"github.com/dipwell/dipwell/store"
)

// This file makes and settles holds, and takes from buckets with holds, in one call of a
// script where that is possible. The scripts decide and write. Then DecideIn computes the
// answers from the rows that the scripts found.

// found is a store.Table of the rows that a script found. What DecideIn writes into it is
// dropped.
type found struct {
	rows    map[[2]string]store.State
	records map[[2]string][]store.Record
	hold    store.Hold // as Hold returns it; SetHold sets it
}

func (t *found) Row(limit, key string) (store.State, []store.Record, error) {
	row := [2]string{limit, key}
	return t.rows[row], t.records[row], nil
}
func (t *found) SetRow(string, string, store.State, []store.Record) error { return nil }
func (t *found) Pending(store.Reservation) (store.Pending, error)         { return store.Pending{}, nil }
func (t *found) SetPending(store.Reservation, store.Pending) error        { return nil }
func (t *found) SetOverride(string, string, *store.Override) error        { return nil }
func (t *found) FreeHolds(string, string, int64) (int, error)             { return 0, nil } // counted by the script
func (t *found) Hold(string) (store.Hold, error)                          { return t.hold, nil }
func (t *found) SetHold(_ string, h store.Hold) error {
	t.hold = h
	return nil
}

// put adds a row from two lines of a script's reply. text is the row. extra is its list
// of lows, or for a concurrency limit the time at which the last other hold expires. ours
// are the records that this program knows.
func (t *found) put(d *store.Definition, key, text, extra string, ours ...store.Record) (ok bool) {
	var row store.State
	if ok = text == ""; !ok {
		if row, ok = parseRow(text); row.Used == 0 {
			row = store.State{}
		}
	}
	if d.Algorithm == store.Concurrency {
		if last, _ := strconv.ParseInt(extra, 10, 64); last > 0 {
			ours = append(ours, store.Record{Hold: "~", Expires: last, Ends: store.MaxInt, Slack: slackNone, Version: row.Version})
		}
	} else if row.Used > 0 && extra != "" {
		lows, err := parseLows(extra)
		row.Lows, ok = lows, ok && err == nil
	}
	t.rows[[2]string{d.Name, key}], t.records[[2]string{d.Name, key}] = row, ours
	return ok
}

func newFound() *found {
	return &found{rows: map[[2]string]store.State{}, records: map[[2]string][]store.Record{}}
}

// maxHolds bounds the holds that a program remembers in order to settle them in one call,
// and the keys with holds. Both are kept in two generations of this size.
const maxHolds = 8192

// knownHolds remembers the holds that this program has made, by the names of their keys
// in Redis, and which keys of limits have holds, made by any program.
type knownHolds struct {
	mu     sync.Mutex
	byName bounded.Map[string, knownHold]
	held   bounded.Map[[2]string, struct{}]
	keys   atomic.Int64                // in held
	slots  bounded.Map[string, uint16] // by id, in a cluster; severalSlots if holds in several have the id
}

// severalSlots is not a slot.
const severalSlots = slots

func newKnownHolds() *knownHolds {
	return &knownHolds{byName: bounded.Map[string, knownHold]{Most: maxHolds}, held: bounded.Map[[2]string, struct{}]{Most: maxHolds},
		slots: bounded.Map[string, uint16]{Most: maxHolds}}
}

type knownHold struct {
	text     string // as stored
	hold     store.Hold
	versions []uint32 // by part: of its record
}

func (k *knownHolds) put(name string, h knownHold) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.byName.Put(name, h)
}

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

// setHeld records whether a key has holds.
func (k *knownHolds) setHeld(limit, key string, held bool) {
	if !held && k.keys.Load() == 0 {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if row := [2]string{limit, key}; held {
		k.held.Put(row, struct{}{})
	} else {
		k.held.Remove(row)
	}
	k.keys.Store(int64(k.held.Len()))
}

// heldTakes reports whether a group takes from a key that had holds when this program
// last used it. hold.lua then decides the group.
func (k *knownHolds) heldTakes(g *store.Group, known []*entry) (some bool) {
	if k.keys.Load() == 0 || g.Hold != nil {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range g.Ops {
		if op := &g.Ops[i]; op.Verb != store.VerbTake || op.Cost == 0 || !quick(known[i].def) || op.Def.Algorithm == store.Concurrency {
			return false
		}
		if !some {
			_, some = k.held.Get([2]string{g.Ops[i].Def.Name, g.Ops[i].Key})
		}
	}
	return some
}

// get returns a hold. Its parts must not be changed.
func (k *knownHolds) get(name string) (knownHold, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.byName.Get(name)
}

// forget removes a hold that was settled, or that settle.lua can no longer settle.
func (k *knownHolds) forget(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.byName.Remove(name)
}

// quick reports whether hold.lua and settle.lua can compute with the rule of a
// definition.
func quick(d *store.Definition) bool {
	return d.Mode == store.Enforce && d.Override == nil && (d.Rule.Every == 1 && !d.Rule.Leaky || d.Algorithm == store.Concurrency)
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

// makeHold decides a group by hold.lua: takes from buckets that may have holds, and if
// the group makes one, the hold. If done is false, nothing was done.
func (s *Store) makeHold(ctx context.Context, g *store.Group, known []*entry) (done bool, err error) {
	if !quick(known[0].def) {
		return false, nil
	}
	t, n := s.newTable(), len(g.Ops)
	defs := make([]*store.Definition, n)
	for i := range g.Ops {
		defs[i] = known[i].def
	}
	reset := func() {
		for i := range g.Ops {
			g.Ops[i].Def, g.Ops[i].Answer = defs[i], store.Answer{}
		}
	}
	hold, holdKey := store.Hold{}, ""
	if g.Hold != nil {
		restore, err := t.openHold(g)
		if err != nil {
			return false, err
		}
		defer restore()
		was := *g.Hold
		empty := newFound() // a store without rows, in which every hold that is possible at all succeeds
		err = g.DecideIn(empty, &s.limits.reg, s.estimateNow())
		allowed := err == nil && g.Allowed
		reset()
		g.Hold.Expires, g.Hold.Repeated, g.Allowed = was.Expires, was.Repeated, false
		if !allowed {
			return false, nil
		}
		hold, holdKey = empty.hold, s.names.hold(t.tag, g.Hold.ID)
	}
	args := make([]any, 3, 3+3*n+1+5+6*n+1)
	for i := range g.Ops {
		args = append(args, known[i].row(g.Ops[i].Key))
	}
	for i := range g.Ops {
		args = append(args, s.names.recordsOf(defs[i].Name, g.Ops[i].Key))
	}
	mark := rand.Int64N(1<<48-1) + 1
	if args[2] = 2 * n; g.Hold == nil {
		args = append(args, n, 0, "", "", mark)
	} else {
		args[2] = 3*n + 1
		args = append(args, holdKey)
		for i := range g.Ops {
			args = append(args, s.names.freeSet(defs[i].Name, g.Ops[i].Key))
		}
		args = append(args, n, g.Hold.TTL, g.Hold.ID, holdHead(&hold), mark)
	}
	for i := range g.Ops {
		op := &g.Ops[i]
		units, room := takeArgs(op)
		keep, part := "", ""
		if g.Hold != nil {
			part = partTail(hold.Parts[i])
			if hold.Parts[i].Keep {
				keep = "k"
			}
		}
		args = append(args, known[i].version, addOf(defs[i]), units, room, keep, part)
	}
	c, err := s.process(ctx, newCall(ctx, s.scripts.hold, true, s.withClock(args)))
	if err != nil || c.str() == "" {
		for i := range g.Ops {
			s.holds.setHeld(defs[i].Name, g.Ops[i].Key, false)
		}
		return false, err
	}
	lines := strings.Split(c.str(), "\n")
	now, _, ok := parseTakeOne(lines[0])
	if ok = ok && len(lines) == 1+2*n; !ok {
		return false, fmt.Errorf("%w: the script answered %q", store.ErrOutcomeUnknown, c.str())
	}
	table := newFound()
	for i := range g.Ops {
		words := strings.Fields(lines[1+n+i])
		if ok = ok && len(words) == 3; !ok {
			break
		}
		last := ""
		if defs[i].Algorithm == store.Concurrency {
			last = words[2]
		}
		ok = table.put(defs[i], g.Ops[i].Key, lines[1+i], last)
		s.holds.setHeld(defs[i].Name, g.Ops[i].Key, g.Hold != nil || strings.HasPrefix(lines[1+i], heldBegin))
		if g.Hold != nil {
			p := &hold.Parts[i]
			p.Number, _ = strconv.ParseInt(words[0], 10, 64)
			p.Mark, _ = strconv.ParseInt(words[1], 10, 64)
		}
	}
	if err = g.DecideIn(table, &s.limits.reg, now); err != nil || !ok || !g.Allowed {
		return false, badAnswer(c.str(), err)
	}
	if g.Hold != nil {
		s.held.Store(true)
		hold.Expires, hold.Forget = table.hold.Expires, table.hold.Forget
		k := knownHold{text: holdText(&hold), hold: hold}
		for _, d := range defs {
			k.versions = append(k.versions, d.Number)
		}
		s.holds.put(holdKey, k)
	}
	return true, nil
}

// settleHold settles a hold by settle.lua, if this program has made it. If done is
// false, nothing was done.
func (s *Store) settleHold(ctx context.Context, g *store.Group) (done bool, err error) {
	t := s.newTable()
	restore, err := t.openHold(g)
	if err != nil {
		return false, err
	}
	defer restore()
	name := s.names.hold(t.tag, g.Hold.ID)
	k, ok := s.holds.get(name)
	if !ok {
		return false, nil
	}
	h, n := &k.hold, len(k.hold.Parts)
	// This is what DecideIn would store if all rows were full. It has the costs of the
	// parts.
	empty := newFound()
	empty.hold = *h
	ops := g.Ops
	was := *g.Hold
	err = g.DecideIn(empty, &s.limits.reg, h.Expires-1)
	g.Ops, g.Hold.Expires, g.Hold.Repeated, g.Allowed = ops, was.Expires, was.Repeated, false
	if err != nil { // an error about the costs
		return false, nil
	}
	settled := empty.hold
	args := make([]any, 3, 3+2*n+1+6+7*n+1)
	rows := make([]any, 0, 7*n)
	records := make([]store.Record, n)
	defs := make([]*store.Definition, n)
	for i := range h.Parts {
		p := &h.Parts[i]
		e := s.limits.entry(p.Limit)
		if e != nil && p.Plan != "" {
			e = e.plans[p.Plan]
		}
		if e == nil || !quick(e.def) || e.def.Number != k.versions[i] || p.Free || t.elsewhere(p.Limit, p.Key) {
			s.holds.forget(name)
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
		records[i] = store.Record{Number: p.Number, Mark: p.Mark, Units: p.Cost * r.Unit, Slack: slackNone, Version: e.def.Number,
			Ends: store.MaxInt, Hold: g.Hold.ID, Expires: h.Expires}
		if p.Keep {
			records[i].Ends = h.Expires
		}
		args = append(args, e.row(p.Key))
		rows = append(rows, e.version, addOf(e.def), holdField+join([]int64{p.Number, p.Mark}), records[i].Units, give, charge, r.MaxUsed)
	}
	for i := range h.Parts {
		args = append(args, s.names.recordsOf(defs[i].Name, h.Parts[i].Key))
	}
	args = append(args, name)
	args[2] = 2*n + 1
	head, tail := settledText(&settled)
	args = append(append(args, n, k.text, h.Expires, head, settled.Forget-(h.Expires-1), tail), rows...)
	c, err := s.process(ctx, newCall(ctx, s.scripts.settle, true, s.withClock(args)))
	if err != nil {
		return false, err
	}
	if s.holds.forget(name); c.str() == "" {
		return false, nil
	}
	lines := strings.Split(c.str(), "\n")
	now, _, ok := parseTakeOne(lines[0])
	if ok = ok && len(lines) == 1+2*n; ok {
		table := newFound()
		table.hold = *h
		for i := range h.Parts {
			ok = ok && table.put(defs[i], h.Parts[i].Key, lines[1+i], lines[1+n+i], records[i])
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

// holdHead and partTail return the parts of a hold's JSON around what hold.lua adds
// itself.
func holdHead(h *store.Hold) string {
	return fmt.Sprintf(`{"call":%q,"ttl_us":%d,`, h.Call, h.TTL)
}

func partTail(p store.Part) string {
	p.Number, p.Mark = 0, 0
	b, err := json.Marshal(storedPart(p))
	if err != nil {
		panic(err) // cannot happen with strings and numbers
	}
	return string(b[1:])
}

// holdText returns the JSON of a hold as hold.lua writes it.
func holdText(h *store.Hold) string {
	parts := make([]string, len(h.Parts))
	for i, p := range h.Parts {
		parts[i] = fmt.Sprintf(`{"number":%d,"mark":%d,`, p.Number, p.Mark) + partTail(p)
	}
	return holdHead(h) + fmt.Sprintf(`"expires_us":%d,"forget_us":%d,"parts":[`, h.Expires, h.Forget) + strings.Join(parts, ",") + "]}"
}

// settledText returns the JSON of a hold in two pieces: before and after the time at
// which it may be forgotten.
func settledText(h *store.Hold) (head, tail string) {
	head, tail, _ = strings.Cut(encodeHold(h), `"forget_us":`)
	return head + `"forget_us":`, tail[strings.IndexByte(tail, ','):]
}
