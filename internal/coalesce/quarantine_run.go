package coalesce

import (
	"context"
	"errors"
	"time"

	"github.com/dipwell/dipwell/store"
)

// run decides the calls that next dequeues until it dequeues none. next also returns how long
// to wait for their locks. The flag running is set meanwhile.
func (q *quarantine) run(running *bool, next func() ([]*waiter, time.Duration), apply func(context.Context, *store.Batch, time.Duration) error) {
	var b store.Batch
	for {
		q.mu.Lock()
		waiters, wait := next()
		*running = len(waiters) > 0
		q.mu.Unlock()
		if len(waiters) == 0 {
			return
		}
		q.send(&b, waiters, wait+q.leastTime(), func(ctx context.Context, b *store.Batch) error { return apply(ctx, b, wait) })
	}
}

// sort decides the calls of suspects. The Sorter hardly waits.
func (q *quarantine) sort(ctx context.Context, b *store.Batch, _ time.Duration) error {
	return q.Sorter.Apply(ctx, b)
}

// nextSuspects dequeues one call of each suspect, because several calls of a
// locked key could wait for the lock one after the other. If the last call of a
// key was answered, it dequeues all calls of the key.
func (q *quarantine) nextSuspects() (out []*waiter, wait time.Duration) {
	keys := 0
	for _, e := range q.entries {
		if !e.locked && e.len > 0 {
			keys++
		}
		if keys > maxSuspects {
			break
		}
		for !e.locked && e.head != nil && len(out) < q.MaxBatch {
			w := e.head
			q.dequeue(w)
			out = append(out, w)
			if !e.answered {
				break
			}
		}
	}
	return out, 0
}

// nextLocked dequeues a call of the locked key whose last turn is longest ago. nextLocked
// returns how long to wait for the lock: a share of maxLockWait, and at most until the
// call's deadline, so that no call is charged after its caller has returned.
func (q *quarantine) nextLocked() (one []*waiter, wait time.Duration) {
	locked := 0
	var oldest *entry
	for _, e := range q.entries {
		if e.locked && e.len > 0 {
			locked++
			if oldest == nil || e.lastTurn < oldest.lastTurn {
				oldest = e
			}
		}
	}
	if oldest == nil {
		return nil, 0
	}
	q.turns++
	oldest.lastTurn = q.turns
	w := oldest.latest()
	q.dequeue(w)
	wait = max(maxLockWait/time.Duration(locked), minLockWait)
	return []*waiter{w}, max(min(wait, time.Until(w.deadline)), time.Millisecond)
}

// latest returns the waiter with the latest deadline.
func (w *entry) latest() *waiter {
	best := w.head
	for x := w.head; x != nil; x = x.next {
		if x.deadline.After(best.deadline) {
			best = x
		}
	}
	return best
}

// send sends the groups of waiters and delivers their answers. The deadline of the
// statement is the latest of theirs, but at least the duration least away.
func (q *quarantine) send(b *store.Batch, waiters []*waiter, least time.Duration, apply func(context.Context, *store.Batch) error) {
	b.Groups = b.Groups[:0]
	last := time.Now().Add(least)
	for _, w := range waiters {
		b.Groups = append(b.Groups, w.group)
		if w.deadline.After(last) {
			last = w.deadline
		}
	}
	ctx, cancel := context.WithDeadline(context.Background(), last)
	defer cancel()
	err := q.apply(ctx, b, apply)
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, w := range waiters {
		g := &b.Groups[i]
		if err != nil {
			g.Err = err
		}
		if errors.Is(g.Err, store.ErrLocked) {
			q.requeue(w, g)
		} else {
			q.deliver(w, g)
		}
	}
	clear(b.Groups)
}

// requeue queues w again after it met a lock, unless its caller has returned. It assumes
// that the key most likely to be locked is locked.
func (q *quarantine) requeue(w *waiter, g *store.Group) {
	eachKey(g, func(n keyID) {
		if e := q.entries[n]; e != nil {
			e.refusals++
			e.answered = false
		}
	})
	e := q.entryFor(g) // entryFor adds a new entry if sweep has removed it
	if e != nil {
		q.setLocked(e, true)
		e.lastRefusal = time.Now()
		q.start(e)
	}
	switch {
	case w.state.Load() == abandoned:
	case q.closed:
		w.finish(&store.Group{Err: ErrClosed})
	case e == nil:
		q.refused.Add(1)
		w.finish(g)
	default:
		q.addWaiter(e, w)
	}
}

// deliver finishes w with its answer. The keys of a group that was decided are not locked.
func (q *quarantine) deliver(w *waiter, g *store.Group) {
	if g.Err == nil {
		eachKey(g, func(n keyID) {
			if e := q.entries[n]; e != nil {
				q.unlocked(e)
			}
		})
	}
	if w.state.Load() != abandoned {
		w.finish(g)
	}
}

// unlocked makes an entry a suspect, or removes it after minStay without a lock.
func (q *quarantine) unlocked(e *entry) {
	e.refusals, e.answered = 0, true
	q.setLocked(e, false)
	if e.len == 0 && time.Since(e.lastRefusal) >= minStay {
		q.remove(e)
	} else {
		q.start(e)
	}
}
