package background

import (
	"context"
	"sync"
	"time"
)

// Bounds for reading a metric from a server.
const (
	cachedTimeout = 300 * time.Millisecond // a scrape must not wait for a hung server
	cachedFor     = 15 * time.Second
)

// A Cached is a number that is read from a server at most every 15 seconds. If the server
// does not answer, the Cached keeps its last value.
type Cached struct {
	mu    sync.Mutex
	last  float64
	asked time.Time
}

// Get returns the number. If the number is old, Get reads it first.
func (c *Cached) Get(ask func(context.Context) (int64, error)) float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.asked.IsZero() && time.Since(c.asked) < cachedFor {
		return c.last
	}
	ctx, cancel := context.WithTimeout(context.Background(), cachedTimeout)
	defer cancel()
	if n, err := ask(ctx); err == nil {
		c.last = float64(max(n, 0))
		c.asked = time.Now()
	}
	return c.last
}
