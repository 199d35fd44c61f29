package dipwell_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
)

// TestEndedWaitIsNotAllowed checks that a wait whose context ended has no tokens, and
// that its Decision is not Allowed.
func TestEndedWaitIsNotAllowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, err := memstore.New(memstore.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer st.Close()
		l, err := dipwell.New(st, store.Limit{Name: "work", Rate: 1, Period: time.Hour, Burst: 1, MaxDebt: 5})
		if err != nil {
			t.Fatal(err)
		}
		if d, err := l.Take(t.Context(), "work", "k", 1); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Minute, cancel)
		d, err := l.Wait(ctx, "work", "k", 2)
		if !errors.Is(err, context.Canceled) || d.Allowed || d.Granted != 0 || d.Reservation != (store.Reservation{}) || d.Cost != 2 {
			t.Errorf("a wait that was given up: %+v, %v", d, err)
		}
	})
}

// TestWaitWithoutDebt checks that a wait on a limit without debt takes again at the
// retry time, and fails at once if that is after its deadline.
func TestWaitWithoutDebt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, err := memstore.New(memstore.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer st.Close()
		l, err := dipwell.New(st, store.Limit{Name: "work", Rate: 1, Period: time.Hour, Burst: 1, MaxDebt: store.NoDebt})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		for _, step := range []struct {
			within, after time.Duration
			allowed       bool
		}{{time.Minute, 0, true}, {59 * time.Minute, 0, false}, {2 * time.Hour, time.Hour, true}, {30 * time.Minute, time.Hour, false}} {
			ctx, cancel := context.WithTimeout(t.Context(), step.within)
			d, err := l.Wait(ctx, "work", "k", 1)
			cancel()
			if err != nil || d.Allowed != step.allowed || time.Since(start) != step.after {
				t.Errorf("within %v: after %v %+v, %v", step.within, time.Since(start), d, err)
			}
		}
	})
}

// slowCancel is a store whose cancellations take five seconds.
type slowCancel struct{ store.Store }

func (s slowCancel) Abilities() store.Abilities { return store.AbilitiesOf(s.Store) }

func (s slowCancel) Apply(ctx context.Context, b *store.Batch) error {
	if b.Groups[0].Cancel {
		select {
		case <-time.After(5 * time.Second):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return s.Store.Apply(ctx, b)
}

// TestEndedWaitWithSlowCancel checks that a slow cancellation delays its caller by only
// a second, and gives the tokens back afterwards.
func TestEndedWaitWithSlowCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, err := memstore.New(memstore.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer st.Close()
		l, err := dipwell.New(slowCancel{st}, store.Limit{Name: "work", Rate: 1, Period: time.Hour, Burst: 5, MaxDebt: 5})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 6*time.Hour)
		defer cancel()
		time.AfterFunc(time.Minute, cancel)
		start := time.Now()
		if d, err := l.Wait(ctx, "work", "k", 6); !errors.Is(err, context.Canceled) {
			t.Errorf("%+v, %v", d, err)
		}
		if took := time.Since(start); took != time.Minute+time.Second {
			t.Errorf("the caller was kept for %v", took-time.Minute)
		}
		time.Sleep(5 * time.Second)
		if d, err := l.Check(t.Context(), "work", "k", 5); err != nil || !d.Allowed {
			t.Errorf("after the cancellation: %+v, %v", d, err)
		}
	})
}

// TestWaitTooLateBesideUnlimited checks that the Decision of a wait that was given back
// says that an unlimited plan has 2^53-1 tokens left, and not more.
func TestWaitTooLateBesideUnlimited(t *testing.T) {
	withHolds(t, func(t *testing.T, l *dipwell.Limiter, _ *tableStore) {
		for range 3 {
			if _, err := l.Take(t.Context(), "leaky", "k", 1); err != nil {
				t.Fatal(err)
			}
		}
		takes := []dipwell.Take{{Limit: "strict", Key: "k", Cost: 2, Plan: "staff"}, take("strict", "other", 2), take("leaky", "k", 1)}
		var d dipwell.Decision
		if err := l.DoWait(t.Context(), &d, takes, time.Second); err != nil || d.Allowed || d.RetryAfter != 2*time.Second {
			t.Fatalf("%+v, %v", d, err)
		}
		if staff, other := d.Limits[0].Remaining, d.Limits[1].Remaining; staff != store.MaxInt || other != 5 {
			t.Errorf("%d and %d tokens left, want 2^53-1 and 5", staff, other)
		}
	}, dipwell.Limit{Name: "strict", Rate: 5, Period: time.Hour, MaxDebt: dipwell.NoDebt, Plans: dipwell.NewPlans(dipwell.Plan{Name: "staff", Mode: dipwell.Unlimited})})
}

