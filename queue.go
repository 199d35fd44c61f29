package dipwell

import (
	"container/list"
	"context"
	"fmt"
	"sync"

	"github.com/dipwell/dipwell/store"
)

const maxWaiters = 1 << 16 // callers that wait for one key, because each blocks a goroutine

// queues have the callers of Wait on limits without debt. For each key they have the
// waiting callers in the order of their arrival, each as a channel that is closed when it
// is the caller's turn. A key for which nobody waits has no queue.
type queues struct {
	mu    sync.Mutex
	byKey map[queueKey]*list.List
}

type queueKey struct{ limit, key string }

// join waits until the caller is the first in the key's queue. The caller then calls
// leave. If the queue is empty, join does not look at ctx. If ctx ends first, join
// returns its error, and the caller is no longer in the queue.
func (q *queues) join(ctx context.Context, k queueKey) (leave func(), err error) {
	place, err := q.add(k)
	if err != nil {
		return nil, err
	}
	first := place.Value.(chan struct{})
	select {
	case <-first:
		return func() { q.remove(k, place) }, nil
	default:
	}
	select {
	case <-first:
		return func() { q.remove(k, place) }, nil
	case <-ctx.Done():
		q.remove(k, place)
		return nil, ctx.Err()
	}
}

func (q *queues) add(k queueKey) (*list.Element, error) {
	first := make(chan struct{})
	q.mu.Lock()
	defer q.mu.Unlock()
	waiters := q.byKey[k]
	switch {
	case waiters == nil:
		if q.byKey == nil {
			q.byKey = map[queueKey]*list.List{}
		}
		waiters = list.New()
		q.byKey[k] = waiters
		close(first)
	case waiters.Len() == maxWaiters:
		return nil, fmt.Errorf("limit %s: %w: %d callers wait for this key already", k.limit, store.ErrFull, maxWaiters)
	}
	return waiters.PushBack(first), nil
}

func (q *queues) remove(k queueKey, place *list.Element) {
	q.mu.Lock()
	defer q.mu.Unlock()
	waiters := q.byKey[k]
	first := waiters.Front() == place
	waiters.Remove(place)
	switch next := waiters.Front(); {
	case next == nil:
		delete(q.byKey, k)
	case first:
		close(next.Value.(chan struct{}))
	}
}
