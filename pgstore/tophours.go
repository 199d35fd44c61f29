package pgstore

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/dipwell/dipwell/internal/catalog"
	"github.com/dipwell/dipwell/store"
)

// reports has the busiest keys of each hour, or what was decided in each minute, for the
// Abilities of a store. Both kinds of reports are in dipwell.top_hours.
type reports struct {
	*Store
	log *catalog.EntryLog
}

var _ store.Auditor = reports{}

func (s reports) minutes() bool { return s.log == &catalog.Minutes }

// Record implements store.Auditor.
func (s reports) Record(ctx context.Context, e store.AuditEntry) error {
	now, err := s.now(ctx)
	if err != nil {
		return err
	}
	_, err = s.db.Exec(ctx, "insert into dipwell.top_hours (id, at, process, of_minute, report) values ($1, $2, $3, $4, $5)", catalog.EntryID(now, rand.Uint32()), time.UnixMicro(now).UTC(), e.Who, s.minutes(), e.What)
	if err == nil {
		_, err = s.db.Exec(ctx, "delete from dipwell.top_hours where of_minute = $3 and (id < $1 or id <= (select id from dipwell.top_hours where of_minute = $3 order by id desc limit 1 offset $2))",
			s.log.Oldest(now), s.log.Entries, s.minutes())
	}
	return storeError(err, true)
}

// Audit implements store.Auditor.
func (s reports) Audit(ctx context.Context, before string, n int) ([]store.AuditEntry, error) {
	return s.page(ctx, "id, process, case when of_minute then 'minute' else 'top' end, '', '', report::text, '', '' from (select * from dipwell.top_hours where of_minute = $3) top_hours", before, n, s.minutes())
}
