// Package await has waits that end with their context.
package await

import (
	"context"
	"time"
)

// Sleep sleeps, unless the context ends first.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// A Gate is a mutex that a caller stops waiting for when its context ends. It
// is made with room for one: make(await.Gate, 1).
type Gate chan struct{}

// Enter waits for the gate. Who gets no error must Leave it.
func (g Gate) Enter(ctx context.Context) error {
	select {
	case g <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Leave lets the next one in.
func (g Gate) Leave() { <-g }
