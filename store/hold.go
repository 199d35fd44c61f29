package store

import (
	"cmp"
	"context"
	"errors"
	"hash/maphash"
	"math/bits"
	"slices"

	"github.com/dipwell/dipwell/internal/terms"
)

// A HoldVerb is what a HoldCall does.
type HoldVerb uint8

const (
	// MakeHold takes tokens, all or nothing, until they are settled or the hold expires. The
	// same call with the same id is answered as Repeated while the hold lives.
	MakeHold HoldVerb = iota
	// SettleHold gives back or charges, once, the difference between what was held and the
	// actual cost. The same costs again are answered as Repeated; others are ErrHoldConflict.
	// Of an expired hold that is not forgotten the costs are charged, except that a part that
	// kept its tokens is settled like one in time.
	SettleHold
	// ExtendHold moves the expiry to TTL from now, sooner or later than it was. A hold that
	// has ended is ErrHoldConflict.
	ExtendHold
)

// A HoldCall makes its Group a call about a hold. To make a hold, the ops of the group
// are VerbTake. To settle or extend a hold, the group has no ops, and the store sets
// them: one for each part of the hold, with Def, Key, Takes, Cost, Granted, and the
// present state of its row.
//
//	hold := &store.HoldCall{Verb: store.MakeHold, ID: "job-81", TTL: 60e6} // one minute
//	g := store.Group{Hold: hold, Ops: []store.Op{{Def: def, Key: "user:7", Verb: store.VerbTake, Cost: 100}}}
//	… // Apply; if g.Allowed, do the work
//	g = store.Group{Hold: &store.HoldCall{Verb: store.SettleHold, ID: hold.ID, Costs: []int64{73}}}
//	… // Apply; 27 tokens are given back
type HoldCall struct {
	Verb HoldVerb
	// ID is 1 to 64 bytes of printable ASCII without spaces, different for all holds of a
	// store. MakeHold may set another ID, by which the hold is then settled and
	// extended. Whoever knows an id can settle the hold: if others must not, use a random id. An
	// id derived from the work, such as a job's number, makes a repeated call the same hold.
	ID string
	// TTL is the time in µs from now until the hold expires, from 1 ms to the TTL of each
	// of its limits, which is a day by default. MakeHold and ExtendHold use it.
	TTL int64
	// Costs are what SettleHold settles to, in tokens, 0 to MaxInt: one for each take of
	// the hold, in the order of its call; nil is what was held. A cost above what is held is
	// charged, up to Definition.MostCharge. A higher one is a *FieldError that names the
	// largest possible cost, and the hold stays; so is a wrong number of Costs.
	Costs []int64

	// Expires is set by the store: µs since the Unix epoch, on the store's clock.
	Expires int64
	// Repeated is set by the store if the same call was made before, so that nothing was
	// changed now. The program must not do the work of the hold again.
	Repeated bool
}

// Settles reports whether the group settles or extends a hold, so that the store sets
// its ops.
func (g *Group) Settles() bool { return g.Hold != nil && g.Hold.Verb != MakeHold }

var (
	// ErrUnknownHold: there is no hold with this id, or its record is gone: it is kept for its
	// ttl after its end, from a minute to an hour, unless a store of bounded memory needs the
	// room. SettleHold and ExtendHold return it; nothing was changed.
	ErrUnknownHold = errors.New("unknown hold")
	// ErrHoldConflict: MakeHold returns it for an id that is in use by another call, SettleHold
	// for costs that differ from those before, ExtendHold for a hold that has ended. Nothing
	// was changed.
	ErrHoldConflict = errors.New("the hold has ended, or was made or settled by another call")
)

// A Hold is what a store keeps under the id of a hold, until Forget. The zero Hold
// means that there is none. A stored Hold is never changed in place.
type Hold struct {
	// Forget is when the store may delete the hold, in µs since the Unix epoch: see
	// ForgetAfter. Until then a repeated settle is answered.
	Forget int64 `json:"forget_us"`
	// Expires is in µs since the Unix epoch. From Expires on, the first call on a part's
	// key, or the sweep, gives the part back.
	Expires int64 `json:"expires_us"`
	// TTL is the ttl of the call that made the hold, in µs; extending does not change it.
	TTL int64 `json:"ttl_us"`
	// Settled is set once the hold was settled; expiry does not set it.
	Settled bool `json:"settled,omitempty"`
	// Costs are what the hold was settled to, as in HoldCall; nil until then.
	Costs []int64 `json:"costs,omitempty"`
	// Parts are in the order of the ops that made the hold. A part whose limit was
	// dropped stays, and is left out of answers.
	Parts []Part `json:"parts"`
}

