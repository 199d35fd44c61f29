package dipwell_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
)

// hangingStore never answers.
type hangingStore struct{}

func (hangingStore) Apply(ctx context.Context, _ *store.Batch) error {
	<-ctx.Done()
	return ctx.Err()
}

// TestWithNil checks that With of a nil store panics at once, with a text, rather than in
// a later call.
func TestWithNil(t *testing.T) {
	l, err := dipwell.New(hangingStore{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if got := recover(); got != "dipwell: Limiter.With: the store is nil" {
			t.Errorf("panic %v", got)
		}
	}()
	l.With(nil)
}

// TestWithKeepsTheTimeout checks that With applies timeouts to another store, although
// a store in memory needs none.
func TestWithKeepsTheTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, err := memstore.New(memstore.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer st.Close()
		l, err := dipwell.New(st, store.Limit{Name: "api", Rate: 1, Period: time.Hour, Timeout: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		if d, err := l.With(hangingStore{}).Take(ctx, "api", "k", 1); !errors.Is(err, store.ErrStore) || d.Allowed || time.Since(start) != time.Second {
			t.Errorf("after %v: %+v, %v", time.Since(start), d, err)
		}
	})
}

// TestWaitsLongerThanADuration checks that a wait beyond the range of Duration is not
// negative. It takes a clock that steps back by decades and a limit with a long debt.
func TestWaitsLongerThanADuration(t *testing.T) {
	now := time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
	st, err := memstore.New(memstore.Config{Clock: func() int64 { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	l, err := dipwell.New(st, store.Limit{Name: "slow", Rate: 1, Period: 365 * 24 * time.Hour, Burst: 1, MaxCharge: 280})
	if err != nil {
		t.Fatal(err)
	}
	if d, err := l.Charge(t.Context(), "slow", "k", 280); err != nil || d.ResetAfter < 279*365*24*time.Hour {
		t.Fatal(d, err)
	}
	now = 0
	for _, verb := range []store.Verb{store.VerbTake, store.VerbReserve} {
		var d dipwell.Decision
		if err := l.Do(t.Context(), &d, verb, dipwell.Take{Limit: "slow", Key: "k", Cost: 1}); err != nil || d.Allowed || d.RetryAfter <= 0 || d.ResetAfter <= 0 {
			t.Errorf("%v: retry after %v, reset after %v, %v", verb, d.RetryAfter, d.ResetAfter, err)
		}
	}
}

// TestShortestTimeoutOfSeveral checks that a call of several limits has the shortest
// of their timeouts.
func TestShortestTimeoutOfSeveral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := dipwell.New(hangingStore{},
			store.Limit{Name: "long", Rate: 1, Period: time.Hour, Timeout: 3 * time.Second},
			store.Limit{Name: "short", Rate: 1, Period: time.Hour, Timeout: time.Second},
			store.Limit{Name: "none", Rate: 1, Period: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		for _, names := range [][]string{{"long", "short", "none"}, {"none", "short", "long"}} {
			var takes []dipwell.Take
			for _, n := range names {
				takes = append(takes, dipwell.Take{Limit: n, Key: "k", Cost: 1})
			}
			start := time.Now()
			if d, err := l.TakeAll(t.Context(), takes...); !errors.Is(err, store.ErrStore) || d.Allowed || time.Since(start) != time.Second {
				t.Errorf("%v: after %v: %+v, %v", names, time.Since(start), d, err)
			}
		}
	})
}

// TestCallSites checks that at most 256 definitions of call sites differ, that those
// which compile to the same are one, and that none has a name.
func TestCallSites(t *testing.T) {
	st, err := memstore.New(memstore.Config{Clock: func() int64 { return 1e15 }})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	api := store.Limit{Name: "api", Rate: 1, Period: time.Hour, Burst: 10, Plans: store.NewPlans(store.Plan{Name: "pro", Rate: 2})}
	l, err := dipwell.New(st, api)
	if err != nil {
		t.Fatal(err)
	}
	site := store.Limit{Name: "api", Rate: 1, Period: time.Hour}
	for range 2 { // each has a row that names it
		for burst := int64(11); burst < 11+256; burst++ {
			key := fmt.Sprint("k", burst)
			site.Burst, site.MaxDebt = burst, 0
			if d, err := l.TakeWith(t.Context(), site, key, 1); err != nil || d.Capacity != burst || d.Plan != "" {
				t.Fatalf("a burst of %d: %+v, %v", burst, d, err)
			}
			site.MaxDebt = burst // the default
			if d, err := l.TakeWith(t.Context(), site, key, 1); err != nil || d.Capacity != burst {
				t.Fatalf("a burst of %d: %+v, %v", burst, d, err)
			}
		}
	}
	site.Burst, site.MaxDebt = 5, 0
	var bad *dipwell.FieldError
	if _, err = l.TakeWith(t.Context(), site, "k", 1); !errors.As(err, &bad) {
		t.Errorf("one more: %v", err)
	}
	site.Burst = 10
	if d, err := l.TakeWith(t.Context(), site, "k", 0); err != nil || d.Capacity != 10 {
		t.Errorf("the limit itself: %+v, %v", d, err)
	}
	site.Burst = 1 << 53
	if _, err = l.TakeWith(t.Context(), site, "k", 1); !errors.As(err, &bad) || bad.Field != "burst" {
		t.Errorf("no limit: %v", err)
	}
	var field *dipwell.FieldError
	if _, err = l.TakeAll(t.Context(), dipwell.Take{With: &api, Key: "k", Plan: "pro"}); !errors.As(err, &field) || field.Field != "takes[0].plan" {
		t.Errorf("with a named plan: %v", err)
	}
	for _, name := range []string{"#0", "#"} {
		if _, err = l.TakeAll(t.Context(), dipwell.Take{Limit: "api", Key: "k", Plan: name}); !errors.Is(err, store.ErrUnknownPlan) {
			t.Errorf("plan %s: %v", name, err)
		}
		if _, err = l.SetOverride(t.Context(), "api", dipwell.Override{Key: "k", Plan: name}); !errors.As(err, &field) || field.Field != "plan" {
			t.Errorf("an override of plan %s: %v", name, err)
		}
	}
	if d, err := l.Check(t.Context(), "api", "k", 10); err != nil || !d.Allowed {
		t.Errorf("something was taken: %+v, %v", d, err)
	}
}

// TestCallSitesKeepThePromise checks that callers who alternate between definitions of
// a limit get no more than the largest capacity.
func TestCallSitesKeepThePromise(t *testing.T) {
	st, err := memstore.New(memstore.Config{Clock: func() int64 { return 1e15 }})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	l, err := dipwell.New(st, store.Limit{Name: "api", Rate: 7, Period: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	var granted int64
	for i := range 300 {
		d, err := l.TakeWith(t.Context(), store.Limit{Name: "api", Rate: []int64{7, 60, 13}[i%3], Period: time.Hour}, "k", 1)
		if err != nil {
			t.Fatal(err)
		}
		granted += d.Granted
	}
	if granted != 60 {
		t.Errorf("%d were granted, want the largest burst, 60", granted)
	}
}
