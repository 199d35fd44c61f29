package memory

import (
	"sync"
	"unsafe"
)

const (
	extentBytes = 32 << 10 // bytes that a shard gets at a time
	hugePage    = 2 << 20  // the alignment of chunks
	largeArena  = 64 << 20
	extentSlots = extentBytes / unsafe.Sizeof(slot{})
)

// An arena hands out zeroed extents to all shards from the same chunks, so that a
// table of any size wastes little of its huge pages. Close frees all extents.
type arena struct {
	mu     sync.Mutex
	chunks []chunk
	free   []byte // the rest of the last chunk
	next   []byte // the chunk after it, if that was allocated ahead
	used   int64
	closed bool
	touch  sync.WaitGroup
}

// extent returns fresh memory, or nil when the system has none.
func (a *arena) extent() unsafe.Pointer {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.free) == 0 && !a.more() {
		return nil
	}
	p := unsafe.Pointer(&a.free[0])
	a.free = a.free[extentBytes:]
	a.used += extentBytes
	switch { // prepare the next huge page in time; a small table needs none
	case a.used == hugePage/2, a.used > hugePage && a.used%hugePage == extentBytes:
		a.ahead()
	}
	return p
}

// ahead has the kernel allocate and clear the next huge page in the background. That
// takes milliseconds; otherwise the first call to touch the page would wait for it. A
// large store may fill a page faster than a slow machine clears one, so for it ahead
// prepares two. close waits for this work.
func (a *arena) ahead() {
	pages := 1
	if a.used > largeArena {
		pages = 2
	}
	rest := a.free[len(a.free)%hugePage:]
	rest = rest[:min(len(rest), pages*hugePage)]
	a.make(rest)
	if missing := pages*hugePage - len(rest); missing > 0 {
		if a.next == nil {
			a.next = a.chunk()
		}
		a.make(a.next[:min(len(a.next), missing)])
	}
}

func (a *arena) make(mem []byte) {
	if len(mem) > 0 {
		a.touch.Go(func() { populate(mem) }) // does no harm to memory that shards already use
	}
}

func (a *arena) more() bool {
	if a.closed {
		return false
	}
	if a.next == nil {
		a.next = a.chunk()
	}
	a.free, a.next = a.next, nil
	return len(a.free) > 0
}

// chunk allocates memory in whole huge pages. chunk returns nil if there is none.
func (a *arena) chunk() []byte {
	c, err := newChunk(chunkBytes + hugePage)
	if err != nil {
		return nil
	}
	a.chunks = append(a.chunks, c)
	skip := -uintptr(unsafe.Pointer(&c.mem[0])) % hugePage
	mem := c.mem[skip : skip+chunkBytes]
	if len(a.chunks) == 1 {
		c.advise(mem[hugePage:]) // a small store needs no more huge pages
	} else {
		c.advise(mem)
	}
	return mem
}

func (a *arena) bytes() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.used
}

func (a *arena) close() (err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.touch.Wait()
	for _, c := range a.chunks {
		if e := c.free(); e != nil {
			err = e
		}
	}
	a.chunks, a.free, a.next, a.used, a.closed = nil, nil, nil, 0, true
	return err
}
