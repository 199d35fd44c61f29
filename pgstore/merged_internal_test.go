package pgstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/store"
)

// askedDB runs ask instead of the statement of a single take.
type askedDB struct {
	DB
	ask func(ctx context.Context, units int64) (used int64, err error)
}

type askedRow struct {
	used int64
	err  error
}

func (d *askedDB) QueryRow(ctx context.Context, _ string, args ...any) pgx.Row {
	used, err := d.ask(ctx, args[1].(int64))
	return askedRow{used, err}
}

func (r askedRow) Scan(to ...any) error {
	switch to := to[0].(type) {
	case *int64:
		*to = r.used
	case *instant:
		*to = instant(r.used)
	}
	return r.err
}

// A crowd is calls of one key whose seats are all taken.
type crowd struct {
	*gates
	held  []seat
	s     *Store
	e     *entry
	calls []*crowdCall
}

type crowdCall struct {
	store.Group
	at   seat
	err  error
	done atomic.Bool
}

func newCrowd(t *testing.T, ask func(ctx context.Context, units int64) (used int64, err error)) *crowd {
	d := limittest.Definition(store.Limit{Name: "l", Rate: 1, Period: 24 * time.Hour, Burst: 1000})
	c := &crowd{gates: newGates(), s: &Store{db: &askedDB{ask: ask}, seen: newKeySet()}, e: &entry{id: 1, def: d, plain: true, statements: newStatements(1, d, false)}}
	for range rowSeats {
		at, err := c.enter(t.Context(), 1, "k", rowSeats, rowWait, waiter{})
		if err != nil || at.gate == nil {
			t.Fatal(at, err)
		}
		c.held = append(c.held, at)
	}
	return c
}

// take starts a call that takes cost tokens, and returns once it waits.
func (c *crowd) take(ctx context.Context, cost int64) *crowdCall {
	call := &crowdCall{Group: store.Group{Ops: []store.Op{{Def: c.e.def, Key: "k", Verb: store.VerbTake, Cost: cost}}}}
	c.calls = append(c.calls, call)
	go func() {
		call.at, call.err = c.enter(ctx, 1, "k", rowSeats, rowWait, waiter{store: c.s, group: &call.Group, entry: c.e})
		call.done.Store(true)
	}()
	synctest.Wait()
	return call
}

// release frees the seats that were taken at first.
func (c *crowd) release() {
	for _, at := range c.held {
		at.leave()
		synctest.Wait()
	}
}

// TestMerged: calls that wait are decided by one statement, in the order in which they
// came, once no other call is in flight.
func TestMerged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked []int64
		var c *crowd
		c = newCrowd(t, func(_ context.Context, units int64) (int64, error) {
			asked = append(asked, units/c.e.def.Rule.Unit)
			return 100*c.e.def.Rule.Unit + units, nil
		})
		for cost := range int64(6) {
			c.take(t.Context(), cost+1)
		}
		for _, at := range c.held[1:] {
			at.leave()
			synctest.Wait()
		}
		late := c.take(t.Context(), 7) // a seat is free, but calls wait
		if asked != nil || late.done.Load() {
			t.Errorf("asked for %d while a call was in flight", asked)
		}
		c.held[0].leave()
		synctest.Wait()
		left := int64(900)
		for i, call := range c.calls {
			op := &call.Ops[0]
			left -= op.Cost
			if !call.done.Load() || call.err != nil || !call.at.decided || !call.Allowed || op.Granted != op.Cost || op.Remaining != left {
				t.Errorf("call %d: %+v, want %d to remain", i, call, left)
			}
		}
		if !slices.Equal(asked, []int64{28}) || !c.empty() {
			t.Errorf("asked for %d; empty: %v", asked, c.empty())
		}
	})
}

// TestMergedBound: no statement decides more than maxMerged calls.
func TestMergedBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked []int64
		var c *crowd
		c = newCrowd(t, func(_ context.Context, units int64) (int64, error) {
			asked = append(asked, units/c.e.def.Rule.Unit)
			return units, nil
		})
		for range maxMerged + 10 {
			c.take(t.Context(), 1)
		}
		c.release()
		if !slices.Equal(asked, []int64{maxMerged, 10}) || !c.empty() {
			t.Errorf("asked for %d; empty: %v", asked, c.empty())
		}
	})
}

