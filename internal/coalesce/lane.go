package coalesce

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dipwell/dipwell/internal/background"
	"github.com/dipwell/dipwell/store"
)

// A lane is an inner store with at most one statement in flight, and a queue of
// waiters. While the lane is busy, its runner sends batches until the queue is empty.
type lane struct {
	store store.Store
	*settings
	allBusy    *atomic.Int32 // number of busy lanes, shared by all
	peak       *peak         // shared by all lanes
	quarantine *quarantine   // nil if not configured

	busy   atomic.Bool  // cleared only under mu and with an empty queue
	sentAt atomic.Int64 // when the statement in flight was sent, in ns since base; 0 if none is
	base   time.Time
	closed atomic.Bool // set only under mu
	hangs  atomic.Bool // a queued call has found that the lane hangs; cleared at the end of the statement

	mu      sync.Mutex
	queue   queue
	pushes  uint          // number of calls that have queued
	running bool          // the runner has sent calls that were queued while another statement was in flight
	idle    chan struct{} // set by close while the lane is busy; closed when it becomes idle

	free sync.Pool // of waiters

	inFlight []*waiter   // waiters sent by the runner and not answered yet
	timer    *time.Timer // runs expire
	timerSet bool
	lastTick time.Time // when timer was started or last fired

	batch store.Batch // only the runner uses this and the two fields below
	sent  []*waiter
	all   []store.Group
}

// acquire makes the lane busy if it was idle, and reports whether it did.
func (l *lane) acquire() bool {
	if !l.busy.CompareAndSwap(false, true) {
		return false
	}
	l.allBusy.Add(1)
	return true
}

// stuckAfter is the age of a statement from which on calls use another lane
// instead of queueing behind it, because its connection may hang. It is far longer
// than a statement takes, and longer than LockWait.
const stuckAfter = 100 * time.Millisecond

// hangsAfter is that age while each key has a lane of its own. It is longer, because the
// statements of a busy server may take longer than stuckAfter, and the lanes would then
// contend for rows.
const hangsAfter = time.Second

// checkEvery is how many calls queue at a lane until one of them finds out whether the lane
// hangs. To read the clock for each would be a tenth of the cost of a call.
const checkEvery = 16

// olderThan reports whether the statement in flight is older than d.
func (l *lane) olderThan(d time.Duration) bool {
	sentAt := l.sentAt.Load()
	return sentAt != 0 && l.sinceBase()-time.Duration(sentAt) > d
}

// sinceBase returns the time since base. time.Since is faster than two times are.
func (l *lane) sinceBase() time.Duration {
	if l.Clock != nil {
		return l.Clock().Sub(l.base)
	}
	return time.Since(l.base)
}

func (l *lane) started() { l.sentAt.Store(max(1, int64(l.sinceBase()))) }

func (l *lane) ended() {
	l.sentAt.Store(0)
	if l.hangs.Load() {
		l.hangs.Store(false)
	}
}

// hasQueue reports whether calls are queued, or were and are in flight: the runner soon
// sends another batch.
func (l *lane) hasQueue() bool {
	if !l.busy.Load() {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.queue.len > 0 || l.running
}

// start makes the lane busy if calls are queued and it is idle.
func (l *lane) start() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.queue.len > 0 && l.acquire() {
		l.Go(l.run)
	}
}

// begin starts the runner of a lane that was acquired.
func (l *lane) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.queue.len == 0 { // its calls have ended, or could not queue
		l.setIdle()
		return
	}
	l.Go(l.run)
}

// setIdle makes the lane idle. l.mu is held and the queue is empty.
func (l *lane) setIdle() {
	l.running = false
	l.allBusy.Add(-1)
	l.busy.Store(false)
	if l.idle != nil {
		close(l.idle)
		l.idle = nil
	}
}

// enqueue appends w to the queue.
func (l *lane) enqueue(w *waiter) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed.Load() {
		return ErrClosed
	}
	if l.queue.len >= l.MaxQueue {
		return ErrBusy
	}
	if w.timed {
		l.setDeadline(w)
	}
	l.queue.push(w)
	l.peak.waiting(l.queue.len)
	if l.pushes++; l.pushes%checkEvery == 0 && l.olderThan(hangsAfter) {
		l.hangs.Store(true)
	}
	return nil
}

