package adaptive

import (
	"sync"
	"time"
)

// A Limit is the state of an adaptive limit in this process. It is safe for concurrent
// use. The zero Limit has observed nothing.
type Limit struct {
	mu    sync.Mutex
	begun time.Time // time of the first use, from which the times of the state count
	state State
}

// Add adds a sample, which is zero for a caller that only asks, and returns the present
// state and when it last changed. From now on the limit has the target c.
func (l *Limit) Add(c *Config, o Sample) (s State, changed time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.begun.IsZero() {
		l.begun, l.state = time.Now(), Begin(0)
	}
	l.state.Fraction = max(l.state.Fraction, c.Floor)
	l.state = c.Add(l.state, time.Since(l.begun).Microseconds(), o)
	return l.state, l.begun.Add(time.Duration(l.state.Changed) * time.Microsecond)
}

// Remained notes how many tokens of a capacity an answer left.
func (l *Limit) Remained(tokens, capacity int64) {
	if tokens*10 > capacity*3 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state.Low = true
}
