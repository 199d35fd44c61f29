package memory

import (
	"container/heap"
	"math"
	"slices"
	"strings"
	"unsafe"

	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

// Bits of a slot's handle. The fast path of a Take compares handles, so that it leaves a row
// with extras to other code.
const (
	withLow    = 1 << 30 // the row has lows, and what a Take needs of them is in the column lows
	withExtras = 1 << 31 // the key has an override, or the row has lows and there was no memory for the column
	marks      = withLow | withExtras
)

type rowID struct {
	id  uint64
	tag uint32
}

// keyExtras are what a key has besides its row: the lows of the row, the records of
// what was taken, and an override. The lock of the key's shard guards them.
type keyExtras struct {
	*limit
	rowID
	key      string
	lows     *store.Lows // nil if the row has none; its handle has withLow or withExtras if it has. The last low may be less: see low
	records  []store.Record
	counted  int64           // how many records of reservations are counted
	override *store.Override // if there is a row, its handle has withExtras
	next     int64           // µs: a sweep before this time changes nothing
	index    int             // in the shard's heap
	inUse    int             // calls that have read it; a sweep leaves it alone meanwhile

	changed map[recordID]struct{} // records that were made, changed or ended since Changes was called; see Watch
}

type recordID struct{ mark, number int64 }

// nextChange returns the time in µs before which a sweep does not change a record.
func nextChange(r *store.Record) int64 {
	switch {
	case r.Rest:
		return math.MaxInt64 // it is removed together with others
	case r.Hold != "":
		return r.Expires
	case r.Slack >= 0:
		return r.Due
	}
	return r.Ends
}

// extrasOf returns the extras of a key, and makes them if there are none.
func (sh *shard) extrasOf(p *place, key string) *keyExtras {
	id := rowID{p.id, p.tag}
	k := sh.extras[id]
	if k == nil {
		k = &keyExtras{limit: p.limit, rowID: id, key: strings.Clone(key), next: math.MaxInt64}
		if sh.extras == nil {
			sh.extras = map[rowID]*keyExtras{}
		}
		sh.extras[id] = k
		heap.Push(&sh.due, k)
	}
	return k
}

// overrideOf returns the override of a key, or nil.
func (sh *shard) overrideOf(p *place) *store.Override {
	if k := sh.extras[rowID{p.id, p.tag}]; k != nil {
		return k.override
	}
	return nil
}

// setOverride sets or ends the override of a key.
func (sh *shard) setOverride(k *keyExtras, o *store.Override) {
	var n int64
	switch {
	case k.override == nil && o != nil:
		n = 1
	case k.override != nil && o == nil:
		n = -1
	}
	if o != nil && o != k.override {
		o.Key = k.key // the same text, so that it is in memory once
	}
	k.override = o
	k.overrides.Add(n)
	sh.store.overrides.Add(n)
	sh.reschedule(k)
}

// dropExtras removes the extras of a key. The caller has removed the lows from its row.
func (sh *shard) dropExtras(k *keyExtras) {
	sh.store.records.Add(-k.counted)
	if k.override != nil {
		sh.setOverride(k, nil)
	}
	delete(sh.extras, k.rowID)
	heap.Remove(&sh.due, k.index)
}

// set replaces the records of a key. The new list may be the present one with records
// appended in place.
func (sh *shard) set(k *keyExtras, records []store.Record) {
	if k.lows == nil {
		records = withoutWithheld(records)
	}
	n, kept := k.added(records), k.kept(records)
	sh.store.records.Add(n)
	k.counted += n
	if sh.store.watched.Load() {
		k.compare(records)
	}
	k.records = records
	if kept == 0 {
		sh.reschedule(k)
		return
	}
	for i := kept; i < len(records); i++ {
		k.next = min(k.next, nextChange(&records[i]))
	}
	heap.Fix(&sh.due, k.index)
}

// kept returns how many of the present records begin the new list unchanged: all of them
// if others were appended in place, which saves comparing thousands, and otherwise none.
func (k *keyExtras) kept(records []store.Record) int {
	if n := len(k.records); n <= len(records) && unsafe.SliceData(k.records) == unsafe.SliceData(records) {
		return n
	}
	return 0
}

// same reports whether two lists of records share their memory.
func same(a, b []store.Record) bool {
	return len(a) == len(b) && unsafe.SliceData(a) == unsafe.SliceData(b)
}

// reschedule computes when a sweep should visit the key.
func (sh *shard) reschedule(k *keyExtras) {
	k.next = math.MaxInt64
	for i := range k.records {
		k.next = min(k.next, nextChange(&k.records[i]))
	}
	if k.override != nil && k.override.Until != 0 {
		k.next = min(k.next, k.override.Until)
	}
	heap.Fix(&sh.due, k.index)
}

// added returns by how many the number of records of reservations grows.
func (k *keyExtras) added(records []store.Record) (n int64) {
	kept := k.kept(records)
	if kept == 0 {
		n = -k.counted
	}
	for i := kept; i < len(records); i++ {
		if records[i].Hold == "" {
			n++
		}
	}
	return n
}

// compare marks the records that differ from the present ones as changed. Both
// lists have the same order.
func (k *keyExtras) compare(records []store.Record) {
	i := k.kept(records)
	for j := i; j < len(k.records); j++ {
		was := &k.records[j]
		if i < len(records) && records[i].Number == was.Number && records[i].Mark == was.Mark {
			if i++; records[i-1] == *was {
				continue
			}
		}
		k.markChanged(was)
	}
	for ; i < len(records); i++ {
		k.markChanged(&records[i])
	}
}

func (k *keyExtras) markChanged(r *store.Record) {
	if k.changed == nil {
		k.changed = map[recordID]struct{}{}
	}
	k.changed[recordID{r.Mark, r.Number}] = struct{}{}
}

// endLows removes the lows of a key whose row is removed, and the units withheld under them.
func (sh *shard) endLows(id rowID) {
	k := sh.extras[id]
	if k == nil || k.lows == nil {
		return
	}
	k.lows = nil
	sh.set(k, k.records)
	sh.dropIfEmpty(k)
}

// withoutWithheld returns the records except those of cancelled reservations.
func withoutWithheld(records []store.Record) []store.Record {
	rest := func(r store.Record) bool { return r.Rest }
	if !slices.ContainsFunc(records, rest) {
		return records
	}
	return slices.DeleteFunc(slices.Clone(records), rest)
}

// setLows sets the lows of a row that Put replaces, or ends those that it had.
func (sh *shard) setLows(p *place, key string, lows *store.Lows) {
	if lows != nil {
		sh.extrasOf(p, key).lows = lows
	} else {
		sh.endLows(rowID{p.id, p.tag})
	}
}

// dropIfEmpty removes the extras of a key if there is nothing in them.
func (sh *shard) dropIfEmpty(k *keyExtras) {
	if k.lows != nil || len(k.records) > 0 || k.override != nil || sh.extras[k.rowID] != k {
		return
	}
	if len(k.changed) == 0 {
		sh.dropExtras(k)
	} else if b := k.current.Load(); b != nil {
		sh.store.touch([]Touched{{b.def, k.key, true}}) // Changes drops it
	}
}

// sweepDue sweeps keys whose records or overrides have ended, at most n of them.
func (sh *shard) sweepDue(now int64, n int) {
	for ; n > 0 && len(sh.due) > 0 && sh.due[0].next <= now && sh.due[0].inUse == 0; n-- {
		if k, b := sh.due[0], sh.due[0].current.Load(); b != nil {
			sh.sweepKey(k, b, now)
		} else {
			sh.dropOfGone(k)
		}
	}
}

// sweepAgain is the time in µs after which a sweep visits a key again that has more to
// do.
const sweepAgain = 1e6

// sweepKey brings the records, the override and the row of a key up to date.
func (sh *shard) sweepKey(k *keyExtras, b *binding, now int64) {
	t := sh.store.newTxn(now)
	t.place(b, k.name, k.key, nil)
	t.use(1)
	_, err := store.SweepRow(t, &sh.store.reg, k.name, k.key, now)
	if err == nil {
		err = t.commit()
	}
	sh.store.touch(t.touched)
	t.use(-1)
	t.unlockHolds()
	t.end()
	if sh.extras[k.rowID] == k && (err != nil || k.next <= now) {
		k.next = now + sweepAgain
		heap.Fix(&sh.due, k.index)
	}
}

// dropOfGone removes the extras of a key whose limit was dropped, and ends its parts of
// holds.
func (sh *shard) dropOfGone(k *keyExtras) {
	holds := &sh.store.holds
	now := sh.store.now()
	for i := range k.records {
		id := k.records[i].Hold
		if id == "" || k.records[i].Expires <= now {
			continue
		}
		holds.mu.Lock()
		if e := holds.entries[id]; e != nil {
			h := e.value
			h.Parts = slices.Clone(h.Parts)
			for j := range h.Parts {
				h.Parts[j].Reset = h.Parts[j].Reset || h.Parts[j].Limit == k.name && h.Parts[j].Key == k.key
			}
			holds.set(id, h, now)
		}
		holds.mu.Unlock()
	}
	sh.dropExtras(k)
}

// ForgetRecords drops the records, lows and overrides of all keys of a limit. Its
// reservations and holds can then give nothing back.
func (s *Store) ForgetRecords(limit string) {
	s.eachExtras(func(sh *shard, k *keyExtras) {
		if k.name == limit {
			sh.dropOfGone(k)
		}
	})
}

// eachExtras calls do, under the lock of the shard, with every key that has records, lows
// or an override.
func (s *Store) eachExtras(do func(sh *shard, k *keyExtras)) {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		for _, k := range sh.extras {
			do(sh, k)
		}
		sh.mu.Unlock()
	}
}

