package coalesce

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dipwell/dipwell/store"
)

// A lane is an inner store with at most one statement in flight, and the queue
// of those who wait for it. Whoever makes the lane busy either asks for itself
// and releases it, or is the runner, which sends batches until nobody waits.
type lane struct {
	store store.Store
	*settings
	allBusy    *atomic.Int32 // of all lanes
	riders     *riders       // of all lanes
	bounds     *bounds       // of the store
	quarantine *quarantine   // nil: there is none

	busy   atomic.Bool  // cleared only under mu and with an empty queue
	since  atomic.Int64 // when the statement in flight was sent, in ns since made; 0: there is none
	made   time.Time
	closed atomic.Bool // set only under mu

	mu      sync.Mutex
	queue   queue
	running bool          // the runner sends
	idle    chan struct{} // closed when the last statement before Close returns

	free sync.Pool // of waiters

	inFlight []*waiter   // what the runner has sent, until it has the answers
	watcher  *time.Timer // looks for those in the queue and in flight whose time is over
	watching bool        // it will fire
	now      time.Time   // when it was started, or fired last

	batch store.Batch // the runner's, and what it sends
	sent  []*waiter
	all   []store.Group
}

// lead makes the lane busy if it was idle.
func (l *lane) lead() bool {
	if !l.busy.CompareAndSwap(false, true) {
		return false
	}
	l.allBusy.Add(1)
	return true
}

// stuckAfter is how long a statement may take before callers that would queue
// behind it go by another lane: its connection may hang. It is far above what a
// statement takes, and a lock that it meets ends it before (LockWait).
const stuckAfter = 100 * time.Millisecond

// stuck reports whether the statement in flight takes too long to wait for.
func (l *lane) stuck() bool {
	since := l.since.Load()
	return since != 0 && time.Since(l.made)-time.Duration(since) > stuckAfter
}

func (l *lane) began() { l.since.Store(max(1, int64(time.Since(l.made)))) }
func (l *lane) ended() { l.since.Store(0) }

// crowded reports whether somebody waits, or batches are being sent: then the
// next one comes soon.
func (l *lane) crowded() bool {
	if !l.busy.Load() {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.queue.len > 0 || l.running
}

// alone asks for one caller on its own goroutine.
func (l *lane) alone(c *call, b *store.Batch) error {
	defer l.release()
	if l.closed.Load() {
		return ErrClosed
	}
	ctx, done := l.bounds.bound(c)
	defer done()
	l.began()
	defer l.ended()
	err := l.ask(ctx, b, l.store.Apply)
	l.quarantine.suspect(b.Groups, err)
	return err
}

// release makes the lane idle, or starts a runner for those who wait: a caller
// never serves others.
func (l *lane) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.queue.len > 0 {
		l.running = true
		go l.run()
		return
	}
	l.rest()
}

// rest makes the lane idle. The lock is held and the queue is empty.
func (l *lane) rest() {
	l.running = false
	l.allBusy.Add(-1)
	l.busy.Store(false)
	if l.idle != nil {
		close(l.idle)
		l.idle = nil
	}
}

// ride queues a batch of one group and waits for its answer.
func (l *lane) ride(c *call, b *store.Batch) error {
	g := &b.Groups[0]
	w := l.waiter(c, g)
	leads, err := l.join(w)
	if leads || err != nil {
		w.free()
	}
	switch {
	case err != nil:
		return err
	case leads:
		return l.alone(c, b)
	}
	c.deadline = w.deadline
	l.wait(c, w, g)
	return nil
}

// join queues w, unless the lane has become idle: then the caller leads.
func (l *lane) join(w *waiter) (leads bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lead() {
		return true, nil
	}
	return false, l.push(w)
}

// start queues w and makes sure that somebody sends it.
func (l *lane) start(w *waiter) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.push(w); err != nil {
		return err
	}
	if l.lead() {
		l.running = true
		go l.run()
	}
	return nil
}

// push appends w to the queue. The lock is held.
func (l *lane) push(w *waiter) error {
	if l.closed.Load() {
		return ErrClosed
	}
	if l.queue.len >= l.MaxQueue {
		return ErrBusy
	}
	if w.ours {
		l.watch(w)
	}
	l.queue.push(w)
	l.riders.wait(l.queue.len)
	return nil
}

// wait returns with the answer of w in g, or when the call ends.
func (l *lane) wait(c *call, w *waiter, g *store.Group) {
	answered := false
	if gone := c.ctx.Done(); gone == nil { // half the price of a select
		answered = <-w.ready
	} else {
		select {
		case answered = <-w.ready:
		case <-gone:
			if g.Err = l.leave(w, c.ctx.Err()); g.Err != nil {
				return
			}
			answered = <-w.ready
		}
	}
	if !answered {
		g.Err = fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, context.DeadlineExceeded)
		return
	}
	w.answer(g)
	w.free()
}

// leave gives up on w and says what became of it, or returns nil when its
// answer is there after all.
func (l *lane) leave(w *waiter, why error) error {
	l.mu.Lock()
	inQueue := w.state.Load() == queued
	if inQueue {
		l.queue.unlink(w)
	}
	l.mu.Unlock()
	if inQueue {
		w.free()
		return notSent(why)
	}
	if w.state.CompareAndSwap(sent, left) {
		return fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, why)
	}
	return nil
}

