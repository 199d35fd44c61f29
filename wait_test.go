package dipwell_test

import (
	"context"
	"errors"
	"sync"
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