// A Part is what a reservation or a hold took from one key. Its Record is on the row of
// the key and, for a hold, has the id of the hold. For a reservation only Limit, Key,
// Number and Mark are set.
type Part struct {
	Limit  string `json:"limit"`
	Key    string `json:"key,omitempty"`    // "" is the shared bucket
	Plan   string `json:"plan,omitempty"`   // plan that the call named
	Number int64  `json:"number,omitempty"` // number of the part's Record, whose list has the Mark; 0: the part has no Record
	Mark   int64  `json:"mark,omitempty"`
	Cost   int64  `json:"cost"`            // tokens
	Floor  int64  `json:"floor,omitempty"` // tokens that the call left free
	Takes  uint16 `json:"takes,omitempty"` // bits of the call's takes, as in Op
	Free   bool   `json:"free,omitempty"`  // it took nothing: its cost is 0, or the plan is unlimited, or shadow mode would have refused; settling it charges nothing
	Keep   bool   `json:"keep,omitempty"`  // nothing is given back when the hold expires, but its Record stays
	Reset  bool   `json:"reset,omitempty"` // a Reset of the key ended the part
}

// An Overrider keeps overrides. Its methods take base definitions.
type Overrider interface {
	// SetOverride sets an override of a key from now on, in place of the one of its kind, and
	// returns it with its ID, Version and what it Replaced. The row of the key is converted in
	// the same step, so that the override decides the next call of any program. The error wraps
	// ErrStore or ErrUnknownLimit, or is that of Definition.CheckOverride, which
	// Definition.SetOverrideIn calls.
	SetOverride(ctx context.Context, d *Definition, o Override) (Override, error)
	// EndOverride ends an override of a key now, converts the row in the same step, and returns
	// the override, or nil if the key has none of this kind that is in force. The error wraps
	// ErrStore or ErrUnknownLimit.
	EndOverride(ctx context.Context, d *Definition, key string, kind OverrideKind) (ended *Override, err error)
	// Overrides returns live overrides for at most n keys of a limit, in byte order of the
	// keys, those that begin with prefix and follow the key after, as Abilities.Keys returns
	// keys; for each key it returns the override that decides.
	Overrides(ctx context.Context, d *Definition, prefix, after string, n int) ([]Override, error)
}

// A KeyHold is the part of a live hold that is on one key. A hold over several keys has
// one for each, with the same ID and Expires.
type KeyHold struct {
	// ID is the id for settling and extending the hold.
	ID string
	// Tokens is how many tokens of the key the hold took.
	Tokens int64
	// Expires is in µs since the Unix epoch, on the store's clock.
	Expires int64
}

// KeyHolds returns the live holds of a key at now, in µs, from its records. The hold
// that expires first comes first.
func KeyHolds(rs []Record, now int64) (list []KeyHold) {
	for _, r := range rs {
		if r.holds(now) {
			list = append(list, KeyHold{r.Hold, r.Units / r.Unit, r.Expires})
		}
	}
	slices.SortFunc(list, func(a, b KeyHold) int {
		return cmp.Or(cmp.Compare(a.Expires, b.Expires), cmp.Compare(a.ID, b.ID))
	})
	return list
}

// holds reports whether a record belongs to a hold that is live at now.
func (r *Record) holds(now int64) bool { return r.Hold != "" && !r.Rest && r.Expires > now }

// expired reports whether a record belongs to a hold that has expired at now, so that it
// must be given back.
func (r *Record) expired(now int64) bool {
	return r.Hold != "" && !r.Rest && r.Ends == MaxInt && r.Expires <= now
}

// minForget and maxForget are the least and the longest time for which the record of an
// ended hold stays, in µs. An hour is long enough for any repeated call.
const minForget, maxForget = int64(60e6), int64(3600e6)

