package bounded

import (
	"math/bits"
	"runtime"
	_ "unsafe" // for go:linkname
)

// maxCopies bounds the number of copies: more processors share them.
const maxCopies = 64

// Copies are copies of a T, of which goroutines on different processors mostly use
// different ones. Two goroutines may use the same copy at once, so T is made of
// atomics or has a lock. T must fill whole cache lines.
type Copies[T any] []T

// NewCopies makes a copy for each processor, rounded up to a power of two, at most 64.
func NewCopies[T any]() Copies[T] {
	return make(Copies[T], min(maxCopies, 1<<bits.Len(uint(runtime.GOMAXPROCS(0)-1))))
}

// Mine returns the copy of the processor that the caller runs on. c must have been made by NewCopies.
func (c Copies[T]) Mine() *T {
	i := procPin()
	procUnpin()
	return &c[uint(i)&uint(len(c)-1)]
}

// The number of the processor that the goroutine runs on is not in Go's public API;
// the runtime keeps these two for programs that use them (go.dev/issue/67401).

//go:linkname procPin runtime.procPin
func procPin() int

//go:linkname procUnpin runtime.procUnpin
func procUnpin()
