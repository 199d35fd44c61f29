package filestore

import (
	"testing"

	"github.com/dipwell/dipwell/internal/catalog"
	"github.com/dipwell/dipwell/store"
)

// An entry of a log removes those beyond its bounds, in number and in age.
func TestAuditIsBounded(t *testing.T) {
	now := int64(1e15)
	s := open(t, fresh(t), Config{Clock: func() int64 { return now }})
	for _, log := range []*catalog.EntryLog{&catalog.Changes, &catalog.TopHours} {
		t.Run(log.Name, func(t *testing.T) { bounded(t, s, log, now) })
	}
}

func bounded(t *testing.T, s *Store, log *catalog.EntryLog, now int64) {
	t.Helper()
	a := trail{s, log}
	for _, tc := range []struct {
		at   int64 // of the entries that are there
		left int
	}{{now - log.Age - 1, 1}, {now - 1, log.Entries}} {
		s.disk.mu.Lock()
		err := s.disk.exec(`with recursive n(i) as (select 1 union all select i + 1 from n where i < 10005)
			insert into `+log.Name+` (id, at, who, "action", "limit", key, what, note) select substr(?, 1, 14) || printf('%08x', i), '', '', 'reset', 'l', '', '', '' from n`, catalog.FirstEntry(tc.at))
		s.disk.mu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		if err = a.Record(t.Context(), store.AuditEntry{Action: "reset", Limit: "l", What: "new"}); err != nil {
			t.Fatal(err)
		}
		page, err := a.Audit(t.Context(), "", 2*log.Entries)
		if err != nil || len(page) != tc.left || page[0].What != "new" {
			t.Errorf("%d entries are left, want %d: %v", len(page), tc.left, err)
		}
	}
}
