package adaptive

import (
	"sync"
	"sync/atomic"
)

// A Pace is the present State of a limit, for a Rule. It is safe for concurrent use.
type Pace struct {
	mu    sync.Mutex // locked by changes
	c     Config
	state atomic.Pointer[State]
}

// NewPace returns the pace of a limit that was just defined.
func NewPace(c Config) *Pace {
	p := &Pace{c: c}
	p.Set(c.Begin())
	return p
}

// Tick and Boundary are those of the present history.
func (p *Pace) Tick(t int64) int64     { return p.state.Load().History.Tick(t) }
func (p *Pace) Boundary(k int64) int64 { return p.state.Load().History.Boundary(k) }

// State returns the present state. The caller must not change anything in it.
func (p *Pace) State() State { return *p.state.Load() }

// Set replaces the state by one that was stored elsewhere.
func (p *Pace) Set(s State) { p.state.Store(&s) }

// Config returns the target and the bounds.
func (p *Pace) Config() Config {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.c
}

// Retarget replaces the target. The levels and their meaning stay the same.
func (p *Pace) Retarget(c Config) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.c = c
}

// Add adds samples at the time now, in µs on the store's clock.
func (p *Pace) Add(now int64, o Sample) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.Set(p.c.Add(p.State(), now, o))
}