// wait waits for the answer of w or the end of the call, and sets g accordingly.
func (l *lane) wait(c *call, w *waiter, g *store.Group) {
	answered := false
	if w.gate != nil {
		if err := w.gate.Wait(c.ctx); err != nil {
			if g.Err = l.abandon(w, err); g.Err != nil {
				return
			}
		}
		answered = <-w.ready
	} else if ended := c.ctx.Done(); ended == nil { // a plain receive costs half as much as a select
		answered = <-w.ready
	} else {
		select {
		case answered = <-w.ready:
		case <-ended:
			if g.Err = l.abandon(w, c.ctx.Err()); g.Err != nil {
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
	w.recycle()
}

// abandon gives up w and returns the error of the call, or returns nil if the
// answer has arrived meanwhile.
func (l *lane) abandon(w *waiter, why error) error {
	l.mu.Lock()
	inQueue := w.state.Load() == queued
	if inQueue {
		l.queue.unlink(w)
	}
	l.mu.Unlock()
	if inQueue {
		w.recycle()
		return background.NotSent(why)
	}
	if w.state.CompareAndSwap(sent, abandoned) {
		return fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, why)
	}
	return nil
}

// run sends batches until the queue is empty.
func (l *lane) run() {
	for n := 0; l.nextBatch(n > 0); n++ {
		l.send()
		if len(l.sent) == 1 && l.endLone() {
			return
		}
		l.mu.Lock()
		l.inFlight = nil // waiters may be recycled from now on, so expire must not find them
		l.mu.Unlock()
		for i, w := range l.sent {
			w.finish(&l.all[i])
		}
		clear(l.sent)
		clear(l.all)
		l.gather(len(l.sent))
	}
}

// endLone ends a statement for one call if no calls are queued. The lane becomes idle
// before the caller is told, so that the caller's next call finds it idle.
func (l *lane) endLone() bool {
	l.mu.Lock()
	if l.queue.len > 0 {
		l.mu.Unlock()
		return false
	}
	w, g := l.sent[0], l.all[0]
	l.inFlight, l.sent[0], l.all[0] = nil, nil, store.Group{}
	l.setIdle()
	l.mu.Unlock()
	w.finish(&g)
	return true
}

// gatherBelow is the number of queued calls for which a statement is sent without
// waiting for more: one with fewer calls hardly costs less.
const gatherBelow = 32

// gather lets callers that were just answered queue their next calls before the
// next batch is made. It yields as long as the queue grows, up to the number of
// calls just answered or gatherBelow, whichever is more. Without it, callers would
// fall into two halves, each of which waits while the other's statement runs.
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

// nextBatch moves the head of the queue into a batch. If the queue is empty, it
// makes the lane idle and returns false. queued is whether the calls had to wait for
// another statement.
func (l *lane) nextBatch(queued bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running = queued
	l.sent, l.all = l.sent[:0], l.all[:0]
	for l.queue.head != nil && len(l.sent) < l.MaxBatch {
		w := l.queue.head
		l.queue.unlink(w)
		w.state.Store(sent)
		if l.quarantine.contains(&w.group) { // its key was quarantined while it was queued
			w.finish(&store.Group{Err: errQuarantined})
			continue
		}
		l.sent = append(l.sent, w)
		l.all = append(l.all, w.group)
	}
	l.peak.sharing(len(l.sent))
	if l.inFlight = l.sent; len(l.sent) == 0 {
		l.setIdle()
	}
	return len(l.sent) > 0
}

// maxFailures bounds the statements that one failing batch may cost. To isolate
// one failing group among 65536 takes 17.
const maxFailures = 32

func (l *lane) send() {
	ctx, cancel := context.WithDeadline(l.values(), l.deadline())
	defer cancel()
	l.started()
	defer l.ended()
	l.batch.Groups = l.all
	if err := l.apply(ctx, &l.batch, l.store.Apply); err != nil {
		failures := 0
		l.failed(ctx, l.all, err, &failures)
	}
	l.batch.Groups = nil
	l.quarantine.addLocked(l.all)
}

// values is the context of the only caller, without its end, so that a tracer of the
// store finds the caller's span.
func (l *lane) values() context.Context {
	if len(l.sent) == 1 {
		return context.WithoutCancel(l.sent[0].ctx)
	}
	return context.Background()
}

// leastTime is how long a statement may take at least, whatever its callers' deadlines:
// to cancel it would cost the connection, and on a busy server a new one takes longer
// than most statements. It is short enough for a lane whose connection hangs to get a new
// one soon.
const leastTime = time.Second

// deadline is the latest deadline of the batch's callers, or leastTime from now.
func (l *lane) deadline() time.Time {
	last := l.now().Add(l.leastTime())
	for _, w := range l.sent {
		if w.deadline.After(last) {
			last = w.deadline
		}
	}
	return last
}

// leastTime is longer if statements wait long for locks.
func (s *settings) leastTime() time.Duration { return leastTime + s.LockWait }

// failed sends the halves of groups whose batch failed without effect, or sets their
// errors.
func (l *lane) failed(ctx context.Context, groups []store.Group, err error, failures *int) {
	*failures++
	locked := l.quarantine != nil && errors.Is(err, store.ErrLocked)
	if len(groups) > 1 && *failures < maxFailures && resendable(err) && !locked && ctx.Err() == nil {
		half := len(groups) / 2
		for _, part := range [2][]store.Group{groups[:half], groups[half:]} {
			for i := range part {
				part[i].Err = nil
			}
			l.batch.Groups = part
			if err := l.apply(ctx, &l.batch, l.store.Apply); err != nil {
				l.failed(ctx, part, err, failures)
			}
		}
		return
	}
	if !errors.Is(err, store.ErrStore) {
		err = fmt.Errorf("%w: in a statement for %d calls: %w", store.ErrStore, len(groups), err)
	}
	for i := range groups {
		groups[i].Err = err
	}
}

// apply calls the function apply for a batch of several callers, and OnBatch. A panic of the
// store becomes an error, because it must not stop the goroutine that serves them.
func (s *settings) apply(ctx context.Context, b *store.Batch, apply func(context.Context, *store.Batch) error) (err error) {
	var start time.Time
	if s.OnBatch != nil {
		start = time.Now()
	}
	defer func() {
		err = background.Recovered(recover(), err)
		if s.OnBatch != nil {
			s.OnBatch(b, time.Since(start), err)
		}
	}()
	return apply(ctx, b)
}

// close makes queued and new calls fail with ErrClosed.
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

// waitIdle waits until no statement is in flight.
func (l *lane) waitIdle() {
	l.mu.Lock()
	idle := l.idle
	l.mu.Unlock()
	if idle != nil {
		<-idle
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil {
		l.timer.Stop()
	}
}
