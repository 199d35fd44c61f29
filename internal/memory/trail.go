package memory

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/dipwell/dipwell/internal/catalog"
	"github.com/dipwell/dipwell/store"
)

// A trail is a log of entries of a store, in memory.
type trail struct {
	log *catalog.EntryLog
	now func() int64

	mu      sync.Mutex
	n       uint32
	entries []store.AuditEntry // by ID
}

func (t *trail) Record(_ context.Context, e store.AuditEntry) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	e.At = t.now()
	t.n++
	e.ID = catalog.EntryID(e.At, t.n)
	at, _ := t.find(e.ID) // it may belong before the last entry, if the clock was set back
	t.entries = slices.Insert(t.entries, at, e)
	t.forget(e.At)
	return nil
}

// forget deletes the entries beyond the log's bounds. The caller holds mu.
func (t *trail) forget(now int64) {
	old, _ := t.find(t.log.Oldest(now))
	t.entries = slices.Delete(t.entries, 0, max(old, len(t.entries)-t.log.Entries))
}

func (t *trail) sweep(now int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forget(now)
}

// find returns the place of an ID, or the place where it belongs.
func (t *trail) find(id string) (int, bool) {
	return slices.BinarySearchFunc(t.entries, id, func(e store.AuditEntry, id string) int { return strings.Compare(e.ID, id) })
}

func (t *trail) Audit(_ context.Context, before string, n int) ([]store.AuditEntry, error) {
	if err := catalog.CheckBefore(before); err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	end := len(t.entries)
	if before != "" {
		end, _ = t.find(before)
	}
	page := slices.Clone(t.entries[max(0, end-n):end])
	slices.Reverse(page)
	return page, nil
}
