package dipwell

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/dipwell/dipwell/store"
)

// A Take is a cost for one key of a limit. Its fields are checked by the call to which
// it is passed: the error is then a *FieldError, whose Field names the take if there are
// several, as in "takes[2].key".
type Take struct {
	Limit string // name of the limit
	// Key is the bucket: 1 to 512 bytes of UTF-8 without NUL, or Shared for the one that all
	// callers share. If the limit has a parent, the key is a path: see Key.
	Key  string
	Cost int64 // tokens, 0 to 2^53-1; taking 0 is the same as checking 0

	// With is a limit as in TakeWith, in place of Limit and without Plan; or nil.
	With *Limit

	// Plan is the plan of the limit that decides, unless the key has an override;
	// "" is the limit itself. A name that the limit does not have is a *FieldError that wraps
	// store.ErrUnknownPlan; a plan that only an override may give is a *FieldError too.
	Plan string
	// Floor is how many tokens must stay free after the call, so that work of low priority
	// leaves tokens for other work. If Cost and Floor together are more than the burst, the
	// call is refused with Never. Floor is for Take, Check and Hold, and for Wait on limits
	// without debt; with other calls, and for a leaky bucket, it is a *FieldError.
	Floor int64
}

// TakeAll takes all costs at one instant, or none of them. There may be 1 to 16 takes,
// with the parents of their limits. The costs of takes with the same limit and key are
// added up; then the largest Floor counts. The Decision describes the limit that
// decides: if refused the one with the latest retry, otherwise the one with the fewest
// remaining tokens. Limits has the decisions of all, in the order of takes.
//
// A refusal charges no limit: if the user's limit allows a request and the tenant's
// refuses it, the user's bucket stays as it was. The store decides all takes together,
// usually in one round trip. On Redis Cluster their keys must be in one slot: redisstore
// says how.
//
//	d, err := limiter.TakeAll(ctx,
//		dipwell.Take{Limit: "user", Key: user, Cost: 1},
//		dipwell.Take{Limit: "tenant", Key: tenant, Cost: 1})
//	if err == nil && !d.Allowed {
//		log.Printf("%s refused", d.Limit) // "user" or "tenant"; d.Limits has both
//	}
func (l *Limiter) TakeAll(ctx context.Context, takes ...Take) (d Decision, err error) {
	d.Limits = make([]Decision, 0, 2) // TakeAll is inlined, so that this is on the caller's stack if d is
	err = l.DoAll(ctx, &d, store.VerbTake, takes)
	return
}

// doTake is Do for any limit; def is that of t.Limit, or nil.
func (l *Limiter) doTake(ctx context.Context, d *Decision, verb store.Verb, def *store.Definition, t *Take) error {
	if def != nil && def.Parent != "" && t.With == nil && verb != store.VerbReset {
		return l.doGroup(ctx, d, verb, []Take{*t}, true, false)
	}
	var op store.Op
	err := l.setOp(ctx, &op, verb, t)
	if err == nil {
		err = op.Def.CheckVerb(verb, false)
	}
	if err != nil {
		return err
	}
	if op.Def.Parent != "" && verb != store.VerbReset {
		return l.doGroup(ctx, d, verb, []Take{*t}, true, false)
	}
	d.reset()
	if op.Floor == 0 && op.Def.Mode <= store.Shadow && op.Def.Shards < 2 && !isAdaptive(op.Def) { // Quick handles neither shards nor the price of an adaptive limit
		if l.quick(d, verb, op.Def, op.Key, op.Cost) {
			return nil
		}
	}
	return l.doBatch(ctx, d, verb, op.Def, op.Key, op.Cost, op.Floor)
}

// DoAll is TakeAll with VerbTake, VerbCheck or VerbReserve as verb. VerbCheck changes
// nothing. With VerbReserve the call has one Reservation, and its Delay is the longest of
// the limits from which it takes tokens. If there is one take, any verb is possible.
// DoAll sets *d, as Do does, with Limits. If Limits has room for them, DoAll overwrites it:
// a copy of *d that is kept must have a copy of Limits.
func (l *Limiter) DoAll(ctx context.Context, d *Decision, verb store.Verb, takes []Take) error {
	if len(takes) != 1 && (verb > store.VerbReserve || verb == store.VerbTakeUpTo) {
		return badField("takes", "%s asks one key at a time", verb)
	}
	return l.doGroup(ctx, d, verb, takes, false, false)
}

