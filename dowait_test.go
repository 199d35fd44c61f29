package dipwell_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/memstore"
)

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
			{[]dipwell.Take{{Limit: "child", Key: "k/x", Cost: 1}}, "limit"},
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
	}, "debt=1/1s,burst=1,max_debt=9", "plain=1/1s,burst=1,max_debt=0", "many=10/1s,burst=10,shards=2", "tree=10/1s,burst=10,shards=2,parts=1", "child=5/1s,parent=tree", "slots=3,algorithm=concurrency")
}

// TestGroupWaitRetry checks the retry of waits for more than the bursts of two windows,
// which are possible only shortly before both end: 1 µs earlier the same wait is refused.
func TestGroupWaitRetry(t *testing.T) {
	const window = "/7s,algorithm=fixed_window,max_debt=5,"
	virtual(t, func(t *testing.T, l *dipwell.Limiter) {
		wait := func(other string) (d dipwell.Decision) {
			t.Helper()
			if err := l.DoWait(t.Context(), &d, []dipwell.Take{{Limit: "a", Key: "k", Cost: 2}, {Limit: other, Key: "k", Cost: 2}}, time.Second); err != nil {
				t.Fatal(err)
			}
			return d
		}
		for range 20 {
			d := wait("b")
			if d.Allowed || d.Never || d.RetryAfter > 77*time.Second {
				t.Fatalf("%+v", d)
			}
			time.Sleep(d.RetryAfter - time.Microsecond)
			if d = wait("b"); d.Allowed || d.RetryAfter != time.Microsecond {
				t.Fatalf("1 µs before: %+v", d)
			}
			time.Sleep(time.Microsecond)
			if d = wait("b"); !d.Allowed {
				t.Fatalf("at the retry: %+v", d)
			}
		}
		if d := wait("same"); d.Allowed || d.Never {
			t.Errorf("with windows that end at the same time: %+v", d)
		}
		if d := wait("apart"); d.Allowed || !d.Never || d.RetryAfter != 0 {
			t.Errorf("with windows that never end within the same second: %+v", d)
		}
		if d := wait("bucket"); d.Allowed || d.Never {
			t.Errorf("with a bucket: %+v", d)
		}
	}, "a=1"+window+"start=0s", "b=1/11s,algorithm=fixed_window,max_debt=5,start=3s", "same=1"+window+"start=0s", "apart=1"+window+"start=3s", "bucket=1/1s,burst=9")
}
