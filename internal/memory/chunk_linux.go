package memory

import (
	"math"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// chunkBytes is the address space that is requested from the system at a time: 256 MB, or
// 16 MB on 32-bit machines. The system adds memory to it on first use.
const chunkBytes = 16 << 20 << (math.MaxUint >> 63 * 4)

const madvPopulateWrite = 23 // MADV_POPULATE_WRITE, which package syscall does not have

// A chunk is memory outside the Go heap. On the heap it would count twice, because
// the collector lets garbage grow to the size of live memory.
type chunk struct{ mem []byte }

func newChunk(n int) (chunk, error) {
	mem, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE|syscall.MAP_NORESERVE)
	return chunk{mem}, err
}

// advise asks for huge pages. Without them, random access misses the address
// translation cache on nearly every call. An error only makes the store slower.
func (c chunk) advise(mem []byte) { _ = syscall.Madvise(mem, syscall.MADV_HUGEPAGE) }

func (c chunk) free() error { return syscall.Munmap(c.mem) }

// populate has the system allocate and clear memory. A page fault in Go code would
// delay the garbage collector, and with it all callers; a system call does not.
// Linux before 5.14 has no such call, so there each page is touched.
func populate(mem []byte) {
	if syscall.Madvise(mem, madvPopulateWrite) == nil {
		return
	}
	for i := 0; i < len(mem); i += hugePage {
		atomic.AddUint64((*uint64)(unsafe.Pointer(&mem[i])), 0)
	}
}
