package filestore

import (
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/dipwell/dipwell/internal/memory"
	"github.com/dipwell/dipwell/store"
)

// dirty is the set of keys that changed since they were last written.
//
// Most calls find their key in the set already, in a table of fingerprints that is
// read without a lock. A fingerprint is a 64-bit hash, seeded per store: two keys
// have the same one with a probability of 2^-64.
type dirty struct {
	seed    maphash.Seed
	current atomic.Pointer[cycle] // the cycle to which new keys are added
	cells   []atomic.Uint64       // fingerprints of keys in the set, XORed with the salt of their cycle
	shards  [numShards]dirtyShard
	max     int64         // keys
	onMax   func()        // called when a cycle has max keys
	wake    chan struct{} // signals the first key of a cycle
	many    chan struct{} // signals that a cycle has half of max keys
}

const (
	numShards   = 64
	numCells    = 1 << 16 // half a megabyte; keys that share a cell are looked up under a lock
	minMaxDirty = 1 << 20 // keys
)

// A cycle is one write to the disk, with the keys that changed since the cycle before.
type cycle struct {
	number int64
	salt   uint64       // XORed with the fingerprints of its keys
	began  atomic.Int64 // when the first key was added, in ns since start; 0 without keys
	keys   atomic.Int64
	done   chan struct{} // closed when the keys are on the disk, or when err is set
	err    error
}

type dirtyShard struct {
	mu    sync.Mutex
	cycle *cycle
	keys  []memory.Touched
	set   []uint32 // hash table by fingerprint, open addressing: index into keys + 1, or 0
	_     [56]byte
}

func (d *dirty) init(maxKeys int) {
	d.seed = maphash.MakeSeed()
	d.cells = make([]atomic.Uint64, numCells)
	d.max = int64(maxKeys)
	d.wake, d.many = make(chan struct{}, 1), make(chan struct{}, 1)
	d.current.Store(&cycle{number: -1})
	d.swap(nil)
}

var start = time.Now()

// swap begins a cycle. swap returns the previous one, and appends its keys to keys.
func (d *dirty) swap(keys []memory.Touched) (*cycle, []memory.Touched) {
	old := d.current.Load()
	c := &cycle{number: old.number + 1, done: make(chan struct{})}
	c.salt = uint64(c.number+1) * 0x9e3779b97f4a7c15
	d.current.Store(c)
	keys = slices.Grow(keys, int(old.keys.Load())+numShards) // here, because calls would wait for it once a shard is locked
	for i := range d.shards {
		sh := &d.shards[i]
		sh.mu.Lock()
		keys = append(keys, sh.keys...)
		clear(sh.keys) // so that the garbage collector can free them
		clear(sh.set)
		sh.keys, sh.cycle = sh.keys[:0], c
		if cap(sh.keys) > keepKeys {
			sh.keys, sh.set = nil, nil
		}
		sh.mu.Unlock()
	}
	return old, keys
}

// keepKeys is the capacity of keys that a shard keeps for the next cycle.
const keepKeys = 1 << 14

func (d *dirty) fingerprint(def *store.Definition, key string) uint64 {
	return maphash.String(d.seed, key) ^ uint64(uintptr(unsafe.Pointer(def)))*0xff51afd7ed558ccd
}

// add adds a key after it changed. If the current cycle is swapped out before add,
// it may miss the change; the next cycle has it.
func (d *dirty) add(def *store.Definition, key string) {
	f := d.fingerprint(def, key)
	if d.cells[f%numCells].Load() != f^d.current.Load().salt {
		d.addSlow(f, memory.Touched{Def: def, Key: key})
	}
}

// addTo is add, but it also returns the cycle of the key.
func (d *dirty) addTo(k memory.Touched) *cycle {
	f := d.fingerprint(k.Def, k.Key)
	if c := d.current.Load(); !k.GaveBack && d.cells[f%numCells].Load() == f^c.salt {
		return c
	}
	return d.addSlow(f, k)
}

func (d *dirty) addSlow(f uint64, k memory.Touched) *cycle {
	sh := &d.shards[f>>58]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	c := sh.cycle
	d.cells[f%numCells].Store(f ^ c.salt)
	if !sh.add(f, k, d) {
		return c
	}
	n := c.keys.Add(1)
	if n == 1 {
		c.began.Store(int64(time.Since(start)))
		notify(d.wake)
	}
	if n == d.max/2 {
		notify(d.many)
	}
	if n == d.max {
		d.onMax()
	}
	return c
}

func notify(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default: // a signal is already pending
	}
}

// add adds a key to the shard, and reports whether the key was new.
func (sh *dirtyShard) add(f uint64, k memory.Touched, d *dirty) bool {
	if len(sh.keys)*2 >= len(sh.set) {
		sh.set = make([]uint32, max(64, 2*len(sh.set)))
		for i := range sh.keys {
			at := d.fingerprint(sh.keys[i].Def, sh.keys[i].Key)
			for at %= uint64(len(sh.set)); sh.set[at] != 0; at = (at + 1) % uint64(len(sh.set)) {
			}
			sh.set[at] = uint32(i + 1)
		}
	}
	at := f % uint64(len(sh.set))
	for ; sh.set[at] != 0; at = (at + 1) % uint64(len(sh.set)) {
		if old := &sh.keys[sh.set[at]-1]; old.Def == k.Def && old.Key == k.Key {
			old.GaveBack = old.GaveBack || k.GaveBack
			return false
		}
	}
	sh.keys = append(sh.keys, k)
	sh.set[at] = uint32(len(sh.keys))
	return true
}

// laterOf returns the later of two cycles. Either may be nil.
func laterOf(a, b *cycle) *cycle {
	if a == nil || b != nil && b.number > a.number {
		return b
	}
	return a
}
