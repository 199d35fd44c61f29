package coalesce_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell/internal/coalesce"
	"github.com/dipwell/dipwell/store"
)

func TestWaitersRideOnTheNextStatement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		s := over(t, coalesce.Config{}, g)
		first := ask(s, "a")
		one := <-g.arrived
		second, third := ask(s, "b"), ask(s, "c")
		one.finish <- outcome{}
		first.turn(t)
		two := <-g.arrived
		if want := []string{"b", "c"}; !slices.Equal(two.keys, want) {
			t.Errorf("second statement has %v, want %v", two.keys, want)
		}
		two.finish <- outcome{}
		second.turn(t)
		third.turn(t)
	})
}

func TestALoneCallerAsksByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		s := over(t, coalesce.Config{}, g)
		ctx := context.WithValue(t.Context(), ctxKey{}, "mine")
		for range 3 {
			c := askWith(ctx, s, "a")
			one := <-g.arrived
			if one.ctx.Value(ctxKey{}) != "mine" {
				t.Error("a lone caller's statement must run under its own context")
			}
			one.finish <- outcome{}
			c.turn(t)
		}
	})
}

// TestALoneCallerIsBounded: a call whose context has no end gets one, after
// Timeout, and keeps the values of its own.
func TestALoneCallerIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 10 * time.Second
		g := newGate()
		s := over(t, coalesce.Config{Timeout: most}, g)
		ctx := context.WithValue(context.Background(), ctxKey{}, "mine")
		for range 2 {
			c := askIn(ctx, s, "a")
			one := <-g.arrived
			time.Sleep(most - 1)
			if v, err := one.ctx.Value(ctxKey{}), one.ctx.Err(); v != "mine" || err != nil {
				t.Errorf("value %v, ended early: %v", v, err)
			}
			one.finish <- outcome{}
			c.turn(t)
			if one.ctx.Err() == nil {
				t.Error("its context was not released")
			}
			start := time.Now()
			c = askIn(ctx, s, "a")
			<-g.arrived
			if <-c.done; !errors.Is(c.err, context.DeadlineExceeded) || time.Since(start) != most {
				t.Errorf("the caller heard %v after %v", c.err, time.Since(start))
			}
		}
	})
}

type ctxKey struct{}

func TestOneKeyIsServedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		s := over(t, coalesce.Config{MaxBatch: 4}, g)
		var calls []*call
		for range 12 {
			calls = append(calls, ask(s, "hot"))
		}
		sizes := []int{}
		for n := 0; n < len(calls); {
			one := <-g.arrived
			sizes = append(sizes, len(one.keys))
			n += len(one.keys)
			one.finish <- outcome{}
		}
		if want := []int{1, 4, 4, 3}; !slices.Equal(sizes, want) {
			t.Errorf("statements of %v groups, want %v", sizes, want)
		}
		for i, c := range calls {
			if got := c.turn(t); got != int64(i+1) {
				t.Errorf("call %d had turn %d", i+1, got)
			}
		}
	})
}

func TestLeavingWhileQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		s := over(t, coalesce.Config{}, g)
		first := ask(s, "a")
		one := <-g.arrived
		b, c, d := ask(s, "b"), ask(s, "c"), ask(s, "d")
		for _, leaver := range []*call{c, b} { // from the middle, then the head
			leaver.cancel()
			leaver.fails(t, context.Canceled)
			if errors.Is(leaver.err, store.ErrOutcomeUnknown) {
				t.Error("a call that was never sent was certainly not charged")
			}
		}
		one.finish <- outcome{}
		first.turn(t)
		two := <-g.arrived
		if !slices.Equal(two.keys, []string{"d"}) {
			t.Errorf("second statement has %v, want d alone", two.keys)
		}
		two.finish <- outcome{}
		d.turn(t)
	})
}

func TestLeavingWhileInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		s := over(t, coalesce.Config{}, g)
		first := ask(s, "a")
		one := <-g.arrived
		leaver, other := ask(s, "b"), ask(s, "c")
		one.finish <- outcome{}
		first.turn(t)
		two := <-g.arrived
		leaver.cancel()
		leaver.fails(t, store.ErrOutcomeUnknown)
		leaver.fails(t, context.Canceled)
		leaver.batch.Groups[0].Ops[0] = store.Op{Key: "reused"} // its memory is its own again
		synctest.Wait()
		if two.ctx.Err() != nil {
			t.Error("one caller's end must not end the statement of the others")
		}
		two.finish <- outcome{}
		other.turn(t)
		if op := leaver.batch.Groups[0].Ops[0]; op.Key != "reused" || op.Remaining != 0 {
			t.Errorf("the answer was written into reused memory: %+v", op)
		}
	})
}

func TestAStatementEndsWithItsLastCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		s := over(t, coalesce.Config{Timeout: time.Minute}, g)
		first := ask(s, "a")
		one := <-g.arrived
		start := time.Now()
		soon, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		later, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		b, c := askWith(soon, s, "b"), askWith(later, s, "c")
		one.finish <- outcome{}
		first.turn(t)
		two := <-g.arrived
		if until, _ := two.ctx.Deadline(); until.Sub(start) != 3*time.Second {
			t.Errorf("the statement ends after %v, want 3s", until.Sub(start))
		}
		b.fails(t, context.DeadlineExceeded)
		c.fails(t, context.DeadlineExceeded)

		// The lane is well again.
		d := ask(s, "d")
		(<-g.arrived).finish <- outcome{}
		d.turn(t)
	})
}

// TestAHungStoreIsBounded: no call waits longer than Timeout, the wait for its
// turn included.
func TestAHungStoreIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = time.Minute
		g := newGate()
		s := over(t, coalesce.Config{Timeout: most, MaxQueue: 3}, g)
		begun := map[*call]time.Time{}
		begin := func(key string) *call {
			start := time.Now()
			c := askWith(context.Background(), s, key)
			begun[c] = start
			return c
		}
		fails := func(c *call) {
			t.Helper()
			c.fails(t, context.DeadlineExceeded)
			if took := time.Since(begun[c]); took > most || took < most*9/10 {
				t.Errorf("a call failed after %v", took)
			}
		}
		first := begin("a")
		<-g.arrived
		queued := []*call{begin("b"), begin("b")}
		time.Sleep(most / 2)
		queued = append(queued, begin("b"))
		ask(s, "c").fails(t, coalesce.ErrBusy)
		fails(first)
		for _, c := range queued[:2] {
			fails(c)
		}
		two := <-g.arrived // those whose time ends as it is sent may still be in it
		if len(two.keys) == 0 || slices.ContainsFunc(two.keys, func(key string) bool { return key != "b" }) {
			t.Errorf("the second statement has %v", two.keys)
		}
		fails(queued[2])
	})
}

func TestABadGroupFailsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		s := over(t, coalesce.Config{}, g)
		first := ask(s, "a")
		one := <-g.arrived
		var calls []*call
		for i := range 16 {
			calls = append(calls, ask(s, fmt.Sprint("k", i)))
		}
		one.finish <- outcome{}
		first.turn(t)
		bad := errors.New("value out of range")
		statements := 0
		go func() {
			for one := range g.arrived {
				statements++
				var o outcome
				if slices.Contains(one.keys, "k5") {
					o.err = bad
				}
				one.finish <- o
			}
		}()
		for i, c := range calls {
			if i == 5 {
				c.fails(t, bad)
			} else if turn := c.turn(t); turn != 1 {
				t.Errorf("k%d was charged %d times", i, turn)
			}
		}
		if statements != 9 { // 16 8 4 2 1 with the bad one, and 1 2 4 8 without
			t.Errorf("%d statements, want 9", statements)
		}
		synctest.Wait()
		close(g.arrived)
	})
}

func TestAGroupsErrorStaysItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		s := over(t, coalesce.Config{}, g)
		first := ask(s, "a")
		one := <-g.arrived
		b, c := ask(s, "b"), ask(s, "c")
		one.finish <- outcome{}
		first.turn(t)
		(<-g.arrived).finish <- outcome{group: map[string]error{"b": store.ErrFull}}
		b.fails(t, store.ErrFull)
		c.turn(t)
	})
}

func TestAnUnknownOutcomeIsNotSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		s := over(t, coalesce.Config{}, g)
		first := ask(s, "a")
		one := <-g.arrived
		b, c := ask(s, "b"), ask(s, "c")
		one.finish <- outcome{}
		first.turn(t)
		(<-g.arrived).finish <- outcome{err: store.ErrOutcomeUnknown}
		b.fails(t, store.ErrOutcomeUnknown)
		c.fails(t, store.ErrOutcomeUnknown)
	})
}

func TestADeadStoreIsAskedABoundedNumberOfTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		s := over(t, coalesce.Config{}, g)
		first := ask(s, "a")
		one := <-g.arrived
		var calls []*call
		for range 200 {
			calls = append(calls, ask(s, "b"))
		}
		dead := errors.New("connection refused")
		statements := 0
		go func() {
			for one := range g.arrived {
				statements++
				one.finish <- outcome{err: dead}
			}
		}()
		one.finish <- outcome{err: dead}
		first.fails(t, dead)
		for _, c := range calls {
			c.fails(t, dead)
		}
		if statements > 50 {
			t.Errorf("%d statements to a store that is away", statements)
		}
		synctest.Wait()
		close(g.arrived)
	})
}

func TestAPanicOfTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		s := over(t, coalesce.Config{}, g)
		first := ask(s, "a")
		one := <-g.arrived
		b, c := ask(s, "b"), ask(s, "c")
		one.finish <- outcome{panic: "alone"}
		if <-first.done; first.panic != "alone" {
			t.Errorf("a lone caller gets the panic itself, not %v", first.panic)
		}
		(<-g.arrived).finish <- outcome{panic: "shared"}
		b.fails(t, store.ErrOutcomeUnknown)
		c.fails(t, store.ErrOutcomeUnknown)
		if !strings.Contains(b.err.Error(), "shared") {
			t.Errorf("%v does not say what happened", b.err)
		}
		d := ask(s, "d")
		(<-g.arrived).finish <- outcome{}
		d.turn(t)
	})
}

func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		s := over(t, coalesce.Config{}, g)
		first := ask(s, "a")
		one := <-g.arrived
		b := ask(s, "b")
		closed := make(chan error, 1)
		go func() { closed <- s.Close() }()
		b.fails(t, coalesce.ErrClosed)
		ask(s, "c").fails(t, coalesce.ErrClosed)
		synctest.Wait()
		select {
		case <-closed:
			t.Error("Close returned with a statement in flight")
		default:
		}
		one.finish <- outcome{}
		first.turn(t)
		if err := <-closed; err != nil {
			t.Error(err)
		}
		ask(s, "d").fails(t, coalesce.ErrClosed)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestFewCallersShareOneLane: while few calls share a statement, all that queue
// do so at the first lane.
func TestFewCallersShareOneLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newGate(), newGate()
		s := over(t, coalesce.Config{}, a, b)
		for range 3 {
			calls := []*call{ask(s, "k")}
			oneA := <-a.arrived
			calls = append(calls, ask(s, "k"))
			oneB := <-b.arrived
			for i := range 40 {
				calls = append(calls, ask(s, fmt.Sprint("k", i)))
			}
			finish(oneB)
			calls = append(calls, ask(s, "late")) // others wait, so it does as well
			finish(oneA)
			together := <-a.arrived
			if len(together.keys) != 41 {
				t.Errorf("%d calls share a statement, want 41", len(together.keys))
			}
			finish(together)
			for _, c := range calls {
				c.turn(t)
			}
			synctest.Wait() // both lanes are idle
		}
	})
}

// TestAStuckLaneIsPassedOver: a statement that hangs at the lane where few callers
// queue holds up those who queue behind it, and nobody who comes later.
func TestAStuckLaneIsPassedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newGate(), newGate()
		s := over(t, coalesce.Config{}, a, b)
		hangs := ask(s, "hangs")
		stuck := <-a.arrived
		other := ask(s, "k")
		oneB := <-b.arrived
		behind := ask(s, "behind") // both lanes are busy
		finish(oneB)
		other.turn(t)
		time.Sleep(time.Second)
		for range 3 {
			first := ask(s, "first")
			one := <-b.arrived
			second, third := ask(s, "second"), ask(s, "third") // these share a statement
			finish(one)
			first.turn(t)
			together := <-b.arrived
			if len(together.keys) != 2 {
				t.Errorf("a statement for %v", together.keys)
			}
			finish(together)
			second.turn(t)
			third.turn(t)
			synctest.Wait()
		}
		finish(stuck)
		finish(<-a.arrived)
		hangs.turn(t)
		behind.turn(t)
	})
}

// TestALaneOfItsOwnForEachKey: many calls queue at their key's lane, always the
// same one; one that need not goes by the first lane that is idle.
func TestALaneOfItsOwnForEachKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newGate(), newGate()
		s := over(t, coalesce.Config{}, a, b)
		home := map[string]*gate{}
		for round := range 3 {
			calls := []*call{ask(s, "k")}
			oneA := <-a.arrived
			calls = append(calls, ask(s, "k"))
			oneB := <-b.arrived
			for i := range 200 {
				calls = append(calls, ask(s, fmt.Sprint("k", i)))
			}
			finish(oneA)
			finish(oneB)
			for _, at := range []*gate{a, b} {
				together := <-at.arrived
				if round > 0 && (len(together.keys) < 60 || len(together.keys) > 140) {
					t.Errorf("%d of 200 keys on one of two lanes", len(together.keys))
				}
				for _, key := range together.keys {
					if round > 1 && home[key] != at {
						t.Errorf("%s changed its lane", key)
					}
					home[key] = at
				}
				finish(together)
			}
			for _, c := range calls {
				c.turn(t)
			}
			synctest.Wait() // both lanes are idle
		}
	})
}