// doGroup is DoAll for any takes and verb. alone is set if the only take was not passed in a
// list, and waits if the call is an attempt of a wait.
func (l *Limiter) doGroup(ctx context.Context, d *Decision, verb store.Verb, takes []Take, alone, waits bool) error {
	c := calls.Get().(*call)
	defer c.end()
	c.alone, c.waits = alone, waits
	if err := l.prepare(ctx, c, verb, takes); err != nil {
		d.Limits = nil
		return err
	}
	g := c.group()
	if c.reserves {
		g.ID = c.newID()
	}
	err := l.decide(ctx, c)
	if err != nil && verb == store.VerbCharge {
		err = c.inList(err, 0)
	}
	d.fillAll(g, takes, c.own[:], c.named)
	d.setReservation(g, err)
	return err
}

type call struct {
	batch    store.Batch
	one      [1]store.Group // memory for batch.Groups
	hold     store.HoldCall
	costs    [store.MaxTakes]int64 // backs hold.Costs
	random   []byte                // random bytes that no id has yet, in randoms
	randoms  [ids * 10]byte
	ops      []store.Op
	own      [store.MaxTakes]int // by take: index in ops of the op on the take's own limit
	named    int                 // number of ops that belong to takes; the others are of parents
	timeout  time.Duration
	extra    bool // a limit of the call is restricted, so that it may be adaptive or have shards
	reserves bool // the group may make a reservation
	holds    bool // the group makes a hold
	waits    bool // the call is a DoWait, or an attempt of one
	alone    bool // the only take is not in a list, so that errors name just its field
}

const ids = 24 // ids whose random bytes are read at once

// calls is a pool of calls. Their ops, from newOps, have room for all ops and for one
// more, which may turn out to equal an earlier one.
var calls = sync.Pool{New: func() any { return &call{ops: newOps()} }}

func newOps() []store.Op { return make([]store.Op, 0, store.MaxTakes+1) }

// The ops are cleared only by next: clearing all of them takes longer than deciding one.
func (c *call) end() {
	c.ops, c.timeout, c.extra, c.reserves, c.holds, c.waits = c.ops[:0], 0, false, false, false, false
	calls.Put(c)
}

// group makes the batch one group of the ops of the call, and returns it.
func (c *call) group() *store.Group {
	c.one[0] = store.Group{Ops: c.ops}
	c.batch.Groups = c.one[:]
	return &c.one[0]
}

// prepare adds the ops of takes to an empty call, and then those of their limits'
// parents. Ops on the same limit and key become one.
func (l *Limiter) prepare(ctx context.Context, c *call, verb store.Verb, takes []Take) error {
	if len(takes) == 0 || len(takes) > store.MaxTakes {
		return badField("takes", "has %d entries; from 1 to %d", len(takes), store.MaxTakes)
	}
	c.reserves = verb == store.VerbReserve
	parents := false
	for i := range takes {
		op := c.next()
		err := l.setOp(ctx, op, verb, &takes[i])
		if err == nil {
			err = c.check(op.Def, verb)
		}
		if err == nil {
			op.Takes, op.Bounded, parents = 1<<i, c.waits, parents || op.Def.Parent != ""
			c.own[i], err = c.add(op, true)
		}
		if err != nil {
			return c.inList(err, i)
		}
	}
	if c.named = len(c.ops); !parents || verb == store.VerbReset {
		return nil
	}
	for i := range takes {
		own := &c.ops[c.own[i]]
		if own.Def.Parent == "" {
			continue
		}
		if err := l.addParents(c, own, takes[i].Cost, i); err != nil {
			return c.inList(err, i)
		}
	}
	return nil
}

