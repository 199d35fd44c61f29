// Package stack builds what belongs around a store that many callers share: it
// sends calls that wait together in one batch, answers known refusals without
// the store, and decides while the store is down. `dipwell serve` builds the same
// with the same function.
//
// A call passes, from the outside in, what Options switch on:
//
//	Outer       a decorator of the caller's, such as one that writes spans
//	Shadow      allows what would be refused
//	KeySecret   replaces keys by hashes
//	Fallback    decides in this process while the store is down
//	Leases      answers from tokens taken in advance, of limits that have a lease
//	DenyMaxAge  answers known refusals
//	Breaker     answers at once while the store does not
//	coalescing  sends calls that wait together, over several connections
//
// What is not switched on is not there: with the zero Options a call passes
// coalescing and then the store.
package stack

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/dipwell/dipwell/internal/breaker"
	"github.com/dipwell/dipwell/internal/coalesce"
	"github.com/dipwell/dipwell/internal/denycache"
	"github.com/dipwell/dipwell/internal/fallback"
	"github.com/dipwell/dipwell/internal/keyhash"
	"github.com/dipwell/dipwell/internal/lease"
	"github.com/dipwell/dipwell/internal/shadow"
	"github.com/dipwell/dipwell/store"
)

// Options say what New puts around a store. The zero Options coalesce calls, and
// do nothing else.
type Options struct {
	// Lanes is how many batches the store decides at one time for calls that wait,
	// a connection each, from 1 to 64. Default: as many as there are processors,
	// from 2 to 4. Negative: calls are not coalesced, each asks the store. Calls of
	// a store that has no lanes (store.Abilities), such as one in memory, in a file
	// or over the caller's own transaction, never are.
	Lanes int

	// Timeout is the longest that a coalesced call may take, waiting included, if
	// the limit's own timeout and the caller's context do not end it before.
	// Default 5 s.
	Timeout time.Duration

	// OnBatch hears of each batch that coalescing has sent, after the answer: the
	// calls in it are its groups, with an error each; took is how long the store
	// took, and err what Apply returned. It must not keep b, it is called by
	// several goroutines, and calls wait for it. Default: nothing is done.
	OnBatch func(b *store.Batch, took time.Duration, err error)

	// Breaker answers calls at once while the store does not answer at all, by the
	// failure mode of their limits. After five calls in a row without an answer it
	// sends a check of its own, and opens when that has none within 300 ms. While
	// it is open it sends one check at a time. The first answer closes it.
	Breaker bool

	// OnBreaker hears when the breaker opens, with the reason, and when it closes,
	// with nil. It must not call the store. Default: nothing is done.
	OnBreaker func(why error)

	// DenyMaxAge is how long a refusal is believed: until then a call that the
	// same bucket would refuse is refused in this process, without the store. What
	// other processes give back is seen that much later; what this process does is
	// seen at once. From 1 µs to 1 h; one second suits most. Default 0: every call
	// asks the store.
	DenyMaxAge time.Duration

	// Leases takes tokens of limits that have a Lease in advance, for keys that are
	// asked for at least 20 times in it, and answers their calls without the store.
	// Each answer says so in its source. A process that is killed loses the tokens
	// that it holds, which are what its calls take in half a lease. Without it such
	// limits are decided by the store alone; their bursts are smaller all the same.
	// It is never needed, and not there, over a store in this process.
	Leases bool

	// Fallback decides limits with OnStoreError FailLocal in this process while
	// the store is down, from what it last knew of each key. Each process then
	// grants up to the whole limit. Without it such limits fail closed.
	Fallback bool

	// FallbackKeys is how many keys the fallback remembers, about 45 bytes each.
	// Default 1<<20.
	FallbackKeys int

	// KeySecret replaces the keys that the store sees by their HMAC-SHA-256 under
	// this secret, of at least 16 bytes. Programs that share buckets need the same
	// secret. Default nil: the store sees the keys.
	KeySecret []byte

	// Shadow allows every call, charges what it can and marks the answers of calls
	// that would have been refused. Default: calls are refused.
	Shadow bool

	// Outer is put around everything else, once. What it returns should have the
	// abilities of the store that it gets (store.AbilitiesOf): without them the
	// Limiter keeps limits in its own memory. Default nil: nothing is.
	Outer func(store.Store) store.Store
}

// Bounds and defaults of Options.
const (
	maxLanes       = 64
	defaultTimeout = 5 * time.Second

	// Spare lanes take lone calls while the database is far from busy. Four do what
	// twelve do; each is a connection that is always open.
	spareLanes = 4
)

// defaultLanes is how many batches a store decides at one time. More of them than
// processors only wait for each other, and make each batch smaller; fewer than
// two let one stuck batch hold up everybody.
func defaultLanes() int { return max(2, min(4, runtime.GOMAXPROCS(0))) }

// A Stack is a store and what New put around it.
type Stack struct {
	// Store decides. It is the outermost of what New built, or the store that New
	// was given, and has that store's abilities.
	Store store.Store

	// Lanes is how many batches of waiting calls are decided at one time; 0 where
	// calls are not coalesced.
	Lanes int

	closing sync.Mutex
	close   []func() error // in the order of opening
}

// New builds a stack around s. Close closes what New opened; s stays the
// caller's, who closes it afterwards. The error names the option that is out of
// bounds, or says why a connection cannot be configured; a server that is down is
// no error here.
func New(ctx context.Context, s store.Store, o Options) (*Stack, error) {
	t := &Stack{Store: s}
	if err := t.build(ctx, s, &o); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// build puts one thing around the other, from the inside out.
func (t *Stack) build(ctx context.Context, s store.Store, o *Options) error {
	if s == nil {
		return errors.New("stack: the store is nil")
	}
	if err := t.coalesce(ctx, s, o); err != nil {
		return err
	}
	if o.Breaker {
		b, err := breaker.New(t.Store, breaker.Config{OnChange: o.OnBreaker})
		if err != nil {
			return err
		}
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
		l, err := lease.New(t.Store, lease.Config{})
		if err != nil {
			return err
		}
		t.put(l, l.Close)
	}
	if o.Fallback {
		f, err := fallback.New(t.Store, fallback.Config{MaxKeys: o.FallbackKeys})
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
		t.put(shadow.New(t.Store), nil)
	}
	if o.Outer != nil {
		t.put(o.Outer(t.Store), nil)
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
	lanes, err := open(ctx, n, spareLanes)
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
	t.Lanes = len(lanes.Stores) - lanes.Spare
	return nil
}

// Close ends what the stack does in the background, answers calls that wait with
// an error, and closes what New opened, in reverse order. The store that New was
// given stays open. A second call returns nil once the first has ended.
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