// TestWaitsForLeakyBucketsQueue checks that callers queue who wait for a limit without
// debt and for more of a leaky bucket than its burst, which it can reserve.
func TestWaitsForLeakyBucketsQueue(t *testing.T) {
	virtual(t, func(t *testing.T, l *dipwell.Limiter) {
		if d, err := l.Take(t.Context(), "strict", "k", 2); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		began := time.Now()
		var ended [2]time.Duration
		var callers sync.WaitGroup
		for i, cost := range []int64{2, 1} {
			callers.Go(func() {
				var d dipwell.Decision
				takes := []dipwell.Take{take("strict", "k", cost), take("leaky", "k", 3)}
				if err := l.DoWait(t.Context(), &d, takes, time.Hour); err != nil || !d.Allowed {
					t.Errorf("%+v, %v", d, err)
				}
				ended[i] = time.Since(began)
			})
			synctest.Wait()
		}
		callers.Wait()
		if ended[1] <= ended[0] {
			t.Errorf("the second caller waited for %v, and the first for %v", ended[1], ended[0])
		}
	}, "strict=1/1s,burst=2,max_debt=0", "leaky=1000/1s,algorithm=leaky_bucket,max_debt=9")
}

const forever time.Duration = math.MaxInt64

// virtual runs f with a limiter whose store tells the bubble's time.
func virtual(t *testing.T, f func(t *testing.T, l *dipwell.Limiter), limits ...string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		epoch := time.Now()
		store, err := memstore.New(memstore.Config{MaxKeys: 100, Clock: func() int64 { return 1e15 + time.Since(epoch).Microseconds() }})
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		var parsed []dipwell.Limit
		for _, text := range limits {
			l, err := dipwell.ParseLimit(text)
			if err != nil {
				t.Fatal(err)
			}
			parsed = append(parsed, l)
		}
		l, err := dipwell.New(store, parsed...)
		if err != nil {
			t.Fatal(err)
		}
		f(t, l)
	})
}

func takes(names ...string) (out []dipwell.Take) {
	for _, name := range names {
		out = append(out, dipwell.Take{Limit: name, Key: "k", Cost: 1})
	}
	return out
}

// checkWaited checks that an allowed wait has nothing left to wait for, and says when
// the bucket will be full.
func checkWaited(t *testing.T, l *dipwell.Limiter, d *dipwell.Decision) {
	t.Helper()
	for _, d := range append([]dipwell.Decision{*d}, d.Limits...) {
		now, err := l.Check(t.Context(), d.Limit, d.Key, 0)
		if err != nil || d.Delay != 0 || d.Reservation != (dipwell.Reservation{}) || d.ResetAfter != now.ResetAfter {
			t.Errorf("after the wait it says %+v, %v; the bucket is full in %v", d, err, now.ResetAfter)
		}
	}
}

// checkGivenBack checks that a wait that is too late has taken nothing, and says so.
func checkGivenBack(t *testing.T, l *dipwell.Limiter, d *dipwell.Decision) {
	t.Helper()
	allowed := len(d.Limits) > 0
	for _, x := range append([]dipwell.Decision{*d}, d.Limits...) {
		now, err := l.Check(t.Context(), x.Limit, x.Key, 0)
		if err != nil || x.Granted != 0 || x.Delay != 0 || x.Reservation != (dipwell.Reservation{}) || x.Remaining != now.Remaining || x.Allowed != (x.RetryAfter == 0) {
			t.Errorf("after a refusal it says %+v, %v; %d remain", x, err, now.Remaining)
		}
	}
	for i := range d.Limits {
		allowed = allowed && d.Limits[i].Allowed
	}
	if allowed {
		t.Errorf("none of its limits refuses: %+v", d.Limits)
	}
}

