package lease

import (
	"context"
	"time"

	"github.com/dipwell/dipwell/internal/background"
	"github.com/dipwell/dipwell/store"
)

// A Gate lets calls wait until it is opened, once.
type Gate interface {
	Wait(ctx context.Context) error // returns the context's error if that ends first
	Open()
}

type gate chan struct{}

func (g gate) Open() { close(g) }

func (g gate) Wait(ctx context.Context) error {
	select {
	case <-g:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// A flight is a call of a key that is on its way to the store. The fields below gate are
// set before the gate opens.
type flight struct {
	gate            Gate
	asked           *store.Definition
	refused, failed bool
	op              store.Op // as refused
}

// A turn is a request for tokens, from its planning until its answer.
type turn struct {
	gate       Gate      // opens when the request is answered
	at         int64     // when the request should be sent, in ns
	sent, wall int64     // ns on both clocks: when it was sent; 0: not yet
	chunk, n   int64     // size of the chunk, and number of tokens to request for it
	check      *store.Op // a Check of one token more that was sent with the request, if it was refused; otherwise nil
}

// learn keeps the answer of the Check that was sent with the request, if the store itself
// has refused it. A refusal by a deny cache may be older than the request.
func (t *turn) learn(g *store.Group) {
	if op := &g.Ops[0]; g.Err == nil && !op.Allowed && op.Source == store.SourceStore && op.TS != 0 && !overridden(op) {
		t.check = op
	}
}

// refuses answers a Take that arrived before the request was sent, if the store has
// refused the Check, which it decided after the request.
func (t *turn) refuses(op *store.Op) bool {
	c := t.check
	if c == nil || c.Def.Number != op.Def.Number {
		return false
	}
	_, _, err := op.Step(c.DecidedAt(), store.State{Used: c.Used, TS: c.TS, Version: c.Def.Number}, true)
	if err != nil || op.Allowed {
		op.Answer = store.Answer{}
		return false
	}
	op.Bound, op.Source = c.Bound, c.Source
	return true
}

// soon is how long, in ns, a call waits for the beginning of a chunk instead of asking
// the store. It is about the time that the store takes.
const soon = int64(5 * time.Millisecond)

// waiters bounds the calls of a key that wait for a request that was not sent yet.
const waiters = 1024

// comes returns a gate that opens when the key may have tokens: when a chunk begins, if
// that is soon, when the request in flight is answered, or, while tokens are scarce, when
// the next request is. gate is nil if nothing of this is expected, or if the context may
// end first. request reports whether the gate opens with an answer to a request; before is
// that request if it was not sent yet.
func (s *Store) comes(ctx context.Context, k *key) (gate Gate, before *turn, request bool) {
	mono, _ := s.clock.now()
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range [...]*chunk{k.now.Load(), k.next} {
		if c == nil || mono >= c.from || c.from-mono > soon+c.trip {
			continue
		}
		if c.begins == nil {
			c.begins = s.gate()
			s.after(time.Duration(c.from-mono), c.begins.Open)
		}
		return c.begins, nil, false
	}
	c := k.now.Load()
	s.need(k, mono, c == nil || c.left() == 0)
	if k.turn == nil {
		return nil, nil, false
	}
	if k.turn.sent != 0 {
		return k.turn.gate, nil, true
	}
	if k.turn.at <= mono {
		return k.turn.gate, k.turn, true
	}
	if mono >= k.tight || k.waiting >= waiters {
		return nil, nil, false
	}
	if deadline, ends := ctx.Deadline(); ends && time.Until(deadline) < 2*time.Duration(k.turn.at-mono) {
		return nil, nil, false
	}
	return k.turn.gate, k.turn, true
}

// ask asks the store for a call that no lease could answer. If tokens come soon (see
// comes), it waits for these first, and returns if there are some or if the store has
// said that there are none.
//
// Once the store has refused a call of the key, only one call at a time asks the store, for
// as long as a lease lasts. Other calls wait for its answer. Then they take from a new
// lease if there is one; otherwise the next of them asks. A refusal also answers the calls
// that arrived before the refused call was sent and cost at least as much. A call waits for
// at most two others, and for none after the store has failed.
func (s *Store) ask(ctx context.Context, k *key, b *store.Batch, g *store.Group, op *store.Op) error {
	asked := op.Def
	for range 2 {
		gate, before, request := s.comes(ctx, k)
		if gate == nil {
			break
		}
		if request && s.refuser != nil && s.refuser.Refuse(g) {
			s.learn(k, op)
			return nil
		}
		if err := s.await(ctx, k, gate, before); err != nil {
			return background.NotSent(err)
		}
		if s.fromLease(k, g, op) {
			return nil
		}
		if before != nil && before.refuses(op) {
			g.Err, g.Allowed, g.Reserved = nil, false, false
			return nil
		}
	}
	for waited := range 2 {
		f, first := s.join(k)
		if f == nil {
			break
		}
		if first {
			return s.fly(ctx, k, f, b)
		}
		if err := f.gate.Wait(ctx); err != nil {
			return background.NotSent(err)
		}
		if s.fromLease(k, g, op) {
			return nil
		}
		if f.failed {
			break
		}
		if waited > 0 && f.refused && f.asked == asked && f.op.Cost == op.Cost {
			op.Def = f.op.Def
			op.CopyAnswer(&f.op)
			g.Err, g.Allowed, g.Reserved = nil, false, false
			return nil
		}
	}
	return s.send(ctx, k, b)
}

// await waits for a gate. If before is not nil, the gate is that of a request that was
// not sent yet.
func (s *Store) await(ctx context.Context, k *key, gate Gate, before *turn) error {
	if before == nil {
		return gate.Wait(ctx)
	}
	wait := func(n int) {
		k.mu.Lock()
		k.waiting += n
		k.mu.Unlock()
	}
	wait(1)
	defer wait(-1)
	return gate.Wait(ctx)
}

// join returns the flight of a key. first reports whether the caller has to send it. f is
// nil if the key was not refused recently.
func (s *Store) join(k *key) (f *flight, first bool) {
	mono, _ := s.clock.now()
	k.mu.Lock()
	defer k.mu.Unlock()
	if mono >= k.tight {
		return nil, false
	}
	if k.flight == nil {
		k.flight, first = &flight{gate: s.gate()}, true
	}
	return k.flight, first
}

// fly sends the call of a flight.
func (s *Store) fly(ctx context.Context, k *key, f *flight, b *store.Batch) error {
	defer func() {
		k.mu.Lock()
		k.flight = nil
		k.mu.Unlock()
		f.gate.Open()
	}()
	g := &b.Groups[0]
	f.asked = g.Ops[0].Def
	err := s.send(ctx, k, b)
	if f.failed = err != nil || g.Err != nil; !f.failed && !g.Allowed {
		f.op, f.refused = g.Ops[0], true
	}
	return err
}

// send sends a call to the store, and remembers what its answer says about the key.
func (s *Store) send(ctx context.Context, k *key, b *store.Batch) error {
	err := s.inner.Apply(ctx, b)
	if g := &b.Groups[0]; err == nil && g.Err == nil {
		s.learn(k, &g.Ops[0])
	}
	return err
}
