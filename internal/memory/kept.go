package memory

import (
	"container/heap"
	"math"
	"slices"
	"strings"

	"github.com/dipwell/dipwell/store"
)

// withLows is the bit of a slot's handle that says that the row has lows. Quick
// finds that the handle is not the one it looks for, and leaves the call to group.
const withLows = 1 << 31

type rowID struct {
	id  uint64
	tag uint32
}

// kept is what a key has besides its row: the row's lows, and the records of
// what was taken. Its shard's lock guards it.
type kept struct {
	*limit
	rowID
	key     string
	lows    *store.Lows // of the row, whose handle has withLows; else nil
	records []store.Record
	next    int64 // µs: from then on Settle may change something
	index   int   // in the shard's heap

	changed map[recordID]struct{} // records that were made, changed or ended since Changes; see WatchReservations
}

type recordID struct{ mark, number int64 }

// until is how long Settle changes nothing of a record.
func until(r *store.Record) int64 {
	switch {
	case r.Rest:
		return math.MaxInt64 // it goes with others
	case r.Slack >= 0:
		return r.Due
	}
	return r.Ends
}

// keep returns what is kept of a key, which may be new.
func (sh *shard) keep(p *place, key string) *kept {
	id := rowID{p.id, p.tag}
	k := sh.kept[id]
	if k == nil {
		k = &kept{limit: p.limit, rowID: id, key: strings.Clone(key), next: math.MaxInt64}
		if sh.kept == nil {
			sh.kept = map[rowID]*kept{}
		}
		sh.kept[id] = k
		heap.Push(&sh.due, k)
	}
	return k
}

// unkeep forgets what is kept of a key. Nothing of it is in the table any more.
func (sh *shard) unkeep(k *kept) {
	sh.store.records.Add(-int64(len(k.records)))
	delete(sh.kept, k.rowID)
	heap.Remove(&sh.due, k.index)
}

// set replaces the records of a key.
func (sh *shard) set(k *kept, records []store.Record) {
	if sh.store.watched.Load() {
		k.compare(records)
	}
	sh.store.records.Add(int64(len(records) - len(k.records)))
	k.records, k.next = records, math.MaxInt64
	for i := range records {
		k.next = min(k.next, until(&records[i]))
	}
	heap.Fix(&sh.due, k.index)
}

// append adds a record that s.records has counted.
func (sh *shard) append(k *kept, r store.Record) {
	if sh.store.watched.Load() {
		k.touch(&r)
	}
	k.records = append(k.records, r)
	k.next = min(k.next, until(&r))
	heap.Fix(&sh.due, k.index)
}

// compare notes which records differ from those that there were. Records stay
// in their order.
func (k *kept) compare(records []store.Record) {
	i := 0
	for j := range k.records {
		was := &k.records[j]
		if i < len(records) && records[i].Number == was.Number && records[i].Mark == was.Mark {
			if i++; records[i-1] == *was {
				continue
			}
		}
		k.touch(was)
	}
}

func (k *kept) touch(r *store.Record) {
	if k.changed == nil {
		k.changed = map[recordID]struct{}{}
	}
	k.changed[recordID{r.Mark, r.Number}] = struct{}{}
}

// lose ends the list of a key whose row begins anew. What was withheld goes with it.
func (sh *shard) lose(id rowID) {
	k := sh.kept[id]
	if k == nil || k.lows == nil {
		return
	}
	k.lows = nil
	sh.set(k, withoutRests(k.records))
	sh.tidy(k)
}

// withoutRests leaves out what was withheld, of a list that is gone.
func withoutRests(records []store.Record) []store.Record {
	return slices.DeleteFunc(slices.Clone(records), func(r store.Record) bool { return r.Rest })
}

// tidy removes the entry of a key that has neither lows nor records.
func (sh *shard) tidy(k *kept) {
	if k.lows == nil && len(k.records) == 0 && sh.kept[k.rowID] == k {
		sh.unkeep(k)
	}
}

// purge settles keys with records that have fallen due, at most n of them.
func (sh *shard) purge(now int64, n int) {
	for ; n > 0 && len(sh.due) > 0 && sh.due[0].next <= now; n-- {
		if k, b := sh.due[0], sh.due[0].current.Load(); b != nil {
			sh.settleKey(k, b, now)
		} else { // the limit is gone
			sh.unkeep(k)
		}
	}
}

// settleKey settles the records of a key under a definition, and its row.
func (sh *shard) settleKey(k *kept, b *binding, now int64) {
	p := place{binding: b, id: k.id, tag: k.tag}
	row := store.State{Version: b.def.Number}
	i, found := sh.find(k.id, k.tag)
	if found = found && k.lows != nil; found {
		row = sh.state(sh.at(i), &p)
	}
	records := k.records
	if sh.store.watched.Load() {
		records = slices.Clone(records) // to be compared
	}
	row, records, err := b.def.Settle(row, k.key, now, records)
	if err != nil { // a row of a later version than the limit's: not possible here
		k.next = math.MaxInt64
		heap.Fix(&sh.due, k.index)
		return
	}
	sh.set(k, records)
	if found {
		sh.rewrite(i, &p, k.key, row)
	}
	sh.tidy(k)
}

// dropKept forgets all that is kept of a limit's keys.
func (s *Store) dropKept(name string) {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		for _, k := range sh.kept {
			if k.name == name {
				sh.unkeep(k)
			}
		}
		sh.mu.Unlock()
	}
}

// eachRecord shows the limit and version of every record.
func (s *Store) eachRecord(do func(limit string, version uint32)) {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		for _, k := range sh.kept {
			for j := range k.records {
				do(k.name, k.records[j].Version)
			}
		}
		sh.mu.Unlock()
	}
}

// keptHeap has the key at its top of which something falls due first.
type keptHeap []*kept

func (h keptHeap) Len() int           { return len(h) }
func (h keptHeap) Less(i, j int) bool { return h[i].next < h[j].next }
func (h keptHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *keptHeap) Push(x any) {
	k := x.(*kept)
	k.index = len(*h)
	*h = append(*h, k)
}
func (h *keptHeap) Pop() any {
	old := *h
	k := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return k
}
