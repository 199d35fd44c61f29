package await

import (
	"context"
	"sync"
	"time"
)

// Bounds of asking a server for a number of a metric.
const (
	cachedTimeout = 300 * time.Millisecond // a scrape must not wait for a hung server
	cachedFor     = 15 * time.Second
)

// Cached is a number that a server is asked for at most every 15 seconds. While
// the server does not answer, it is the last one.
type Cached struct {
	mu    sync.Mutex
	last  float64
	asked time.Time
}

// Get returns the number, and asks for it if it is old.
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
