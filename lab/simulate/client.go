package main

import (
	"context"
	"errors"
	"time"

	"github.com/dipwell/dipwell/internal/away"
	"github.com/dipwell/dipwell/internal/denycache"
	"github.com/dipwell/dipwell/internal/lease"
	"github.com/dipwell/dipwell/store"
)

// A client is a process's access to one store, through decorators of its own.
type client struct {
	p     *process
	node  *node
	store store.Store
	defs  map[string]*store.Definition // the limits as the process knows them
	usual int64                        // µs that a message of this process usually takes

	answered int64 // true time of the last answer that the client got
	opened   int64 // true time at which the client's breaker opened; 0: it is closed
	cut      int64 // true time until which no message passes between client and store

	memory *away.Fallback   // the decorator that decides while the store does not answer; or nil
	alone  map[string]alone // what the client knows, by key of the limit "hot"
}

func (c *client) begin() {
	p := c.p
	c.defs = map[string]*store.Definition{}
	for _, d := range c.node.reg.All() {
		c.defs[d.Name] = d
	}
	c.store = link{c: c}
	c.opened = 0
	if p.w.coalesces {
		c.coalesced()
	}
	if p.w.guarded {
		c.guard()
	}
	if p.w.cached { // with one set of slots, so that the random seed of the cache's hash does not affect which slots are replaced
		c.store = must(denycache.New(c.store, denycache.Config{Clock: p.monotonic, Keys: 8}))
	}
	if c.defs["hot"] != nil {
		c.store = lease.New(c.store, lease.Config{
			Clock:   func() int64 { return p.monotonic() * 1000 },
			Wall:    func() int64 { return (epoch + p.w.now + p.skew) * 1000 },
			Go:      p.background,
			After:   func(d time.Duration, f func()) { p.unlessCrashed(d.Microseconds()+1, f) },
			Gate:    func() lease.Gate { return &gate{p: p} },
			ID:      func(id *store.Reservation) { p.w.task.identify(id) },
			Stripes: 1, // so that it does not matter which processor runs
		})
	}
	c.close()
	if p.w.local && c.defs["hot"] != nil {
		c.memory = must(away.NewFallback(c.store, away.FallbackConfig{
			MaxKeys: 64, Clock: p.monotonic,
			Wall: func() int64 { return epoch + p.w.now + p.skew },
		}))
		c.store, c.alone = c.memory, map[string]alone{}
	}
}

func (c *client) close() {
	if c.memory != nil {
		_ = c.memory.Close()
		c.memory = nil
	}
}

// An alone is what a process knows of a key: the row in the store's last answer, and the
// tokens that the process granted without the store since.
type alone struct {
	op       store.Op
	ts, used int64 // time and used units of the row; older answers are ignored, and of those with the same time the one with less in use
	granted  int64
}

// checkAlone checks a process that decides alone: it grants at most what the store last
// reported plus what has come back since. A thousandth of the time is added for the drift
// of both clocks. Holds are not counted, because they give their tokens back.
func (c *client) checkAlone(op *store.Op, hold bool) {
	p := c.p
	a := c.alone[op.Key]
	switch op.Source {
	case store.SourceStore:
		if op.Def.OnStoreError == store.FailLocal && (op.TS > a.ts || op.TS == a.ts && op.Used >= a.used) {
			c.alone[op.Key] = alone{op: *op, ts: op.TS, used: op.Used}
		}
	case store.SourceFallbackLocal:
		if op.Took() > 0 { // a refusal leaves the row as it is, and an answer that is older than the refusal may still come
			if a.ts, a.used = op.TS, op.Used; !hold {
				a.granted += op.Granted
			}
		}
		c.alone[op.Key] = a
		if a.op.Def == nil || a.op.Def.Number != op.Def.Number || c.node.backs > 0 {
			return
		}
		r := &op.Def.Rule
		back := float64(op.Def.Rate) * (float64(c.node.time()-a.op.TS) + 0.001*float64(p.w.now)) / 1e6
		if free := float64(r.Cap-a.op.Used)/float64(r.Unit) + back + 1; float64(a.granted) > max(free, 0) {
			p.w.fail("alone", "process %d: %d of %s %q were granted without the store, which had %.1f", p.id, a.granted, op.Def.Name, op.Key, free)
		}
	}
}

// guard puts the circuit breaker in front of the store.
func (c *client) guard() {
	p := c.p
	c.store = away.NewBreaker(c.store, away.BreakerConfig{
		OnChange: c.breaks,
		Clock:    func() time.Duration { return time.Duration(p.monotonic()) * time.Microsecond },
		Go:       p.background,
		After: func(d time.Duration, f func()) func() bool {
			stopped := false
			p.unlessCrashed(d.Microseconds(), func() {
				if !stopped {
					f()
				}
			})
			return func() bool { was := stopped; stopped = true; return !was }
		},
		Sleep: func(_ context.Context, d time.Duration) error {
			p.later(p.w.task, d.Microseconds())
			return nil
		},
	})
}

// must returns a decorator that was made from a valid configuration.
func must[T any](made T, err error) T {
	if err != nil {
		panic(err)
	}
	return made
}

// breaks checks that the breaker opens only if nothing was answered for the timeout
// of a probe, and records when it opened.
func (c *client) breaks(why error) {
	p := c.p
	if c.opened = 0; why == nil {
		return
	}
	c.opened = p.w.now
	p.w.tracef("process %d: the breaker opens", p.id)
	if c.answered > 0 && p.w.now-c.answered < opensAfter {
		p.w.fail("breaker", "process %d: the breaker opens %d µs after an answer of the store", p.id, p.w.now-c.answered)
	}
}

// opensAfter is how long a probe must be unanswered before the breaker opens, in µs, by a fast
// clock.
const opensAfter = 299_800

func (c *client) apply(b *store.Batch) error {
	err := c.store.Apply(c.p.w.task.ctx, b)
	if errors.Is(err, away.ErrOpen) && (c.opened == 0 || c.answered > c.opened) { // it fails calls only until the store answers
		c.p.w.fail("breaker", "process %d: the breaker fails a call; it opened at %d, and the store has answered at %d", c.p.id, c.opened, c.answered)
	}
	if err == nil {
		err = b.Groups[0].Err
	}
	settle := errors.As(err, new(*store.FieldError)) // above max_charge
	if err != nil && !settle && !errors.Is(err, store.ErrStore) && !errors.Is(err, store.ErrReservation) && !errors.Is(err, store.ErrUnknownHold) && !errors.Is(err, store.ErrHoldConflict) {
		c.p.w.fail("error", "process %d: %v", c.p.id, err)
	}
	return err
}
