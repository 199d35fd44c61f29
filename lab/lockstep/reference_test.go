package lockstep

import (
	"context"
	"maps"
	"slices"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// bucket names a row.
type bucket struct{ limit, key string }

// reservation is a reservation that can be cancelled until it is due.
type reservation struct {
	due   int64 // µs
	parts []part
}

// part is a record of one of its buckets.
type part struct {
	bucket
	number, mark int64
}

// reference is a minimal implementation of the contract: rows in a map that are
// never deleted, without a clock and for one caller at a time.
type reference struct {
	reg     store.Registry
	now     func() int64
	rows    map[bucket]store.State
	records map[bucket][]store.Record
	held    map[dipwell.Reservation]reservation
}

var _ store.Store = (*reference)(nil)

func newReference(now func() int64) *reference {
	return &reference{now: now, rows: map[bucket]store.State{}, records: map[bucket][]store.Record{}, held: map[dipwell.Reservation]reservation{}}
}

func (r *reference) Abilities() store.Abilities { return store.Abilities{Limits: r} }

func (r *reference) Registry() *store.Registry { return &r.reg }

func (r *reference) Define(_ context.Context, l dipwell.Limit, owner string) (*store.Definition, error) {
	return r.reg.Define(r.now(), l, owner)
}

// Drop deletes the limit's rows, and every reservation that has a part in one.
func (r *reference) Drop(_ context.Context, name, owner string) error {
	if err := r.reg.Drop(name, owner); err != nil {
		return err
	}
	maps.DeleteFunc(r.rows, func(b bucket, _ store.State) bool { return b.limit == name })
	r.forget(func(b bucket) bool { return b.limit == name })
	return nil
}

// forget deletes the records of some buckets, and each reservation that has
// one.
func (r *reference) forget(of func(bucket) bool) {
	maps.DeleteFunc(r.records, func(b bucket, _ []store.Record) bool { return of(b) })
	maps.DeleteFunc(r.held, func(_ dipwell.Reservation, v reservation) bool {
		return slices.ContainsFunc(v.parts, func(p part) bool { return of(p.bucket) })
	})
}

func (r *reference) Apply(_ context.Context, b *store.Batch) error {
	for i := range b.Groups {
		b.Groups[i].Err = r.group(&b.Groups[i], r.now())
	}
	return nil
}

func (r *reference) group(g *store.Group, now int64) error {
	if g.Cancel {
		return r.cancel(g.ID, now)
	}
	var rows [store.MaxTakes]store.State
	var records [store.MaxTakes][]store.Record
	var write [store.MaxTakes]bool
	for i := range g.Ops {
		op, b := &g.Ops[i], bucketOf(&g.Ops[i])
		var err error
		if rows[i], records[i], err = advanced(op.Def, op.Key, r.rows[b], r.records[b], now); err != nil {
			return err
		}
	}
	if err := g.Decide(now, rows[:len(g.Ops)], write[:]); err != nil {
		return err
	}
	for i := range g.Ops {
		b := bucketOf(&g.Ops[i])
		switch {
		case g.Allowed && g.Ops[i].Verb == store.VerbReset:
			delete(r.rows, b)
			r.forget(func(other bucket) bool { return other == b })
		case write[i]:
			r.rows[b], r.records[b] = rows[i], records[i]
		}
	}
	if g.Reserved {
		r.reserve(g, rows[:], now)
	}
	return nil
}

// advanced returns a row and its records, prepared for a write.
func advanced(def *store.Definition, key string, row store.State, records []store.Record, now int64) (store.State, []store.Record, error) {
	records = slices.Clone(records)
	if row.Lows == nil {
		return row, records, nil
	}
	return def.Advance(row, key, now, records)
}

func (r *reference) reserve(g *store.Group, rows []store.State, now int64) {
	v := reservation{due: now + g.Due()}
	for i := range g.Ops {
		op, b := &g.Ops[i], bucketOf(&g.Ops[i])
		if op.Granted == 0 {
			continue
		}
		n := op.Record(&rows[i], g.ID, now, v.due)
		r.rows[b], r.records[b] = rows[i], append(r.records[b], n)
		v.parts = append(v.parts, part{b, n.Number, n.Mark})
	}
	r.held[g.ID] = v
}

func bucketOf(op *store.Op) bucket { return bucket{op.Def.Name, op.Key} }

func (r *reference) cancel(id dipwell.Reservation, now int64) error {
	v, known := r.held[id]
	if !known || v.due <= now {
		return dipwell.ErrReservation
	}
	delete(r.held, id)
	for _, p := range v.parts {
		def := r.reg.Lookup(p.limit)
		var err error
		if r.rows[p.bucket], r.records[p.bucket], err = def.GiveBack(r.rows[p.bucket], p.key, now, r.records[p.bucket], p.number, p.mark); err != nil {
			return err
		}
	}
	return nil
}

// fullAt returns when a bucket will be full without more calls, or 0 if it was
// never used.
func (r *reference) fullAt(b bucket) int64 {
	row, used := r.rows[b]
	def := r.reg.Lookup(b.limit)
	if !used || def == nil {
		return 0
	}
	row, _ = def.Carry(row, b.key, row.TS)
	var scratch store.Rule
	return row.TS + def.RuleFor(b.key, &scratch).TimeToFull(row.Used, row.TS, row.TS)
}

// fallsDue reports whether a record of a bucket falls due between two times.
func (r *reference) fallsDue(b bucket, after, by int64) bool {
	return slices.ContainsFunc(r.records[b], func(n store.Record) bool {
		return after < n.Due && n.Due <= by || after < n.Ends && n.Ends <= by
	})
}
