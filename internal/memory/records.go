package memory

import (
	"container/heap"
	"math"
	"slices"
	"strings"

	"github.com/dipwell/dipwell/store"
)

// withLows is the bit of a slot's handle that marks a row with lows. The fast path
// of a Take then finds an unexpected handle, and leaves the call to group.
const withLows = 1 << 31

type rowID struct {
	id  uint64
	tag uint32
}

// keyRecords are the lows of a key's row, and the records of what was taken. The
// lock of the key's shard guards them.
type keyRecords struct {
	*limit
	rowID
	key     string
	lows    *store.Lows // of the row, whose handle has withLows; else nil
	records []store.Record
	next    int64 // µs: until then Definition.Advance changes nothing
	index   int   // in the shard's heap

	changed map[recordID]struct{} // records that were made, changed or ended since Changes; see WatchReservations
}

type recordID struct{ mark, number int64 }

// nextChange returns the time in µs until which Definition.Advance does not change a record.
func nextChange(r *store.Record) int64 {
	switch {
	case r.Rest:
		return math.MaxInt64 // it is removed together with others
	case r.Slack >= 0:
		return r.Due
	}
	return r.Ends
}

// recordsOf returns the records of a key, and adds an empty entry if there is none.
func (sh *shard) recordsOf(p *place, key string) *keyRecords {
	id := rowID{p.id, p.tag}
	k := sh.records[id]
	if k == nil {
		k = &keyRecords{limit: p.limit, rowID: id, key: strings.Clone(key), next: math.MaxInt64}
		if sh.records == nil {
			sh.records = map[rowID]*keyRecords{}
		}
		sh.records[id] = k
		heap.Push(&sh.due, k)
	}
	return k
}

// dropRecords removes the entry of a key. The caller has removed its lows from the row.
func (sh *shard) dropRecords(k *keyRecords) {
	sh.store.records.Add(-int64(len(k.records)))
	delete(sh.records, k.rowID)
	heap.Remove(&sh.due, k.index)
}

// set replaces the records of a key.
func (sh *shard) set(k *keyRecords, records []store.Record) {
	if sh.store.watched.Load() {
		k.compare(records)
	}
	sh.store.records.Add(int64(len(records) - len(k.records)))
	k.records, k.next = records, math.MaxInt64
	for i := range records {
		k.next = min(k.next, nextChange(&records[i]))
	}
	heap.Fix(&sh.due, k.index)
}

// append adds a record that s.records has counted.
func (sh *shard) append(k *keyRecords, r store.Record) {
	if sh.store.watched.Load() {
		k.markChanged(&r)
	}
	k.records = append(k.records, r)
	k.next = min(k.next, nextChange(&r))
	heap.Fix(&sh.due, k.index)
}

// compare marks the records that differ from the present ones as changed. Both
// lists have the same order.
func (k *keyRecords) compare(records []store.Record) {
	i := 0
	for j := range k.records {
		was := &k.records[j]
		if i < len(records) && records[i].Number == was.Number && records[i].Mark == was.Mark {
			if i++; records[i-1] == *was {
				continue
			}
		}
		k.markChanged(was)
	}
}

func (k *keyRecords) markChanged(r *store.Record) {
	if k.changed == nil {
		k.changed = map[recordID]struct{}{}
	}
	k.changed[recordID{r.Mark, r.Number}] = struct{}{}
}

// endLows removes the lows of a key whose row is removed, and the units withheld under them.
func (sh *shard) endLows(id rowID) {
	k := sh.records[id]
	if k == nil || k.lows == nil {
		return
	}
	k.lows = nil
	sh.set(k, withoutWithheld(k.records))
	sh.dropIfEmpty(k)
}

// withoutWithheld returns the records without those whose reservation was cancelled.
func withoutWithheld(records []store.Record) []store.Record {
	return slices.DeleteFunc(slices.Clone(records), func(r store.Record) bool { return r.Rest })
}

// dropIfEmpty removes the entry of a key if it has neither lows nor records.
func (sh *shard) dropIfEmpty(k *keyRecords) {
	if k.lows == nil && len(k.records) == 0 && sh.records[k.rowID] == k {
		sh.dropRecords(k)
	}
}

// advanceDue brings keys whose records have fallen due up to date, at most n of them.
func (sh *shard) advanceDue(now int64, n int) {
	for ; n > 0 && len(sh.due) > 0 && sh.due[0].next <= now; n-- {
		if k, b := sh.due[0], sh.due[0].current.Load(); b != nil {
			sh.advanceKey(k, b, now)
		} else { // the limit is gone
			sh.dropRecords(k)
		}
	}
}

// advanceKey brings the records and the row of a key up to date under a definition.
func (sh *shard) advanceKey(k *keyRecords, b *binding, now int64) {
	p := place{binding: b, id: k.id, tag: k.tag}
	row := store.State{Version: b.def.Number}
	i, found := sh.find(k.id, k.tag)
	if found = found && k.lows != nil; found {
		row = sh.state(sh.at(i), &p)
	}
	records := k.records
	if sh.store.watched.Load() {
		records = slices.Clone(records) // set compares them with the old ones
	}
	row, records, err := b.def.Advance(row, k.key, now, records)
	if err != nil { // a row of a later version than the limit's: not possible here
		k.next = math.MaxInt64
		heap.Fix(&sh.due, k.index)
		return
	}
	sh.set(k, records)
	if found {
		sh.rewrite(i, &p, k.key, row)
	}
	sh.dropIfEmpty(k)
}

// dropLimitRecords removes the records and lows of all keys of a limit.
func (s *Store) dropLimitRecords(name string) {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		for _, k := range sh.records {
			if k.name == name {
				sh.dropRecords(k)
			}
		}
		sh.mu.Unlock()
	}
}

// eachRecord calls do with the limit and version of every record.
func (s *Store) eachRecord(do func(limit string, version uint32)) {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		for _, k := range sh.records {
			for j := range k.records {
				do(k.name, k.records[j].Version)
			}
		}
		sh.mu.Unlock()
	}
}

// recordHeap is a heap with the key whose records change next on top.
type recordHeap []*keyRecords

func (h recordHeap) Len() int           { return len(h) }
func (h recordHeap) Less(i, j int) bool { return h[i].next < h[j].next }
func (h recordHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *recordHeap) Push(x any) {
	k := x.(*keyRecords)
	k.index = len(*h)
	*h = append(*h, k)
}
func (h *recordHeap) Pop() any {
	old := *h
	k := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return k
}
