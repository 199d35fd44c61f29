package pace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/background"
	"github.com/dipwell/dipwell/internal/bounds"
	"github.com/dipwell/dipwell/store"
)

// DefaultTTL is how long the hold of a request lives after its program has died.
const DefaultTTL = time.Minute

// Held reports whether one of the takes is from a concurrency limit, so that all of them
// must be held.
func Held(l *dipwell.Limiter, takes []dipwell.Take) bool {
	for i := range takes {
		if def := l.Limit(takes[i].Limit); def != nil && def.Algorithm == store.Concurrency {
			return true
		}
	}
	return false
}

// Hold holds the takes and sets d. It returns how long the hold lives: ttl, or less if
// one of the limits, or of their parents, does not allow that.
func Hold(ctx context.Context, l *dipwell.Limiter, d *dipwell.Decision, takes []dipwell.Take, ttl time.Duration) (time.Duration, error) {
	for i := range takes {
		for def := l.Limit(takes[i].Limit); def != nil; def = l.Limit(def.Parent) {
			ttl = min(ttl, cmp.Or(def.TTL, bounds.DefaultHoldTTL))
		}
	}
	var err error
	*d, err = l.Hold(ctx, ttl, "", takes...)
	return ttl, err
}

// Bounds of the release of a hold.
const (
	// releaseWait is how long release keeps its caller, whose client waits for the response.
	releaseWait = 250 * time.Millisecond
	// Each Settle gets a third of the TTL, but no less and no more than this.
	leastSettle, settleTimeout = 100 * time.Millisecond, 10 * time.Second
)

// Keep extends a hold, which lives for ttl, until release is called, which settles it to
// what was held. If the hold ends before release, the context kept is cancelled, with
// ErrHoldConflict or ErrUnknownHold as its cause. release may be called several times. It
// waits for the store, so that whoever has the response finds the tokens free, but only
// briefly: while the store does not answer, the hold is settled in the background.
func Keep(ctx context.Context, l *dipwell.Limiter, id string, ttl time.Duration) (kept context.Context, release func()) {
	kept, stop := background.Keep(ctx, ttl, func(ctx context.Context, ttl time.Duration) error {
		_, err := l.Extend(ctx, id, ttl)
		return err
	})
	return kept, sync.OnceFunc(func() {
		stop()
		briefly(func() { settle(context.WithoutCancel(ctx), l, id, ttl) })
	})
}

// briefly calls f, and returns when f does, or after releaseWait; f then continues in the
// background.
func briefly(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	wait := time.NewTimer(releaseWait)
	defer wait.Stop()
	select {
	case <-done:
	case <-wait.C:
	}
}

// settle settles a hold to what was held. If the store fails, it tries again until the hold
// has expired, so that no more calls of it run than there are live holds.
func settle(ctx context.Context, l *dipwell.Limiter, id string, ttl time.Duration) {
	ctx, stop := context.WithTimeout(ctx, ttl)
	defer stop()
	background.Repeat(ctx, func() error {
		try, done := context.WithTimeout(ctx, min(settleTimeout, max(ttl/3, leastSettle)))
		defer done()
		_, err := l.Settle(try, id)
		return err
	}, func(err error) bool { return errors.Is(err, dipwell.ErrStore) })
}

// ofTunnels is the context key of WithTunnels.
type ofTunnels struct{}

// WithTunnels returns a context for a request whose handler returns only once a connection
// that it hijacks is closed, as that of a proxy does: its hold lives as long.
func WithTunnels(ctx context.Context) context.Context {
	return context.WithValue(ctx, ofTunnels{}, true)
}

// Tunnels reports whether ctx comes from WithTunnels.
func Tunnels(ctx context.Context) bool { return ctx.Value(ofTunnels{}) != nil }

// CheckTTL returns ttl, or its default, or an error if no hold can live for it.
func CheckTTL(ttl time.Duration) (time.Duration, error) {
	switch {
	case ttl == 0:
		return DefaultTTL, nil
	case ttl < bounds.MinHoldTTL:
		return 0, fmt.Errorf("TTL: %v is less than %v", ttl, bounds.MinHoldTTL)
	}
	return ttl, nil
}

// Check returns an error if the limiter does not have a limit, or if it is a
// concurrency limit and the store keeps no holds, or if the floor is negative. The limit
// is "" if each call chooses it.
func Check(l *dipwell.Limiter, limit string, floor int64) error {
	switch {
	case l == nil:
		return fmt.Errorf("limit %s without a limiter", limit)
	case floor < 0:
		return fmt.Errorf("limit %s: Floor: %d is negative", limit, floor)
	case limit == "":
		return nil
	}
	def := l.Limit(limit)
	switch {
	case def == nil:
		return fmt.Errorf("%w %q", dipwell.ErrUnknownLimit, limit)
	case def.Algorithm == store.Concurrency && store.AbilitiesOf(l.Store()).Holds == nil:
		return fmt.Errorf("limit %s is a concurrency limit: holds: %w", limit, store.ErrNotSupported)
	}
	return nil
}

// CheckFloor returns an error if nobody can wait for a limit and leave it a floor.
func CheckFloor(def *store.Definition, floor int64) error {
	if floor != 0 && def.Rule.Debt > 0 {
		return fmt.Errorf("limit %s has debt: a wait there is a reservation, which has no floor; give it MaxDebt: dipwell.NoDebt", def.Name)
	}
	return nil
}
