package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dipwell/dipwell/internal/catalog"
	"github.com/dipwell/dipwell/store"
)

// usage has what keys used in each hour, for the Abilities of a store: a hash for each
// limit and hour, with three fields for each key.
type usage struct{ *Store }

var _ store.UsageKeeper = usage{}

const (
	usageHour  = int64(time.Hour / time.Microsecond)
	usageChunk = 1000 // most lines in a call: Redis serves nobody else meanwhile
)

func (s usage) AddUsage(ctx context.Context, lines []store.UsageLine) error {
	var order []int // indexes of lines, those of the same limit and hour together
	for i := range lines {
		if s.limits.reg.Lookup(lines[i].Limit) != nil {
			order = append(order, i)
		}
	}
	slices.SortFunc(order, func(i, j int) int {
		return cmp.Or(cmp.Compare(lines[i].Limit, lines[j].Limit), cmp.Compare(lines[i].Hour, lines[j].Hour))
	})
	for len(order) > 0 {
		first, chunk := &lines[order[0]], []store.UsageLine(nil)
		for _, i := range order {
			if l := &lines[i]; len(chunk) < usageChunk && l.Limit == first.Limit && l.Hour == first.Hour {
				chunk = append(chunk, *l)
			}
		}
		err := s.count(ctx, chunk)
		if errors.Is(err, store.ErrOutcomeUnknown) {
			return &store.UsageError{Rest: order[len(chunk):], Lost: len(chunk), Err: err}
		} else if err != nil {
			return &store.UsageError{Rest: order, Err: err}
		}
		order = order[len(chunk):]
	}
	return nil
}

// count adds lines of one limit and hour.
func (s usage) count(ctx context.Context, lines []store.UsageLine) error {
	age := time.Duration(catalog.UsageAge)*time.Microsecond + 2*time.Hour
	args := []any{nil, nil, 1, s.hash(lines[0].Limit, lines[0].Hour), age.Milliseconds(), len(lines)}
	for i := range lines {
		l := &lines[i]
		args = append(args, l.Key, l.Allowed, l.Refused, l.Tokens)
	}
	_, err := s.run(ctx, s.call(ctx, s.scripts.count, true, args))
	return err
}

func (s usage) hash(limit string, hour int64) string {
	return s.names.start(s.names.usages, limit) + strconv.FormatInt(hour/usageHour, 10)
}

func (s usage) Usage(ctx context.Context, d *store.Definition, key string, from, to int64) (list []store.UsageLine, err error) {
	now, err := s.now(ctx)
	if err != nil {
		return nil, err
	}
	from, to = max(from, now-catalog.UsageAge), min(to, now+catalog.UsageAge)
	var reads []*redis.SliceCmd
	_, err = s.db.Pipelined(ctx, func(p redis.Pipeliner) error {
		for hour := (from + usageHour - 1) / usageHour * usageHour; hour < to; hour += usageHour {
			list = append(list, store.UsageLine{Limit: d.Name, Key: key, Hour: hour})
			reads = append(reads, p.HMGet(ctx, s.hash(d.Name, hour), "a"+key, "r"+key, "t"+key))
		}
		return nil
	})
	if err != nil {
		return nil, storeError(err, false)
	}
	for i, read := range reads {
		l := &list[i]
		for j, to := range []*int64{&l.Allowed, &l.Refused, &l.Tokens} {
			if text, ok := read.Val()[j].(string); ok {
				if *to, err = strconv.ParseInt(text, 10, 64); err != nil {
					return nil, fmt.Errorf("%w: the key %s: %w", store.ErrStore, s.hash(l.Limit, l.Hour), err)
				}
			}
		}
	}
	return slices.DeleteFunc(list, func(l store.UsageLine) bool { return l.Allowed|l.Refused|l.Tokens == 0 }), nil
}

// forgetUsage deletes the usage of a dropped limit.
func (s *Store) forgetUsage(ctx context.Context, limit string) error {
	return s.scanNames(ctx, globs.Replace(s.names.start(s.names.usages, limit))+"*", func(names []string) error {
		_, err := s.db.Pipelined(ctx, func(p redis.Pipeliner) error {
			for _, name := range names {
				p.Del(ctx, name)
			}
			return nil
		})
		return err
	})
}
