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

func TestWaitersShareTheNextStatement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		s := newStore(t, coalesce.Config{}, g)
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

// TestLoneCall checks that the statement of a lone call has the values of its context, but
// outlives the call by less than a second and a bit: to cancel it would cost the lane its
// connection.
func TestLoneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		s := newStore(t, coalesce.Config{}, g)
		ctx := context.WithValue(t.Context(), ctxKey{}, "mine")
		for range 3 {
			c := askWith(ctx, s, "a")
			one := <-g.arrived
			if one.ctx.Value(ctxKey{}) != "mine" {
				t.Error("the statement does not have the caller's values")
			}
			c.cancel()
			c.fails(t, store.ErrOutcomeUnknown)
			c.fails(t, context.Canceled)
			time.Sleep(999 * time.Millisecond)
			if err := one.ctx.Err(); err != nil {
				t.Errorf("it ended early: %v", err)
			}
			next := ask(s, "b")
			one.finish <- outcome{}
			(<-g.arrived).finish <- outcome{}
			next.turn(t)
		}
		brief, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
		defer cancel()
		start := time.Now()
		askWith(brief, s, "a").fails(t, context.DeadlineExceeded)
		if <-(<-g.arrived).ctx.Done(); time.Since(start) > 1100*time.Millisecond {
			t.Errorf("it ended after %v", time.Since(start))
		}
	})
}

// TestLoneCallTimesOut checks that a call without a deadline gets Timeout.
func TestLoneCallTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 10 * time.Second
		g := newGate()
		s := newStore(t, coalesce.Config{Timeout: most}, g)
		for range 2 {
			c := askIn(context.Background(), s, "a")
			one := <-g.arrived
			time.Sleep(most*9/10 - 1)
			if err := one.ctx.Err(); err != nil {
				t.Errorf("it ended early: %v", err)
			}
			one.finish <- outcome{}
			c.turn(t)
			if one.ctx.Err() == nil {
				t.Error("its context was not released")
			}
			start := time.Now()
			c = askIn(context.Background(), s, "a")
			<-g.arrived
			if <-c.done; !errors.Is(c.err, context.DeadlineExceeded) || time.Since(start) > most || time.Since(start) < most*9/10 {
				t.Errorf("error %v after %v", c.err, time.Since(start))
			}
		}
	})
}

type ctxKey struct{}

func TestCallsOfOneKeyStayInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		s := newStore(t, coalesce.Config{MaxBatch: 4}, g)
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
				t.Errorf("call %d got number %d", i+1, got)
			}
		}
	})
}

func TestContextEndsWhileQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		s := newStore(t, coalesce.Config{}, g)
		first := ask(s, "a")
		one := <-g.arrived
		b, c, d := ask(s, "b"), ask(s, "c"), ask(s, "d")
		for _, leaver := range []*call{c, b} { // from the middle, then the head
			leaver.cancel()
			leaver.fails(t, context.Canceled)
			if errors.Is(leaver.err, store.ErrOutcomeUnknown) {
				t.Error("a call that was not sent reports an unknown outcome")
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

func TestContextEndsWhileInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		s := newStore(t, coalesce.Config{}, g)
		first := ask(s, "a")
		one := <-g.arrived
		leaver, other := ask(s, "b"), ask(s, "c")
		one.finish <- outcome{}
		first.turn(t)
		two := <-g.arrived
		leaver.cancel()
		leaver.fails(t, store.ErrOutcomeUnknown)
		leaver.fails(t, context.Canceled)
		leaver.batch.Groups[0].Ops[0] = store.Op{Key: "reused"} // the caller reuses its memory
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

func TestStatementHasTheLatestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		s := newStore(t, coalesce.Config{Timeout: time.Minute}, g)
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

		// The lane works again.
		d := ask(s, "d")
		(<-g.arrived).finish <- outcome{}
		d.turn(t)
	})
}

// TestHungStoreTimesOut checks that no call takes longer than Timeout, including its
// time in the queue.
func TestHungStoreTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = time.Minute
		g := newGate()
		s := newStore(t, coalesce.Config{Timeout: most, MaxQueue: 3}, g)
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
		two := <-g.arrived // may include calls that time out as it is sent
		if len(two.keys) == 0 || slices.ContainsFunc(two.keys, func(key string) bool { return key != "b" }) {
			t.Errorf("the second statement has %v", two.keys)
		}
		fails(queued[2])
	})
}

