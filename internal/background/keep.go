package background

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

// Keep calls extend every third of ttl, which is how long a hold lives, until stop is
// called, also after ctx has ended, because the tokens are in use until then. An extension
// without an answer is given up when the next one is due: its connection may be broken. If
// a limit no longer allows the ttl, Keep halves it until it is allowed. If the hold ends
// before stop, the context kept is cancelled, with store.ErrHoldConflict or
// store.ErrUnknownHold as its cause. stop may be called several times.
func Keep(ctx context.Context, ttl time.Duration, extend func(ctx context.Context, ttl time.Duration) error) (kept context.Context, stop func()) {
	kept, cancel := context.WithCancelCause(ctx)
	k := keeper{context.WithoutCancel(ctx), ttl, extend, make(chan struct{})}
	go func() {
		if err := k.run(); err != nil {
			cancel(err)
		}
	}()
	return kept, sync.OnceFunc(func() { close(k.stopped) })
}

// A keeper extends a hold.
type keeper struct {
	ctx     context.Context //nolint:containedctx // context of one call of Keep
	ttl     time.Duration
	extend  func(ctx context.Context, ttl time.Duration) error
	stopped chan struct{}
}

// run extends the hold until the keeper is stopped, or returns why the hold has ended.
func (k *keeper) run() error {
	ticker := time.NewTicker(k.ttl / 3)
	defer ticker.Stop()
	for {
		select {
		case <-k.stopped:
			return nil
		case <-ticker.C:
		}
		err := k.once(k.ttl)
		if tooLong(err) {
			err = k.shorten(err)
			ticker.Reset(k.ttl / 3)
		}
		select {
		case <-k.stopped: // the hold may have been settled meanwhile
			return nil
		default:
		}
		if errors.Is(err, store.ErrHoldConflict) || errors.Is(err, store.ErrUnknownHold) {
			return err
		}
	}
}

// shorten halves the TTL until a limit allows it. If the limit allows no TTL, the TTL stays.
func (k *keeper) shorten(err error) error {
	ttl := k.ttl
	for tooLong(err) && ttl > terms.MinHoldTTL {
		ttl = max(ttl/2, terms.MinHoldTTL)
		err = k.once(ttl)
	}
	if !tooLong(err) {
		k.ttl = ttl
	}
	return err
}

func (k *keeper) once(ttl time.Duration) error {
	return Call(func() error {
		return attempt(k.ctx, ttl, func(ctx context.Context) error { return k.extend(ctx, ttl) })
	})
}

// tooLong reports whether a limit does not allow a TTL.
func tooLong(err error) bool {
	field, ok := errors.AsType[*store.FieldError](err)
	return ok && field.Field == "ttl"
}
