package pgstore

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/dipwell/dipwell/internal/catalog"
	"github.com/dipwell/dipwell/store"
)

// topHours has the busiest keys of each hour, for the Abilities of a store.
type topHours struct{ *Store }

var _ store.Auditor = topHours{}

// Record implements store.Auditor.
func (s topHours) Record(ctx context.Context, e store.AuditEntry) error {
	now, err := s.now(ctx)
	if err != nil {
		return err
	}
	_, err = s.db.Exec(ctx, "insert into dipwell.top_hours (id, at, process, report) values ($1, $2, $3, $4)", catalog.EntryID(now, rand.Uint32()), time.UnixMicro(now).UTC(), e.Who, e.What)
	if err == nil {
		_, err = s.db.Exec(ctx, "delete from dipwell.top_hours where id < $1 or id <= (select id from dipwell.top_hours order by id desc limit 1 offset $2)", catalog.TopHours.Oldest(now), catalog.TopHours.Entries)
	}
	return storeError(err, true)
}

// Audit implements store.Auditor.
func (s topHours) Audit(ctx context.Context, before string, n int) ([]store.AuditEntry, error) {
	if err := catalog.CheckBefore(before); err != nil {
		return nil, err
	}
	return s.page(ctx, "id, process, 'top', '', '', report::text, '', '' from dipwell.top_hours", before, n)
}
