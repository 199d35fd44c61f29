package lockstep

import (
	"context"
	"maps"
	"slices"

	"github.com/dipwell/dipwell"
)

// bucket names a row.
type bucket struct{ limit, key string }

// reservation is what a call took ahead of time.
type reservation struct {
	due   int64 // µs
	parts []part
}

type part struct {
	bucket
	units   int64
	version uint32 // in which units are counted
}

// reference is the contract with nothing around it: rows in a map that are
// never deleted, for one caller at a time. It has no clock that runs.
type reference struct {
	reg  dipwell.Registry
	now  func() int64
	rows map[bucket]dipwell.State
	held map[dipwell.Reservation]reservation
}

var (
	_ dipwell.Store   = (*reference)(nil)
	_ dipwell.Definer = (*reference)(nil)
)

func newReference(now func() int64) *reference {
	return &reference{now: now, rows: map[bucket]dipwell.State{}, held: map[dipwell.Reservation]reservation{}}
}

func (r *reference) Registry() *dipwell.Registry { return &r.reg }

func (r *reference) Define(_ context.Context, l dipwell.Limit, owner string) (*dipwell.Definition, error) {
	return r.reg.Define(r.now(), l, owner)
}

// Drop forgets the limit's rows, and every reservation that has a part in one.
func (r *reference) Drop(_ context.Context, name, owner string) error {
	if err := r.reg.Drop(name, owner); err != nil {
		return err
	}
	maps.DeleteFunc(r.rows, func(b bucket, _ dipwell.State) bool { return b.limit == name })
	r.forget(func(b bucket) bool { return b.limit == name })
	return nil
}

func (r *reference) forget(of func(bucket) bool) {
	maps.DeleteFunc(r.held, func(_ dipwell.Reservation, v reservation) bool {
		return slices.ContainsFunc(v.parts, func(p part) bool { return of(p.bucket) })
	})
}

func (r *reference) Apply(_ context.Context, b *dipwell.Batch) error {
	for i := range b.Groups {
		b.Groups[i].Err = r.group(&b.Groups[i], r.now())
	}
	return nil
}

func (r *reference) group(g *dipwell.Group, now int64) error {
	if g.Cancel {
		return r.cancel(g.ID, now)
	}
	var rows [dipwell.MaxTakes]dipwell.State
	var write [dipwell.MaxTakes]bool
	for i := range g.Ops {
		rows[i] = r.rows[bucketOf(&g.Ops[i])]
	}
	if err := g.Decide(now, rows[:len(g.Ops)], write[:]); err != nil {
		return err
	}
	for i := range g.Ops {
		b := bucketOf(&g.Ops[i])
		switch {
		case g.Allowed && g.Ops[i].Verb == dipwell.VerbReset:
			delete(r.rows, b)
			r.forget(func(other bucket) bool { return other == b })
		case write[i]:
			r.rows[b] = rows[i]
		}
	}
	if g.Reserved {
		r.held[g.ID] = reservationOf(g, now)
	}
	return nil
}

func bucketOf(op *dipwell.Op) bucket { return bucket{op.Def.Name, op.Key} }

// reservationOf is what a group took ahead of time.
func reservationOf(g *dipwell.Group, now int64) reservation {
	v := reservation{due: now + g.Due()}
	for i := range g.Ops {
		if op := &g.Ops[i]; op.Granted > 0 {
			v.parts = append(v.parts, part{bucketOf(op), op.Granted * op.Def.Rule.Unit, op.Def.Number})
		}
	}
	return v
}

func (r *reference) cancel(id dipwell.Reservation, now int64) error {
	v, known := r.held[id]
	if !known || v.due <= now {
		return dipwell.ErrReservation
	}
	delete(r.held, id)
	for _, p := range v.parts {
		def := r.reg.Lookup(p.limit)
		r.rows[p.bucket] = p.giveBack(def, r.rows[p.bucket], now)
	}
	return nil
}

// giveBack is the row after a part of a reservation came back to it.
func (p part) giveBack(def *dipwell.Definition, row dipwell.State, now int64) dipwell.State {
	row, _ = def.Carry(row, p.key)
	t := max(now, row.TS)
	var scratch dipwell.Rule
	o := def.RuleFor(p.key, &scratch).Apply(row, t, dipwell.VerbCheck, 0)
	return dipwell.State{Used: max(0, o.Before-def.CarryUnits(p.units, p.version)), TS: t, Version: def.Number}
}

// fullAt is when a bucket will be full if nobody comes, 0 where it was never used.
func (r *reference) fullAt(b bucket) int64 {
	row, used := r.rows[b]
	def := r.reg.Lookup(b.limit)
	if !used || def == nil {
		return 0
	}
	row, _ = def.Carry(row, b.key)
	var scratch dipwell.Rule
	return row.TS + def.RuleFor(b.key, &scratch).FullIn(row.Used, row.TS, row.TS)
}
