package memory

import (
	"math"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// chunkBytes is what the system is asked for at a time: 256 MB of address space,
// 16 MB where a process has only 4 GB of it. Memory comes as it is touched.
const chunkBytes = 16 << 20 << (math.MaxUint >> 63 * 4)

// madvPopulateWrite is MADV_POPULATE_WRITE, which package syscall does not have.
const madvPopulateWrite = 23

// A chunk is memory outside the Go heap: there it would count twice, as live
// memory and as what the collector lets garbage grow to.
type chunk struct{ mem []byte }

func newChunk(n int) (chunk, error) {
	mem, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE|syscall.MAP_NORESERVE)
	return chunk{mem}, err
}

// advise asks for huge pages: a table that is hit at random misses the
// address cache on nearly every call without them. Where there are none, the
// store is only slower.
func (c chunk) advise(mem []byte) { _ = syscall.Madvise(mem, syscall.MADV_HUGEPAGE) }

func (c chunk) free() error { return syscall.Munmap(c.mem) }

// populate has the system find and clear memory. As a call of the system it
// keeps nobody else waiting; a page that is touched from Go would hold up the
// collector, and with it all callers. Before Linux 5.14 there is only that.
func populate(mem []byte) {
	if syscall.Madvise(mem, madvPopulateWrite) == nil {
		return
	}
	for i := 0; i < len(mem); i += hugePage {
		atomic.AddUint64((*uint64)(unsafe.Pointer(&mem[i])), 0)
	}
}