func TestFailingGroupIsIsolated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		s := newStore(t, coalesce.Config{}, g)
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
		if statements != 9 { // of 16 8 4 2 1 groups with the failing one, and 1 2 4 8 without
			t.Errorf("%d statements, want 9", statements)
		}
		synctest.Wait()
		close(g.arrived)
	})
}

func TestErrorOfOneGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		s := newStore(t, coalesce.Config{}, g)
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

func TestUnknownOutcomeIsNotRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		s := newStore(t, coalesce.Config{}, g)
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

func TestFailingStoreGetsFewStatements(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		s := newStore(t, coalesce.Config{}, g)
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
			t.Errorf("%d statements to a failing store", statements)
		}
		synctest.Wait()
		close(g.arrived)
	})
}

func TestStorePanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		s := newStore(t, coalesce.Config{}, g)
		first := ask(s, "a")
		one := <-g.arrived
		b, c := ask(s, "b"), ask(s, "c")
		one.finish <- outcome{panic: "alone"}
		first.fails(t, store.ErrOutcomeUnknown)
		(<-g.arrived).finish <- outcome{panic: "shared"}
		b.fails(t, store.ErrOutcomeUnknown)
		c.fails(t, store.ErrOutcomeUnknown)
		if !strings.Contains(b.err.Error(), "shared") {
			t.Errorf("error %v does not name the panic", b.err)
		}
		d := ask(s, "d")
		(<-g.arrived).finish <- outcome{}
		d.turn(t)
	})
}

func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		s := newStore(t, coalesce.Config{}, g)
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

// TestFewCallersShareOneLane checks that all calls queue at the first lane while few
// calls share a statement.
func TestFewCallersShareOneLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newGate(), newGate()
		s := newStore(t, coalesce.Config{}, a, b)
		for range 3 {
			calls := []*call{ask(s, "k")}
			oneA := <-a.arrived
			calls = append(calls, ask(s, "k"))
			oneB := <-b.arrived
			for i := range 40 {
				calls = append(calls, ask(s, fmt.Sprint("k", i)))
			}
			finish(oneB)
			calls = append(calls, ask(s, "late")) // queued behind the others
			finish(oneA)
			shared := <-a.arrived
			if len(shared.keys) != 41 {
				t.Errorf("%d calls share a statement, want 41", len(shared.keys))
			}
			finish(shared)
			for _, c := range calls {
				c.turn(t)
			}
			synctest.Wait() // both lanes are idle
		}
	})
}

// TestStuckLaneIsSkipped checks that a hanging statement delays only the calls that
// are already queued behind it.
func TestStuckLaneIsSkipped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newGate(), newGate()
		s := newStore(t, coalesce.Config{}, a, b)
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
			shared := <-b.arrived
			if len(shared.keys) != 2 {
				t.Errorf("a statement for %v", shared.keys)
			}
			finish(shared)
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

// TestStuckLaneIsSkippedUnderLoad checks the same while so many calls wait that each key
// has a lane of its own.
func TestStuckLaneIsSkippedUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newGate(), newGate()
		s := newStore(t, coalesce.Config{}, a, b)
		calls := []*call{ask(s, "hangs")}
		stuck := <-a.arrived
		other := ask(s, "k")
		oneB := <-b.arrived
		for i := range 100 {
			calls = append(calls, ask(s, fmt.Sprint("behind", i)))
		}
		finish(oneB)
		other.turn(t)
		go func() {
			for st := range b.arrived {
				finish(st)
			}
		}()
		time.Sleep(1001 * time.Millisecond)
		for i := range 100 { // some of them find that it hangs
			calls = append(calls, ask(s, fmt.Sprint("finds", i)))
		}
		var later []*call
		for i := range 32 {
			later = append(later, ask(s, fmt.Sprint("later", i)))
		}
		synctest.Wait()
		waiting := 0
		for _, c := range later {
			select {
			case <-c.done:
			default:
				waiting++
			}
		}
		if waiting > 0 {
			t.Errorf("%d of %d later calls wait behind the statement that hangs", waiting, len(later))
		}
		finish(stuck)
		finish(<-a.arrived)
		for _, c := range append(calls, later...) {
			c.turn(t)
		}
		close(b.arrived)
	})
}

