package background

import (
	"context"
	"time"
)

// Pauses of Repeat.
const (
	firstPause   = 75 * time.Millisecond
	longestPause = 5 * time.Second
)

// Repeat calls f by Call until again returns false for its error, or until ctx has ended.
// Each pause between two calls is three times the one before, up to 5 seconds.
func Repeat(ctx context.Context, f func() error, again func(error) bool) {
	for pause := firstPause; again(Call(f)); pause = min(3*pause, longestPause) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}
