package background

import (
	"context"
	"errors"
	"time"

	"github.com/dipwell/dipwell/store"
)

// Bounds of the pauses that Repeat makes.
const (
	firstPause   = 75 * time.Millisecond
	longestPause = 5 * time.Second
)

// Repeat calls f by Call until again returns false for its error, or until ctx has ended,
// and returns the last error of f. Each pause between two calls is three times the one
// before, up to 5 seconds.
func Repeat(ctx context.Context, f func() error, again func(error) bool) error {
	for pause := firstPause; ; pause = min(3*pause, longestPause) {
		if err := Call(f); !again(err) || Sleep(ctx, pause) != nil {
			return err
		}
	}
}

// WhileStoreFails is Repeat while the error of f wraps store.ErrStore.
func WhileStoreFails(ctx context.Context, f func() error) error {
	return Repeat(ctx, f, func(err error) bool { return errors.Is(err, store.ErrStore) })
}

// longestSettle is the most time that one attempt to settle gets, however long the TTL.
const longestSettle = 10 * time.Second

// Settle calls settle, which settles a hold that lives for ttl, and again while the store
// fails. An attempt without an answer is given up after a third of ttl, or ten seconds if
// that is less.
func Settle(ctx context.Context, ttl time.Duration, settle func(ctx context.Context) error) error {
	return WhileStoreFails(ctx, func() error { return attempt(ctx, min(ttl, 3*longestSettle), settle) })
}

// leastAttempt is the least time that an attempt gets, however short the TTL: less than
// that is common while a store is busy.
const leastAttempt = 100 * time.Millisecond

// attempt calls f for a hold that lives for ttl, for a third of that: the connection may be
// broken, and there must be time for another attempt.
func attempt(ctx context.Context, ttl time.Duration, f func(ctx context.Context) error) error {
	ctx, end := context.WithTimeout(ctx, max(ttl/3, leastAttempt))
	defer end()
	return f(ctx)
}

// Briefly calls f, and returns when f does, or after wait; f then continues.
func Briefly(wait time.Duration, f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(wait):
	}
}
