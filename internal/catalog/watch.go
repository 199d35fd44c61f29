package catalog

import (
	"context"
	"time"

	"github.com/dipwell/dipwell/internal/background"
)

// A Watcher waits for changes of the limits by other programs.
type Watcher interface {
	// Wait returns when the limits may have changed, after poll, or when ctx ends.
	Wait(ctx context.Context, poll time.Duration)
	// Looked is called with the result of the check after Wait. The error passed to
	// Looked is also nil if the catalog is closing.
	Looked(err error)
	// Close closes what Wait has opened.
	Close()
}

// Watch checks for changes of the limits in the background, at least every poll. If poll
// is negative, it only checks every defaultPoll until the limits have been read for the
// first time. A check for changes takes at most timeout.
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
				_ = background.Sleep(ctx, poll)
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
