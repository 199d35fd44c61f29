package memory

import (
	"container/heap"
	"math"
	"slices"
	"strings"
	"unsafe"

	"github.com/dipwell/dipwell/internal/number"
	"github.com/dipwell/dipwell/store"
)

// withExtras is the bit of a slot's handle that marks a row whose key has lows or an
// override. The fast path of a Take then finds an unexpected handle, and leaves the call.
const withExtras = 1 << 31

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
	lows     *store.Lows // of the row, whose handle has withExtras; else nil
	records  []store.Record
	counted  int64           // records of reservations
	override *store.Override // the handle of the row, if there is one, has withExtras
	next     int64           // µs: until then a sweep changes nothing
	index    int             // in the shard's heap
	inUse    int             // calls that have read it: a sweep leaves it alone

	changed map[recordID]struct{} // records that were made, changed or ended since Changes; see Watch
}

type recordID struct{ mark, number int64 }

// nextChange returns the time in µs until which a sweep does not change a record.
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

// extrasOf returns what a key has besides its row, and makes it if there is nothing.
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
	k.override = o
	k.overrides.Add(n)
	sh.store.overrides.Add(n)
	sh.reschedule(k)
}

// dropExtras removes what a key has. The caller has removed its lows from the row.
func (sh *shard) dropExtras(k *keyExtras) {
	sh.store.records.Add(-k.counted)
	if k.override != nil {
		sh.setOverride(k, nil)
	}
	delete(sh.extras, k.rowID)
	heap.Remove(&sh.due, k.index)
}

// set replaces the records of a key. New ones may follow the present ones in place.
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

// kept returns how many of the present records begin a list of records as they are: all
// of them, if others were appended to them in place. A key may have thousands.
func (k *keyExtras) kept(records []store.Record) int {
	if n := len(k.records); n <= len(records) && unsafe.SliceData(k.records) == unsafe.SliceData(records) {
		return n
	}
	return 0
}

// same reports whether two lists of records are the same memory.
func same(a, b []store.Record) bool {
	return len(a) == len(b) && unsafe.SliceData(a) == unsafe.SliceData(b)
}

// reschedule computes when a sweep of the key is due.
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

// added returns how many more records of reservations there are.
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

// withoutWithheld returns the records without those whose reservation was cancelled.
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

// dropIfEmpty removes what a key has if that is nothing.
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

// sweepAgain is how many µs later a sweep comes back to a key with more to do.
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

// dropOfGone removes what a key of a dropped limit has, and ends the parts of holds on it.
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

// oldest returns the lowest version of the limit that an override or a record names.
func (k *keyExtras) oldest() uint32 {
	oldest := uint32(number.MaxVersion)
	if k.override != nil {
		oldest = k.override.Version
	}
	for i := range k.records {
		if n := k.records[i].Version; !number.IsOverride(n) {
			oldest = min(oldest, number.Version(n))
		}
	}
	return oldest
}

// Renew converts keys with overrides or records that name a version so old that it
// keeps others from being retired. An override may stand for years without a call.
func (s *Store) Renew() {
	now := s.now()
	s.eachExtras(func(sh *shard, k *keyExtras) {
		if b := k.current.Load(); b != nil && k.oldest()+manyPast/2 < b.def.Number {
			sh.sweepKey(k, b, now)
		}
	})
}

// extrasHeap is a heap with the key that a sweep changes next on top.
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
