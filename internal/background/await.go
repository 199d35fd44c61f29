package background

import (
	"context"
	"time"
)

// Sleep sleeps for d. If ctx ends first, Sleep returns the context's error.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// A Gate is a mutex whose wait a context can end. Make a Gate with make(background.Gate, 1).
type Gate chan struct{}

// Enter locks the gate. If Enter returns nil, the caller must call Leave. If ctx
// ends first, Enter returns the context's error.
func (g Gate) Enter(ctx context.Context) error {
	select {
	case g <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Leave unlocks the gate.
func (g Gate) Leave() { <-g }