// run sends batches until nobody waits.
func (l *lane) run() {
	for l.next() {
		l.send()
		l.landed()
		woken := len(l.sent)
		for i, w := range l.sent {
			w.finish(&l.all[i])
		}
		clear(l.sent)
		clear(l.all)
		l.gather(woken)
	}
}

// landed takes what was sent off the watcher's list: from here on it may be
// freed.
func (l *lane) landed() {
	l.mu.Lock()
	l.inFlight = nil
	l.mu.Unlock()
}

// gatherBelow is how many calls in the queue are worth a statement of their own:
// one for fewer costs hardly less than one that the others share as well.
const gatherBelow = 32

// gather lets callers that were just answered call again before the next batch is
// closed. It goes on as long as more come, until as many wait as were answered,
// or gatherBelow if that is more. Otherwise callers fall into two halves, one of
// which waits while the other one's statement runs.
func (l *lane) gather(answered int) {
	for before := -1; ; {
		l.mu.Lock()
		waiting := l.queue.len
		l.mu.Unlock()
		if waiting >= max(answered, gatherBelow) || waiting <= before {
			return
		}
		before = waiting
		runtime.Gosched()
	}
}

// next moves the head of the queue into a batch, or makes the lane idle.
func (l *lane) next() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent, l.all = l.sent[:0], l.all[:0]
	for l.queue.head != nil && len(l.sent) < l.MaxBatch {
		w := l.queue.head
		l.queue.unlink(w)
		w.state.Store(sent)
		if l.quarantine.holds(&w.group) { // since it came
			w.finish(&store.Group{Err: errHeld})
			continue
		}
		l.sent = append(l.sent, w)
		l.all = append(l.all, w.group)
	}
	l.riders.sent(len(l.sent))
	if l.inFlight = l.sent; len(l.sent) == 0 {
		l.rest()
	}
	return len(l.sent) > 0
}

// maxFailures bounds the statements that one bad batch may cost. One group at
// fault among 65536 needs 17; a store that is away needs to be asked no more.
const maxFailures = 32

func (l *lane) send() {
	ctx, cancel := context.WithDeadline(context.Background(), l.deadline())
	defer cancel()
	failures := 0
	l.began()
	defer l.ended()
	l.decide(ctx, l.all, &failures)
	l.quarantine.suspect(l.all, nil)
}

// deadline is when the last of the callers gives up. A statement that may wait
// for a lock is given the time to be refused: cut before, it would cost its
// connection, and nobody would know which row it was.
func (l *lane) deadline() time.Time {
	var last time.Time
	if l.quarantine != nil {
		last = time.Now().Add(l.grace())
	}
	for _, w := range l.sent {
		if w.deadline.After(last) {
			last = w.deadline
		}
	}
	return last
}

// decide sends groups, and their halves again where the whole certainly failed.
func (l *lane) decide(ctx context.Context, groups []store.Group, failures *int) {
	err := l.apply(ctx, groups)
	if err == nil {
		return
	}
	*failures++
	held := l.quarantine != nil && errors.Is(err, store.ErrLocked)
	if len(groups) > 1 && *failures < maxFailures && again(err) && !held && ctx.Err() == nil {
		half := len(groups) / 2
		l.decide(ctx, groups[:half], failures)
		l.decide(ctx, groups[half:], failures)
		return
	}
	if !errors.Is(err, store.ErrStore) {
		err = fmt.Errorf("%w: in a statement for %d calls: %w", store.ErrStore, len(groups), err)
	}
	for i := range groups {
		groups[i].Err = err
	}
}

// apply asks the inner store about groups.
func (l *lane) apply(ctx context.Context, groups []store.Group) error {
	for i := range groups {
		groups[i].Err = nil
	}
	l.batch.Groups = groups
	err := l.guarded(ctx, &l.batch, l.store.Apply)
	l.batch.Groups = nil
	return err
}

// ask asks a store, and tells OnBatch.
func (s *settings) ask(ctx context.Context, b *store.Batch, apply func(context.Context, *store.Batch) error) error {
	if s.OnBatch == nil {
		return apply(ctx, b)
	}
	start := time.Now()
	err := apply(ctx, b)
	s.OnBatch(b, time.Since(start), err)
	return err
}

// guarded is ask for a batch of several callers: a store that panics must not
// take down those who only shared a statement, so they get an error.
func (s *settings) guarded(ctx context.Context, b *store.Batch, apply func(context.Context, *store.Batch) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: the store panicked: %v", store.ErrOutcomeUnknown, p)
		}
	}()
	return s.ask(ctx, b, apply)
}

// close refuses those who wait and all who come.
func (l *lane) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed.Store(true)
	for l.queue.head != nil {
		w := l.queue.head
		l.queue.unlink(w)
		w.state.Store(sent)
		w.finish(&store.Group{Err: ErrClosed})
	}
	if l.idle == nil && l.busy.Load() {
		l.idle = make(chan struct{})
	}
}

// drained returns when no statement is in flight.
func (l *lane) drained() {
	l.mu.Lock()
	idle := l.idle
	l.mu.Unlock()
	if idle != nil {
		<-idle
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.watcher != nil {
		l.watcher.Stop()
	}
}
