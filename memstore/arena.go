package memstore

import (
	"sync"
	"sync/atomic"
	"unsafe"
)

const (
	extentBytes = 32 << 10 // what a shard takes at a time
	hugePage    = 2 << 20  // the alignment of chunks
	extentSlots = extentBytes / unsafe.Sizeof(slot{})
)

// An arena hands out zeroed extents, to all shards from the same chunks, so
// that a table of any size wastes little of its huge pages. Extents are given
// back together, by close.
type arena struct {
	mu     sync.Mutex
	chunks []chunk
	free   []byte // of the last chunk
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
	if a.used%hugePage == extentBytes { // the first of a huge page: have the next one ready in time
		a.ahead()
	}
	return p
}

// ahead has the system find and clear the huge page after the one that is
// handed out, beside the calls: that takes it a millisecond, and the caller who
// touched the page first would wait for it. close waits for the touch to end.
func (a *arena) ahead() {
	rest := len(a.free) % hugePage
	if rest >= len(a.free) {
		return
	}
	next := (*uint64)(unsafe.Pointer(&a.free[rest]))
	a.touch.Go(func() { atomic.AddUint64(next, 0) }) // whoever has it by now loses nothing
}

func (a *arena) more() bool {
	if a.closed {
		return false
	}
	c, err := newChunk(chunkBytes + hugePage)
	if err != nil {
		return false
	}
	a.chunks = append(a.chunks, c)
	skip := -uintptr(unsafe.Pointer(&c.mem[0])) % hugePage
	a.free = c.mem[skip : skip+chunkBytes]
	c.advise(a.free)
	return true
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
	a.chunks, a.free, a.used, a.closed = nil, nil, 0, true
	return err
}
