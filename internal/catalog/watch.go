package catalog

import (
	"context"
	"time"

	"github.com/dipwell/dipwell/internal/await"
)

// A Watcher waits for changes of the limits, made by other programs.
type Watcher interface {
	// Wait returns if the limits may have changed, and after poll or when ctx
	// ends.
	Wait(ctx context.Context, poll time.Duration)
	// Looked is told how the look after Wait went. The error is nil also if the
	// catalog closes.
	Looked(err error)
	// Close ends what Wait has opened.
	Close()
}

// Watch follows changes of the limits in the background, and asks at least every
// poll. Negative: it asks until the limits have been read once, every
// defaultPoll, and does not wait for changes. A look takes at most timeout.
func (c *Catalog) Watch(w Watcher, poll, defaultPoll, timeout time.Duration) {
	once := poll < 0
	if once && c.isRead.Load() {
		return
	}
	if poll <= 0 {
		poll = defaultPoll
	}
	c.Go(func(ctx context.Context) {
		defer w.Close()
		for !once || !c.isRead.Load() {
			if once {
				_ = await.Sleep(ctx, poll)
			} else {
				w.Wait(ctx, poll)
			}
			if ctx.Err() != nil {
				return
			}
			w.Looked(c.look(ctx, timeout))
		}
	})
}

func (c *Catalog) look(ctx context.Context, timeout time.Duration) error {
	bound, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := c.Refresh(bound); ctx.Err() == nil {
		return err
	}
	return nil
}
