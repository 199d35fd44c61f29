package redisstore

import (
	"context"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dipwell/dipwell/internal/background"
	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

const (
	scanCount   = 1000        // names per step of SCAN
	propagation = time.Second // by then every program has been notified of a change, even if its Config.Poll is longer
)

// slower reports whether a bucket may become full later by the new version of a limit
// than by the old.
func slower(old, d *store.Definition) bool {
	from, to, policy := &old.Rule, &d.Rule, d.Policy
	if old.Overridden || old.Plans != (store.Plans{}) {
		return true // possibly
	}
	if policy == store.StartOver {
		return false
	}
	if policy == store.Proportional || from.Every != 1 || to.Every != 1 {
		return true // possibly
	}
	// With the same number of tokens used: does a token take longer to come back?
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
			full := fullAt(d, b.State, b.Key, now)
			if full == 0 {
				continue
			}
			names := []string{b.name}
			if b.recorded {
				names = append(names, s.names.of(s.names.records, d.Name, b.Key))
			}
			if b.Override != nil { // without its override the row would be full
				names = append(names, s.names.of(s.names.overrides, d.Name, b.Key))
			}
			for _, name := range names {
				calls = append(calls, s.call(ctx, s.scripts.lengthen, false, []any{nil, nil, 1, name, full}))
			}
		}
		for _, err := range s.runMany(ctx, calls) {
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// lengthenExpiryLater repeats lengthenExpiry when every program knows of the change:
// until then programs write rows of the previous version. A row lives for at least two
// seconds. Close waits for it, because nobody else would do it.
func (s *Store) lengthenExpiryLater(d *store.Definition) {
	s.cat.Go(func(ctx context.Context) {
		ctx = context.WithoutCancel(ctx)
		_ = background.Sleep(ctx, propagation) // this sleep never ends early
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		if err := s.lengthenExpiry(ctx, d); err != nil {
			s.limits.config.OnError(err)
		}
	})
}

// sweepKey calls SweepRow for a key. drops tells whether the limit is being dropped.
func (s *Store) sweepKey(ctx context.Context, limits *store.Registry, limit, key string, drops bool) error {
	t := s.newTable()
	t.limits, t.drops = limits, drops
	t.want(limit, key)
	return t.update(ctx, func() error {
		_, err := store.SweepRow(t, limits, limit, key, t.now)
		return err
	}, false)
}

// A bucket is a row that scan found.
type bucket struct {
	store.KeyState
	name     string
	recorded bool
}

// scan calls do for the buckets of a limit whose keys start with prefix, some
// at a time, from every master. scan may find a bucket twice.
func (s *Store) scan(ctx context.Context, limit, prefix string, do func([]bucket) error) error {
	begin := s.names.start(s.names.base, limit)
	return s.scanNames(ctx, s.names.pattern(begin, limit, prefix), func(names []string) error {
		rows, err := s.readRows(ctx, limit, names)
		if err != nil || len(rows) == 0 {
			return err
		}
		return do(rows)
	})
}

// scanNames calls do for the names that match a pattern, some at a time, from every master,
// perhaps twice for a name. In a cluster all masters are scanned once more, because a slot may
// move meanwhile from a master that was not scanned yet to one that was, but not twice.
func (s *Store) scanNames(ctx context.Context, pattern string, do func(names []string) error) error {
	one := make(background.Gate, 1) // masters are scanned concurrently, but do runs for one at a time
	scan := func(ctx context.Context, node redis.UniversalClient) error {
		var cursor uint64
		for {
			names, next, err := node.Scan(ctx, cursor, pattern, scanCount).Result()
			if err == nil && len(names) > 0 {
				if err = one.Enter(ctx); err == nil {
					err = do(names)
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
	}
	err := s.eachMaster(ctx, scan)
	if err == nil && s.names.cluster {
		err = s.eachMaster(ctx, scan)
	}
	return err
}

// getAll returns the values of strings, or "" for a key that is gone or is not a string.
func (s *Store) getAll(ctx context.Context, names []string) ([]string, error) {
	cmds, err := s.db.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, name := range names {
			p.Get(ctx, name)
		}
		return nil
	})
	texts := make([]string, len(names))
	for i, cmd := range cmds { // err is the first of their errors
		if err := cmd.Err(); err != nil && !missed(err) {
			return nil, err
		}
		texts[i] = cmd.(*redis.StringCmd).Val()
	}
	if missed(err) {
		err = nil
	}
	return texts, err
}

// missed reports whether a GET found no string.
func missed(err error) bool { return err == redis.Nil || replied(err, "WRONGTYPE ") } //nolint:errorlint // go-redis returns redis.Nil bare

// readRows reads buckets of a limit, with the overrides that decide them.
func (s *Store) readRows(ctx context.Context, limit string, names []string) ([]bucket, error) {
	texts, err := s.getAll(ctx, names)
	if err != nil {
		return nil, err
	}
	rows := make([]bucket, 0, len(names))
	var overridden []int
	var overrides []string
	for i, name := range names {
		rest, ok := strings.CutPrefix(name, s.names.start(s.names.base, limit))
		key, ok2 := s.names.keyOf(limit, rest)
		row, ok3 := parseRow(texts[i])
		if !ok || !ok2 || !ok3 || texts[i] == "" {
			continue
		}
		if terms.IsOverride(row.Version) {
			overridden, overrides = append(overridden, len(rows)), append(overrides, s.names.of(s.names.overrides, limit, key))
		}
		rows = append(rows, bucket{store.KeyState{Key: key, State: row.State}, name, row.recorded})
	}
	if texts, err = s.getAll(ctx, overrides); err != nil {
		return nil, err
	}
	for i, at := range overridden {
		if rows[at].Override, err = s.overrides.decode(limit, rows[at].Key, texts[i]); err != nil {
			return nil, err
		}
	}
	return rows, nil
}
