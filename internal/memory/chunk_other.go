//go:build !linux

package memory

// chunkBytes is the memory that is requested from the system at a time.
const chunkBytes = 4 << 20

// A chunk is plain memory that the garbage collector does not look into.
type chunk struct{ mem []byte }

func newChunk(n int) (chunk, error) { return chunk{make([]byte, n)}, nil }

func (c chunk) advise([]byte) {}

func (c chunk) free() error { return nil }

func populate([]byte) {}