func finish(s *statement) chan outcome {
	s.finish <- outcome{}
	return s.finish
}

func TestAGroupGoesWholeToOneLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gates := []*gate{newGate(), newGate(), newGate()}
		s := over(t, coalesce.Config{}, gates[0], gates[1], gates[2])
		for _, keys := range [][]string{{"u1", "t1", "g"}, {"g", "u1", "t1"}} {
			c := ask(s, keys...)
			one := anyOf(gates)
			if want := strings.Join(keys, "+"); !slices.Equal(one.keys, []string{want}) {
				t.Errorf("the statement has %v, want %s", one.keys, want)
			}
			one.finish <- outcome{}
			c.turn(t)
		}
	})
}

func anyOf(gates []*gate) *statement {
	select {
	case s := <-gates[0].arrived:
		return s
	case s := <-gates[1].arrived:
		return s
	case s := <-gates[2].arrived:
		return s
	}
}

func TestABatchOfSeveralGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gates := []*gate{newGate(), newGate(), newGate()}
		s := over(t, coalesce.Config{}, gates[0], gates[1], gates[2])
		var b store.Batch
		for i := range 20 {
			b.Groups = append(b.Groups, store.Group{Ops: []store.Op{{Def: def, Key: fmt.Sprint("k", i), Cost: 1}}})
		}
		done := make(chan error)
		go func() { done <- s.Apply(t.Context(), &b) }()
		bad := errors.New("bad group")
		for n := 0; n < len(b.Groups); {
			one := anyOf(gates)
			n += len(one.keys)
			one.finish <- outcome{group: map[string]error{"k3": bad}}
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		for i := range b.Groups {
			g := &b.Groups[i]
			if i == 3 && !errors.Is(g.Err, bad) || i != 3 && (g.Err != nil || g.Ops[0].Remaining != 1) {
				t.Errorf("group %d: %v, %+v", i, g.Err, g.Ops[0].Answer)
			}
		}
	})
}

func TestAnEndedContextSendsNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var b store.Batch
	b.Single()
	if err := over(t, coalesce.Config{}, newGate()).Apply(ctx, &b); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
}

func TestBadConfig(t *testing.T) {
	g := newGate()
	for want, c := range map[string]coalesce.Config{
		"MaxBatch": {MaxBatch: 1 << 17},
		"MaxQueue": {MaxQueue: -1},
		"Timeout":  {Timeout: -1},
	} {
		if _, err := coalesce.New(store.Lanes{Stores: []store.Store{g}}, c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	for want, lanes := range map[string]store.Lanes{
		"0 lanes":  {},
		"is nil":   {Stores: []store.Store{g, nil}},
		"Spare":    {Stores: []store.Store{g}, Spare: 1},
		"Sorter":   {Stores: []store.Store{g}, Sorter: g},
		"LockWait": {Stores: []store.Store{g}, LockWait: -1},
	} {
		if _, err := coalesce.New(lanes, coalesce.Config{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// TestOnBatch: the hook hears of each batch once, whoever sends it, with what
// came of it.
func TestOnBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var heard []string
		c := coalesce.Config{OnBatch: func(b *store.Batch, took time.Duration, err error) {
			heard = append(heard, fmt.Sprint(len(b.Groups), took, err))
		}}
		g := newGate()
		s := over(t, c, g)
		first := ask(s, "a")
		one := <-g.arrived
		calls := []*call{ask(s, "b"), ask(s, "c")}
		time.Sleep(time.Second)
		one.finish <- outcome{}
		first.turn(t)
		two := <-g.arrived
		time.Sleep(time.Second)
		two.finish <- outcome{err: store.ErrOutcomeUnknown}
		for _, c := range calls {
			c.fails(t, store.ErrOutcomeUnknown)
		}
		if want := []string{"1 1s <nil>", "2 1s " + store.ErrOutcomeUnknown.Error()}; !slices.Equal(heard, want) {
			t.Errorf("heard %q, want %q", heard, want)
		}
	})
	r := newRows()
	var batches atomic.Int64
	lanes := store.Lanes{Stores: []store.Store{conn{r, true}}, Sorter: conn{r, false}, Quarantine: conn{r, false}.applyWithin}
	s := overLanes(t, coalesce.Config{OnBatch: func(*store.Batch, time.Duration, error) { batches.Add(1) }}, lanes)
	defer s.Close()
	r.lock("k")
	if _, err := one(s, 50*time.Millisecond, "k"); !errors.Is(err, store.ErrLocked) && !errors.Is(err, store.ErrOutcomeUnknown) {
		t.Error(err)
	}
	if n := batches.Load(); n < 2 {
		t.Errorf("%d batches, want those of the lane and of the sorter at least", n)
	}
}