// TestDoWaitRetry checks that the same wait is allowed after the retry time of its refusal,
// and not a microsecond earlier.
func TestDoWaitRetry(t *testing.T) {
	const within = 400 * time.Millisecond
	for _, c := range []struct {
		name  string
		takes []dipwell.Take
	}{
		{"debt", takes("debt")},
		{"no debt", takes("slow")},
		{"several", takes("slow", "plain")},
		{"leaky, several", takes("leaky", "rest")},
	} {
		t.Run(c.name, func(t *testing.T) {
			virtual(t, func(t *testing.T, l *dipwell.Limiter) {
				for _, take := range c.takes {
					if d, err := l.Take(t.Context(), take.Limit, take.Key, 1); err != nil || !d.Allowed {
						t.Fatal(d, err)
					}
				}
				var d dipwell.Decision
				ask := func() {
					if err := l.DoWait(t.Context(), &d, c.takes, within); err != nil {
						t.Fatal(err)
					}
				}
				ask()
				retry := d.RetryAfter
				if d.Allowed || retry <= 0 {
					t.Fatalf("a wait that is too late says %+v", d)
				}
				for _, x := range d.Limits {
					if x.Allowed != (x.RetryAfter == 0) || x.Allowed != (x.Limit != d.Limit) {
						t.Errorf("beside %s, %s says %+v", d.Limit, x.Limit, x)
					}
				}
				time.Sleep(retry - time.Microsecond)
				if ask(); d.Allowed || d.RetryAfter != time.Microsecond {
					t.Fatalf("1 µs before the retry it says %+v", d)
				}
				time.Sleep(time.Microsecond)
				if ask(); !d.Allowed {
					t.Errorf("%v later it says %+v", retry, d)
				}
			}, "plain=1/300ms,burst=1,max_debt=0", "debt=1/1s,burst=1,max_debt=9", "slow=1/1s,burst=1,max_debt=0", "leaky=1/1s,algorithm=leaky_bucket,max_debt=9", "rest=100/1d,max_debt=0")
		})
	}
}

func TestDoWait(t *testing.T) {
	for _, c := range []struct {
		name    string
		takes   []dipwell.Take
		within  time.Duration
		allowed int           // of five
		took    time.Duration // all in all
	}{
		{"in turn", takes("debt"), forever, 5, 4 * time.Second},
		{"no debt", takes("plain"), forever, 5, 4 * time.Second},
		{"several", takes("plain", "debt"), forever, 5, 4 * time.Second},
		{"leaky", takes("leaky"), forever, 5, 4 * time.Second},
		{"leaky, several", takes("leaky", "day"), forever, 5, 4 * time.Second},
		{"bound", takes("debt"), time.Second / 2, 1, 0},
		{"bound, no debt", takes("plain"), time.Second / 2, 1, 0},
		{"bound, leaky", takes("leaky"), time.Second / 2, 1, 0},
		{"fail fast, leaky", takes("leaky"), 0, 1, 0},
		{"bound, leaky, several", takes("leaky", "rest"), time.Second / 2, 1, 0},
		{"as long as the wait", takes("plain"), time.Second, 5, 4 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			virtual(t, func(t *testing.T, l *dipwell.Limiter) {
				start, allowed := time.Now(), 0
				for range 5 {
					var d dipwell.Decision
					if err := l.DoWait(t.Context(), &d, c.takes, c.within); err != nil {
						t.Fatal(err)
					}
					if d.Allowed {
						allowed++
						checkWaited(t, l, &d)
					} else if d.RetryAfter <= 0 || d.RetryAfter > time.Second {
						t.Errorf("a refusal says %v", d.RetryAfter)
					} else {
						checkGivenBack(t, l, &d)
					}
				}
				if took := time.Since(start); allowed != c.allowed || took < c.took || took > c.took+time.Millisecond {
					t.Errorf("%d allowed in %v; want %d in %v", allowed, took, c.allowed, c.took)
				}
			}, "plain=1/1s,burst=1,max_debt=0", "debt=1/1s,burst=1,max_debt=9", "leaky=1/1s,algorithm=leaky_bucket,max_debt=9", "day=100/1d", "rest=100/1d,max_debt=0")
		})
	}
}

