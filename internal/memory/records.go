package memory

import (
	"container/heap"
	"math"
	"slices"
	"sort"
	"strings"

	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

// Bits of a slot's handle. The fast path of a Take compares handles, so that it leaves rows
// with these bits to other code.
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
	lows     *store.Lows    // nil if the row has none; otherwise its handle has withLow or withExtras. The last low may be lower than here: see low
	records  []store.Record // in the order of their numbers within the same lows; some may be gone: see isGone
	gone     int
	counted  int64           // number of records of reservations that are counted
	override *store.Override // override of the key; if there is a row, its handle has withExtras
	next     int64           // µs: a sweep before this time changes nothing
	index    int             // index in the shard's heap; -1 if it was dropped
	inUse    int             // number of calls that have read it; a sweep leaves it alone meanwhile
	began    int64           // when its block began, in µs
	blockAt  int             // index in the shard's blocks, if its only override is a block

	changed map[store.RecordID]struct{} // records that were made, changed or ended since Changes was called; see Watch
}

// extrasOf returns the extras of a key, and makes them if there are none. The extras keep key
// as long as there are records, as do the holds and reservations to which these belong.
func (sh *shard) extrasOf(p *place, key string) *keyExtras {
	id := rowID{p.id, p.tag}
	k := sh.extras[id]
	if k == nil {
		if k = sh.spare; k == nil || k.inUse > 0 {
			k = new(keyExtras)
		}
		sh.spare = nil
		*k = keyExtras{limit: p.limit, rowID: id, key: key, records: k.records[:0], next: math.MaxInt64}
		if sh.extras == nil {
			sh.extras = map[rowID]*keyExtras{}
		}
		sh.extras[id] = k
		heap.Push(&sh.due, k)
	}
	return k
}

func (sh *shard) overrideOf(p *place) *store.Override {
	if k := sh.extras[rowID{p.id, p.tag}]; k != nil {
		return k.override
	}
	return nil
}

// countsOf returns how many overrides of people, and how many blocks, a key with this
// override has. A block over an override of people is not counted.
func countsOf(o *store.Override) (set, blocks int64) {
	switch {
	case o == nil:
		return 0, 0
	case o.Under == nil && o.Kind() == store.AutomaticOverride:
		return 0, 1
	}
	return 1, 0
}

func (sh *shard) setOverride(k *keyExtras, o *store.Override) {
	oldSet, oldBlocks := countsOf(k.override)
	set, blocks := countsOf(o)
	if k.override == nil {
		k.key = strings.Clone(k.key)
	}
	if o != nil && o != k.override {
		o.Key = k.key // share the text, so that it is in memory once
	}
	if oldBlocks > 0 {
		heap.Remove(&sh.blocks, k.blockAt)
	}
	first := k.override == nil && o != nil
	if k.override = o; first {
		sh.filterOverride(k)
	}
	k.overrides.Add(set + blocks - oldSet - oldBlocks)
	sh.store.overrides.Add(set - oldSet)
	if blocks > 0 {
		k.began = o.Until
		if b := k.current.Load(); b != nil {
			k.began -= b.def.Block.Microseconds()
		}
		heap.Push(&sh.blocks, k)
	}
	sh.reschedule(k)
}

// forgetBlocks ends the shard's oldest blocks beyond its part of MaxOverrides.
func (sh *shard) forgetBlocks(now int64) {
	s := sh.store
	for most := s.maxOverrides/len(s.shards) + 1; sh.blocks.Len() > most; {
		k := sh.blocks.items[0]
		b := k.current.Load()
		if b == nil {
			sh.dropOfGone(k)
		} else if sh.changeKey(k, b, now, func(t *txn) error {
			_, err := b.def.EndOverrideIn(t, k.key, store.AutomaticOverride, now)
			return err
		}) != nil {
			return
		}
	}
}

// dropExtras removes the extras of a key. The caller has removed the lows from its row.
func (sh *shard) dropExtras(k *keyExtras) {
	sh.store.records.Add(-k.counted)
	if k.override != nil {
		sh.setOverride(k, nil)
	}
	delete(sh.extras, k.rowID)
	heap.Remove(&sh.due, k.index)
	k.index = -1
	if clear(k.records); cap(k.records) <= spareRecords {
		sh.spare = k
	}
}

const spareRecords = 64 // bounds the memory of extras that wait for another key

func (k *keyExtras) find(id store.RecordID) int {
	at := sort.Search(len(k.records), func(i int) bool { return k.records[i].Number >= id.Number })
	if at < len(k.records) && k.records[at].ID() == id {
		return at
	}
	for i := range k.records { // some of the records are of lows that the row had earlier
		if k.records[i].ID() == id {
			return i
		}
	}
	return -1
}

// isGone reports whether a record was deleted, and stays until pack.
func isGone(r *store.Record) bool { return r.Unit == 0 }

func (k *keyExtras) count() int { return len(k.records) - k.gone }

// pack removes the records that are gone.
func (k *keyExtras) pack() []store.Record {
	if k.gone > 0 {
		k.records = slices.DeleteFunc(k.records, func(r store.Record) bool { return isGone(&r) })
		k.gone = 0
	}
	return k.records
}

