// Package breaker answers calls at once while a store does not answer at all: a
// store in, a store out.
//
// When Config.Failures calls in a row ran out of time or found no connection,
// the breaker sends a probe: a Check, which charges nothing, with a deadline of
// its own. Only when the probe too has no answer after Config.Patience does the
// breaker open, so that callers with short deadlines cannot open it for others.
//
// While it is open, each call gets ErrOpen at once, was not sent and not
// charged; limits then decide by their failure mode. One probe at a time goes
// to the store. The first answer, to a probe or to a call that was sent earlier,
// closes the breaker. An error that the store itself sent is an answer.
//
// It belongs around what talks to the store (coalesce) and inside what answers
// without it (denycache, fallback).
package breaker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dipwell/dipwell/store"
)

// ErrOpen is the error of calls that were not sent.
var ErrOpen = fmt.Errorf("%w: it does not answer; the call was not sent and not charged", store.ErrStore)

// Config is when a breaker opens. A zero field means the default named in its comment.
type Config struct {
	Failures int           // calls in a row without an answer that start a probe; default 5
	Patience time.Duration // how long a probe waits before the breaker opens; default 300 ms
	Timeout  time.Duration // the longest a probe may take, at least Patience; default 1 s
	Pause    time.Duration // between two probes; default 100 ms

	// OnChange hears when the breaker opens, with the reason, and when it closes,
	// with nil. It must not call the store. Default: nothing is done.
	OnChange func(why error)
}

const (
	defaultFailures = 5
	defaultPatience = 300 * time.Millisecond
	defaultTimeout  = time.Second
	defaultPause    = 100 * time.Millisecond
)

// Store is a store behind a breaker. It is safe for concurrent use.
type Store struct {
	inner store.Store
	Config

	open     atomic.Bool
	failures atomic.Int64 // calls in a row without an answer
	refused  atomic.Uint64
	full     atomic.Pointer[full] // the last call that found no space; nil: none did

	mu      sync.Mutex
	doubt   *doubt    // nil: there is none
	probing bool      // a goroutine sends probes
	probed  time.Time // when it was started last

	ctx  context.Context // ends with Close
	stop context.CancelFunc
	done sync.WaitGroup
}

// doubt lasts from the failures that start probes to the next answer.
type doubt struct {
	def *store.Definition // what probes ask about
	key string
}

var _ store.Store = (*Store)(nil)

// New returns a store that asks inner while inner answers. Close ends its probes.
func New(inner store.Store, c Config) (*Store, error) {
	if inner == nil {
		return nil, errors.New("breaker: the inner store is nil")
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	s := &Store{inner: inner, Config: c}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s, nil
}

func (c *Config) check() error {
	if c.Failures == 0 {
		c.Failures = defaultFailures
	}
	if c.Patience == 0 {
		c.Patience = defaultPatience
	}
	if c.Timeout == 0 {
		c.Timeout = max(defaultTimeout, c.Patience)
	}
	if c.Pause == 0 {
		c.Pause = defaultPause
	}
	switch {
	case c.Failures < 0:
		return fmt.Errorf("breaker: Failures %d is negative", c.Failures)
	case c.Patience < 0:
		return fmt.Errorf("breaker: Patience %v is negative", c.Patience)
	case c.Timeout < c.Patience:
		return fmt.Errorf("breaker: Timeout %v is less than Patience %v", c.Timeout, c.Patience)
	case c.Pause < 0:
		return fmt.Errorf("breaker: Pause %v is negative", c.Pause)
	}
	return nil
}

// Unwrap returns the inner store.
func (s *Store) Unwrap() store.Store { return s.inner }

// Abilities are those of the inner store. It is not ready while the breaker is
// open, and for a while after a call found the store without space.
func (s *Store) Abilities() store.Abilities {
	ab := store.AbilitiesOf(s.inner)
	ab.Store, ab.Quick, ab.Lanes = s, nil, nil
	inner := ab.Ready
	ab.Ready = func(ctx context.Context) error {
		if err := s.ready(); err != nil || inner == nil {
			return err
		}
		return inner(ctx)
	}
	ab.AddMetrics(s.metrics)
	return ab
}

func (s *Store) metrics() []store.Metric {
	open := 0.0
	if s.open.Load() {
		open = 1
	}
	return []store.Metric{
		{Name: "dipwell_store_breaker_open", Help: "1: the store does not answer, and calls are answered at once by their failure mode.", Value: open},
		{Name: "dipwell_store_breaker_calls_total", Help: "Calls that were not sent because the breaker was open.", Counter: true, Value: float64(s.refused.Load())},
	}
}

// Open reports whether calls are answered without the store.
func (s *Store) Open() bool { return s.open.Load() }

// Refused is how many calls were answered without the store so far.
func (s *Store) Refused() uint64 { return s.refused.Load() }

// Close ends the probes. The inner store stays open.
func (s *Store) Close() error {
	s.mu.Lock()
	s.stop()
	s.mu.Unlock()
	s.done.Wait()
	return nil
}

// Apply asks the inner store unless the breaker is open.
func (s *Store) Apply(ctx context.Context, b *store.Batch) error {
	if s.open.Load() {
		s.refused.Add(uint64(len(b.Groups)))
		return ErrOpen
	}
	err := s.inner.Apply(ctx, b)
	s.noteFull(b)
	switch outcomeOf(err, b) {
	case answered:
		if s.failures.Load() != 0 {
			s.heard()
		}
	case silent:
		if s.failures.Add(1) >= int64(s.Failures) {
			s.suspect(b)
		}
	}
	return err
}

// full is a call that found the store without space.
type full struct {
	why error
	at  time.Time
}

// fullFor is how long the store is not ready after such a call: only a call that
// writes can tell, and not each of them needs space.
const fullFor = 10 * time.Second

func (s *Store) noteFull(b *store.Batch) {
	for i := range b.Groups {
		if why := b.Groups[i].Err; why != nil && errors.Is(why, store.ErrNoSpace) {
			s.full.Store(&full{why, time.Now()})
		}
	}
}

// ready returns why the store is not ready, as far as its calls tell.
func (s *Store) ready() error {
	if s.open.Load() {
		return ErrOpen
	}
	if f := s.full.Load(); f != nil && time.Since(f.at) < fullFor {
		return f.why
	}
	return nil
}

type outcome int

const (
	unclear  outcome = iota // the caller was wrong or left: it tells nothing about the store
	answered                // the store has answered
	silent                  // it has not
)

// outcomeOf is what a batch tells about the store. One answer is enough.
func outcomeOf(err error, b *store.Batch) outcome {
	if err != nil {
		return outcomeOfError(err)
	}
	out := unclear
	for i := range b.Groups {
		switch outcomeOfError(b.Groups[i].Err) {
		case answered:
			return answered
		case silent:
			out = silent
		}
	}
	return out
}

func outcomeOfError(err error) outcome {
	var network net.Error
	switch {
	case err == nil:
		return answered
	case errors.Is(err, context.Canceled), errors.Is(err, store.ErrLocked): // who waits for a row need not have heard from the store
		return unclear
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &network),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return silent
	}
	return unclear
}
