package filestore

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dipwell/dipwell/store"
)

// dirty is the set of keys that changed since they were last written.
type dirty struct {
	seed    maphash.Seed
	current atomic.Pointer[cycle] // where new keys go
	shards  [numShards]dirtyShard
	max     int64         // keys
	onMax   func()        // called when a cycle has max keys
	wake    chan struct{} // signals the first key of a cycle
	many    chan struct{} // signals that a cycle has half of max keys
}

const (
	numShards   = 64
	minMaxDirty = 1 << 20 // keys
)

// A cycle is one write to the disk: of the keys that changed since the cycle before.
type cycle struct {
	number int64
	began  atomic.Int64 // when the first key was added, in ns since start; 0 without keys
	keys   atomic.Int64
	done   chan struct{} // closed when the keys are on the disk, or when err is set
	err    error
}

// A dirtyKey is a key to be written.
type dirtyKey struct {
	def      *store.Definition
	key      string
	gaveBack bool // the row on the disk, or its override, may have to be deleted
}

type dirtyShard struct {
	mu    sync.Mutex
	cycle *cycle
	keys  map[dirtyKey]bool // by the key without gaveBack, whether it gave back
	_     [64]byte
}

func (d *dirty) init(maxKeys int) {
	d.seed = maphash.MakeSeed()
	d.max = int64(maxKeys)
	d.wake, d.many = make(chan struct{}, 1), make(chan struct{}, 1)
	d.swap(nil)
}

var start = time.Now()

// swap begins a cycle. It returns the previous one, and appends its keys to keys.
func (d *dirty) swap(keys []dirtyKey) (*cycle, []dirtyKey) {
	old := d.current.Load()
	c := &cycle{done: make(chan struct{})}
	if old != nil {
		c.number = old.number + 1
	}
	d.current.Store(c)
	for i := range d.shards {
		sh := &d.shards[i]
		sh.mu.Lock()
		was := sh.keys
		sh.keys, sh.cycle = map[dirtyKey]bool{}, c
		sh.mu.Unlock()
		for k, gaveBack := range was {
			keys = append(keys, dirtyKey{k.def, k.key, gaveBack})
		}
	}
	return old, keys
}

// keyName is a key of a limit, under any of its definitions.
type keyName struct{ limit, key string }

// addNames adds the keys of the current cycle to names.
func (d *dirty) addNames(names map[keyName]bool) {
	for i := range d.shards {
		sh := &d.shards[i]
		sh.mu.Lock()
		for k := range sh.keys {
			names[keyName{k.def.Name, k.key}] = true
		}
		sh.mu.Unlock()
	}
}

// add adds a key after it changed, and returns its cycle. A cycle that was swapped out
// before add may miss the change; the next one has it.
func (d *dirty) add(k dirtyKey) *cycle {
	sh := &d.shards[maphash.String(d.seed, k.key)%numShards]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	c, name := sh.cycle, dirtyKey{def: k.def, key: k.key}
	gaveBack, known := sh.keys[name]
	if known && (gaveBack || !k.gaveBack) {
		return c
	}
	sh.keys[name] = k.gaveBack
	if known {
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
	default: // a signal is pending
	}
}

// laterOf returns the later of two cycles. Either may be nil.
func laterOf(a, b *cycle) *cycle {
	if a == nil || b != nil && b.number > a.number {
		return b
	}
	return a
}
