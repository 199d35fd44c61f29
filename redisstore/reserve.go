package redisstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dipwell/dipwell/store"
)

// part is what a reservation charges to one bucket, as its key keeps it.
type part struct {
	Limit   string `json:"limit"`
	Key     string `json:"key,omitempty"`
	Units   int64  `json:"units"`
	Version uint32 `json:"version"`
}

// lines are the group's parts for decide.lua, one a line.
func lines(g *store.Group) string {
	var b []byte
	for i := range g.Ops {
		op := &g.Ops[i]
		line, err := json.Marshal(part{op.Def.Name, op.Key, unitsOf(op.Cost, &op.Def.Rule), op.Def.Number})
		if err != nil {
			panic(err) // strings and numbers
		}
		b = append(append(b, line...), '\n')
	}
	return string(b)
}

// parts are what was charged, or may be, as a JSON array.
func parts(g *store.Group, may func(*store.Op) bool) string {
	list := make([]part, 0, len(g.Ops))
	for i := range g.Ops {
		if op := &g.Ops[i]; may(op) {
			list = append(list, part{op.Def.Name, op.Key, unitsOf(op.Cost, &op.Def.Rule), op.Def.Number})
		}
	}
	b, err := json.Marshal(list)
	if err != nil {
		panic(err) // strings and numbers
	}
	return string(b)
}

func asked(op *store.Op) bool   { return op.Cost > 0 }
func granted(op *store.Op) bool { return op.Granted > 0 }

// announce stores what a reservation will hold where its buckets are not: in
// another slot of a cluster. It is there before the tokens are taken, so that
// it can always be cancelled; what is not reserved after all is withdrawn.
func (s *Store) announce(ctx context.Context, d *decision) error {
	if !s.names.cluster || !mayReserve(d.g) {
		return nil
	}
	var longest int64
	for i := range d.rules {
		r := &d.rules[i]
		longest = max(longest, r.FullIn(r.Cap+r.Debt, s.guess(), s.guess()))
	}
	expire := time.Duration(longest)*time.Microsecond + time.Minute
	if s.clock != nil || longest > int64(1<<53) || expire < 0 {
		expire = 0
	}
	return storeError(s.db.Set(ctx, s.names.reservation(d.g.ID), parts(d.g, asked), expire).Err(), false)
}

// withdraw removes what announce stored for nothing, or what of it was not
// charged in shadow mode. A failure leaves a key that expires.
func (s *Store) withdraw(ctx context.Context, d *decision) {
	if !s.names.cluster || !mayReserve(d.g) {
		return
	}
	key := s.names.reservation(d.g.ID)
	if !d.g.Reserved {
		_ = s.db.Del(ctx, key).Err()
	} else if text := parts(d.g, granted); text != parts(d.g, asked) {
		_ = s.db.Set(ctx, key, text, redis.KeepTTL).Err()
	}
}

// cancel gives back what of a reservation is still there and forgets it, in one step.
func (s *Store) cancel(ctx context.Context, id store.Reservation) error {
	text, err := s.db.Get(ctx, s.names.reservation(id)).Result()
	if errors.Is(err, redis.Nil) {
		return store.ErrReservation
	}
	if err != nil {
		return storeError(err, false)
	}
	var held []part
	if err = json.Unmarshal([]byte(text), &held); err != nil || len(held) == 0 || len(held) > store.MaxTakes {
		return fmt.Errorf("%w: the key %s does not hold a reservation", store.ErrStore, s.names.reservation(id))
	}
	for range maxRounds {
		err = s.giveBack(ctx, id, held)
		if errors.Is(err, store.ErrStaleDefinition) {
			if err = s.cat.load(ctx); err != nil {
				return storeError(err, false)
			}
			continue
		}
		if err != errAgain { //nolint:errorlint // never wrapped
			return err
		}
	}
	return fmt.Errorf("%w: the rows were converted over and over; nothing was given back", store.ErrStore)
}

func (s *Store) giveBack(ctx context.Context, id store.Reservation, parts []part) error {
	n := len(parts)
	entries, rules := make([]*entry, n), make([]store.Rule, n)
	args := make([]any, 3, 8+8*n) // with the keys of each part, and its numbers
	for i, p := range parts {
		if entries[i] = s.cat.entry(p.Limit); entries[i] == nil {
			return store.ErrReservation // with its limit its buckets are gone
		}
		args = append(args, entries[i].row(p.Key))
	}
	args = s.names.appendLists(args, n, func(i int) (limit, key string) { return parts[i].Limit, parts[i].Key })
	if !s.names.cluster {
		args = append(args, s.names.reservation(id))
	}
	args[2] = len(args) - 3
	args = append(args, n, id.String())
	for i, p := range parts {
		d := entries[i].def
		if p.Version > d.Number {
			return store.ErrStaleDefinition
		}
		if p.Version != d.Number && !slices.ContainsFunc(d.Past, func(v store.Version) bool { return v.Number == p.Version }) {
			return store.ErrReservation // the limit was dropped meanwhile, and began anew
		}
		rules[i] = *d.RuleFor(p.Key, &rules[i])
		r, origin, ends := &rules[i], rules[i].Origin, int64(0)
		if r.Every == 0 {
			origin, ends = r.Window(s.guess())
		}
		args = append(args, entries[i].version, r.Every, r.Add, origin, ends)
	}
	v, err := s.run(ctx, newCall(ctx, s.scripts.cancel, true, s.withClock(args)))
	switch {
	case err != nil:
		return err
	case v[0] == 1:
		return store.ErrReservation
	case v[0] == 0:
		if s.names.cluster {
			_ = s.db.Del(ctx, s.names.reservation(id)).Err() // its set no longer has it, so it is void either way
		}
		return nil
	}
	s.saw(v[1])
	var rows []convert
	for i, p := range parts {
		old, err := stateOf(v[2+4*i:], entries[i].row(p.Key))
		if err != nil {
			return err
		}
		if old.Version > entries[i].def.Number {
			return store.ErrStaleDefinition
		}
		rows = append(rows, s.fresh(entries[i], p.Key, old, v[5+4*i] > 0, v[1], &rules[i])...)
	}
	if err = s.convert(ctx, rows); err != nil {
		return err
	}
	return errAgain
}
