package redisstore

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	defaultPoll = 900 * time.Millisecond // so that a change is known within a second even if its message is lost
	lookTimeout = 5 * time.Second        // longest time for one check for changes
)

// A watcher receives the messages that programs send when they change the limits.
type watcher struct {
	*limits
	sub  *redis.PubSub
	last string // the error of the last check
}

func (w *watcher) Wait(ctx context.Context, poll time.Duration) {
	if w.sub == nil {
		w.sub = w.s.db.Subscribe(ctx, w.s.names.limits)
	}
	timer := time.NewTimer(poll)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-w.sub.Channel(): // the channel is connected again after an error
	case <-timer.C:
	}
}

// Looked reports an error once, however often it repeats.
func (w *watcher) Looked(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != w.last && err != nil {
		w.config.OnError(storeError(err, false))
	}
	w.last = text
}

func (w *watcher) Close() {
	if w.sub != nil {
		_ = w.sub.Close()
	}
}
