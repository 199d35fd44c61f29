package filestore

import (
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/dipwell/dipwell/store"
)

// dirty is the keys that changed since they were written last, each once.
//
// The common call finds its key marked already, in a table of fingerprints that
// it reads without a lock. A fingerprint is 64 bits of a hash that is seeded per
// store: two keys in use at once have the same one with a chance of 2^-64.
type dirty struct {
	seed   maphash.Seed
	now    atomic.Pointer[turn] // whose marks count
	cells  []atomic.Uint64      // fingerprints of keys that are marked in the turn that is mixed in
	shards [dirtyShards]dirtyShard
	most   int64
	behind func()
	wake   chan struct{} // there is something to write
}

const (
	dirtyShards = 64
	dirtyCells  = 1 << 16 // half a megabyte; keys that share one find their mark under a lock
	minBehind   = 1 << 20 // keys
)

// A turn is the marks of some time, and their way to the disk.
type turn struct {
	number int64
	salt   uint64       // mixed into the fingerprints of its marks
	began  atomic.Int64 // nanoseconds, when the first key was marked; 0: none is
	keys   atomic.Int64
	done   chan struct{} // closed when the marks are on the disk, or err says why not
	err    error
}

// A mark is a key to be written.
type mark struct {
	def  *store.Definition
	key  string
	gave bool // something was given back: a row that is on the disk may have to go
	wipe bool // it was reset: so may its records
}

type dirtyShard struct {
	mu    sync.Mutex
	turn  *turn
	marks []mark
	set   []uint32 // open addressing over marks, by fingerprint; 0: none
	_     [56]byte
}

func (d *dirty) init(most int) {
	d.seed = maphash.MakeSeed()
	d.cells = make([]atomic.Uint64, dirtyCells)
	d.most = int64(most)
	d.wake = make(chan struct{}, 1)
	d.next(nil)
}

var start = time.Now()

// next begins a turn and returns the one before with its marks, at the end of into.
func (d *dirty) next(into []mark) (*turn, []mark) {
	old := d.now.Load()
	t := &turn{done: make(chan struct{})}
	if old != nil {
		t.number = old.number + 1
	}
	t.salt = uint64(t.number+1) * 0x9e3779b97f4a7c15
	d.now.Store(t)
	if old != nil {
		into = slices.Grow(into, int(old.keys.Load())+dirtyShards) // not under a lock that callers want
	}
	for i := range d.shards {
		sh := &d.shards[i]
		sh.mu.Lock()
		into = append(into, sh.marks...)
		clear(sh.marks) // keys and definitions are no longer held
		clear(sh.set)
		sh.marks, sh.turn = sh.marks[:0], t
		if cap(sh.marks) > keepMarks {
			sh.marks, sh.set = nil, nil
		}
		sh.mu.Unlock()
	}
	return old, into
}

// keepMarks is the room for marks that a shard keeps for the next turn.
const keepMarks = 1 << 14

func (d *dirty) print(def *store.Definition, key string) uint64 {
	return maphash.String(d.seed, key) ^ uint64(uintptr(unsafe.Pointer(def)))*0xff51afd7ed558ccd
}

// mark notes that a key changed. It comes after the change: a turn that ended
// before the mark has not seen it, and the next one will.
func (d *dirty) mark(def *store.Definition, key string) {
	p := d.print(def, key)
	if d.cells[p%dirtyCells].Load() != p^d.now.Load().salt {
		d.slow(p, mark{def: def, key: key})
	}
}

// put is mark that returns the turn which has it.
func (d *dirty) put(m mark) *turn {
	p := d.print(m.def, m.key)
	if t := d.now.Load(); !m.gave && d.cells[p%dirtyCells].Load() == p^t.salt {
		return t
	}
	return d.slow(p, m)
}

func (d *dirty) slow(p uint64, m mark) *turn {
	sh := &d.shards[p>>58]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	t := sh.turn
	d.cells[p%dirtyCells].Store(p ^ t.salt)
	if !sh.add(p, m, d) {
		return t
	}
	n := t.keys.Add(1)
	if n == 1 {
		t.began.Store(int64(time.Since(start)))
		select {
		case d.wake <- struct{}{}:
		default: // one is there already
		}
	}
	if n == d.most {
		d.behind()
	}
	return t
}

// add puts a mark into the set, unless it is there.
func (sh *dirtyShard) add(p uint64, m mark, d *dirty) bool {
	if len(sh.marks)*2 >= len(sh.set) {
		sh.set = make([]uint32, max(64, 2*len(sh.set)))
		for i := range sh.marks {
			at := d.print(sh.marks[i].def, sh.marks[i].key)
			for at %= uint64(len(sh.set)); sh.set[at] != 0; at = (at + 1) % uint64(len(sh.set)) {
			}
			sh.set[at] = uint32(i + 1)
		}
	}
	at := p % uint64(len(sh.set))
	for ; sh.set[at] != 0; at = (at + 1) % uint64(len(sh.set)) {
		if old := &sh.marks[sh.set[at]-1]; old.def == m.def && old.key == m.key {
			old.gave, old.wipe = old.gave || m.gave, old.wipe || m.wipe
			return false
		}
	}
	sh.marks = append(sh.marks, m)
	sh.set[at] = uint32(len(sh.marks))
	return true
}

// later is the turn that ends later.
func later(a, b *turn) *turn {
	if a == nil || b != nil && b.number > a.number {
		return b
	}
	return a
}
