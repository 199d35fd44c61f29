// Package load makes concurrent calls to a contender and times them.
package load

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/dipwell/dipwell/bench/internal/cpu"
	"github.com/dipwell/dipwell/internal/bounded"
)

// A Load describes the calls to a contender. Each client calls as fast as it is
// answered.
type Load struct {
	Clients  int
	Keys     int
	Length   time.Duration
	Warm     int                           // calls of each client before the clock starts; 0: the constant warmUp
	Draw     Draw                          // how clients choose keys; nil: uniformly from Keys
	Conflict func(error) bool              // whether the server asks the caller to try again; nil: it never does
	Server   func() (time.Duration, error) // returns the processor time of the server so far; nil: unknown
}

// A Session is the connection of one client, or its share of a contender's connections.
type Session struct {
	Take  func(ctx context.Context, key string) (allowed bool, err error)
	Close func()
}

// A Result is the result of one round. Only answered calls count as decisions.
type Result struct {
	PerSecond float64
	Length    time.Duration     // time until the last client was answered
	Times     bounded.Histogram // latencies of answered calls
	Refused   int
	Conflicts int // conflicts that reached the caller, who called again

	Client, Server time.Duration // processor time used in the round
}

// warmUp is the number of calls of each client before measuring: from the sixth
// execution on, the server may use a statement's generic plan.
const warmUp = 10

// Run opens a session for each client and makes calls for the length of the
// load.
func (l Load) Run(ctx context.Context, open func(context.Context) (Session, error)) (Result, error) {
	if l.Conflict == nil {
		l.Conflict = func(error) bool { return false }
	}
	if l.Draw == nil {
		l.Draw = Uniform(l.Keys)
	}
	clients := make([]*client, l.Clients)
	for i := range clients {
		s, err := open(ctx)
		if err != nil {
			return Result{}, fmt.Errorf("client %d: %w", i, err)
		}
		if s.Close != nil {
			defer s.Close()
		}
		clients[i] = &client{Session: s, Load: &l, key: l.Draw(rand.New(rand.NewPCG(uint64(i), rand.Uint64())))}
	}
	calls := context.Background() // a driver would watch a cancellable context in a goroutine for each call
	if err := eachClient(clients, func(c *client) error { return c.warm(calls) }); err != nil {
		return Result{}, err
	}
	var r Result
	used, err := l.used()
	if err != nil {
		return r, err
	}
	start := time.Now()
	err = eachClient(clients, func(c *client) error { return c.call(calls, start) })
	took := time.Since(start)
	if e := used(&r); err == nil {
		err = e
	}
	for _, c := range clients {
		r.Times.Add(&c.times)
		r.Refused += c.refused
		r.Conflicts += c.conflicts
	}
	r.Length, r.PerSecond = took, float64(r.Times.Count)/took.Seconds()
	return r, err
}

// used starts measuring processor time, while the sessions are open. The
// function that used returns stores the time used since.
func (l Load) used() (func(*Result) error, error) {
	server := l.Server
	if server == nil {
		server = func() (time.Duration, error) { return 0, nil }
	}
	before, err := server()
	own := cpu.Own()
	return func(r *Result) error {
		r.Client = cpu.Own() - own
		after, err := server()
		r.Server = after - before
		return err
	}, err
}

func eachClient(clients []*client, do func(*client) error) error {
	var wg sync.WaitGroup
	errs := make([]error, len(clients))
	for i, c := range clients {
		wg.Go(func() { errs[i] = do(c) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

type client struct {
	Session
	*Load
	key       func() string
	times     bounded.Histogram
	refused   int
	conflicts int
}

func (c *client) warm(ctx context.Context) error {
	for range cmp.Or(c.Warm, warmUp) {
		if _, err := c.Take(ctx, c.key()); err != nil && !c.Conflict(err) {
			return err
		}
	}
	return nil
}

// call makes a call and reads the clock once: a call lasts from the end of the
// previous one. A call with a conflict is repeated, as a program would.
func (c *client) call(ctx context.Context, start time.Time) error {
	for last := time.Since(start); last < c.Length; {
		key := c.key()
		allowed, err := c.Take(ctx, key)
		for err != nil && c.Conflict(err) && time.Since(start) < c.Length {
			c.conflicts++
			allowed, err = c.Take(ctx, key)
		}
		switch {
		case err != nil && c.Conflict(err):
			c.conflicts++
			return nil
		case err != nil:
			return err
		case !allowed:
			c.refused++
		}
		now := time.Since(start)
		c.times.Record(now - last)
		last = now
	}
	return nil
}