// What is not waited for is given back, and a cancelled wait costs nothing.
func TestDoWaitGivesBack(t *testing.T) {
	virtual(t, func(t *testing.T, l *dipwell.Limiter) {
		var d dipwell.Decision
		if err := l.DoWait(t.Context(), &d, takes("leaky"), 0); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		for range 20 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			if err := l.DoWait(ctx, &d, takes("leaky"), forever); err != nil || d.Allowed {
				t.Fatal(d, err)
			}
			cancel()
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		if err := l.DoWait(ctx, &d, takes("leaky"), forever); !errors.Is(err, context.Canceled) {
			t.Fatal(d, err)
		}
		start := time.Now()
		if err := l.DoWait(t.Context(), &d, takes("leaky"), forever); err != nil || !d.Allowed || time.Since(start) > time.Second {
			t.Errorf("%v %v after %v: the cancelled ones still count", d, err, time.Since(start))
		}
	}, "leaky=1/1s,algorithm=leaky_bucket,max_debt=9")
}

// TestDoWaitDoesNotPassTheQueue checks that a caller with a bound, whose cost is free,
// waits for those that came before, and is refused when the bound ends.
func TestDoWaitDoesNotPassTheQueue(t *testing.T) {
	virtual(t, func(t *testing.T, l *dipwell.Limiter) {
		var d dipwell.Decision
		if d, err := l.Take(t.Context(), "work", "k", 100); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		start := time.Now()
		var large time.Duration
		go func() {
			var d dipwell.Decision
			if err := l.DoWait(t.Context(), &d, []dipwell.Take{{Limit: "work", Key: "k", Cost: 40}}, forever); err != nil || !d.Allowed {
				t.Error(d, err)
			}
			large = time.Since(start)
		}()
		time.Sleep(200 * time.Millisecond)
		if err := l.DoWait(t.Context(), &d, []dipwell.Take{{Limit: "work", Key: "k", Cost: 1}}, 100*time.Millisecond); err != nil || d.Allowed || d.Limit != "work" || d.Cost != 1 {
			t.Errorf("bound while another waits: %+v, %v", d, err)
		}
		if err := l.DoWait(t.Context(), &d, []dipwell.Take{{Limit: "work", Key: "k", Cost: 1}}, 0); err != nil || d.Allowed {
			t.Errorf("without a wait while another waits: %+v, %v", d, err)
		}
		if err := l.DoWait(t.Context(), &d, []dipwell.Take{{Limit: "work", Key: "k", Cost: 1}}, time.Second); err != nil || !d.Allowed || time.Since(start) < 400*time.Millisecond {
			t.Errorf("after %v: %+v, %v", time.Since(start), d, err)
		}
		synctest.Wait()
		if large != 400*time.Millisecond {
			t.Errorf("the large one was served after %v, want 400ms", large)
		}
	}, "work=100/1s,max_debt=0")
}

