package coalesce

import (
	"context"
	"errors"
	"time"

	"github.com/dipwell/dipwell/store"
)

// sort asks about suspects until nobody waits for one.
func (q *quarantine) sort() {
	var b store.Batch
	for {
		q.mu.Lock()
		asked := q.suspects()
		q.sorting = len(asked) > 0
		q.mu.Unlock()
		if len(asked) == 0 {
			return
		}
		q.send(&b, asked, q.grace(), q.Sorter.Apply)
	}
}

// takeTurns asks about locked keys until nobody waits for one.
func (q *quarantine) takeTurns() {
	var b store.Batch
	for {
		q.mu.Lock()
		w, wait := q.next()
		q.turning = w != nil
		q.mu.Unlock()
		if w == nil {
			return
		}
		q.send(&b, []*waiter{w}, wait+q.grace(), func(ctx context.Context, b *store.Batch) error {
			return q.Quarantine(ctx, b, wait)
		})
	}
}

// suspects takes one call of each suspect: all of a locked key might wait for
// the lock one after the other. Of keys that were answered before it takes all
// calls.
func (q *quarantine) suspects() (asked []*waiter) {
	keys := 0
	for _, in := range q.wards {
		if !in.locked && in.len > 0 {
			keys++
		}
		if keys > maxSorted {
			break
		}
		for !in.locked && in.head != nil && len(asked) < q.MaxBatch {
			w := in.head
			q.draw(w)
			asked = append(asked, w)
			if !in.proven {
				break
			}
		}
	}
	return asked
}

// next takes a call of the locked key that was asked about longest ago, and says
// how long to wait for the lock: a share of longWait, and no longer than the
// caller waits, so that nobody is charged who has left.
func (q *quarantine) next() (w *waiter, wait time.Duration) {
	locked := 0
	var oldest *ward
	for _, in := range q.wards {
		if in.locked && in.len > 0 {
			locked++
			if oldest == nil || in.asked < oldest.asked {
				oldest = in
			}
		}
	}
	if oldest == nil {
		return nil, 0
	}
	q.turn++
	oldest.asked = q.turn
	w = oldest.latest()
	q.draw(w)
	wait = max(longWait/time.Duration(locked), shortWait)
	return w, max(min(wait, time.Until(w.deadline)), time.Millisecond)
}

// latest is the waiter with the most time left.
func (w *ward) latest() *waiter {
	best := w.head
	for x := w.head; x != nil; x = x.next {
		if x.deadline.After(best.deadline) {
			best = x
		}
	}
	return best
}

// send sends the groups of waiters and gives each its answer. The statement has
// at least the time least.
func (q *quarantine) send(b *store.Batch, asked []*waiter, least time.Duration, apply func(context.Context, *store.Batch) error) {
	b.Groups = b.Groups[:0]
	last := time.Now().Add(least)
	for _, w := range asked {
		b.Groups = append(b.Groups, w.group)
		if w.deadline.After(last) {
			last = w.deadline
		}
	}
	ctx, cancel := context.WithDeadline(context.Background(), last)
	defer cancel()
	err := q.guarded(ctx, b, apply)
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, w := range asked {
		g := &b.Groups[i]
		if err != nil {
			g.Err = err
		}
		if errors.Is(g.Err, store.ErrLocked) {
			q.again(w, g)
		} else {
			q.answered(w, g)
		}
	}
	clear(b.Groups)
}

// again puts w back that was refused because of a lock, unless its caller has
// left. Its likeliest key is locked.
func (q *quarantine) again(w *waiter, g *store.Group) {
	names(g, func(n name) {
		if in := q.wards[n]; in != nil {
			in.refuses++
			in.proven = false
		}
	})
	in := q.wardOf(g)
	if in == nil { // forgotten meanwhile
		names(g, q.add)
		in = q.wardOf(g)
	}
	if in != nil {
		q.mark(in, true)
		in.refusal = time.Now()
		q.start(in)
	}
	switch {
	case w.state.Load() == left:
	case q.closed:
		w.finish(&store.Group{Err: ErrClosed})
	case in == nil:
		q.refused.Add(1)
		w.finish(g)
	default:
		q.put(in, w)
	}
}

// answered hands out an answer. The keys of a group that was decided are not
// locked; those that have met no lock for long enough go back to their lanes.
func (q *quarantine) answered(w *waiter, g *store.Group) {
	if g.Err == nil {
		names(g, func(n name) {
			if in := q.wards[n]; in != nil {
				q.free(in)
			}
		})
	}
	if w.state.Load() != left {
		w.finish(g)
	}
}

// free makes a ward a suspect, or ends it.
func (q *quarantine) free(in *ward) {
	in.refuses, in.proven = 0, true
	q.mark(in, false)
	switch {
	case in.len == 0 && time.Since(in.refusal) >= stay:
		q.remove(in)
	default:
		q.start(in)
	}
}
