package dipwell

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dipwell/dipwell/internal/background"
	"github.com/dipwell/dipwell/store"
)

// Hold takes like TakeAll, and keeps a record of what it took until Settle or until
// ttl has passed, when everything is given back. ttl is at least 1 ms and at most the TTL
// of each limit, a day by default. Decision.Hold is the id of the hold. The limits may have
// the algorithm Concurrency; for leaky buckets and limits with shards the error is a
// *FieldError, also if all costs are 0, or if the key already has 10,000 live holds and
// reservations.
//
// id, of 1 to 64 bytes of printable ASCII without spaces, makes it safe to repeat a call
// whose answer was lost: while the hold lives, the same call is Repeated and takes
// nothing; do not do the work twice then. A different call with this id, or the same call
// after the hold has ended, fails with ErrHoldConflict. If id is "", Hold makes a random
// one; if the answer of the store is then lost, Hold gives back, in the background, what
// the store may have taken.
//
// If the store fails, the failure modes of the limits decide as for Take. If all fail open
// there is no hold: Decision.Hold is "", and there is nothing to settle. If some fail open
// while others are decided in this process, the hold is one of the latter. The error is
// ErrNotSupported if the store keeps no holds.
//
//	d, err := limiter.Hold(ctx, time.Minute, "", dipwell.Take{Limit: "tokens", Key: tenant, Cost: 3000})
//	if err != nil || !d.Allowed {
//		return …
//	}
//	used := answer(prompt) // takes less than a minute, or calls Extend
//	_, err = limiter.Settle(ctx, d.Hold, used)
func (l *Limiter) Hold(ctx context.Context, ttl time.Duration, id string, takes ...Take) (d Decision, err error) {
	c := calls.Get().(*call)
	defer c.end()
	made := id == ""
	if made {
		id = c.newID().String()
	}
	c.hold = store.HoldCall{Verb: store.MakeHold, ID: id, TTL: ttl.Microseconds()}
	c.holds, c.alone = true, len(takes) == 1
	if err = l.prepare(ctx, c, store.VerbTake, takes); err != nil {
		return d, err
	}
	if err = l.checkHold(c); err != nil {
		return d, err
	}
	g, err := l.decideHold(ctx, c)
	if made && errors.Is(g.Err, store.ErrOutcomeUnknown) {
		l.release(ctx, c.hold.ID, len(takes)) // nobody else knows the hold's random id
	}
	if c.alone && len(c.ops) == 1 {
		d.fill(&g.Ops[0])
	} else {
		d.fillAll(g, takes, c.own[:], c.named)
	}
	d.Allowed = err == nil && g.Allowed
	d.setHold(g)
	return d, err
}

// Settle ends a hold with the actual costs, one for each take of the Hold. If a cost is
// less than was held, the difference is given back; if it is more, the difference is
// charged, even if fewer tokens are free. If a cost is above the limit's MaxCharge, the
// error is a *FieldError and the hold stays. Without costs, the hold is settled to what
// was held. Tokens of concurrency limits come back whatever the cost is. A take of cost 0
// can be settled to 0 only.
//
// The same Settle again is Repeated and changes nothing; one with other costs fails with
// ErrHoldConflict. An unknown id fails with ErrUnknownHold. A hold that has expired gave
// everything back, so Settle then charges the costs; takes from a limit with KeepExpired are
// settled like in time. A cost is from 0 to 2^53-1 tokens; if there are more or fewer costs
// than takes, the error is a *FieldError. If the hold has several limits, Decision.Limits
// has one for each. If the store fails, the error wraps ErrStore; a Settle may be repeated.
func (l *Limiter) Settle(ctx context.Context, id string, costs ...int64) (Decision, error) {
	return l.changeHold(ctx, store.HoldCall{Verb: store.SettleHold, ID: id}, costs)
}

// Extend lets a hold expire when ttl has passed from now, in place of its present expiry,
// which may be later: so Extend can also shorten. ttl has the bounds of Hold. Extend
// fails with ErrUnknownHold, or with ErrHoldConflict once the hold has ended, settled or
// expired; other callers may then take the tokens that it held, so stop the work. If the
// store fails, the error wraps ErrStore, and Extend may be called again. Decision.Expires
// is the new expiry.
func (l *Limiter) Extend(ctx context.Context, id string, ttl time.Duration) (Decision, error) {
	return l.changeHold(ctx, store.HoldCall{Verb: store.ExtendHold, ID: id, TTL: ttl.Microseconds()}, nil)
}

func (l *Limiter) changeHold(ctx context.Context, h store.HoldCall, costs []int64) (d Decision, err error) {
	c := calls.Get().(*call)
	defer c.end()
	if c.hold = h; costs != nil {
		c.hold.Costs = append(c.costs[:0], costs...)
	}
	if err = l.checkHold(c); err != nil {
		return d, err
	}
	g, err := l.decideHold(ctx, c)
	if err != nil {
		return Decision{Source: store.SourceFallbackClosed}, err
	}
	switch len(g.Ops) {
	case 0:
	case 1:
		d.fill(&g.Ops[0])
	default:
		d.fillAll(g, nil, nil, 0)
	}
	d.Allowed = g.Allowed
	d.setHold(g)
	return d, nil
}

