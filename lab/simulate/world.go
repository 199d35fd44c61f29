package main

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"

	"github.com/dipwell/dipwell/store"
)

// A world is one history while it is played.
type world struct {
	now   int64   // true time in µs, which no process can read
	queue []event // sorted so that the next event is the last one
	seq   uint64
	task  *task // the task that is running now
	idle  []*coroutine

	history
	nodes []*node // the first store is that of the home region
	procs []*process
	*result
	trace func(line string) // writes a line of the trace; nil: no trace

	tags    int64             // number of tagged groups
	origins map[int64]*origin // by the tag of a group
	byID    map[store.Reservation]*origin

	heard    int64 // tokens that callers were told of, as callers count them
	refunded int64 // tokens that leases gave back
}

// at runs f at a true time, after everything planned earlier for the same time.
func (w *world) at(t int64, f func()) {
	w.seq++
	e := event{max(t, w.now), w.seq, f}
	place, _ := slices.BinarySearchFunc(w.queue, e, func(a, b event) int { return cmp.Or(cmp.Compare(b.at, a.at), cmp.Compare(b.seq, a.seq)) })
	w.queue = slices.Insert(w.queue, place, e)
}

// after runs f after d µs.
func (w *world) after(d int64, f func()) { w.at(w.now+d, f) }

// run plays the history until nothing is planned or a check fails.
func (w *world) run() {
	for len(w.queue) > 0 && w.Violation == nil {
		last := len(w.queue) - 1
		e := w.queue[last]
		w.queue = slices.Delete(w.queue, last, last+1)
		w.now = e.at
		e.f()
	}
	for _, p := range w.procs {
		for t := range p.tasks {
			if w.Violation == nil {
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
	if w.Violation == nil {
		w.Violation = &violation{Check: check, What: fmt.Sprintf(format, args...)}
		w.tracef("WRONG (%s): %s", check, w.Violation.What)
	}
}

func (w *world) tracef(format string, args ...any) {
	if w.trace != nil {
		w.trace(fmt.Sprintf("%12.3f ms  ", float64(w.now)/1000) + fmt.Sprintf(format, args...))
	}
}

type event struct {
	at  int64
	seq uint64
	f   func()
}

// A task is a call, or the background work of a process. It runs in a coroutine until
// it waits.
type task struct {
	w       *world
	p       *process
	rng     *rand.Rand // a source of the task's own, so that dropping another step does not change it
	ask     bool       // the task runs in the background of a decorator, not for a caller
	got     []*grant   // grants of the call that was last answered
	both    bool       // the task's caller calls two limits
	mine    *grant     // grant of the limit "customer" that the task's caller has
	stopped bool
	ctx     context.Context    // context of the task's calls
	cancel  context.CancelFunc // cancels ctx
	leaving func()             // called if the caller leaves while the task waits; or nil
	looked  int64              // true time at which the store told the task which holds live
	once    bool               // the task's messages arrive at most once
	on      *coroutine
}

// A coroutine runs one task after another, so that tasks share a stack that has
// grown already.
type coroutine struct {
	run   func()
	yield func(struct{}) bool
	next  func() (struct{}, bool)
	stop  func()
}

// stopped is the panic of a task whose process has crashed.
type stopped struct{}

func (stopped) Error() string { return "the process has crashed" }

// start runs f now, as a task of a process, until the task waits.
func (w *world) start(p *process, rng *rand.Rand, ask bool, f func(t *task)) {
	t := &task{w: w, p: p, rng: rng, ask: ask, on: w.coroutine(), ctx: context.Background()}
	t.on.run = func() { f(t) }
	p.tasks[t] = struct{}{}
	t.resume()
}

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

func (t *task) stop() {
	t.stopped = true
	t.on.stop()
}

func (t *task) leave() {
	t.cancel()
	if f := t.leaving; f != nil {
		t.leaving = nil
		f()
	}
}

// wait suspends the running task until it is resumed.
func (t *task) wait() {
	if !t.on.yield(struct{}{}) {
		panic(stopped{})
	}
}

// A gate lets tasks of a process wait for another task.
type gate struct {
	p     *process
	open  bool
	tasks []*task
}

// Wait lets the task wait until the gate is open or the task's caller leaves.
func (g *gate) Wait(ctx context.Context) error {
	for !g.open {
		if err := ctx.Err(); err != nil {
			return err
		}
		t := g.p.w.task
		g.tasks = append(g.tasks, t)
		t.leaving = func() {
			g.tasks = slices.DeleteFunc(g.tasks, func(o *task) bool { return o == t })
			t.resume()
		}
		t.wait()
		t.leaving = nil
	}
	return nil
}

// Open opens the gate. The waiting tasks continue once the task that called Open waits
// or has ended.
func (g *gate) Open() {
	g.open = true
	for _, t := range g.tasks {
		g.p.whileLives(t, 0, t.resume)
	}
}
