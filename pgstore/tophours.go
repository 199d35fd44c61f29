package pgstore

import (
	"context"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/dipwell/dipwell/internal/catalog"
	"github.com/dipwell/dipwell/store"
)

// reports has the busiest keys of each hour, or what was decided in each minute, for the
// Abilities of a store. Both are in dipwell.top_hours, where the process of a minute begins
// with minuteOf: reports are not read to tell them apart.
type reports struct {
	*Store
	log *catalog.EntryLog
}

var _ store.Auditor = reports{}

const minuteOf = "minute of "

func (s reports) minutes() bool { return s.log == &catalog.Minutes }

// Record implements store.Auditor.
func (s reports) Record(ctx context.Context, e store.AuditEntry) error {
	if s.minutes() {
		e.Who = minuteOf + e.Who
	}
	now, err := s.now(ctx)
	if err != nil {
		return err
	}
	_, err = s.db.Exec(ctx, "insert into dipwell.top_hours (id, at, process, report) values ($1, $2, $3, $4)", catalog.EntryID(now, rand.Uint32()), time.UnixMicro(now).UTC(), e.Who, e.What)
	if err == nil {
		_, err = s.db.Exec(ctx, "delete from dipwell.top_hours where (process like 'minute of %') = $3 and (id < $1 or id <= (select id from dipwell.top_hours where (process like 'minute of %') = $3 order by id desc limit 1 offset $2))",
			s.log.Oldest(now), s.log.Entries, s.minutes())
	}
	return storeError(err, true)
}

// Audit implements store.Auditor.
func (s reports) Audit(ctx context.Context, before string, n int) ([]store.AuditEntry, error) {
	if err := catalog.CheckBefore(before); err != nil {
		return nil, err
	}
	if s.minutes() {
		list, err := s.page(ctx, "id, process, 'minute', '', '', report::text, '', '' from (select * from dipwell.top_hours where process like 'minute of %') top_hours", before, n)
		for i := range list {
			list[i].Who = strings.TrimPrefix(list[i].Who, minuteOf)
		}
		return list, err
	}
	return s.page(ctx, "id, process, 'top', '', '', report::text, '', '' from (select * from dipwell.top_hours where process not like 'minute of %') top_hours", before, n)
}
