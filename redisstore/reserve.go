package redisstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/dipwell/dipwell/store"
)

// cancel gives back what is left of a reservation and deletes it, in one step.
func (s *Store) cancel(ctx context.Context, g *store.Group) error {
	name := s.names.reservation(g.ID)
	text, err := s.db.Get(ctx, name).Result()
	if errors.Is(err, redis.Nil) {
		return store.ErrReservation
	}
	if err != nil {
		return storeError(err, false)
	}
	var parts []store.Part
	if err = json.Unmarshal([]byte(text), &parts); err != nil || len(parts) == 0 || len(parts) > store.MaxTakes {
		return fmt.Errorf("%w: the key %s does not hold a reservation", store.ErrStore, name)
	}
	for i := range parts {
		p, first := &parts[i], &parts[0]
		if err = s.limits.find(ctx, p.Limit); err != nil {
			return err
		}
		switch e := s.limits.entry(p.Limit); {
		case e == nil:
			return store.ErrReservation // the limit was dropped, and its buckets with it
		case s.names.cluster && slot(e.row(p.Key)) != slot(s.names.bucket(first.Limit, first.Key)):
			return store.ErrReservation // a limit has another parent now, and its buckets have begun anew
		}
	}
	if err = s.decideInGo(ctx, g, parts); err == nil && s.names.cluster {
		_ = s.db.Del(ctx, name).Err() // if this fails, the reservation is void anyway, because it is no longer in its set
	}
	return err
}
