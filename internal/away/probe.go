package away

import (
	"context"
	"errors"
	"fmt"

	"github.com/dipwell/dipwell/internal/background"
	"github.com/dipwell/dipwell/store"
)

// startProbe starts probes of a batch's first op, at most one at a time and one per Pause.
func (s *Breaker) startProbe(b *store.Batch) {
	op := firstOp(b)
	if op == nil { // a cancellation has no key, nor has settling a hold
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.Clock()
	if s.probing || s.ctx.Err() != nil || s.lastProbe != nil && now-*s.lastProbe < s.Pause {
		return
	}
	s.probing, s.lastProbe = true, &now
	t := &probeTarget{op.Def.Base(), op.Key}
	s.target = t
	s.done.Add(1)
	s.Go(func() {
		defer s.done.Done()
		s.probe(t)
	})
}

func firstOp(b *store.Batch) *store.Op {
	for i := range b.Groups {
		if ops := b.Groups[i].Ops; len(ops) > 0 {
			return &ops[0]
		}
	}
	return nil
}

// probe sends one probe at a time until the store answers a probe or a call. If a call is
// answered first, the probe in flight is not cancelled: that would cost its connection.
func (s *Breaker) probe(t *probeTarget) {
	defer func() {
		s.mu.Lock()
		s.probing = false
		s.mu.Unlock()
	}()
	for s.probes(t) {
		err := s.sendProbe(t)
		if s.ctx.Err() != nil {
			return
		}
		if outcomeOfError(err) != unanswered {
			s.reset()
			return
		}
		s.trip(t, err)
		if s.Sleep(s.ctx, s.Pause) != nil {
			return
		}
	}
}

func (s *Breaker) probes(t *probeTarget) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.target == t
}

// sendProbe sends one Check. If the Check takes longer than Patience, the breaker opens.
func (s *Breaker) sendProbe(t *probeTarget) error {
	ctx, cancel := context.WithTimeout(s.ctx, s.Timeout)
	defer cancel()
	stop := s.After(s.Patience, func() { s.trip(t, fmt.Errorf("no answer within %v", s.Patience)) })
	defer stop()
	var b store.Batch
	g, op := b.Single()
	op.Def, op.Key, op.Verb, op.Cost = t.def, t.key, store.VerbCheck, 1
	if err := background.Apply(ctx, s.inner, &b); err != nil {
		return err
	}
	return g.Err
}

// trip opens the breaker, unless the store has answered since t was set.
func (s *Breaker) trip(t *probeTarget, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.target != t || s.ctx.Err() != nil || s.open.Swap(true) {
		return
	}
	s.notify(fmt.Errorf("%w: %w", errUnanswered, why))
}

var errUnanswered = errors.New("the store does not answer; calls fail at once until it does")

// reset closes the breaker after an answer.
func (s *Breaker) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failures.Store(0)
	s.target = nil
	if s.open.Swap(false) {
		s.notify(nil)
	}
}

func (s *Breaker) notify(why error) {
	if s.OnChange != nil {
		s.OnChange(why)
	}
}
