package redisstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dipwell/dipwell/internal/algebra"
	"github.com/dipwell/dipwell/internal/number"
	"github.com/dipwell/dipwell/store"
)

// A reservationPart is what a reservation took from one bucket, as stored in
// the key of the reservation.
type reservationPart struct {
	Limit   string `json:"limit"`
	Key     string `json:"key,omitempty"`
	Units   int64  `json:"units"`
	Version uint32 `json:"version"`
}

func partJSON(op *store.Op) string {
	b, err := json.Marshal(reservationPart{op.Def.Name, op.Key, unitsOf(op.Cost, &op.Def.Rule), op.Def.Number})
	if err != nil {
		panic(err) // cannot happen with strings and numbers
	}
	return string(b)
}

// partLines returns the parts of a group for decide.lua, one per line.
func partLines(g *store.Group) string {
	var b strings.Builder
	for i := range g.Ops {
		b.WriteString(partJSON(&g.Ops[i]) + "\n")
	}
	return b.String()
}

// partsJSON returns the parts of the ops for which may is true, as a JSON array.
func partsJSON(g *store.Group, may func(*store.Op) bool) string {
	var list []string
	for i := range g.Ops {
		if op := &g.Ops[i]; may(op) {
			list = append(list, partJSON(op))
		}
	}
	return "[" + strings.Join(list, ",") + "]"
}

func hasCost(op *store.Op) bool    { return op.Cost > 0 }
func wasGranted(op *store.Op) bool { return core.Took(op) > 0 }

// registerReservation stores the parts of a reservation in a cluster, where its
// key is in another slot than its buckets. It is done before any tokens are
// taken, so that the reservation can always be cancelled.
func (s *Store) registerReservation(ctx context.Context, d *decision) error {
	if !s.names.cluster || !mayReserve(d.g) {
		return nil
	}
	var longest int64
	for i := range d.rules {
		r := &d.rules[i]
		longest = max(longest, slowestFull(r, r.Cap+r.Debt, s.estimateNow(), s.estimateNow()))
	}
	expire := time.Duration(longest)*time.Microsecond + time.Minute
	if s.clock != nil || longest > int64(1<<53) || expire < 0 {
		expire = 0
	}
	return storeError(s.db.Set(ctx, s.names.reservation(d.g.ID), partsJSON(d.g, hasCost), expire).Err(), false)
}

// unregisterReservation removes what registerReservation stored if nothing was
// reserved, and corrects it if some parts were not charged in shadow mode. If
// that fails, the key expires later.
func (s *Store) unregisterReservation(ctx context.Context, d *decision) {
	if !s.names.cluster || !mayReserve(d.g) {
		return
	}
	key := s.names.reservation(d.g.ID)
	if !d.g.Reserved {
		_ = s.db.Del(ctx, key).Err()
	} else if text := partsJSON(d.g, wasGranted); text != partsJSON(d.g, hasCost) {
		_ = s.db.Set(ctx, key, text, redis.KeepTTL).Err()
	}
}

// cancel gives back what is left of a reservation and deletes it, in one step.
func (s *Store) cancel(ctx context.Context, g *store.Group) error {
	id := g.ID
	text, err := s.db.Get(ctx, s.names.reservation(id)).Result()
	if errors.Is(err, redis.Nil) {
		return store.ErrReservation
	}
	if err != nil {
		return storeError(err, false)
	}
	var parts []reservationPart
	if err = json.Unmarshal([]byte(text), &parts); err != nil || len(parts) == 0 || len(parts) > store.MaxTakes {
		return fmt.Errorf("%w: the key %s does not hold a reservation", store.ErrStore, s.names.reservation(id))
	}
	for i := range parts {
		if err = s.limits.find(ctx, parts[i].Limit); err != nil {
			return err
		}
	}
	for range maxRounds {
		err = s.giveBack(ctx, g, parts)
		if errors.Is(err, store.ErrStaleDefinition) {
			if err = s.cat.Load(ctx); err != nil {
				return storeError(err, false)
			}
			continue
		}
		if err != errRetry { //nolint:errorlint // never wrapped
			return err
		}
	}
	return fmt.Errorf("%w: gave up after %d attempts, because a limit changed in between; nothing was given back", store.ErrStore, maxRounds)
}

func (s *Store) giveBack(ctx context.Context, g *store.Group, parts []reservationPart) error {
	id, n := g.ID, len(parts)
	entries, rules := make([]*entry, n), make([]store.Rule, n)
	args := make([]any, 3, 8+8*n) // keys and numbers of each part
	for i, p := range parts {
		if entries[i] = s.limits.entry(p.Limit); entries[i] == nil {
			return store.ErrReservation // the limit was dropped, and its buckets with it
		}
		row := entries[i].row(p.Key)
		if i > 0 && s.names.cluster && slot(row) != slot(args[3].(string)) {
			return store.ErrReservation // a limit has another parent, and its buckets have begun anew
		}
		args = append(args, row)
	}
	args = s.names.appendLists(args, n, func(i int) (limit, key string) { return parts[i].Limit, parts[i].Key })
	if !s.names.cluster {
		args = append(args, s.names.reservation(id))
	}
	args[2] = len(args) - 3
	args = append(args, n, id.String())
	for i, p := range parts {
		d := entries[i].def
		if version := number.Version(p.Version); !number.IsOverride(p.Version) {
			if version > d.Number {
				return store.ErrStaleDefinition
			}
			if version != d.Number && !slices.ContainsFunc(d.Past, func(v store.Version) bool { return v.Number == version }) {
				return store.ErrReservation // the limit was dropped and defined again
			}
		}
		rules[i] = *core.RuleFor(d, p.Key, &rules[i])
		r, origin, ends := &rules[i], rules[i].Origin, int64(0)
		if r.Every == 0 && r.Pace == nil { // the script knows neither calendars nor rates, and leaves these to Go
			origin, ends = algebra.Window(r, s.estimateNow())
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
			_ = s.db.Del(ctx, s.names.reservation(id)).Err() // if this fails, the reservation is void anyway, because it is no longer in its set
		}
		return nil
	}
	err = s.decideInGo(ctx, g, parts)
	if err == nil && s.names.cluster {
		_ = s.db.Del(ctx, s.names.reservation(id)).Err()
	}
	return err
}
