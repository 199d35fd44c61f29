package redisstore

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dipwell/dipwell/internal/catalog"
	"github.com/dipwell/dipwell/internal/texts"
	"github.com/dipwell/dipwell/store"
)

// A trail is a log of entries of a store. In Redis it is a sorted set whose members have
// equal scores, so that Redis keeps them in byte order, which is the order of time: an ID
// and the JSON of the entry, a public format.
type trail struct {
	*Store
	log *catalog.EntryLog
}

var _ store.Auditor = trail{}

func (s trail) key() string { return s.names.logs + s.log.Name }

func (s trail) Record(ctx context.Context, e store.AuditEntry) error {
	now, err := s.now(ctx)
	if err != nil {
		return err
	}
	_, err = s.db.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.ZAdd(ctx, s.key(), redis.Z{Member: catalog.EntryID(now, rand.Uint32()) + texts.Marshal(e)})
		p.ZRemRangeByLex(ctx, s.key(), "-", "("+s.log.Oldest(now))
		p.ZRemRangeByRank(ctx, s.key(), 0, int64(-s.log.Entries-1))
		if s.log != &catalog.Changes { // otherwise nothing would delete the log once no service runs any more
			p.PExpire(ctx, s.key(), time.Duration(s.log.Age)*time.Microsecond)
		}
		return nil
	})
	return storeError(err, true)
}

func (s trail) Audit(ctx context.Context, before string, n int) ([]store.AuditEntry, error) {
	if err := catalog.CheckBefore(before); err != nil {
		return nil, err
	}
	top := "+"
	if before != "" {
		top = "(" + before
	}
	members, err := s.db.ZRevRangeByLex(ctx, s.key(), &redis.ZRangeBy{Min: "-", Max: top, Count: int64(n)}).Result()
	if err != nil {
		return nil, storeError(err, false)
	}
	var page []store.AuditEntry
	for _, m := range members {
		e := store.AuditEntry{ID: m[:min(len(m), catalog.EntryDigits)]}
		if e.At, err = catalog.EntryTime(e.ID); err == nil {
			err = json.Unmarshal([]byte(m[catalog.EntryDigits:]), &e)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: the key %s: %w", store.ErrStore, s.key(), err)
		}
		page = append(page, e)
	}
	return page, nil
}
