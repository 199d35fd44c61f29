package replay

import (
	"context"

	"github.com/dipwell/dipwell/store"
)

// batch is a number of records with their keys.
type batch struct {
	recs     []record
	keys     []byte
	consumed int64 // bytes of the log read so far
	end      bool  // the last batch: the log has ended, or err
	err      error
}

const (
	batchRecords = 1024
	batchKeys    = 64 << 10 // bytes
)

// readAhead parses a log in its own goroutine, a few batches ahead of the decisions. The
// goroutine ends with the log or by stop, and closes the log and then the channel. stop
// waits for it, unless ctx has ended, because then it may be blocked in a read of a pipe.
func readAhead(ctx context.Context, log *reader) (batches <-chan *batch, stop func()) {
	full, quit := make(chan *batch, 2), make(chan struct{})
	go func() {
		defer close(full)
		defer log.close()
		for end := false; !end; {
			b := nextBatch(log)
			end = b.end
			select {
			case full <- b:
			case <-quit:
				return
			}
		}
	}()
	return full, func() {
		close(quit)
		for ctx.Err() == nil {
			if _, more := <-full; !more {
				return
			}
		}
	}
}

// nextBatch reads records until the batch is full or the log ends.
func nextBatch(log *reader) *batch {
	b := &batch{recs: make([]record, 0, batchRecords), keys: make([]byte, 0, batchKeys)}
	for len(b.recs) < batchRecords && len(b.keys) < batchKeys-store.MaxKey {
		var rec record
		ok, err := log.next(&rec)
		if !ok {
			b.end, b.err = true, err
			break
		}
		from := len(b.keys)
		b.keys = append(b.keys, rec.key...)
		rec.key = b.keys[from:]
		b.recs = append(b.recs, rec)
	}
	b.consumed = log.raw.n
	return b
}