// TestWaitSeveral checks waits for several limits: they reserve if all have debt, and take
// in turn otherwise; callers of the same keys in another order do not block each other.
func TestWaitSeveral(t *testing.T) {
	virtual(t, func(t *testing.T, l *dipwell.Limiter) {
		start := time.Now()
		var wg sync.WaitGroup
		for i := range 10 {
			names := []string{"plain", "other"}
			if i%2 == 0 {
				names = []string{"other", "plain"}
			}
			wg.Go(func() {
				var d dipwell.Decision
				if err := l.DoWait(t.Context(), &d, takes(names...), forever); err != nil || !d.Allowed || len(d.Limits) != 2 {
					t.Error(d, err)
				}
			})
		}
		wg.Wait()
		if took := time.Since(start); took != 9*time.Second {
			t.Errorf("10 calls at 1 a second took %v", took)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var d dipwell.Decision
		err := l.DoWait(ctx, &d, takes("debt", "day"), forever)
		if err != nil || !d.Allowed || d.Delay != 0 {
			t.Error(d, err)
		}
		time.AfterFunc(time.Millisecond, cancel)
		if err = l.DoWait(ctx, &d, takes("debt", "day"), forever); !errors.Is(err, context.Canceled) || d.Allowed {
			t.Error(d, err)
		}
		if d, err = l.Check(t.Context(), "day", "k", 99); err != nil || !d.Allowed {
			t.Errorf("the cancelled wait costs: %+v, %v", d, err)
		}
	}, "plain=1/1s,burst=1,max_debt=0", "other=100/1s", "debt=1/1s,burst=1,max_debt=9", "day=100/1d", "rest=100/1d,max_debt=0")
}

func TestWaitErrors(t *testing.T) {
	virtual(t, func(t *testing.T, l *dipwell.Limiter) {
		for _, c := range []struct {
			takes []dipwell.Take
			field string
		}{
			{nil, "takes"},
			{[]dipwell.Take{{Limit: "debt", Key: "k", Cost: 1, Floor: 1}}, "floor"},
			{[]dipwell.Take{{Limit: "debt", Key: "k", Cost: -1}}, "cost"},
			{[]dipwell.Take{{Limit: "debt", Key: "k", Cost: 1}, {Limit: "debt", Key: "", Cost: 1}}, "takes[1].key"},
			{[]dipwell.Take{{Limit: "debt", Key: "k", Cost: 1, Plan: "pro"}}, "plan"},
			{[]dipwell.Take{{Limit: "debt", Key: "k", Cost: 1}, {Limit: "debt", Key: "l", Cost: 1, Floor: 1}}, "takes[1].floor"},
			{[]dipwell.Take{{Limit: "many", Key: "k", Cost: 1}}, "limit"},
			{[]dipwell.Take{{Limit: "debt", Key: "k", Cost: 1}, {Limit: "many", Key: "k", Cost: 1}}, "takes[1].limit"},
			{[]dipwell.Take{{Limit: "slots", Key: "k", Cost: 1}}, "limit"},
			{[]dipwell.Take{{Limit: "debt", Key: "k", Cost: 1}, {Limit: "slots", Key: "k", Cost: 1}}, "takes[1].limit"},
		} {
			var field *dipwell.FieldError
			var d dipwell.Decision
			err := l.DoWait(t.Context(), &d, c.takes, forever)
			if !errors.As(err, &field) || field.Field != c.field || d.Allowed || strings.Contains(err.Error(), "not take") {
				t.Errorf("%+v: %v, want %s", c.takes, err, c.field)
			}
		}
		d := dipwell.Decision{}
		if err := l.DoWait(t.Context(), &d, []dipwell.Take{{Limit: "plain", Key: "k", Cost: 1, Floor: 1}}, forever); err != nil || d.Allowed || !d.Never {
			t.Errorf("a floor of the whole burst: %+v, %v", d, err)
		}
	}, "debt=1/1s,burst=1,max_debt=9", "plain=1/1s,burst=1,max_debt=0", "many=10/1s,burst=10,shards=2", "slots=3,algorithm=concurrency")
}

// oneAtATime fails if two calls are in the store at one time. Each takes 1 ms.
type oneAtATime struct {
	store.Store
	t      *testing.T
	inside atomic.Int32
	calls  int
}

func (s *oneAtATime) Apply(ctx context.Context, b *store.Batch) error {
	if s.inside.Add(1) != 1 {
		s.t.Error("two waiters ask the store at one time")
	}
	defer s.inside.Add(-1)
	s.calls++
	time.Sleep(time.Millisecond)
	return s.Store.Apply(ctx, b)
}

// newWaits returns a limiter without debt, 100 a second up to 100, over a store
// that admits one call at a time.
func newWaits(t *testing.T) (*dipwell.Limiter, *oneAtATime) {
	epoch := time.Now()
	mem, err := memstore.New(memstore.Config{Clock: func() int64 { return 1e15 + time.Since(epoch).Microseconds() }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mem.Close() })
	st := &oneAtATime{Store: mem, t: t}
	l, err := dipwell.New(st, dipwell.Limit{Name: "work", Rate: 100, Period: time.Second, MaxDebt: dipwell.NoDebt})
	if err != nil {
		t.Fatal(err)
	}
	return l, st
}

// 64 callers wait, with costs of 1 and 40; one in ten gives up. The others are
// served in the order in which they came, the store is asked by one at a time,
// and nearly all of the rate is used.
func TestWaitInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, st := newWaits(t)
		rnd := rand.New(rand.NewPCG(1, 2))
		if d, err := l.Take(t.Context(), "work", "k", 100); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		var (
			mu      sync.Mutex
			served  []int
			granted int64
			wg      sync.WaitGroup
		)
		start := time.Now()
		for i := range 640 {
			ctx, cancel := context.WithCancel(t.Context())
			cost := int64(1)
			if i%2 == 0 {
				cost = 40
			}
			if i%10 == 9 {
				time.AfterFunc(time.Duration(rnd.IntN(100_000))*time.Millisecond, cancel)
			}
			wg.Go(func() {
				defer cancel()
				d, err := l.Wait(ctx, "work", "k", cost)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil && d.Allowed:
					served, granted = append(served, i), granted+cost
				case !errors.Is(err, context.Canceled) || d.Allowed || d.Granted != 0:
					t.Errorf("waiter %d: %+v, %v", i, d, err)
				}
			})
			synctest.Wait() // it is in the queue
		}
		wg.Wait()
		for i := 1; i < len(served); i++ {
			if served[i] < served[i-1] {
				t.Errorf("%d was served before %d", served[i-1], served[i])
			}
		}
		if len(served) < 570 {
			t.Errorf("%d of 640 were served", len(served))
		}
		if share := float64(granted) / (100 * time.Since(start).Seconds()); share < 0.97 || share > 1 {
			t.Errorf("%v of the rate was used", share)
		}
		if st.calls > 3*640 {
			t.Errorf("%d calls for 640 waiters", st.calls)
		}
	})
}

