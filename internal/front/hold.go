package front

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/background"
	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

// defaultTTL is how long the hold of a request lives after its program has died.
const defaultTTL = time.Minute

// held reports whether one of the takes is from a concurrency limit: then all must be held.
func held(l *dipwell.Limiter, takes []dipwell.Take) bool {
	for i := range takes {
		if def := l.Limit(takes[i].Limit); def != nil && def.Algorithm == store.Concurrency {
			return true
		}
	}
	return false
}

// hold holds the takes and sets d. hold returns how long the hold lives: ttl, or less
// if one of the limits, or of their parents, does not allow that.
func hold(ctx context.Context, l *dipwell.Limiter, d *dipwell.Decision, takes []dipwell.Take, ttl time.Duration) (time.Duration, error) {
	for i := range takes {
		for def := l.Limit(takes[i].Limit); def != nil; def = l.Limit(def.Parent) {
			ttl = min(ttl, cmp.Or(def.TTL, terms.DefaultHoldTTL))
		}
	}
	var err error
	*d, err = l.Hold(ctx, ttl, "", takes...)
	return ttl, err
}

// releaseWait is how long a response waits until the request's tokens are given back.
const releaseWait = 250 * time.Millisecond

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
		background.Briefly(releaseWait, func() { settle(context.WithoutCancel(ctx), l, id, ttl) })
	})
}

// settle settles a hold to what was held. If the store fails, it tries again until the hold
// has expired, so that no more calls of it run than there are live holds.
func settle(ctx context.Context, l *dipwell.Limiter, id string, ttl time.Duration) {
	ctx, stop := context.WithTimeout(ctx, ttl)
	defer stop()
	_ = background.Settle(ctx, ttl, func(ctx context.Context) error {
		_, err := l.Settle(ctx, id)
		return err
	})
}

// CheckTTL returns ttl, or its default, or an error if no hold can live for it.
func CheckTTL(ttl time.Duration) (time.Duration, error) {
	switch {
	case ttl == 0:
		return defaultTTL, nil
	case ttl < terms.MinHoldTTL:
		return 0, fmt.Errorf("TTL: %v is less than %v", ttl, terms.MinHoldTTL)
	}
	return ttl, nil
}

// Use is what requests do with the tokens of a limit.
type Use int

const (
	Holds Use = iota // requests take or hold tokens
	Takes            // take them
	Waits            // requests wait for tokens
)

// Check returns an error if requests cannot use a limit so: the limiter does not have it, the
// floor is negative, a concurrency limit cannot be held, or nobody can wait for the limit and
// leave it a floor. The name is "" if the limit is chosen for each request.
func Check(l *dipwell.Limiter, name string, chosen bool, floor int64, use Use) error {
	switch {
	case name == "" && !chosen:
		return errors.New("a limit has neither Name nor Choose")
	case l == nil:
		return fmt.Errorf("limit %s without a limiter", name)
	case floor < 0:
		return fmt.Errorf("limit %s: Floor: %d is negative", name, floor)
	case name == "":
		return nil
	}
	def := l.Limit(name)
	switch {
	case def == nil:
		return fmt.Errorf("%w %q", dipwell.ErrUnknownLimit, name)
	case def.Algorithm == store.Concurrency && store.AbilitiesOf(l.Store()).Holds == nil:
		return fmt.Errorf("limit %s is a concurrency limit: holds: %w", name, store.ErrNotSupported)
	case def.Algorithm == store.Concurrency && use != Holds:
		return fmt.Errorf("limit %s is a concurrency limit, which is for Config.Limits of New in httplimit and grpclimit; elsewhere use Limiter.Holding", name)
	case use == Waits && floor != 0 && def.Rule.Debt > 0:
		return fmt.Errorf("limit %s has debt: a wait there is a reservation, which has no floor; give it MaxDebt: dipwell.NoDebt", name)
	}
	return nil
}