// ForgetAfter returns for how long the record of a hold stays after the hold has ended.
func ForgetAfter(ttl int64) int64 { return min(max(ttl, minForget), maxForget) }

// forget returns the time at which a hold that ends at the time end is forgotten.
func (h *Hold) forget(end int64) int64 { return end + ForgetAfter(h.TTL) }

// recordEnds returns Ends of a record of the hold whose part has keep.
func (h *Hold) recordEnds(keep bool) int64 {
	if keep {
		return h.Forget
	}
	return MaxInt
}

// live reports whether a hold lives at now: it was not settled, has not expired, and
// has a part that was not reset.
func (h *Hold) live(now int64) bool {
	return !h.Settled && h.Expires > now && slices.ContainsFunc(h.Parts, func(p Part) bool { return !p.Reset })
}

// CountFree returns how many live holds have a part of a key that is Free, for a Table that
// has all holds in a map.
func CountFree(holds map[string]Hold, limit, key string, now int64) (n int) {
	for _, h := range holds {
		if h.Settled || h.Expires <= now {
			continue
		}
		for i := range h.Parts {
			if p := &h.Parts[i]; p.Free && p.Limit == limit && p.Key == key {
				n++
			}
		}
	}
	return n
}

// takes returns how many takes the call of a hold had.
func (h *Hold) takes() int {
	var all uint16
	for i := range h.Parts {
		all |= h.Parts[i].Takes
	}
	return bits.Len16(all)
}

// names reports whether r is the record of part p of the hold with the given id,
// or of a reservation if id is "".
func (p *Part) names(r Record, id string) bool {
	return r.Hold == id && r.Number == p.Number && r.Mark == p.Mark && !r.Rest
}

// holdRecord returns a record of what op took for the hold with an id, and adds it to the
// Lows of row, which is the row that Step returned. now is the time of the decision, in µs.
func (op *Op) holdRecord(row *State, id string, h *Hold, now int64) Record {
	mark := holdMark(id, now)
	r := Record{Number: 1, Mark: mark, Units: op.Granted, Unit: 1, Slack: -1, Due: now}
	if op.Def.Algorithm != Concurrency {
		r = op.record(row, mark, now)
	}
	r.Hold, r.Expires, r.Ends = id, h.Expires, h.recordEnds(op.Def.KeepExpired)
	if row.Lows != nil {
		row.Lows.add(&r)
	}
	return r
}

var markSeed = maphash.MakeSeed()

// holdMark returns the Mark of Lows whose first record belongs to the hold with an id,
// made at now.
func holdMark(id string, now int64) int64 {
	return int64((maphash.String(markSeed, id) + uint64(now)) & (1<<48 - 1))
}

// CheckVerb checks that a verb, or with hold the making of a hold, is possible on the
// limit: a concurrency limit has only Check, Reset and holds, a leaky bucket has no
// holds, a sliding window has neither holds nor Reserve, a limit with shards has only Take,
// TakeUpTo, Check and Reset, and an adaptive one only Take, Check and Reset. The error is a
// *FieldError of the field "limit", or of "verb" if v is not a Verb. DecideIn checks again
// what the caller has checked, because the limit may have changed since.
func (d *Definition) CheckVerb(v Verb, hold bool) error {
	switch {
	case v > VerbReset:
		return badField("verb", "%d is not a verb", uint8(v))
	case hold && d.Rule.Leaky:
		return badField("limit", "%s is a leaky bucket, which cannot be held", d.Name)
	case d.Adaptive.Floor > 0 && (hold || v != VerbTake && v != VerbCheck && v != VerbReset):
		return badField("limit", "%s is adaptive; only take, check and reset are possible", d.Name)
	case d.Shards > 1 && hold:
		return badField("limit", "%s has shards; only take, take_up_to, check and reset are possible, not hold", d.Name)
	case d.Shards > 1 && v >= VerbReserve && v != VerbReset:
		return badField("limit", "%s has shards; only take, take_up_to, check and reset are possible, not %s", d.Name, v)
	case d.Rule.Sliding && (hold || v == VerbReserve):
		return badField("limit", "%s is a sliding window, which has neither reservations nor holds", d.Name)
	case d.Algorithm == Concurrency && !hold && v != VerbCheck && v != VerbReset:
		return badField("limit", "%s counts what is held; only hold, check and reset are possible, not %s", d.Name, v)
	}
	return nil
}

