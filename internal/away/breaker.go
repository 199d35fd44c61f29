// Package away has decorators for a store that does not answer: Breaker fails calls at once,
// and Fallback decides them in this process. Each wraps a store and is a store itself.
package away

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dipwell/dipwell/internal/background"
	"github.com/dipwell/dipwell/store"
)

// ErrOpen is the error of calls while the breaker is open.
var ErrOpen = fmt.Errorf("%w: it does not answer; the call was not sent and not charged", store.ErrStore)

// BreakerConfig configures a Breaker. A zero field means the default that its comment names.
type BreakerConfig struct {
	Failures int           // consecutive unanswered calls before a probe; default 5
	Patience time.Duration // how long a probe must be unanswered before the breaker opens; default 300 ms
	Timeout  time.Duration // timeout of a probe, at least Patience; default 1 s
	Pause    time.Duration // time between two probes; default 100 ms

	// OnChange is called with the reason when the breaker opens, and with nil when
	// it closes. It must not call the store. Default: none.
	OnChange func(why error)

	Clock func() time.Duration                               // monotonic, from any origin; default this process's monotonic clock
	Go    func(f func())                                     // starts a probe in the background; default a goroutine
	After func(d time.Duration, f func()) (stop func() bool) // calls f in the background after d; default a timer
	Sleep func(ctx context.Context, d time.Duration) error   // default background.Sleep
}

const (
	defaultFailures = 5
	defaultPatience = 300 * time.Millisecond
	defaultTimeout  = time.Second
	defaultPause    = 100 * time.Millisecond
)

// A Breaker is a circuit breaker: it fails calls at once while a store does not answer. It
// is safe for concurrent use.
//
// When BreakerConfig.Failures consecutive calls have timed out or found no connection,
// the breaker sends a probe: a Check, which charges nothing, with its own deadline.
// The breaker opens only if the probe has no answer after BreakerConfig.Patience either,
// so that callers with short deadlines cannot open it for others.
//
// While the breaker is open, every call fails with ErrOpen at once. It is not sent
// and not charged, and limits decide by their failure mode. One probe at a time is
// sent. The first answer, to a probe or to a call that was sent earlier, closes the
// breaker. An error that the store itself sent is an answer.
//
// Wrap it around coalesce, and put it inside decorators that answer without the store
// (denycache, Fallback).
type Breaker struct {
	inner store.Store
	BreakerConfig

	open     atomic.Bool
	failures atomic.Int64 // number of consecutive unanswered calls
	refused  atomic.Uint64
	noSpace  atomic.Pointer[noSpace] // the last call that found no space, or nil
	lost     atomic.Pointer[error]   // the error of the last call without an answer, or nil

	mu        sync.Mutex
	target    *probeTarget   // what to probe; nil after an answer
	probing   bool           // a probe is running
	lastProbe *time.Duration // when a probe was last started; nil: never

	ctx  context.Context // cancelled by Close
	stop context.CancelFunc
	done sync.WaitGroup
}

// probeTarget is the limit and key of the probes that follow a series of failures.
// Its identity tells one series from the next.
type probeTarget struct {
	def *store.Definition
	key string
}

var _ store.Store = (*Breaker)(nil)

// NewBreaker returns a breaker in front of inner. Close stops its probes.
func NewBreaker(inner store.Store, c BreakerConfig) *Breaker {
	c.Failures, c.Patience = cmp.Or(c.Failures, defaultFailures), cmp.Or(c.Patience, defaultPatience)
	c.Timeout, c.Pause = cmp.Or(c.Timeout, max(defaultTimeout, c.Patience)), cmp.Or(c.Pause, defaultPause)
	s := &Breaker{inner: inner, BreakerConfig: c}
	s.ctx, s.stop = context.WithCancel(context.Background())
	if s.Clock == nil {
		began := time.Now()
		s.Clock = func() time.Duration { return time.Since(began) }
	}
	if s.Go == nil {
		s.Go = func(f func()) { go f() }
	}
	if s.After == nil {
		s.After = func(d time.Duration, f func()) func() bool { return time.AfterFunc(d, f).Stop }
	}
	if s.Sleep == nil {
		s.Sleep = background.Sleep
	}
	return s
}