// setRecord stores a record, or deletes it if r is zero. The caller fixes the heap.
func (sh *shard) setRecord(k *keyExtras, id store.RecordID, r *store.Record) {
	i := k.find(id)
	n := k.added(i, r)
	k.counted += n
	sh.store.records.Add(n)
	switch {
	case !isGone(r) && i < 0:
		k.records = append(k.records, *r)
	case !isGone(r):
		k.records[i] = *r
	case i >= 0:
		k.records[i] = store.Record{Mark: id.Mark, Number: id.Number}
		if k.gone++; k.gone > len(k.records)/2 {
			k.pack()
		}
	}
	if !isGone(r) {
		k.next = min(k.next, r.Until())
	}
	if sh.store.watched.Load() {
		if k.changed == nil {
			k.changed = map[store.RecordID]struct{}{}
		}
		k.changed[id] = struct{}{}
	}
}

// added returns how many more records of reservations there are if r replaces record i.
func (k *keyExtras) added(i int, r *store.Record) (n int64) {
	if !isGone(r) && r.Hold == "" {
		n++
	}
	if i >= 0 && !isGone(&k.records[i]) && k.records[i].Hold == "" {
		n--
	}
	return n
}

// reschedule computes when a sweep should visit the key.
func (sh *shard) reschedule(k *keyExtras) {
	k.next = math.MaxInt64
	for i := range k.records {
		if r := &k.records[i]; !isGone(r) {
			k.next = min(k.next, r.Until())
		}
	}
	if k.override != nil && k.override.Until != 0 {
		k.next = min(k.next, k.override.Until)
	}
	heap.Fix(&sh.due, k.index)
}

// endLows removes the lows of a key whose row is removed, and the units withheld under them.
func (sh *shard) endLows(id rowID) {
	k := sh.extras[id]
	if k == nil || k.lows == nil {
		return
	}
	k.lows = nil
	sh.dropIfEmpty(k)
}

// setLows sets the lows of a row that Put replaces, or ends those that it had.
func (sh *shard) setLows(p *place, key string, lows *store.Lows) {
	if lows != nil {
		sh.extrasOf(p, key).lows = lows
	} else {
		sh.endLows(rowID{p.id, p.tag})
	}
}

func (sh *shard) dropIfEmpty(k *keyExtras) {
	if k.lows != nil || k.count() > 0 || k.override != nil || k.index < 0 {
		return
	}
	if len(k.changed) == 0 {
		sh.dropExtras(k)
	} else if b := k.current.Load(); b != nil {
		sh.store.touch([]Touched{{b.def, k.key, true}}) // the next Changes then drops the key
	}
}

// sweepDue sweeps keys whose records or overrides have ended, at most n of them.
func (sh *shard) sweepDue(now int64, n int) {
	for ; n > 0 && sh.due.Len() > 0 && sh.due.items[0].next <= now && sh.due.items[0].inUse == 0; n-- {
		k := sh.due.items[0]
		if b := k.current.Load(); b != nil {
			sh.sweepKey(k, b, now)
		} else {
			sh.dropOfGone(k)
		}
	}
}

const sweepAgain = 1e6 // µs after which a sweep visits a key again that has more to do

// changeKey changes what a locked shard has for a key.
func (sh *shard) changeKey(k *keyExtras, b *binding, now int64, change func(t *txn) error) error {
	t := sh.store.newTxn(now)
	t.place(b, k.name, k.key, nil)
	t.extra(&t.rows[0])
	err := change(t)
	if err == nil {
		err = t.commit()
	}
	sh.store.touch(t.touched)
	t.unuse()
	t.unlockHolds()
	t.end()
	return err
}

// sweepKey brings the records, the override and the row of a key up to date.
func (sh *shard) sweepKey(k *keyExtras, b *binding, now int64) {
	err := sh.changeKey(k, b, now, func(t *txn) error {
		_, err := store.SweepRow(t, &sh.store.reg, k.name, k.key, now)
		return err
	})
	if k.index < 0 {
		return
	}
	if sh.reschedule(k); err != nil || k.next <= now {
		k.next = now + sweepAgain
		heap.Fix(&sh.due, k.index)
	}
}

// dropOfGone is dropExtras of a key whose limit was dropped; it also ends the parts of holds.
func (sh *shard) dropOfGone(k *keyExtras) {
	holds := &sh.store.holds
	now := sh.store.now()
	for i := range k.records {
		id := k.records[i].Hold
		if id == "" || k.records[i].Until() <= now {
			continue
		}
		holds.mu.Lock()
		if e := holds.entries[id]; e != nil {
			h := e.value
			h.Parts = slices.Clone(h.Parts)
			for j := range h.Parts {
				h.Parts[j].Reset = h.Parts[j].Reset || h.Parts[j].Limit == k.name && h.Parts[j].Key == k.key
			}
			holds.set(id, &h, now)
		}
		holds.mu.Unlock()
	}
	sh.dropExtras(k)
}

// Remove ends a limit: its rows no longer count, and calls with its definition fail.
func (s *Store) Remove(limit string) {
	s.reg.InstallOne(limit, nil)
	s.limits.drop(limit)
	s.ForgetRecords(limit)
}

// Forget is Remove, after which a limit of the same name may begin with any version.
func (s *Store) Forget(limit string) {
	s.reg.InstallOne(limit, nil)
	s.limits.forget(limit)
	s.ForgetRecords(limit)
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

// eachExtras calls do, under the shard's lock, with the extras of every key that has some.
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

// oldest returns the lowest version of its limit that a key's row and override refer to.
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
	if i, found := sh.find(k.id, k.tag); found {
		add(sh.store.limits.of(sh.at(i).handle).number)
	}
	return oldest
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
