package dipwell

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dipwell/dipwell/store"
)

// A Take is a cost for one key of a limit, in a call with several.
type Take struct {
	Limit string
	Key   string // Shared for the limit's one shared bucket
	Cost  int64
	With  *Limit // a limit as in TakeWith, in place of Limit; nil for none
}

// TakeAll takes all costs at one instant, or none of them. There may be 1 to 16 takes.
// The costs of takes with the same limit and key are added up.
func (l *Limiter) TakeAll(ctx context.Context, takes ...Take) (d Decision, err error) {
	err = l.DoAll(ctx, &d, store.VerbTake, takes)
	return
}

// CheckAll returns what TakeAll would return, and changes nothing.
func (l *Limiter) CheckAll(ctx context.Context, takes ...Take) (d Decision, err error) {
	err = l.DoAll(ctx, &d, store.VerbCheck, takes)
	return
}

// ReserveAll reserves all costs, or none of them. The call has one Reservation, and
// its Delay is the longest of its limits'.
func (l *Limiter) ReserveAll(ctx context.Context, takes ...Take) (d Decision, err error) {
	err = l.DoAll(ctx, &d, store.VerbReserve, takes)
	return
}

// DoAll is TakeAll, CheckAll or ReserveAll, with the verb as an argument. It sets *d,
// as Do does.
func (l *Limiter) DoAll(ctx context.Context, d *Decision, verb store.Verb, takes []Take) error {
	if verb > store.VerbReserve || verb == store.VerbTakeUpTo {
		return badField("takes", "%s asks one key at a time", verb)
	}
	if len(takes) == 0 || len(takes) > store.MaxTakes {
		return badField("takes", "has %d entries; from 1 to %d", len(takes), store.MaxTakes)
	}
	ops := make([]store.Op, len(takes))
	var op [store.MaxTakes]int // index into ops of each take
	n, timeout, reserves := 0, time.Duration(0), verb == store.VerbReserve
	for i := range takes {
		t := &takes[i]
		next, err := l.newOp(ctx, verb, t)
		if err != nil {
			return inList(err, "takes", i)
		}
		op[i] = n
		for j := range n {
			if ops[j].Def.Name == next.Def.Name && ops[j].Key == next.Key {
				op[i] = j
			}
		}
		if op[i] < n { // the same limit and key as an earlier take: add the costs
			same := &ops[op[i]]
			same.Def = next.Def // the later one, in case the limit has changed meanwhile
			if same.Cost += next.Cost; same.Cost > store.MaxInt {
				return badField("takes", "the costs of limit %s add up to more than 2^53-1", t.Limit)
			}
			continue
		}
		reserves = reserves || next.Def.Rule.Leaky && verb == store.VerbTake
		ops[n] = next
		if n++; next.Def.Timeout > 0 && (timeout == 0 || next.Def.Timeout < timeout) {
			timeout = next.Def.Timeout
		}
	}
	b := batches.Get().(*store.Batch)
	g, _ := b.Single()
	g.Ops = ops[:n]
	if reserves {
		g.ID = newReservation()
	}
	err := l.decide(ctx, b, timeout)
	d.fillAll(g, takes, op[:len(takes)])
	g.Ops = nil
	batches.Put(b)
	return err
}

func (l *Limiter) newOp(ctx context.Context, verb store.Verb, t *Take) (op store.Op, err error) {
	op.Verb, op.Cost = verb, t.Cost
	if t.With != nil {
		op.Def, err = l.ensure(ctx, t.With)
	} else if op.Def = l.registry.Lookup(t.Limit); op.Def == nil {
		err = l.registry.Missing(t.Limit)
	}
	if err == nil {
		err = checkCost(op.Def, verb, t.Cost)
	}
	if err == nil {
		op.Key, err = checkKey(t.Key)
	}
	return op, err
}

// inList adds the index in a list to the field of a FieldError.
func inList(err error, list string, i int) error {
	var f *FieldError
	if errors.As(err, &f) {
		return &FieldError{Field: fmt.Sprintf("%s[%d].%s", list, i, f.Field), Reason: f.Reason}
	}
	return err
}

// fillAll sets d to the decision of the limit that decides a group, and d.Limits to
// the decisions of all.
func (d *Decision) fillAll(g *store.Group, takes []Take, op []int) {
	limits := make([]Decision, len(takes))
	top := 0
	for i := range takes {
		o := &g.Ops[op[i]]
		e := &limits[i]
		e.Fill(o)
		e.Cost = takes[i].Cost
		if e.Granted > 0 {
			e.Granted = e.Cost
		}
		if e.decidesOver(&limits[top], g.Allowed) {
			top = i
		}
	}
	*d = limits[top]
	d.Allowed, d.Limits = g.Allowed, limits
	if g.Reserved {
		d.Reservation = g.ID
		d.Delay = us(g.Due())
	}
}

// decidesOver reports whether e decides the call rather than top: the latest retry
// among refusals, the fewest remaining tokens otherwise.
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