// 50 waiters that give up at once cost nothing, and leave no queue behind.
func TestWaitersGiveUpAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, st := newWaits(t)
		if d, err := l.Take(t.Context(), "work", "k", 100); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		errs := make(chan error)
		for range 50 {
			go func() {
				_, err := l.Wait(ctx, "work", "k", 100)
				errs <- err
			}()
		}
		synctest.Wait()
		cancel()
		for range 50 {
			if err := <-errs; !errors.Is(err, context.Canceled) {
				t.Errorf("a waiter that gave up: %v", err)
			}
		}
		if st.calls > 2 {
			t.Errorf("%d calls of the store", st.calls)
		}
		time.Sleep(time.Second)
		start := time.Now()
		if d, err := l.Wait(t.Context(), "work", "k", 100); err != nil || !d.Allowed || time.Since(start) > 2*time.Millisecond {
			t.Errorf("after they gave up: %+v, %v after %v", d, err, time.Since(start))
		}
	})
}

// A caller in the queue that has no time left gets the context's error; one that
// can never be served is refused at once, whoever waits.
func TestWaitInQueueEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := newWaits(t)
		if d, err := l.Take(t.Context(), "work", "k", 100); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		first := make(chan error)
		go func() {
			d, err := l.Wait(t.Context(), "work", "k", 100)
			if err == nil && !d.Allowed {
				err = fmt.Errorf("refused: %+v", d)
			}
			first <- err
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		start := time.Now()
		if d, err := l.Wait(ctx, "work", "k", 1); !errors.Is(err, context.DeadlineExceeded) || d.Allowed || d.Cost != 1 || time.Since(start) != 100*time.Millisecond {
			t.Errorf("in the queue until its deadline: %+v, %v after %v", d, err, time.Since(start))
		}
		start = time.Now()
		if d, err := l.Wait(t.Context(), "work", "k", 101); err != nil || !d.Never || time.Since(start) > 2*time.Millisecond {
			t.Errorf("more than the burst: %+v, %v after %v", d, err, time.Since(start))
		}
		if _, err := l.Wait(t.Context(), "work", "k", -1); err == nil || time.Since(start) > 2*time.Millisecond {
			t.Errorf("a cost of -1: %v", err)
		}
		if err := <-first; err != nil {
			t.Error(err)
		}
	})
}

// silentContext is a context that ends without its Done channel being closed, as
// if a waiter's select had picked another channel.
type silentContext struct {
	context.Context
	ended atomic.Bool
}

func (*silentContext) Done() <-chan struct{} { return nil }

func (c *silentContext) Err() error {
	if c.ended.Load() {
		return context.Canceled
	}
	return nil
}

// A caller whose context has ended when its turn comes, or when its sleep ends,
// takes nothing.
func TestWaitEndsWithItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, st := newWaits(t)
		if d, err := l.Take(t.Context(), "work", "k", 100); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		sleeps, queues := &silentContext{Context: t.Context()}, &silentContext{Context: t.Context()}
		var wg sync.WaitGroup
		for _, ctx := range []*silentContext{sleeps, queues} {
			wg.Go(func() {
				if d, err := l.Wait(ctx, "work", "k", 10); !errors.Is(err, context.Canceled) || d.Allowed || d.Granted != 0 || d.Cost != 10 || d.Limit != "work" {
					t.Errorf("%+v, %v", d, err)
				}
			})
			synctest.Wait() // it sleeps, or is in the queue
		}
		time.Sleep(time.Millisecond) // of the store
		calls := st.calls
		sleeps.ended.Store(true)
		queues.ended.Store(true)
		wg.Wait()
		if st.calls != calls {
			t.Errorf("%d calls of the store after the contexts ended", st.calls-calls)
		}
	})
}
