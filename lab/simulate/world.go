package main

import (
	"container/heap"
	"context"
	"fmt"
	"iter"
	"math/rand/v2"

	"github.com/dipwell/dipwell/store"
)

// A world is one history while it is played.
type world struct {
	now   int64 // true time in µs, which no process can read
	queue queue
	seq   uint64
	task  *task // the task that is running
	idle  []*coroutine

	history
	nodes []*node // the first one is that of the home region
	procs []*process
	wrong *violation
	trace func(line string) // nil: no trace

	tags    int64             // number of tagged groups
	origins map[int64]*origin // by the tag of a group
	byID    map[store.Reservation]*origin

	calls                int64
	taken                int64            // tokens that the store took
	heard                int64            // tokens that callers were told of, as they count them
	fromLeases, refunded int64            // tokens used from leases, and tokens that leases gave back
	used                 int64            // tokens of those that were not given back
	returned             int64            // tokens that were given back
	lost                 map[string]int64 // tokens that no caller heard of and that were not given back, by fault
	seen                 map[string]int   // how often something happened that histories must have
}

// at runs f at a true time, after everything that was planned before for the same time.
func (w *world) at(t int64, f func()) {
	w.seq++
	heap.Push(&w.queue, event{max(t, w.now), w.seq, f})
}

// after runs f after d µs.
func (w *world) after(d int64, f func()) { w.at(w.now+d, f) }

// run plays until nothing is planned or a check fails.
func (w *world) run() {
	for len(w.queue) > 0 && w.wrong == nil {
		e := heap.Pop(&w.queue).(event)
		w.now = e.at
		e.f()
	}
	for _, p := range w.procs {
		for t := range p.tasks {
			if w.wrong == nil {
				w.fail("stuck", "process %d: a call never had an answer", p.id)
			}
			t.stop()
		}
	}
	for _, c := range w.idle {
		c.stop()
	}
}

func (w *world) fail(check, format string, args ...any) {
	if w.wrong == nil {
		w.wrong = &violation{Check: check, At: w.now, What: fmt.Sprintf(format, args...)}
		w.tracef("WRONG (%s): %s", check, w.wrong.What)
	}
}

func (w *world) tracef(format string, args ...any) {
	if w.trace != nil {
		w.trace(fmt.Sprintf("%12.3f ms  ", float64(w.now)/1000) + fmt.Sprintf(format, args...))
	}
}

// An event is something that happens at a true time.
type event struct {
	at  int64
	seq uint64
	f   func()
}

// A queue is a heap of events, the next one on top.
type queue []event

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].seq < q[j].seq
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(e any)   { *q = append(*q, e.(event)) }
func (q *queue) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	(*q)[last], *q = event{}, (*q)[:last]
	return e
}

// A task is a call, or the background work of a process. It runs in a coroutine until
// it waits.
type task struct {
	w       *world
	p       *process
	rng     *rand.Rand // its own, so that dropping another step does not change it
	ask     bool       // runs in the background of a decorator, not for a caller
	got     []*grant   // grants of the call that was last answered
	both    bool       // its caller calls two limits
	mine    *grant     // grant of the limit "customer" that its caller has
	stopped bool
	ctx     context.Context    // of the task's calls
	cancel  context.CancelFunc // cancels ctx
	leaving func()             // called if the caller leaves while the task waits; or nil
	looked  int64              // true time at which the store told it which holds live
	once    bool               // its messages arrive at most once
	on      *coroutine
}

// A coroutine runs one task after another, so that they share a stack that has grown
// already.
type coroutine struct {
	run   func()
	yield func(struct{}) bool
	next  func() (struct{}, bool)
	stop  func()
}

// stopped is the panic of a task whose process has crashed.
type stopped struct{}

func (stopped) Error() string { return "the process has crashed" }

// start runs f now, as a task of a process, until it waits.
func (w *world) start(p *process, rng *rand.Rand, ask bool, f func(t *task)) {
	t := &task{w: w, p: p, rng: rng, ask: ask, on: w.coroutine(), ctx: context.Background()}
	t.on.run = func() { f(t) }
	p.tasks[t] = struct{}{}
	t.resume()
}

// coroutine returns a coroutine that runs no task.
func (w *world) coroutine() *coroutine {
	if n := len(w.idle); n > 0 {
		c := w.idle[n-1]
		w.idle = w.idle[:n-1]
		return c
	}
	c := &coroutine{}
	c.next, c.stop = iter.Pull(c.runAll)
	return c
}

// runAll runs tasks until it is stopped, by a crash or at the end of the history.
func (c *coroutine) runAll(yield func(struct{}) bool) {
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(stopped); !ok {
				panic(r)
			}
		}
	}()
	c.yield = yield
	for more := true; more; more = yield(struct{}{}) {
		c.run()
		c.run = nil
	}
}

// resume runs a task until it waits again or ends.
func (t *task) resume() {
	w, before := t.w, t.w.task
	w.task = t
	t.on.next()
	if w.task = before; t.on.run == nil {
		delete(t.p.tasks, t)
		w.idle = append(w.idle, t.on)
	}
}

// stop ends a task that waits.
func (t *task) stop() {
	t.stopped = true
	t.on.stop()
}

// leave ends the wait of a task whose caller leaves.
func (t *task) leave() {
	t.cancel()
	if f := t.leaving; f != nil {
		t.leaving = nil
		f()
	}
}

// wait suspends the task that runs until it is resumed.
func (t *task) wait() {
	if !t.on.yield(struct{}{}) {
		panic(stopped{})
	}
}
