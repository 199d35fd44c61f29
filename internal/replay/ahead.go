package replay

import (
	"context"

	"github.com/dipwell/dipwell/store"
)

// ahead parses a log in its own goroutine, a few batches ahead of the decisions.
type ahead struct {
	full, free chan *batch // free has room for all batches, so that a send never blocks
	quit       chan struct{}
}

// batch is a number of records with their keys.
type batch struct {
	recs     []record
	keys     []byte
	consumed int64 // bytes of the log read so far
	end      bool  // the last batch: the log has ended, or err
	err      error
}

const (
	batches      = 3
	batchRecords = 1024
	batchKeys    = 64 << 10 // bytes
)

// readAhead starts the goroutine, which closes the log when it ends.
func readAhead(log *reader) *ahead {
	a := &ahead{make(chan *batch, batches), make(chan *batch, batches), make(chan struct{})}
	for range batches {
		a.free <- &batch{recs: make([]record, 0, batchRecords), keys: make([]byte, 0, batchKeys)}
	}
	go func() {
		defer close(a.full)
		defer log.close()
		for end := false; !end; {
			select {
			case b := <-a.free:
				b.fill(log)
				end = b.end
				a.full <- b
			case <-a.quit:
				return
			}
		}
	}()
	return a
}

// next returns the next batch. The caller returns it through free.
func (a *ahead) next(ctx context.Context) (*batch, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case b := <-a.full:
		return b, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// stop ends the goroutine and waits for it, unless the context has ended, because
// then it may be blocked in a read of a pipe.
func (a *ahead) stop(ctx context.Context) {
	close(a.quit)
	for ctx.Err() == nil {
		if _, ok := <-a.full; !ok {
			return
		}
	}
}

// fill reads records until the batch is full or the log ends.
func (b *batch) fill(log *reader) {
	b.recs, b.keys, b.end = b.recs[:0], b.keys[:0], false
	for len(b.recs) < batchRecords && len(b.keys) < batchKeys-store.MaxKey {
		b.recs = append(b.recs, record{})
		rec := &b.recs[len(b.recs)-1]
		ok, err := log.next(rec)
		if !ok {
			b.recs = b.recs[:len(b.recs)-1]
			b.end, b.err = true, err
			break
		}
		from := len(b.keys)
		b.keys = append(b.keys, rec.key...)
		rec.key = b.keys[from:]
	}
	b.consumed = log.consumed()
}
