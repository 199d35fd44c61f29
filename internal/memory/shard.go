package memory

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/dipwell/dipwell/store"
)

// A slot holds one row. The zero slot is empty.
type slot struct {
	id     uint64 // complement of the key's hash: empty sorts after every row
	used   int64
	ts     int64
	tag    uint32 // 32 more bits of the key's hash
	handle uint32 // stands for the limit and the number of the definition; never 0 in a row. The handle may have the bit withLow or withExtras
}

// A shard is a part of the table under one lock: rows in the order of their
// hashes, each at the place that its hash has in proportion, or as soon after
// it as there was room (linear probing that keeps order). A search ends at the
// first row that sorts later, and growing moves rows without mixing them.
type shard struct {
	shardFields
	_ [(cacheLine - unsafe.Sizeof(shardFields{})%cacheLine) % cacheLine]byte
}

type shardFields struct {
	mu      sync.Mutex // in one cache line with all fields that a search needs
	closed  bool
	growing bool
	columns bool   // some column of the shard is in use
	size    uint64 // number of places over which hashes are spread now
	next    uint64 // that number after growing
	bound   uint64 // while growing: hashes from here on are spread over next
	ext     []*[extentSlots]slot

	view   atomic.Pointer[view] // a copy of the layout, in a cache line that is rarely written
	ticker Ticker
	store  *Store

	rows   int
	top    int    // all rows are in slots below this one
	cursor int    // while growing: rows from this slot on have moved
	hand   int    // the next slot that a sweep looks at
	moved  int    // for tests: slots that growing and inserting have moved or visited, in total
	filter filter // filter of the keys that have an override
	texts  texts
	refs   column[uint32] // the first cell of the text of each slot's key; 0: none
	phases column[int64]  // phase of each slot's key: see Op.Phase; 0: not known yet
	lows   column[low]    // low of each row whose handle has withLow
	extras map[rowID]*keyExtras
	due    heapOf[*keyExtras] // on top are the extras that a sweep has to visit first
	spare  *keyExtras         // dropped extras for reuse; nil: none
	blocks heapOf[*keyExtras] // extras of keys whose only override is a block; on top is the block that began first
}

const cacheLine = 64 // bytes

const (
	minSize    = 64
	spare      = 128 // slots beyond the end that one insert, and the growing it does, may need
	loadMax    = 86  // percentage of full slots at which the shard starts to grow
	loadLimit  = 96  // percentage of full slots at which the shard must have grown
	growShift  = 3   // grow by 1/8: growing by 1/16 would move each row twice as often and save 3 % of the memory
	growWork   = 32  // slots that an insert looks at while growing; each row in them moves, and shifts the rows after it
	growShifts = 256 // slots that these moves may shift before the insert stops, unless growing is behind
	loadBehind = 90  // percentage of full slots at which growing is behind
	sweepWork  = 8   // slots that each insert sweeps
	probeCheck = 16  // rows that an insert may check on its way to the row's place
)

func (sh *shard) init(s *Store) {
	sh.store = s
	sh.due.before = func(a, b *keyExtras) bool { return a.next < b.next }
	sh.due.at = func(k *keyExtras) *int { return &k.index }
	sh.blocks.before = func(a, b *keyExtras) bool { return a.began < b.began }
	sh.blocks.at = func(k *keyExtras) *int { return &k.blockAt }
}

func (sh *shard) at(i int) *slot {
	return &sh.ext[uint(i)/uint(extentSlots)][uint(i)%uint(extentSlots)]
}

// home is the place that a row would have in an empty shard.
func (sh *shard) home(id uint64) int {
	size := sh.size
	if sh.growing && ^id >= sh.bound {
		size = sh.next
	}
	hi, _ := bits.Mul64(^id, size)
	return int(hi)
}

// find returns the row's slot, or if there is no row, the slot where it belongs.
func (sh *shard) find(id uint64, tag uint32) (i int, found bool) {
	if len(sh.ext) == 0 {
		return 0, false
	}
	i = sh.home(id)
	p := sh.at(i)
	for p.id > id {
		i++
		p = sh.at(i)
	}
	for p.id == id {
		if p.tag == tag {
			return i, true
		}
		i++
		p = sh.at(i)
	}
	return i, false
}

func (sh *shard) row(id uint64, tag uint32) (int, *slot) {
	i, found := sh.find(id, tag)
	if !found {
		return 0, nil
	}
	return i, sh.at(i)
}

