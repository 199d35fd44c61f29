package redisstore

import (
	"context"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dipwell/dipwell/internal/await"
	"github.com/dipwell/dipwell/store"
)

const (
	scanCount = 1000        // names that the server looks at in one step of a SCAN
	manyPast  = 512         // versions after which the oldest are forgotten where no row names them
	spreading = time.Second // by then all programs know of a change: Config.Poll may be longer, and they are told besides
)

// slower reports whether a bucket may be full later by the new rule than by the old.
func slower(from, to *store.Rule, policy store.ChangePolicy) bool {
	if policy == store.StartOver {
		return false
	}
	if policy == store.Proportional || from.Every != 1 || to.Every != 1 {
		return true // it may be
	}
	// The same number of tokens: is a token's way back longer?
	return float64(to.Unit)/float64(to.Add) > float64(from.Unit)/float64(from.Add) || to.Unit%from.Unit != 0
}

// lengthen lets all buckets of a limit live as long as d's rule needs them.
func (s *Store) lengthen(ctx context.Context, d *store.Definition) error {
	now, err := s.Now(ctx)
	if err != nil {
		return err
	}
	return s.scan(ctx, d.Name, "", func(rows []bucket) error {
		calls := make([]call, 0, len(rows))
		for _, b := range rows {
			// Rows in use are all of versions before d. A newer one is another program's work.
			carried, ok := d.Carry(b.State, b.Key)
			if !ok || carried.Used == 0 {
				continue
			}
			var scratch store.Rule
			rule := d.RuleFor(b.Key, &scratch)
			full := now + rule.FullIn(carried.Used, max(now, carried.TS), now)
			if longest := now + d.Rule.FullIn(carried.Used, max(now, b.TS), now); !d.Rule.Spread {
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

// lengthenAgain does it once more when every program has heard of the change:
// until then they wrote rows of the version before. Rows live for two seconds
// at least.
func (c *catalog) lengthenAgain(d *store.Definition) {
	c.done.Go(func() {
		_ = await.Sleep(c.ctx, spreading) // the store closes: at once then
		ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), time.Minute)
		defer cancel()
		if err := c.s.lengthen(ctx, d); err != nil {
			c.config.OnError(err)
		}
	})
}

// retire forgets the versions of d that no row names any more.
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
	// The last few stay: a program that has not heard of them may still write.
	oldest = min(oldest, d.Past[len(d.Past)-8].Number)
	for len(d.Past) > 0 && d.Past[0].Number < oldest {
		d.Past = d.Past[1:]
	}
	return nil
}

// bucket is a row as it was listed.
type bucket struct {
	store.KeyState
	name string
}

// scan lists the buckets of a limit whose keys begin with prefix, some at a
// time, from every master. One may come twice.
func (s *Store) scan(ctx context.Context, limit, prefix string, do func([]bucket) error) error {
	begin, pattern := s.names.of(limit), s.names.pattern(limit, prefix)
	var one = make(await.Gate, 1) // masters are asked side by side
	return s.each(ctx, func(ctx context.Context, node redis.UniversalClient) error {
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
