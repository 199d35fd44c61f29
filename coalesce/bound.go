package coalesce

import (
	"context"
	"sync"
	"time"
)

// A bound ends the lone calls of a lane that nothing else would end. A context
// with a timer for each of them would cost a twentieth of a call; one timer and
// one end serve all of them, one after another, until one has taken too long.
type bound struct {
	most  time.Duration
	timer *time.Timer // looks at the call under way

	mu    sync.Mutex
	end   *end // of the call under way and of those after it
	since time.Time
	busy  bool // a call is under way, since then
	set   bool // the timer is
}

// An end comes when a call has taken too long. The next call has another one.
type end struct {
	done  chan struct{}
	mu    sync.Mutex
	funcs map[*func()]struct{} // to be called then; nil afterwards
}

// begin is the context of a call whose own has no end.
func (b *bound) begin(ctx context.Context, most time.Duration) context.Context {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.end == nil {
		b.end = &end{done: make(chan struct{}), funcs: map[*func()]struct{}{}}
	}
	b.most, b.since, b.busy = most, now, true
	switch {
	case b.timer == nil:
		b.timer = time.AfterFunc(most, b.look)
	case !b.set:
		b.timer.Reset(most)
	}
	b.set = true
	until := now.Add(most)
	if own, ok := ctx.Deadline(); ok && own.Before(until) { // of a context that says so and has no Done
		until = own
	}
	return &bounded{ctx, b.end, until}
}

// over ends the call. What it has left to be called at its end is called now,
// and the next one has another end.
func (b *bound) over() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.busy = false
	if b.end != nil && b.end.awaited() {
		b.end.come()
		b.end = nil
	}
}

func (e *end) awaited() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.funcs) > 0
}

// look ends the call under way if it has taken too long, and comes again when
// it will have.
func (b *bound) look() {
	b.mu.Lock()
	defer b.mu.Unlock()
	left := b.most - time.Since(b.since)
	b.set = b.busy && left > 0
	switch {
	case b.set:
		b.timer.Reset(left)
	case b.busy:
		b.end.come()
		b.end, b.busy = nil, false
	}
}

func (e *end) come() {
	e.mu.Lock()
	defer e.mu.Unlock()
	close(e.done)
	for f := range e.funcs {
		go (*f)()
	}
	e.funcs = nil
}

// bounded has the values of a call's context and the end of its lane's.
type bounded struct {
	context.Context
	end      *end
	deadline time.Time
}

func (b *bounded) Deadline() (time.Time, bool) { return b.deadline, true }
func (b *bounded) Done() <-chan struct{}       { return b.end.done }

func (b *bounded) Err() error {
	select {
	case <-b.end.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// AfterFunc spares package context a goroutine that waits for the end.
func (b *bounded) AfterFunc(f func()) (stop func() bool) {
	e := b.end
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.funcs == nil {
		go f()
		return func() bool { return false }
	}
	e.funcs[&f] = struct{}{}
	return func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		_, there := e.funcs[&f]
		delete(e.funcs, &f)
		return there
	}
}