// TestEachKeyHasOneLane checks that with many calls each key always queues at the
// same lane, and that a call that need not queue uses the first idle lane.
func TestEachKeyHasOneLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newGate(), newGate()
		s := newStore(t, coalesce.Config{}, a, b)
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
				shared := <-at.arrived
				if round > 0 && (len(shared.keys) < 60 || len(shared.keys) > 140) {
					t.Errorf("%d of 200 keys on one of two lanes", len(shared.keys))
				}
				for _, key := range shared.keys {
					if round > 1 && home[key] != at {
						t.Errorf("%s changed its lane", key)
					}
					home[key] = at
				}
				finish(shared)
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

// TestLevelsQueueAtTheLaneOfTheTop checks that with many calls those of several levels
// queue at the lane of their topmost row, so that no other lane waits for it.
func TestLevelsQueueAtTheLaneOfTheTop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newGate(), newGate()
		s := newStore(t, coalesce.Config{}, a, b)
		home := map[string]*gate{}
		for round := range 2 {
			calls := []*call{ask(s, "k")}
			oneA := <-a.arrived
			calls = append(calls, ask(s, "k"))
			oneB := <-b.arrived
			for i := range 200 {
				calls = append(calls, ask(s, fmt.Sprint("child ", i), fmt.Sprint("top ", i%20)))
			}
			finish(oneA)
			finish(oneB)
			for left := 200; left > 0; {
				var at *gate
				var shared *statement
				select {
				case shared = <-a.arrived:
					at = a
				case shared = <-b.arrived:
					at = b
				}
				left -= len(shared.keys)
				for _, keys := range shared.keys {
					_, top, _ := strings.Cut(keys, "+")
					if round > 0 && home[top] != nil && home[top] != at { // in round 0 few calls were seen yet
						t.Errorf("calls of %s use two lanes", top)
					}
					if round > 0 {
						home[top] = at
					}
				}
				finish(shared)
			}
			for _, c := range calls {
				c.turn(t)
			}
			synctest.Wait() // both lanes are idle
		}
		lanes := map[*gate]bool{}
		for _, at := range home {
			lanes[at] = true
		}
		if len(lanes) != 2 {
			t.Errorf("%d of two lanes are used", len(lanes))
		}
	})
}

func TestGroupUsesOneLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gates := []*gate{newGate(), newGate(), newGate()}
		s := newStore(t, coalesce.Config{}, gates[0], gates[1], gates[2])
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

func TestBatchOfSeveralGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gates := []*gate{newGate(), newGate(), newGate()}
		s := newStore(t, coalesce.Config{}, gates[0], gates[1], gates[2])
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

func TestEndedContextSendsNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var b store.Batch
	b.Single()
	if err := newStore(t, coalesce.Config{}, newGate()).Apply(ctx, &b); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
}

func TestBadConfig(t *testing.T) {
	g := newGate()
	for want, c := range map[string]coalesce.Config{
		"Timeout": {Timeout: -1},
	} {
		if _, err := coalesce.New(store.Lanes{Stores: []store.Store{g}}, c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	for want, lanes := range map[string]store.Lanes{
		"0 lanes":  {},
		"is nil":   {Stores: []store.Store{g, nil}},
		"Sorter":   {Stores: []store.Store{g}, Sorter: g},
		"LockWait": {Stores: []store.Store{g}, LockWait: -1},
	} {
		if _, err := coalesce.New(lanes, coalesce.Config{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// TestOnBatch checks that the hook is called once for each batch, with its result.
func TestOnBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []string
		c := coalesce.Config{OnBatch: func(b *store.Batch, took time.Duration, err error) {
			got = append(got, fmt.Sprint(len(b.Groups), took, err))
		}}
		g := newGate()
		s := newStore(t, c, g)
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
		if want := []string{"1 1s <nil>", "2 1s " + store.ErrOutcomeUnknown.Error()}; !slices.Equal(got, want) {
			t.Errorf("calls %q, want %q", got, want)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		r := newRows()
		var batches atomic.Int64
		lanes := store.Lanes{Stores: []store.Store{conn{rows: r, lane: true}}, Sorter: conn{rows: r}, Quarantine: conn{rows: r}.applyWithin}
		s := newStoreWithLanes(t, coalesce.Config{OnBatch: func(*store.Batch, time.Duration, error) { batches.Add(1) }}, lanes)
		defer s.Close()
		r.lock("k")
		if _, err := one(s, 50*time.Millisecond, "k"); !errors.Is(err, store.ErrLocked) && !errors.Is(err, store.ErrOutcomeUnknown) {
			t.Error(err)
		}
		if n := batches.Load(); n < 2 {
			t.Errorf("%d batches, want at least those of the lane and of the Sorter", n)
		}
	})
}
