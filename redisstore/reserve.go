package redisstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/dipwell/dipwell/internal/terms"
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

func wasGranted(op *store.Op) bool { return op.Took() > 0 }

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
	for i, p := range parts {
		e := s.limits.entry(p.Limit)
		if e == nil {
			return store.ErrReservation // the limit was dropped, and its buckets with it
		}
		if i > 0 && s.names.cluster && slot(e.row(p.Key)) != slot(s.limits.entry(parts[0].Limit).row(parts[0].Key)) {
			return store.ErrReservation // a limit has another parent, and its buckets have begun anew
		}
		if !terms.IsOverride(p.Version) && terms.VersionOf(p.Version) > e.def.Number {
			return store.ErrStaleDefinition
		}
	}
	err := s.decideInGo(ctx, g, parts)
	if err == nil && s.names.cluster {
		_ = s.db.Del(ctx, s.names.reservation(g.ID)).Err() // if this fails, the reservation is void anyway, because it is no longer in its set
	}
	return err
}
