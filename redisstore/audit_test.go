package redisstore_test

import (
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/dipwell/dipwell/internal/catalog"
	"github.com/dipwell/dipwell/internal/redistest"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
)

// TestAuditIsBounded checks that an entry removes those beyond the bounds of its log, in
// number and in age.
func TestAuditIsBounded(t *testing.T) {
	t.Parallel()
	db := connect(t, redistest.Shared(t).URL())
	now := int64(1e15)
	s := newStore(t, db, redisstore.Config{Prefix: "audited", Poll: -1, Clock: func() int64 { return now }})
	for log, a := range map[*catalog.EntryLog]store.Auditor{&catalog.Changes: s.Abilities().Audit, &catalog.TopHours: s.Abilities().TopKeys} {
		t.Run(log.Name, func(t *testing.T) { bounded(t, db, log, a, now) })
	}
}

func bounded(t *testing.T, db redis.UniversalClient, log *catalog.EntryLog, a store.Auditor, now int64) {
	t.Helper()
	key := "audited." + log.Name
	for _, tc := range []struct {
		at   int64 // of the entries that are there
		left int64
	}{{now - log.Age - 1, 1}, {now - 1, int64(log.Entries)}} {
		var old []redis.Z
		for i := range uint32(log.Entries + 5) {
			old = append(old, redis.Z{Member: catalog.EntryID(tc.at, i) + fmt.Sprintf(`{"who":"","action":"reset","limit":"l","what":"%d"}`, i)})
		}
		if err := db.ZAdd(t.Context(), key, old...).Err(); err != nil {
			t.Fatal(err)
		}
		if err := a.Record(t.Context(), store.AuditEntry{Action: "reset", Limit: "l", What: "new"}); err != nil {
			t.Fatal(err)
		}
		if n := db.ZCard(t.Context(), key).Val(); n != tc.left {
			t.Errorf("%d entries are left, want %d", n, tc.left)
		}
		if page, err := a.Audit(t.Context(), "", 1); err != nil || len(page) != 1 || page[0].What != "new" {
			t.Errorf("the newest: %+v, %v", page, err)
		}
	}
}
