// Package stack wraps a store that many callers share: calls that wait are sent together
// in one batch, known refusals are answered without the store, and calls are decided
// while the store is down. `dipwell serve` calls the same function.
//
// A call passes through the layers that Options switch on, in this order:
//
//	Outer       a decorator of the caller's, such as one that writes spans
//	Shadow      allows what would be refused
//	KeySecret   replaces keys by hashes
//	Fallback    decides in this process while the store is down
//	Leases      answers calls of limits that have a lease from tokens taken in advance
//	DenyMaxAge  answers known refusals
//	Breaker     fails calls at once while the store does not answer
//	coalescing  sends calls that wait together, over several connections
//
// An option that is off costs nothing: with the zero Options a call passes through
// coalescing and then the store.
package stack

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/dipwell/dipwell/internal/away"
	"github.com/dipwell/dipwell/internal/coalesce"
	"github.com/dipwell/dipwell/internal/denycache"
	"github.com/dipwell/dipwell/internal/keyhash"
	"github.com/dipwell/dipwell/internal/lease"
	"github.com/dipwell/dipwell/store"
)

// Options say what New wraps around a store. The zero Options only coalesce calls.
type Options struct {
	// Lanes is how many batches the store decides at one time for calls that wait, each on its
	// own connection, from 1 to 64. Default: the number of processors, but 2 to 4. Negative:
	// calls are not coalesced. Calls of a store without lanes (store.Abilities), such as one
	// in memory, in a file or over the caller's own transaction, are never coalesced.
	Lanes int

	// Timeout is the longest time that a coalesced call may take, waiting included, unless
	// the limit's own timeout or the caller's context ends it sooner. The default of Timeout
	// is 5 s.
	Timeout time.Duration

	// OnBatch is called each time the store has answered a batch that coalescing sent, with
	// the groups in it and their errors, how long the store took, and what Apply returned.
	// OnBatch must not keep b. Several goroutines call it, and the calls of the batch wait for
	// it. Default: none.
	OnBatch func(b *store.Batch, took time.Duration, err error)

	// Breaker fails calls at once while the store gives no answers, so that the failure
	// modes of their limits decide. After five calls in a row without an answer the
	// breaker sends a check of its own, and opens if that is not answered within 300 ms.
	// An open breaker sends one check at a time, and closes at the first answer.
	Breaker bool

	// OnBreaker is called with the reason when the breaker opens, and with nil when it
	// closes. OnBreaker must not call the store. Default: none.
	OnBreaker func(why error)

	// DenyMaxAge is how long a refusal is remembered at most, 1 µs to 1 h. Meanwhile, calls
	// that the same bucket would refuse are refused in this process, without the store.
	// Refunds and resets by other processes may take effect that much later. One second suits
	// most programs. Default: 0, which sends every call to the store.
	DenyMaxAge time.Duration

	// Leases takes tokens in advance for keys of limits that have a Lease, if a key has
	// at least 20 calls in the time of a lease, and answers their calls without the
	// store, with Source store.SourceLease. A process that is killed loses the tokens that it
	// holds: about what its calls take in half a lease. Without this option the store decides
	// all calls of such limits; their buckets are as small either way. Over a store in this
	// process Leases has no effect.
	Leases bool

	// Fallback decides calls of limits with OnStoreError FailLocal in this process while the
	// store is down, from the last known row of each key. Each process then grants up to the
	// whole limit. Without Fallback such limits fail closed.
	Fallback bool

	// FallbackKeys is how many keys the fallback remembers, about 45 bytes each.
	// Default 1<<20.
	FallbackKeys int

	// KeySecret replaces the keys that the store sees by their HMAC-SHA-256 under
	// this secret, of at least 16 bytes. Programs that share buckets need the same
	// secret. Default of KeySecret: nil; the store sees the keys.
	KeySecret []byte

	// Shadow allows every call, charges what it can and marks the answers of calls
	// that would have been refused. Default of Shadow: calls are refused.
	Shadow bool

	// Outer wraps a store around everything else. The store that it returns should have the
	// abilities of the store that it gets (store.AbilitiesOf): without them the Limiter keeps
	// limits in its own memory. Default: none.
	Outer func(store.Store) store.Store
}

// Bounds and defaults of Options.
const (
	maxLanes       = 64
	defaultTimeout = 5 * time.Second
)

