package redisstore

import (
	"context"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dipwell/dipwell/internal/algebra"
	"github.com/dipwell/dipwell/internal/await"
	"github.com/dipwell/dipwell/store"
)

const (
	scanCount   = 1000        // names per step of SCAN
	maxPast     = 512         // number of versions from which unused ones are deleted
	propagation = time.Second // by then every program has been notified of a change, even if Config.Poll is longer
)

// slower reports whether a bucket may become full later by the new rule than by
// the old.
func slower(from, to *store.Rule, policy store.ChangePolicy) bool {
	if policy == store.StartOver {
		return false
	}
	if policy == store.Proportional || from.Every != 1 || to.Every != 1 {
		return true // possibly
	}
	// With the same number of tokens: does a token take longer to come back?
	return float64(to.Unit)/float64(to.Add) > float64(from.Unit)/float64(from.Add) || to.Unit%from.Unit != 0
}

// lengthenExpiry makes all rows of a limit live as long as d's rule needs them.
func (s *Store) lengthenExpiry(ctx context.Context, d *store.Definition) error {
	now, err := s.now(ctx)
	if err != nil {
		return err
	}
	return s.scan(ctx, d.Name, "", func(rows []bucket) error {
		calls := make([]call, 0, len(rows))
		for _, b := range rows {
			// Rows are of d's version or an older one; a newer one belongs to
			// another program's change.
			carried, ok := d.Carry(b.State, b.Key, now)
			if !ok || carried.Used == 0 {
				continue
			}
			var scratch store.Rule
			rule := d.RuleFor(b.Key, &scratch)
			full := now + algebra.TimeToFull(rule, carried.Used, max(now, carried.TS), now)
			if longest := now + algebra.TimeToFull(&d.Rule, carried.Used, max(now, b.TS), now); !d.Rule.Spread {
				full = max(full, longest)
			}
			args := []any{nil, nil, 1, b.name, strconv.FormatInt(full/1000+1, 10)}
			calls = append(calls, newCall(ctx, s.scripts.lengthen, false, s.withClock(args)))
		}
		for _, err := range s.runMany(ctx, calls) {
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// lengthenExpiryLater repeats lengthenExpiry once every program knows of the
// change, because until then they write rows of the previous version. Rows live
// for at least two seconds.
func (s *Store) lengthenExpiryLater(d *store.Definition) {
	s.cat.Go(func(ctx context.Context) {
		_ = await.Sleep(ctx, propagation) // if the store is closed, it is done at once
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		if err := s.lengthenExpiry(ctx, d); err != nil {
			s.limits.config.OnError(err)
		}
	})
}

// retire removes the versions of d that no row refers to.
func (s *Store) retire(ctx context.Context, d *store.Definition) error {
	oldest := uint32(math.MaxUint32)
	err := s.scan(ctx, d.Name, "", func(rows []bucket) error {
		for _, b := range rows {
			oldest = min(oldest, b.Version)
		}
		return nil
	})
	if err != nil {
		return err
	}
	// Keep the last few: a program that does not know of the newer ones may
	// still write them.
	oldest = min(oldest, d.Past[len(d.Past)-8].Number)
	for len(d.Past) > 0 && d.Past[0].Number < oldest {
		d.Past = d.Past[1:]
	}
	return nil
}

// A bucket is a row found by scan.
type bucket struct {
	store.KeyState
	name string
}

// scan calls do for the buckets of a limit whose keys start with prefix, some
// at a time, from every master. A bucket may come twice.
func (s *Store) scan(ctx context.Context, limit, prefix string, do func([]bucket) error) error {
	begin, pattern := s.names.bucketPrefix(limit), s.names.pattern(limit, prefix)
	var one = make(await.Gate, 1) // masters are scanned concurrently
	return s.eachMaster(ctx, func(ctx context.Context, node redis.UniversalClient) error {
		var cursor uint64
		for {
			names, next, err := node.Scan(ctx, cursor, pattern, scanCount).Result()
			if err != nil {
				return err
			}
			rows, err := s.readRows(ctx, node, begin, names)
			if err == nil && len(rows) > 0 {
				if err = one.Enter(ctx); err == nil {
					err = do(rows)
					one.Leave()
				}
			}
			if err != nil {
				return err
			}
			if cursor = next; cursor == 0 {
				return nil
			}
		}
	})
}

func (s *Store) readRows(ctx context.Context, node redis.UniversalClient, begin string, names []string) ([]bucket, error) {
	if len(names) == 0 {
		return nil, nil
	}
	cmds, err := node.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, name := range names {
			p.Get(ctx, name)
		}
		return nil
	})
	if err != nil && !replied(err, "WRONGTYPE ", "MOVED ", "ASK ") && err != redis.Nil { //nolint:errorlint // go-redis returns it bare
		return nil, err
	}
	rows := make([]bucket, 0, len(names))
	for i, cmd := range cmds {
		rest, ok := strings.CutPrefix(names[i], begin)
		if !ok {
			continue
		}
		key, ok := s.names.keyOf(rest)
		if get, is := cmd.(*redis.StringCmd); ok && is && get.Err() == nil {
			if row, ok := parseRow(get.Val()); ok {
				rows = append(rows, bucket{store.KeyState{Key: key, State: row}, names[i]})
			}
		}
	}
	return rows, nil
}
