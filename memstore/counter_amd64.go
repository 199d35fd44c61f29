package memstore

// counter reads the processor's time stamp counter.
func counter() uint64
