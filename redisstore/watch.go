package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dipwell/dipwell/store"
)

const (
	defaultPoll = 900 * time.Millisecond // a change is known within a second, be its message lost
	askTimeout  = 5 * time.Second        // of one look at them
	openTimeout = 2 * time.Second        // the longest that a lazy New waits for a server that hangs
)

// errUnread is what calls get before the limits could be read.
var errUnread = fmt.Errorf("%w: Redis could not be reached yet", store.ErrStore)

// unread says why the limits of a lazy store have not been read, if so.
func (c *catalog) unread() error {
	if c.isRead.Load() || !c.config.Lazy {
		return nil
	}
	if why := c.why.Load(); why != nil {
		return *why
	}
	return errUnread
}

func (c *catalog) unreadBecause(err error) {
	if c.isRead.Load() {
		return
	}
	why := fmt.Errorf("%w: %w", errUnread, err)
	c.why.Store(&why)
	c.reg.SetLoadError(why)
}

// open reads the limits. A lazy store opens without, unless the server answers
// and may not be used.
func (c *catalog) open(ctx context.Context) error {
	if !c.config.Lazy {
		return storeErrorOf(c.load(ctx))
	}
	c.reg.SetLoadError(errUnread)
	bound, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	err := c.load(bound)
	var eviction *EvictionError
	if errors.As(err, &eviction) || ctx.Err() != nil || noAccess(err) && !c.config.WaitForAccess {
		return err
	}
	if err != nil {
		c.unreadBecause(err)
		c.config.OnError(storeError(err, false))
	}
	return nil
}

// prepare does what must come before the limits are read: it looks at the
// server once, and tells it what was defined while it was away.
func (c *catalog) prepare(ctx context.Context) error {
	if !c.isRead.Load() {
		if err := c.s.checkServer(ctx, &c.config); err != nil {
			return err
		}
	}
	for len(c.pending) > 0 {
		p := c.pending[0]
		if err := c.define(ctx, p.limit, p.owner); err != nil {
			if unavailable(err) {
				return err
			}
			c.config.OnError(err)
		}
		c.pending = c.pending[1:]
	}
	c.pending = nil
	return nil
}

// refresh reads the limits when they have moved, or there is something to tell.
func (c *catalog) refresh(ctx context.Context) error {
	if !c.isRead.Load() {
		return c.load(ctx)
	}
	text, err := c.s.db.HGet(ctx, c.s.names.limits, "").Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return err
	}
	revision, _ := strconv.ParseInt(text, 10, 64) // none is 0: the limits are gone
	if err = c.mu.Enter(ctx); err != nil {
		return err
	}
	defer c.mu.Leave()
	if revision == c.revision && len(c.pending) == 0 {
		return nil
	}
	return c.loadLocked(ctx)
}

// watch follows changes of the limits made elsewhere: it is told of them, and
// asks for the revision besides, for a message may be lost.
func (c *catalog) watch(poll time.Duration) {
	once := poll < 0
	if once && c.isRead.Load() {
		return
	}
	if poll <= 0 {
		poll = defaultPoll
	}
	c.done.Go(func() {
		var told <-chan *redis.Message
		if !once {
			sub := c.s.db.Subscribe(c.ctx, c.s.names.limits)
			defer func() { _ = sub.Close() }()
			told = sub.Channel() // connects again by itself
		}
		tick := time.NewTicker(poll)
		defer tick.Stop()
		var last string
		for !once || !c.isRead.Load() {
			select {
			case <-c.ctx.Done():
				return
			case <-told:
			case <-tick.C:
			}
			last = c.look(last)
		}
	})
}

// look reads what has changed. What goes wrong over and over is reported once.
func (c *catalog) look(last string) string {
	ctx, cancel := context.WithTimeout(c.ctx, askTimeout)
	defer cancel()
	err := c.refresh(ctx)
	if err == nil || c.ctx.Err() != nil {
		return ""
	}
	if err.Error() != last {
		c.config.OnError(storeError(err, false))
	}
	return err.Error()
}