// Check checks the call, with the ops of the group if it makes a hold: the ID is 1 to 64
// bytes of printable ASCII without spaces, TTL is from 1 ms to the TTL of each limit, each
// limit can be held, and not all costs are 0. Costs of a settle are 0 to MaxInt. The error is a
// *FieldError of the field "id", "ttl", "limit", "cost" or "costs[0]". A Limiter checks its
// calls; a store whose limits others may change meanwhile checks them again, as DecideIn does.
func (c *HoldCall) Check(ops []Op) error {
	if err := checkHoldID(c.ID); err != nil {
		return err
	}
	if c.Verb == SettleHold {
		for i, cost := range c.Costs {
			if cost < 0 || cost > MaxInt {
				return badField(costField(len(c.Costs), i), "%d is not between 0 and 2^53-1", cost)
			}
		}
		return nil
	}
	free := len(ops) > 0
	for i := range ops {
		d := ops[i].Def
		free = free && ops[i].Cost == 0
		if c.Verb == MakeHold {
			if err := d.CheckVerb(ops[i].Verb, true); err != nil {
				return err
			}
		}
		if err := d.checkTTL(c.TTL); err != nil {
			return err
		}
	}
	if c.Verb == MakeHold && free {
		return badField("cost", "is 0 for every limit of the hold; a hold takes at least 1 token of one of them")
	}
	return nil
}

func checkHoldID(id string) error {
	switch {
	case id == "":
		return badField("id", "is missing")
	case len(id) > terms.MaxHoldID:
		return badField("id", "has %d bytes; at most %d", len(id), terms.MaxHoldID)
	}
	for i := range len(id) {
		if id[i] <= ' ' || id[i] > '~' {
			return badField("id", "%q has other characters than printable ASCII without spaces", id)
		}
	}
	return nil
}

// checkTTL checks that a limit allows holds with this ttl, in µs.
func (d *Definition) checkTTL(ttl int64) error {
	switch most := cmp.Or(d.TTL, terms.DefaultHoldTTL); {
	case ttl < terms.MinHoldTTL.Microseconds():
		return badField("ttl", "%d µs is less than %v", ttl, terms.MinHoldTTL)
	case ttl > most.Microseconds():
		return badField("ttl", "is longer than limit %s lets a hold be, %v", d.Name, most)
	}
	return nil
}

// MadeBy reports whether a call like that of the group, which makes a hold, made h.
func (h *Hold) MadeBy(g *Group) bool {
	return h.TTL == g.Hold.TTL && slices.EqualFunc(h.Parts, g.NewHold(0).Parts, func(p, q Part) bool {
		q.Number, q.Mark, q.Free, q.Keep, q.Reset = p.Number, p.Mark, p.Free, p.Keep, p.Reset
		return p == q
	})
}

// setTakes sets the field Takes of ops that have none, so that each op is a take.
func (g *Group) setTakes() {
	for i := range g.Ops {
		if op := &g.Ops[i]; op.Takes == 0 {
			op.Takes = 1 << i
		}
	}
}

// NewHold returns the hold that the group, whose ops were checked, makes at now, in µs, if all
// ops are granted and none is free: still without records. NewHold sets the Takes of the ops.
func (g *Group) NewHold(now int64) Hold {
	g.setTakes()
	h := Hold{TTL: g.Hold.TTL, Expires: now + g.Hold.TTL, Parts: make([]Part, len(g.Ops))}
	h.Forget = h.forget(h.Expires)
	for i := range g.Ops {
		op := &g.Ops[i]
		h.Parts[i] = Part{Limit: op.Def.Name, Key: op.Key, Plan: cmp.Or(op.Asked, op.Def).Plan, Cost: op.Cost, Floor: op.Floor, Takes: op.Takes, Keep: op.Def.KeepExpired}
	}
	return h
}