// check checks that the call is possible on a limit. The error is a *FieldError.
func (c *call) check(d *store.Definition, verb store.Verb) error {
	r := restricted(d)
	c.extra = c.extra || r
	switch {
	case !r && !c.waits && !c.holds && verb <= store.VerbReset:
		return nil
	case c.waits && d.Algorithm == Concurrency:
		return badField("limit", "%s counts what is held; only hold, check and reset are possible, not wait", d.Name)
	case c.waits && d.Shards > 1:
		return badField("limit", "%s has shards, so that calls cannot wait for it", d.Name)
	}
	return d.CheckVerb(verb, c.holds)
}

// next returns a zero op after the last one, for add.
func (c *call) next() *store.Op {
	op := &c.ops[:len(c.ops)+1][len(c.ops)]
	*op = store.Op{}
	return op
}

// addParents adds the ops of the parents of take i, whose own op is op.
func (l *Limiter) addParents(c *call, op *store.Op, cost int64, i int) error {
	for key, name := op.Key, op.Def.Parent; name != ""; {
		next := c.next()
		*next = store.Op{Def: l.registry.Lookup(name), Key: parentKey(key), Verb: op.Verb, Cost: cost, Takes: 1 << i, Bounded: op.Bounded, MaxDelay: op.MaxDelay}
		if next.Def == nil {
			return l.registry.Missing(name)
		}
		next.Def = next.Def.ForChild(op.Def.Plan)
		if err := c.check(next.Def, op.Verb); err != nil {
			return err
		}
		key, name = next.Key, next.Def.Parent
		if at, err := c.add(next, false); err != nil {
			return err
		} else if at < c.named {
			return badField("limit", "limit %s is above limit %s, which is in the same call and takes from it as well", c.ops[at].Def.Name, op.Def.Name)
		}
	}
	return nil
}

// add keeps the op that next returned, or adds its cost to that of an op on the same
// limit and key. add returns the op's index. named is false for the op of a parent.
func (c *call) add(op *store.Op, named bool) (int, error) {
	for i := range c.ops {
		same := &c.ops[i]
		if same.Key != op.Key || same.Def != op.Def && same.Def.Name != op.Def.Name {
			continue
		}
		if same.Def.Plan != op.Def.Plan && (named || i >= c.named) {
			return i, badField("plan", "another take of the same limit and key, %s, has another plan", op.Def.Name)
		}
		if named {
			same.Def = op.Def // the later definition, in case the limit has changed meanwhile
		}
		same.Takes |= op.Takes
		same.Floor = max(same.Floor, op.Floor)
		if same.Cost += op.Cost; same.Cost > store.MaxInt {
			return i, badField("cost", "the costs of limit %s add up to more than 2^53-1", op.Def.Name)
		}
		return i, nil
	}
	if len(c.ops) == store.MaxTakes {
		return 0, badField("takes", "are more than %d with the parents of their limits", store.MaxTakes)
	}
	c.ops = c.ops[:len(c.ops)+1]
	c.reserves = c.reserves || op.Def.Rule.Leaky && op.Verb == store.VerbTake
	if t := op.Def.Timeout; t > 0 && (c.timeout == 0 || t < c.timeout) {
		c.timeout = t
	}
	return len(c.ops) - 1, nil
}

// setOp sets a zero op to the take from its own limit.
func (l *Limiter) setOp(ctx context.Context, op *store.Op, verb store.Verb, t *Take) (err error) {
	op.Verb, op.Cost, op.Floor = verb, t.Cost, t.Floor
	if t.With != nil {
		op.Def, err = l.ensure(ctx, t.With)
	} else if op.Def = l.registry.Lookup(t.Limit); op.Def == nil {
		err = l.registry.Missing(t.Limit)
	}
	if err == nil && t.Plan != "" {
		if verb > store.VerbReserve {
			return badField("plan", "%s has none", verb)
		}
		op.Def, err = namedPlan(op.Def, t.Plan)
	}
	if err == nil && t.Floor != 0 {
		err = checkFloor(op.Def, verb, t.Floor)
	}
	if err == nil {
		err = checkCost(t.Cost)
	}
	if err == nil {
		op.Key, err = l.checkKey(op.Def, t.Key)
	}
	return err
}