// defaultLanes returns how many batches a store decides at one time. With more lanes than
// processors, batches only wait for each other, and are smaller; with fewer than two, one
// stuck batch holds up all calls.
func defaultLanes() int { return max(2, min(4, runtime.GOMAXPROCS(0))) }

// A Stack is a store and the layers that New wrapped around it.
type Stack struct {
	// Store is the outermost layer, or the store that New was given if there is none. It has
	// the abilities of that store.
	Store store.Store

	// Lanes is how many batches of waiting calls are decided at one time; 0 if calls are not
	// coalesced.
	Lanes int

	closing sync.Mutex
	close   []func() error // functions to call at Close, in the order of opening
}

// New builds a stack around s. Stack.Close closes what New opened; the caller closes s
// afterwards. The error names the option that is out of bounds, or says why a connection
// cannot be configured. It is not an error if the server is down.
func New(ctx context.Context, s store.Store, o Options) (*Stack, error) {
	t := &Stack{Store: s}
	if err := t.build(ctx, s, &o); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// build wraps the layers around s, from the inside out.
func (t *Stack) build(ctx context.Context, s store.Store, o *Options) error {
	if s == nil {
		return errors.New("stack: the store is nil")
	}
	if err := t.coalesce(ctx, s, o); err != nil {
		return err
	}
	if o.Breaker {
		b := away.NewBreaker(t.Store, away.BreakerConfig{OnChange: o.OnBreaker})
		t.put(b, b.Close)
	}
	if o.DenyMaxAge != 0 {
		d, err := denycache.New(t.Store, denycache.Config{MaxAge: o.DenyMaxAge})
		if err != nil {
			return fmt.Errorf("stack: DenyMaxAge: %w", err)
		}
		t.put(d, nil)
	}
	if o.Leases && !store.AbilitiesOf(s).InProcess {
		l := lease.New(t.Store, lease.Config{})
		t.put(l, l.Close)
	}
	if o.Fallback {
		f, err := away.NewFallback(t.Store, away.FallbackConfig{MaxKeys: o.FallbackKeys})
		if err != nil {
			return fmt.Errorf("stack: FallbackKeys: %w", err)
		}
		t.put(f, f.Close)
	}
	if o.KeySecret != nil {
		h, err := keyhash.NewHasher(o.KeySecret)
		if err != nil {
			return fmt.Errorf("stack: KeySecret: %w", err)
		}
		t.put(keyhash.New(t.Store, h), nil)
	}
	if o.Shadow {
		t.put(newShadow(t.Store), nil)
	}
	if o.Outer != nil {
		if t.put(o.Outer(t.Store), nil); t.Store == nil {
			return errors.New("stack: Outer has returned nil")
		}
	}
	return nil
}

// put makes s the outermost store.
func (t *Stack) put(s store.Store, closeStore func() error) {
	t.Store = s
	if closeStore != nil {
		t.close = append(t.close, closeStore)
	}
}

// coalesce opens the store's lanes, if it has any.
func (t *Stack) coalesce(ctx context.Context, s store.Store, o *Options) error {
	open, n := store.AbilitiesOf(s).Lanes, o.Lanes
	switch {
	case n > maxLanes:
		return fmt.Errorf("stack: Lanes %d; at most %d", n, maxLanes)
	case o.Timeout < 0:
		return fmt.Errorf("stack: Timeout %v is negative", o.Timeout)
	case n < 0 || open == nil:
		return nil
	case n == 0:
		n = defaultLanes()
	}
	lanes, err := open(ctx, n)
	if err != nil {
		return err
	}
	if lanes.Close != nil {
		t.close = append(t.close, lanes.Close)
	}
	c := coalesce.Config{Of: s, Timeout: o.Timeout, OnBatch: o.OnBatch}
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	coalesced, err := coalesce.New(lanes, c)
	if err != nil {
		return err
	}
	t.put(coalesced, coalesced.Close)
	t.Lanes = len(lanes.Stores)
	return nil
}

// Close ends the stack's background work, returns an error to calls that wait, and closes
// what New opened, in reverse order. The store that New was given stays open. A second
// call returns nil once the first has ended.
func (t *Stack) Close() error {
	t.closing.Lock()
	defer t.closing.Unlock()
	var errs []error
	for i := len(t.close) - 1; i >= 0; i-- {
		errs = append(errs, t.close[i]())
	}
	t.close = nil
	return errors.Join(errs...)
}