// A store that sets the ops of a group about a hold has room for them in g.Ops.
func (l *Limiter) decideHold(ctx context.Context, c *call) (*store.Group, error) {
	g := c.group()
	g.Hold = &c.hold
	err := l.decide(ctx, c)
	return g, err
}

// setHold sets the fields of a Decision about a hold.
func (d *Decision) setHold(g *store.Group) {
	decided := func(op store.Op) bool { // true if some of the tokens may be held
		return op.Source != store.SourceFallbackOpen && op.Source != store.SourceFallbackClosed
	}
	if !d.Allowed || len(g.Ops) > 0 && !slices.ContainsFunc(g.Ops, decided) {
		return
	}
	d.Hold, d.Repeated = g.Hold.ID, g.Hold.Repeated
	if g.Hold.Expires > 0 {
		d.Expires = time.UnixMicro(g.Hold.Expires)
	}
}

func (l *Limiter) checkHold(c *call) error {
	if l.abilities.Holds == nil {
		return fmt.Errorf("holds: %w", store.ErrNotSupported)
	}
	return c.hold.Check(c.ops)
}

// Holds returns the live holds of a key in the order in which they expire, with their
// tokens of this key. Holds that were settled or have expired are left out. The error is a
// *FieldError for a bad key, ErrUnknownLimit, store.ErrNotSupported if the store keeps no
// holds, or wraps ErrStore.
func (l *Limiter) Holds(ctx context.Context, limit, key string) ([]store.KeyHold, error) {
	def := l.registry.Lookup(limit)
	if def == nil {
		return nil, l.registry.Missing(limit)
	}
	key, err := l.checkKey(def, key)
	if err != nil {
		return nil, err
	}
	if l.abilities.Holds == nil {
		return nil, fmt.Errorf("holds: %w", store.ErrNotSupported)
	}
	return l.abilities.Holds(ctx, def, key)
}

// Holding makes a hold, calls run if it is allowed, and settles the hold to the costs that
// run returns, one for each take; nil settles to what was held. While run works, Holding
// extends the hold, so ttl is only how long the tokens stay taken if the program dies; ttl
// becomes shorter if a limit's TTL is lowered meanwhile. If the hold ends nevertheless,
// run's context is cancelled, with ErrHoldConflict or ErrUnknownHold as its cause.
//
// The Decision is that of the hold. A refusal has no error, as for Take; run is not
// called then. Otherwise the error joins those of run and of Settle. If run panics or
// ends its goroutine, or if Settle refuses its costs with a *FieldError, the hold is
// settled to what was held. Holding settles even if ctx has ended, and tries again while
// the store fails, for up to 10 seconds.
func (l *Limiter) Holding(ctx context.Context, ttl time.Duration, takes []Take, run func(ctx context.Context) (costs []int64, err error)) (Decision, error) {
	d, err := l.Hold(ctx, ttl, "", takes...)
	if err != nil || !d.Allowed {
		return d, err
	}
	if d.Hold == "" { // there is no hold, because the store failed and the limits fail open
		_, err = run(ctx)
		return d, err
	}
	var costs []int64
	var settled error
	func() {
		id := d.Hold
		runCtx, cancel := context.WithCancel(ctx)
		runCtx, stop := background.Keep(runCtx, ttl, func(ctx context.Context, ttl time.Duration) error {
			_, err := l.Extend(ctx, id, ttl)
			return err
		})
		defer func() {
			stop()
			cancel()
			settled = l.settleAfter(ctx, d.Hold, ttl, costs)
		}()
		costs, err = run(runCtx)
	}()
	return d, errors.Join(err, settled)
}

const settleTimeout = 10 * time.Second // bounds the end of a hold whose caller's context may have ended

// settleAfter settles a hold of ttl to costs, or to what was held if they are refused.
func (l *Limiter) settleAfter(ctx context.Context, id string, ttl time.Duration, costs []int64) error {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer stop()
	settle := func(costs []int64) error {
		return background.Settle(ctx, ttl, func(ctx context.Context) error {
			_, err := l.Settle(ctx, id, costs...)
			return err
		})
	}
	err := settle(costs)
	if _, refused := errors.AsType[*FieldError](err); refused && len(costs) > 0 {
		err = errors.Join(err, settle(nil)) // otherwise the hold would expire, and give everything back
	}
	return err
}

// release gives back what a hold took whose answer was lost. If it fails, the hold expires.
func (l *Limiter) release(ctx context.Context, id string, takes int) {
	go undo(ctx, func(ctx context.Context) error {
		_, err := l.Settle(ctx, id, make([]int64, takes)...)
		return err
	})
}

// undo calls f for a hold or reservation whose answer was lost, for up to settleTimeout.
// The store may still be making the hold or reservation, so an unknown one is looked for
// again.
func undo(ctx context.Context, f func(ctx context.Context) error) {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer stop()
	_ = background.Repeat(ctx, func() error { return f(ctx) }, func(err error) bool {
		return errors.Is(err, ErrUnknownHold) || errors.Is(err, ErrReservation) || errors.Is(err, ErrStore)
	})
}