// Abilities returns those of the inner store, except Quick and Lanes. While the breaker is
// open, the verbs fail at once as calls do, except changes of limits, which a store may keep
// until it answers. Ready fails too, also for the time noSpaceFor after a call found no space.
func (s *Breaker) Abilities() store.Abilities {
	ab := store.AbilitiesOf(s.inner)
	ab.Store, ab.Quick, ab.Lanes = s, nil, nil
	inner := ab.Ready
	ab.Ready = func(ctx context.Context) error {
		if err := s.ready(); err != nil || inner == nil {
			return err
		}
		return inner(ctx)
	}
	ab.Guard(func(ctx context.Context, _ bool) (context.Context, context.CancelFunc, error) {
		if s.open.Load() {
			return nil, nil, ErrOpen
		}
		return ctx, func() {}, nil
	})
	ab.AddMetrics(s.metrics)
	return ab
}

func (s *Breaker) metrics() []store.Metric {
	open := 0.0
	if s.open.Load() {
		open = 1
	}
	return []store.Metric{
		{Name: "dipwell_store_breaker_open", Help: "1 while the store does not answer and calls fail at once.", Value: open},
		{Name: "dipwell_store_breaker_calls_total", Help: "Calls that were not sent because the breaker was open.", Counter: true, Value: float64(s.refused.Load())},
	}
}

// Close stops the probes. Close does not close the inner store.
func (s *Breaker) Close() error {
	s.mu.Lock()
	s.stop()
	s.mu.Unlock()
	s.done.Wait()
	return nil
}

// Apply sends the batch to the inner store unless the breaker is open.
func (s *Breaker) Apply(ctx context.Context, b *store.Batch) error {
	if s.open.Load() {
		s.refused.Add(uint64(len(b.Groups)))
		return ErrOpen
	}
	err := s.inner.Apply(ctx, b)
	for i := range b.Groups {
		if why := b.Groups[i].Err; why != nil && errors.Is(why, store.ErrNoSpace) {
			s.noSpace.Store(&noSpace{why, s.Clock()})
		}
	}
	switch outcome, why := outcomeOf(err, b); outcome {
	case answered:
		if s.failures.Load() != 0 {
			s.reset()
		}
	case unanswered:
		lost := why // which only now is on the heap
		s.lost.Store(&lost)
		if s.failures.Add(1) >= int64(s.Failures) {
			s.startProbe(b)
		}
	}
	return err
}

type noSpace struct {
	why error
	at  time.Duration
}

// noSpaceFor is how long the store is not ready after such a call. Only writes detect it, and
// not every write needs space, so success of other calls proves nothing.
const noSpaceFor = 10 * time.Second

// ready returns an error if calls have shown that the store is not ready, and nil otherwise.
func (s *Breaker) ready() error {
	if s.open.Load() {
		if why := s.lost.Load(); why != nil {
			return fmt.Errorf("%w: %w", ErrOpen, *why)
		}
		return ErrOpen
	}
	if f := s.noSpace.Load(); f != nil && s.Clock()-f.at < noSpaceFor {
		return f.why
	}
	return nil
}

type outcome int

const (
	unclear    outcome = iota // the result says nothing about the store: the input was invalid, or the caller has gone
	answered                  // the store answered
	unanswered                // the store did not answer
)

// outcomeOf returns the outcome of a batch, answered if any of its groups was, and its error.
func outcomeOf(err error, b *store.Batch) (o outcome, why error) {
	if err != nil {
		return outcomeOfError(err), err
	}
	for i := range b.Groups {
		switch err := b.Groups[i].Err; outcomeOfError(err) {
		case answered:
			return answered, nil
		case unanswered:
			o, why = unanswered, err
		}
	}
	return o, why
}

func outcomeOfError(err error) outcome {
	switch {
	case err == nil:
		return answered
	case errors.Is(err, context.Canceled), errors.Is(err, store.ErrLocked): // may come from the quarantine, without an answer of the store
		return unclear
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, new(net.Error)),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return unanswered
	}
	return unclear
}