// insert adds a row at i, the place that find returned. With reclaim, it takes
// the slot of a full row if it meets one. ready must have been called.
func (sh *shard) insert(i int, row slot, now int64, reclaim bool) {
	end := i
	for sh.at(end).id != 0 {
		if reclaim && end-i < probeCheck && sh.full(sh.at(end), now) {
			sh.forget(end)
			break
		}
		end++
	}
	sh.shift(i, end)
	*sh.at(i) = row
	sh.refs.set(i, 0)
	sh.rows++
	sh.top = max(sh.top, end+1)
	if sh.growing && ^row.id < sh.bound {
		// Rows keep their order, so the last row that must still move went up by at most
		// one. Moving the cursor to the end of the run would undo more growing than one
		// call does, if runs are long.
		sh.cursor = max(sh.cursor, i) + 1
	}
}

// shift moves the rows from i up to end by one place.
func (sh *shard) shift(i, end int) {
	sh.moved += end - i + 1
	for j := end; j > i; j-- {
		*sh.at(j) = *sh.at(j - 1)
	}
	if sh.columns {
		for j := end; j > i; j-- {
			sh.moveSide(j-1, j)
		}
	}
}

// forget drops what belongs to the row at i. The caller overwrites the slot or closes the gap.
func (sh *shard) forget(i int) {
	if p := sh.at(i); p.handle&marks != 0 {
		sh.endLows(rowID{p.id, p.tag})
	}
	sh.dropText(i)
	sh.rows--
	sh.store.keys.Add(-1)
}

func (sh *shard) remove(i int) {
	sh.forget(i)
	sh.closeGap(i)
}

// closeGap closes the gap at i by moving displaced rows back by one.
func (sh *shard) closeGap(i int) {
	for {
		p := sh.at(i + 1)
		if p.id == 0 || sh.home(p.id) > i {
			break
		}
		*sh.at(i) = *p
		sh.moveSide(i+1, i)
		i++
	}
	*sh.at(i) = slot{}
	sh.refs.set(i, 0)
}

// full reports whether a row is a full bucket, so that it is not needed.
func (sh *shard) full(p *slot, now int64) bool {
	h := sh.store.limits.of(p.handle)
	cur := h.limit.current.Load()
	if cur != nil && cur.bucket && cur.def.Number == h.number { // Definition.Full, inlined
		return cur.left(p.used, max(0, now-p.ts)) == 0
	}
	return cur == nil || p.handle&withLow == 0 && cur.def.Full(store.State{Used: p.used, TS: p.ts, Version: h.number}, now)
}

// sweep looks at the next n slots and reclaims full rows.
func (sh *shard) sweep(now int64, n int) { sh.sweepRange(&sh.hand, now, n) }

// sweepRange sweeps n slots from *from on, around the end, and sets *from to the next one.
func (sh *shard) sweepRange(from *int, now int64, n int) {
	for ; n > 0 && sh.top > 0; n-- {
		if *from >= sh.top {
			*from = 0
		}
		if p := sh.at(*from); p.id != 0 && sh.full(p, now) {
			sh.remove(*from)
		} else {
			*from++
		}
	}
}

// maintain does the part of growing and sweeping that falls to one insert.
func (sh *shard) maintain(now int64) {
	if sh.growing {
		sh.grow(now)
	}
	sh.sweep(now, sweepWork)
}

func (sh *shard) close() {
	sh.closed = true
	sh.ext, sh.texts, sh.refs, sh.phases, sh.lows, sh.extras, sh.filter, sh.due.items, sh.spare = nil, texts{}, column[uint32]{}, column[int64]{}, column[low]{}, nil, filter{}, nil, nil
	sh.view.Store(nil)
	sh.rows, sh.top = 0, 0
}

var _ = [1]struct{}{}[unsafe.Sizeof(slot{})-32] // compile-time check: a slot is half a cache line

// A view lets Quick find a row's likely slot and the key's word in the filter, to prefetch
// them, before it has the lock. It may be out of date.
type view struct {
	size, next uint64
	bound      atomic.Uint64 // hashes from this one on are spread over next
	ext        []*[extentSlots]slot
	filter     filter
}

// prefetch fetches a row's likely slot into the processor's cache, without the lock.
func (sh *shard) prefetch(id uint64) {
	if v := sh.view.Load(); v != nil {
		fetch(unsafe.Pointer(v.at(v.home(id))), nil)
	}
}

func (sh *shard) publishView() {
	v := &view{size: sh.size, next: sh.next, ext: sh.ext, filter: sh.filter}
	v.bound.Store(^uint64(0))
	if sh.growing {
		v.bound.Store(sh.bound)
	}
	sh.view.Store(v)
}

func (v *view) at(i int) *slot {
	return &v.ext[uint(i)/uint(extentSlots)][uint(i)%uint(extentSlots)]
}

// home returns the slot where a row most likely is.
func (v *view) home(id uint64) int {
	size := v.size
	if ^id >= v.bound.Load() {
		size = v.next
	}
	hi, _ := bits.Mul64(^id, size)
	return int(hi)
}
