package breaker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dipwell/dipwell/internal/await"
	"github.com/dipwell/dipwell/store"
)

// suspect starts probes about an op of a batch without an answer, unless they
// are under way or were lately.
func (s *Store) suspect(b *store.Batch) {
	op := firstOp(b)
	if op == nil { // a cancellation names no key
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.probing || s.ctx.Err() != nil || time.Since(s.probed) < s.Pause {
		return
	}
	s.probing, s.probed = true, time.Now()
	d := &doubt{op.Def, op.Key}
	s.doubt = d
	s.done.Go(func() { s.probe(d) })
}

func firstOp(b *store.Batch) *store.Op {
	for i := range b.Groups {
		if ops := b.Groups[i].Ops; len(ops) > 0 {
			return &ops[0]
		}
	}
	return nil
}

// probe asks, one call at a time, until the store answers a probe or a caller.
// A probe that a caller's answer has overtaken is not cancelled: that would cost
// its connection.
func (s *Store) probe(d *doubt) {
	defer func() {
		s.mu.Lock()
		s.probing = false
		s.mu.Unlock()
	}()
	for s.doubts(d) {
		err := s.ask(d)
		if s.ctx.Err() != nil {
			return
		}
		if outcomeOfError(err) != silent {
			s.heard()
			return
		}
		s.trip(d, err)
		if await.Sleep(s.ctx, s.Pause) != nil {
			return
		}
	}
}

func (s *Store) doubts(d *doubt) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.doubt == d
}

// ask sends one Check. The breaker opens while it waits for longer than Patience.
func (s *Store) ask(d *doubt) error {
	ctx, cancel := context.WithTimeout(s.ctx, s.Timeout)
	defer cancel()
	late := time.AfterFunc(s.Patience, func() { s.trip(d, fmt.Errorf("no answer within %v", s.Patience)) })
	defer late.Stop()
	var b store.Batch
	g, op := b.Single()
	op.Def, op.Key, op.Verb, op.Cost = d.def, d.key, store.VerbCheck, 1
	if err := s.inner.Apply(ctx, &b); err != nil {
		return err
	}
	return g.Err
}

// trip opens the breaker, unless the store has answered meanwhile.
func (s *Store) trip(d *doubt, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.doubt != d || s.ctx.Err() != nil || s.open.Swap(true) {
		return
	}
	s.tell(fmt.Errorf("%w: %w", errSilent, why))
}

var errSilent = errors.New("the store does not answer; until it does, calls are answered at once by their failure mode")

// heard closes the breaker.
func (s *Store) heard() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failures.Store(0)
	s.doubt = nil
	if s.open.Swap(false) {
		s.tell(nil)
	}
}

func (s *Store) tell(why error) {
	if s.OnChange != nil {
		s.OnChange(why)
	}
}