// oldest returns the lowest version of its limit that a key's row, records and override
// refer to.
func (sh *shard) oldest(k *keyExtras) uint32 {
	oldest := uint32(terms.MaxVersion)
	add := func(n uint32) {
		if !terms.IsOverride(n) {
			oldest = min(oldest, terms.VersionOf(n))
		}
	}
	if k.override != nil {
		add(k.override.Version)
	}
	for i := range k.records {
		add(k.records[i].Version)
	}
	if i, found := sh.find(k.id, k.tag); found {
		add(sh.store.limits.of(sh.at(i).handle).number)
	}
	return oldest
}

// extrasHeap is a heap of extras; the one that a sweep has to visit first is on top.
type extrasHeap []*keyExtras

func (h extrasHeap) Len() int           { return len(h) }
func (h extrasHeap) Less(i, j int) bool { return h[i].next < h[j].next }
func (h extrasHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *extrasHeap) Push(x any) {
	k := x.(*keyExtras)
	k.index = len(*h)
	*h = append(*h, k)
}
func (h *extrasHeap) Pop() any {
	old := *h
	k := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return k
}

func (s *Store) sweepShard(i int, locked bool, now int64) {
	sh := &s.shards[i]
	if !locked {
		if !sh.mu.TryLock() {
			return
		}
		defer sh.mu.Unlock()
	}
	sh.sweepDue(now, sweepDueWork)
}
