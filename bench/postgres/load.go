package main

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// A load is what a contender has to bear: clients that call as fast as they are
// answered, each on a key drawn at random.
type load struct {
	clients int
	keys    int
	length  time.Duration
}

// A session is one client's own way in: a connection, or a share of a store.
type session struct {
	take  func(ctx context.Context, key string) (allowed bool, err error)
	close func()
}

// A result is what one round came to. Only answered calls count as decisions.
type result struct {
	perSecond float64
	times     histogram // of answered calls
	refused   int
	conflicts int // serialization failures and deadlocks that reached the caller
}

// warmUp is how often each client calls before the clock starts: from the sixth
// execution on, the server may use a statement's generic plan.
const warmUp = 10

// run puts a load on sessions of open's making, one a client, for its length.
func (l load) run(ctx context.Context, open func(context.Context) (session, error)) (result, error) {
	clients := make([]*client, l.clients)
	for i := range clients {
		s, err := open(ctx)
		if err != nil {
			return result{}, fmt.Errorf("client %d: %w", i, err)
		}
		defer s.close()
		clients[i] = &client{session: s, random: rand.New(rand.NewPCG(uint64(i), rand.Uint64()))}
	}
	calls := context.Background() // the driver would watch one that can be cancelled, in a goroutine a call
	if err := together(clients, func(c *client) error { return c.warm(calls, l.keys) }); err != nil {
		return result{}, err
	}
	start := time.Now()
	err := together(clients, func(c *client) error { return c.call(calls, l.keys, start, l.length) })
	took := time.Since(start)
	var r result
	for _, c := range clients {
		r.times.add(&c.times)
		r.refused += c.refused
		r.conflicts += c.conflicts
	}
	r.perSecond = float64(r.times.count) / took.Seconds()
	return r, err
}

func together(clients []*client, do func(*client) error) error {
	var wg sync.WaitGroup
	errs := make([]error, len(clients))
	for i, c := range clients {
		wg.Go(func() { errs[i] = do(c) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

type client struct {
	session
	random    *rand.Rand
	times     histogram
	refused   int
	conflicts int
}

func (c *client) warm(ctx context.Context, keys int) error {
	for range warmUp {
		if _, err := c.take(ctx, keyName(c.random.IntN(keys))); err != nil && !conflict(err) {
			return err
		}
	}
	return nil
}

// call reads the clock once a call: a call lasts from the end of the one before.
// One that conflicts is made again, as its author would have to.
func (c *client) call(ctx context.Context, keys int, start time.Time, length time.Duration) error {
	for last := time.Since(start); last < length; {
		key := keyName(c.random.IntN(keys))
		allowed, err := c.take(ctx, key)
		for err != nil && conflict(err) && time.Since(start) < length {
			c.conflicts++
			allowed, err = c.take(ctx, key)
		}
		switch {
		case err != nil && conflict(err):
			c.conflicts++
			return nil
		case err != nil:
			return err
		case !allowed:
			c.refused++
		}
		now := time.Since(start)
		c.times.record(now - last)
		last = now
	}
	return nil
}

// conflict reports whether the server asks the caller to try again.
func conflict(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "40001" || pg.Code == "40P01")
}

// keyNames are made once, so that no contender pays for making them; those of
// large tables are made when they are needed.
var keyNames []string

// nameKeys makes sure of the names of the first n keys.
func nameKeys(n int) {
	for i := len(keyNames); i < n; i++ {
		keyNames = append(keyNames, "user:"+strconv.Itoa(i))
	}
}

func keyName(i int) string {
	if i < len(keyNames) {
		return keyNames[i]
	}
	return "user:" + strconv.Itoa(i)
}

// A histogram counts durations in steps of 1/32 of their size.
type histogram struct {
	count int
	bins  [64 * steps]int
}

const steps = 32

func (h *histogram) record(d time.Duration) {
	h.count++
	h.bins[bin(uint64(max(d, 1)))]++
}

func bin(ns uint64) int {
	if ns < 2*steps {
		return int(ns)
	}
	shift := bits.Len64(ns) - 6
	return shift*steps + int(ns>>shift)
}

func (h *histogram) add(o *histogram) {
	h.count += o.count
	for i, n := range o.bins {
		h.bins[i] += n
	}
}

// percentile is in µs: the upper end of the step that holds it.
func (h *histogram) percentile(p float64) float64 {
	left := int(float64(h.count) * p / 100)
	for i, n := range h.bins {
		if left -= n; left < 0 {
			return float64(binEnd(i)) / 1e3
		}
	}
	return 0
}

func binEnd(i int) uint64 {
	if i < 2*steps {
		return uint64(i)
	}
	shift := i/steps - 1
	return uint64(i-shift*steps+1)<<shift - 1
}