// TestMergedFailure: if the outcome is unknown, it is unknown for all calls. Otherwise
// they were not charged, and get seats in the order in which they came.
func TestMergedFailure(t *testing.T) {
	for name, test := range map[string]struct {
		ask     func() error
		unknown bool
	}{
		"does not fit": {func() error { return pgx.ErrNoRows }, false},
		"not sent":     {func() error { return fmt.Errorf("%w: no connection", store.ErrStore) }, false},
		"lost":         {func() error { return errors.New("lost") }, true},
		"panic":        {func() error { panic("in the store") }, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCrowd(t, func(context.Context, int64) (int64, error) { return 0, test.ask() })
				for range rowSeats + 2 {
					c.take(t.Context(), 1)
				}
				c.release()
				for i, call := range c.calls {
					if call.Allowed || call.at.decided != test.unknown || errors.Is(call.err, store.ErrOutcomeUnknown) != test.unknown {
						t.Errorf("call %d: %+v", i, call)
					}
					if !test.unknown && (call.done.Load() != (i < rowSeats) || call.done.Load() && call.at.gate == nil) {
						t.Errorf("call %d: %+v, want the first %d to have seats", i, call, rowSeats)
					}
				}
				for i := 0; !test.unknown && i < len(c.calls); i++ {
					c.calls[i].at.leave()
					synctest.Wait()
				}
				if !c.empty() {
					t.Error("somebody is left in the gate")
				}
			})
		})
	}
}

// TestMergedContext: a call whose context ends was not sent if it waits, and has an
// unknown outcome if its statement is in flight, which goes on while a caller waits for
// it.
func TestMergedContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer, sent := make(chan struct{}), 0
		c := newCrowd(t, func(ctx context.Context, units int64) (int64, error) {
			sent++
			select {
			case <-answer:
				return units, nil
			case <-ctx.Done():
				return 0, ctx.Err()
			}
		})
		check := func(what string, call *crowdCall, unknown bool) {
			t.Helper()
			if !call.done.Load() || call.at.decided || !errors.Is(call.err, context.Canceled) || !errors.Is(call.err, store.ErrStore) || errors.Is(call.err, store.ErrOutcomeUnknown) != unknown {
				t.Errorf("%s: %+v", what, call)
			}
		}
		waits, cancelWaiting := context.WithCancel(t.Context())
		goes, cancelSent := context.WithCancel(t.Context())
		early, first, second := c.take(waits, 1), c.take(goes, 1), c.take(t.Context(), 1)
		others, cancelOthers := context.WithCancel(t.Context())
		third, fourth := c.take(t.Context(), 1), c.take(t.Context(), 1)
		cancelWaiting()
		synctest.Wait()
		check("in the queue", early, false)
		c.release()
		cancelSent()
		synctest.Wait()
		check("in flight", first, true)
		if second.done.Load() || sent != 1 {
			t.Errorf("%+v after %d statements", second, sent)
		}
		answer <- struct{}{}
		synctest.Wait()
		for _, call := range []*crowdCall{second, third, fourth} {
			if call.err != nil || !call.at.decided || !call.Allowed {
				t.Errorf("the others: %+v", call)
			}
		}
		if first.Allowed || first.Ops[0].Answer != (store.Answer{}) {
			t.Errorf("the answer was written after the call: %+v", first)
		}

		c.held = c.held[:0]
		for range rowSeats {
			at, _ := c.enter(t.Context(), 1, "k", rowSeats, rowWait, waiter{})
			c.held = append(c.held, at)
		}
		c.calls = nil
		for range rowSeats {
			c.take(others, 1)
		}
		c.release()
		cancelOthers()
		synctest.Wait()
		for _, call := range c.calls {
			check("all in flight", call, true)
		}
		if sent != 2 || !c.empty() { // the statement has ended
			t.Errorf("%d statements; empty: %v", sent, c.empty())
		}
	})
}