func checkFloor(def *store.Definition, verb store.Verb, floor int64) error {
	switch {
	case floor < 0 || floor > store.MaxInt:
		return badField("floor", "%d is not between 0 and 2^53-1", floor)
	case verb > store.VerbCheck:
		return badField("floor", "%s has none", verb)
	case def.Rule.Leaky:
		return badField("floor", "limit %s is a leaky bucket, which has none", def.Name)
	case def.Rule.Sliding:
		return badField("floor", "limit %s is a sliding window, which has none", def.Name)
	case def.Shards > 1:
		return badField("floor", "limit %s has shards, so that there is none", def.Name)
	}
	return nil
}

// inList adds the index of a take to the field of a FieldError about it, or to the
// error about a limit that does not exist.
func (c *call) inList(err error, i int) error {
	var f *FieldError
	if !c.alone && errors.Is(err, ErrUnknownLimit) && !errors.As(err, &f) {
		f = &FieldError{Field: "limit", Reason: err.Error(), Err: err}
		err = f
	}
	if !c.alone && errors.As(err, &f) && f.Limit == "" && f.Field != "takes" {
		return &FieldError{Field: fmt.Sprintf("takes[%d].%s", i, f.Field), Reason: f.Reason, Err: f.Err}
	}
	return err
}

// fillAll sets d to the decision of the limit that decides the group, and d.Limits to the
// decisions of the takes and then of the parents. own has the index of each take's own op,
// and the ops from named on are those of parents. d.Limits is only sliced, so that it may be
// on the caller's stack.
func (d *Decision) fillAll(g *store.Group, takes []Take, own []int, named int) {
	n := len(takes) + len(g.Ops) - named
	if cap(d.Limits) < n {
		d.Limits = make([]Decision, n)
	}
	d.Limits = d.Limits[:n]
	var top, decides int // indexes of the decision and of the op that decide the group
	for i := range d.Limits {
		e, at := &d.Limits[i], named+i-len(takes)
		if i < len(takes) {
			at = own[i]
		}
		e.reset()
		if e.fill(&g.Ops[at]); i < len(takes) {
			e.Cost = takes[i].Cost
			e.Granted = min(e.Granted, e.Cost)
		}
		if i == 0 || e.decidesOver(&d.Limits[top], g.Allowed) {
			top, decides = i, at
		}
	}
	d.Reservation, d.Hold, d.Expires, d.Repeated = Reservation{}, "", time.Time{}, false
	d.fill(&g.Ops[decides])
	d.Cost, d.Granted, d.Delay, d.Allowed = d.Limits[top].Cost, d.Limits[top].Granted, us(g.Due()), g.Allowed
	if len(takes) == 1 {
		d.Granted = d.Limits[0].Granted
	}
	if !d.Allowed && !d.Never && slices.ContainsFunc(g.Ops, func(op store.Op) bool {
		return op.Def.Override != nil && op.Def.Override.Until != 0 && op.Def.Mode != store.Blocked
	}) {
		d.RetryIsBound = true // an op that is allowed now may be refused once its override has ended
	}
}

// namedPlan returns the definition of a plan that a caller names. The error is a
// *FieldError, which wraps ErrUnknownPlan if the limit has no such plan.
func namedPlan(d *store.Definition, name string) (*store.Definition, error) {
	plan := d.WithPlan(name)
	switch {
	case plan == nil:
		return nil, &FieldError{Field: "plan", Reason: fmt.Sprintf("limit %s has no plan %q", d.Name, name), Err: store.ErrUnknownPlan}
	case plan.Children:
		return nil, badField("plan", "calls of the children of limit %s choose its plan %s; those of its own may not name it", d.Name, name)
	case plan.OverrideOnly:
		return nil, badField("plan", "callers may not name plan %s of limit %s; keys have it by an override alone", name, d.Name)
	}
	return plan, nil
}

// decidesOver reports whether decision e decides a call rather than top: among
// refusals the latest retry decides, otherwise the fewest remaining tokens.
func (e *Decision) decidesOver(top *Decision, allowed bool) bool {
	switch {
	case allowed:
		return e.Remaining < top.Remaining
	case e.Allowed != top.Allowed:
		return !e.Allowed
	case e.Never != top.Never:
		return e.Never
	}
	return e.RetryAfter > top.RetryAfter
}
