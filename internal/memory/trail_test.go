package memory

import (
	"strconv"
	"testing"

	"github.com/dipwell/dipwell/internal/catalog"
	"github.com/dipwell/dipwell/store"
)

// The audit has the last entries.
func TestAuditIsBounded(t *testing.T) {
	now := int64(1e15)
	tr := trail{log: &catalog.Changes, now: func() int64 { return now }}
	for i := range tr.log.Entries + 5 {
		if err := tr.Record(t.Context(), store.AuditEntry{What: strconv.Itoa(i)}); err != nil {
			t.Fatal(err)
		}
		now++
	}
	all, err := tr.Audit(t.Context(), "", tr.log.Entries+5)
	if err != nil || len(all) != tr.log.Entries || all[len(all)-1].What != "5" {
		t.Errorf("%d entries, %v", len(all), err)
	}
}