// TestMergedLate: a call that has waited long goes on without a seat if its statement does
// not decide it.
func TestMergedLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, func(context.Context, int64) (int64, error) {
			time.Sleep(2 * rowWait)
			return 0, pgx.ErrNoRows
		})
		for range rowSeats {
			c.take(t.Context(), 1)
		}
		c.release()
		time.Sleep(2 * rowWait)
		synctest.Wait()
		for _, call := range c.calls {
			if !call.done.Load() || call.err != nil || call.at.gate != nil || call.at.decided {
				t.Errorf("%+v", call)
			}
		}
		if !c.empty() {
			t.Error("somebody is left in the gate")
		}
	})
}

// TestMergedShardsBesideOthers: a call of a key with shards that has to wait and is not
// charged to a shard does not keep calls that are from being in flight at the same time,
// and is not merged with them.
func TestMergedShardsBesideOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const shards = 2 * rowSeats
		var asked []int64
		answer := make(chan struct{})
		d := limittest.Definition(store.Limit{Name: "l", Rate: 1, Period: 24 * time.Hour, Burst: 1000, Shards: shards})
		c := &crowd{gates: newGates(), e: &entry{id: 1, def: d, plain: true, statements: newStatements(1, d, false)}}
		c.s = &Store{seen: newKeySet(), db: &askedDB{ask: func(_ context.Context, units int64) (int64, error) {
			asked = append(asked, units/d.Rule.Unit)
			<-answer
			return units, nil
		}}}
		enter := func(verb store.Verb, n int, shard bool) *crowdCall {
			call := &crowdCall{Group: store.Group{Ops: []store.Op{{Def: d, Key: "k", Verb: verb, Cost: 1}}}}
			go func() {
				call.at, call.err = c.enter(t.Context(), 1, "k", n, rowWait, waiter{store: c.s, group: &call.Group, entry: c.e, shard: shard})
				call.done.Store(true)
			}()
			synctest.Wait()
			return call
		}
		for range shards {
			c.held = append(c.held, enter(store.VerbTake, shards, true).at)
		}
		charge := enter(store.VerbCharge, rowSeats, false)
		for range rowSeats {
			c.calls = append(c.calls, enter(store.VerbTake, shards, true))
		}
		c.release()
		if !charge.done.Load() || charge.at.gate == nil || !slices.Equal(asked, []int64{rowSeats}) {
			t.Errorf("the charge has a seat: %v; asked for %d", charge.at.gate != nil, asked)
		}
		if late := enter(store.VerbTake, shards, true); !late.done.Load() || late.at.gate == nil {
			t.Error("a take waits while there are free seats")
		} else {
			late.at.leave()
		}
		charge.at.leave()
		close(answer)
		synctest.Wait()
		for _, call := range c.calls {
			if !call.done.Load() || call.err != nil || !call.at.decided || !call.Allowed {
				t.Errorf("%+v", call)
			}
		}
		if !c.empty() {
			t.Error("somebody is left in the gate")
		}
	})
}

// TestMergedBesideStuckSeat: a call that does not leave its seat holds up the others only
// once, as long as the key has other seats.
func TestMergedBesideStuckSeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, func(_ context.Context, units int64) (int64, error) {
			time.Sleep(time.Millisecond)
			return units, nil
		})
		waits := func(n int) (longest time.Duration) {
			begun := time.Now()
			for range n {
				c.take(t.Context(), 1)
			}
			for _, at := range c.held[1:] {
				at.leave()
			}
			c.held = c.held[:1]
			for _, call := range c.calls {
				for synctest.Wait(); !call.done.Load(); synctest.Wait() {
					time.Sleep(time.Millisecond)
				}
				call.at.leave()
			}
			c.calls = nil
			return time.Since(begun)
		}
		if d := waits(6); d < rowWait || d > rowWait+10*time.Millisecond {
			t.Errorf("the first calls waited for %v", d)
		}
		if d := waits(6); d > 10*time.Millisecond {
			t.Errorf("the next calls waited for %v", d)
		}
		c.held[0].leave()
		if !c.empty() {
			t.Error("somebody is left in the gate")
		}
	})
}