// repeat answers a call that makes a hold, if a hold with its id exists.
func (g *Group) repeat(t Table, now int64) (done bool, err error) {
	g.setTakes()
	h, err := t.Hold(g.Hold.ID)
	if err != nil || len(h.Parts) == 0 || h.Forget <= now {
		return false, err
	}
	if !h.MadeBy(g) {
		return false, ErrHoldConflict
	}
	for i := range g.Ops {
		op := &g.Ops[i]
		var e entry
		if err = e.read(t, op.Def, op.Key, now); err != nil {
			return false, err
		}
		e.noteReset(&h, i, g.Hold.ID)
		granted := op.Cost
		if h.Parts[i].Free && op.Def.Mode == Shadow {
			granted = 0
		}
		if err = op.present(e.row, e.records, granted, now); err != nil {
			return false, err
		}
	}
	if !h.live(now) {
		return false, ErrHoldConflict
	}
	g.Allowed, g.Hold.Repeated, g.Hold.Expires = true, true, h.Expires
	return true, nil
}

// present sets the answer of an op that took granted tokens earlier, from the present
// state of its row.
func (op *Op) present(row State, records []Record, granted, now int64) error {
	look := Op{Def: op.Def, Key: op.Key, Verb: VerbCheck, Phase: op.Phase}
	if _, _, err := look.Step(now, row, true); err != nil {
		return err
	}
	look.answerHolds(&row, records, now)
	a := look.Answer
	op.Def, op.Asked, op.Phase = look.Def, look.Asked, look.Phase
	op.Answer = Answer{Allowed: true, Granted: granted, Remaining: a.Remaining, Reset: a.Reset, Used: a.Used, TS: a.TS}
	return nil
}

// answerHolds sets those fields of an op's answer that depend on the holds of its
// key. row is the row before the op.
func (op *Op) answerHolds(row *State, rs []Record, now int64) {
	refused := !op.Allowed || op.Shadow
	if op.Def.Algorithm == Concurrency {
		op.answerConcurrency(row, rs, now, refused)
		return
	}
	if !refused || row.Lows == nil {
		return
	}
	if op.Never || op.Def.Mode == Blocked && now+op.Retry <= op.Def.Override.Until {
		return
	}
	op.Bound = op.Bound || row.Lows.Holds > 0
}

// answerConcurrency is answerHolds on a concurrency limit: its tokens come back when
// holds expire.
func (op *Op) answerConcurrency(row *State, rs []Record, now int64, refused bool) {
	held := slices.DeleteFunc(slices.Clone(rs), func(r Record) bool { return r.Hold == "" || r.Rest })
	slices.SortFunc(held, func(a, b Record) int { return cmp.Compare(a.Expires, b.Expires) })
	op.Reset = 0
	if n := len(held); n > 0 {
		op.Reset = max(held[n-1].Expires-now, 0)
	}
	if !refused {
		return
	}
	// fits returns the first time at which the call fits under definition d, or -1.
	fits := func(d *Definition) int64 {
		need := op.Cost + op.Floor
		if d.Mode == Unlimited {
			return now
		}
		if d.Mode == Blocked || need > d.Rule.Cap {
			return -1
		}
		used, at := row.Used, now
		for i := 0; i < len(held) && used > d.Rule.Cap-need; i++ {
			used, at = used-held[i].Units, max(at, held[i].Expires)
		}
		return at
	}
	at, bound := fits(op.Def), slices.ContainsFunc(held, func(r Record) bool { return r.Expires > now })
	if o := op.Def.Override; o != nil && o.Until != 0 { // the same as in boundByEnd and retryUnblocked
		next := op.Asked
		if o.Under != nil {
			next = next.WithOverride(o.Under)
		}
		later := fits(next)
		if next.Mode == Shadow && op.Def.Mode != Shadow {
			later = now
		}
		switch {
		case op.Def.Mode == Blocked && later >= 0:
			at = max(later, o.Until)
			bound = bound && at > o.Until
		case op.Def.Mode == Blocked:
		case at >= 0:
			at, bound = min(at, o.Until), true
		case later >= 0:
			at, bound = o.Until, true
		}
	}
	op.Never, op.Retry, op.Bound = at < 0, max(at-now, 0), bound && at >= 0
}
