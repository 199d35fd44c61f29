package dipwell_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// A tableStore is a map of rows, holds and overrides with one lock, in virtual time.
type tableStore struct {
	epoch  time.Time
	limits store.Registry

	mu        sync.Mutex // guards what follows
	rows      map[[2]string]store.State
	records   map[[2]string][]store.Record
	overrides map[[2]string]*store.Override
	pending   map[store.Reservation]store.Pending
	holds     map[string]store.Hold
	fail      error // what Apply returns, if not nil
}

func (s *tableStore) now() int64 { return 1e15 + time.Since(s.epoch).Microseconds() }

func (s *tableStore) Apply(_ context.Context, b *store.Batch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail != nil {
		return s.fail
	}
	for i := range b.Groups {
		b.Groups[i].Err = b.Groups[i].DecideIn(s, &s.limits, s.now())
	}
	return nil
}

func (s *tableStore) Row(limit, key string) (store.State, error) {
	k := [2]string{limit, key}
	row := s.rows[k]
	row.Override = s.overrides[k]
	return row, nil
}

func (s *tableStore) SetRow(limit, key string, row store.State) error {
	s.rows[[2]string{limit, key}] = row
	return nil
}

func (s *tableStore) Record(limit, key string, id store.RecordID) (store.Record, error) {
	return store.FindRecord(s.records[[2]string{limit, key}], id), nil
}

func (s *tableStore) Records(limit, key string) ([]store.Record, error) {
	return s.records[[2]string{limit, key}], nil
}

func (s *tableStore) SetRecord(limit, key string, id store.RecordID, r store.Record) error {
	s.records[[2]string{limit, key}] = store.ReplaceRecord(s.records[[2]string{limit, key}], id, r)
	return nil
}

func (s *tableStore) Pending(id store.Reservation) (store.Pending, error) { return s.pending[id], nil }

func (s *tableStore) SetPending(id store.Reservation, h store.Pending) error {
	s.pending[id] = h
	return nil
}

func (s *tableStore) SetOverride(limit, key string, o *store.Override) error {
	s.overrides[[2]string{limit, key}] = o
	return nil
}

func (s *tableStore) Hold(id string) (store.Hold, error) { return s.holds[id], nil }

func (s *tableStore) SetHold(id string, h store.Hold) error {
	s.holds[id] = h
	return nil
}

func (s *tableStore) Live(limit, key string, now int64) (int, error) {
	return len(s.records[[2]string{limit, key}]) + store.CountFree(s.holds, limit, key, now), nil
}

func (s *tableStore) Registry() *store.Registry { return &s.limits }

func (s *tableStore) Define(_ context.Context, l store.Limit, owner string) (*store.Definition, error) {
	return s.limits.Define(s.now(), l, owner)
}

func (s *tableStore) Drop(_ context.Context, name, owner string) error {
	return s.limits.Drop(name, owner)
}

func (s *tableStore) Abilities() store.Abilities {
	return store.Abilities{Store: s, Limits: s, Overrides: tableOverrides{s},
		Now: func(context.Context) (int64, error) { return s.now(), nil },
		Holds: func(_ context.Context, d *store.Definition, key string) ([]store.KeyHold, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			return store.KeyHolds(s.records[[2]string{d.Name, key}], s.now()), nil
		}}
}

type tableOverrides struct{ s *tableStore }

func (t tableOverrides) SetOverride(_ context.Context, d *store.Definition, o store.Override) (store.Override, error) {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	return d.SetOverrideIn(t.s, o.Key, o, t.s.now())
}

func (t tableOverrides) EndOverride(_ context.Context, d *store.Definition, key string, kind store.OverrideKind) (*store.Override, error) {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	return d.EndOverrideIn(t.s, key, kind, t.s.now())
}

func (t tableOverrides) Overrides(_ context.Context, d *store.Definition, prefix, after string, n int) (list []store.Override, err error) {
	for k, o := range t.s.overrides {
		if k[0] == d.Name && o != nil && strings.HasPrefix(k[1], prefix) && k[1] > after && len(list) < n {
			list = append(list, *o)
		}
	}
	return list, nil
}

// withHolds runs f in virtual time with limits of tokens, calls and slots.
func withHolds(t *testing.T, f func(t *testing.T, l *dipwell.Limiter, st *tableStore), more ...dipwell.Limit) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		st := &tableStore{epoch: time.Now(), rows: map[[2]string]store.State{}, records: map[[2]string][]store.Record{},
			overrides: map[[2]string]*store.Override{}, pending: map[store.Reservation]store.Pending{}, holds: map[string]store.Hold{}}
		l, err := dipwell.New(st, append([]dipwell.Limit{
			{Name: "tokens", Rate: 100, Period: time.Hour, Plans: dipwell.NewPlans(
				dipwell.Plan{Name: "pro", Rate: 200}, dipwell.Plan{Name: "staff", Mode: dipwell.Unlimited},
				dipwell.Plan{Name: "banned", Mode: dipwell.Blocked, OverrideOnly: true})},
			{Name: "calls", Rate: 3, Period: time.Hour, TTL: time.Minute},
			{Name: "everybody", Rate: 3, Period: time.Hour, Shared: true, Plans: dipwell.NewPlans(dipwell.Plan{Name: "staff", Mode: dipwell.Unlimited})},
			{Name: "slots", Algorithm: dipwell.Concurrency, Burst: 2},
			{Name: "leaky", Rate: 1, Period: time.Second, Algorithm: dipwell.LeakyBucket, MaxDebt: 9},
			{Name: "open", Rate: 5, Period: time.Hour, OnStoreError: dipwell.FailOpen},
		}, more...)...)
		if err != nil {
			t.Fatal(err)
		}
		f(t, l, st)
	})
}

func take(limit, key string, n int64) dipwell.Take {
	return dipwell.Take{Limit: limit, Key: key, Cost: n}
}

// remaining is what a Check of 0 says.
func remaining(t *testing.T, l *dipwell.Limiter, limit, key string) int64 {
	t.Helper()
	d, err := l.Check(t.Context(), limit, key, 0)
	if err != nil {
		t.Fatal(err)
	}
	if d.Limits != nil { // with its parents
		return d.Limits[0].Remaining
	}
	return d.Remaining
}

// TestSettleBesideDropped checks the errors of Settle and Extend of a hold that has a
// dropped limit.
func TestSettleBesideDropped(t *testing.T) {
	withHolds(t, func(t *testing.T, l *dipwell.Limiter, _ *tableStore) {
		if d, err := l.Hold(t.Context(), time.Minute, "h", take("tokens", "k", 60), take("calls", "k", 1)); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		if err := l.Drop(t.Context(), "tokens", store.OwnerCode); err != nil {
			t.Fatal(err)
		}
		var field *dipwell.FieldError
		if _, err := l.Extend(t.Context(), "h", time.Hour); !errors.As(err, &field) || field.Field != "ttl" {
			t.Errorf("longer than the ttl of calls: %v", err)
		}
		if d, err := l.Settle(t.Context(), "h", 50, 1); err != nil || d.Limit != "calls" || d.Limits != nil {
			t.Errorf("%+v, %v", d, err)
		}
		if _, err := l.Settle(t.Context(), "h", 40, 1); !errors.Is(err, dipwell.ErrHoldConflict) {
			t.Errorf("settled to other costs: %v", err)
		}
	})
}

func TestHoldAndSettle(t *testing.T) {
	withHolds(t, func(t *testing.T, l *dipwell.Limiter, _ *tableStore) {
		d, err := l.Hold(t.Context(), time.Minute, "req-81", take("tokens", "acme", 60))
		if err != nil || !d.Allowed || d.Hold != "req-81" || d.Granted != 60 || d.Remaining != 40 || d.Limits != nil || !d.Expires.Equal(time.UnixMicro(1e15).Add(time.Minute)) {
			t.Errorf("%+v, %v", d, err)
		}
		if d, err = l.Hold(t.Context(), time.Minute, "req-81", take("tokens", "acme", 60)); err != nil || !d.Allowed || !d.Repeated || d.Remaining != 40 {
			t.Errorf("a repeat: %+v, %v", d, err)
		}
		if _, err = l.Hold(t.Context(), time.Minute, "req-81", take("tokens", "acme", 61)); !errors.Is(err, dipwell.ErrHoldConflict) || errors.Is(err, dipwell.ErrStore) {
			t.Errorf("another call: %v", err)
		}
		if d, err = l.Hold(t.Context(), time.Minute, "", take("tokens", "acme", 41)); err != nil || d.Allowed || d.Hold != "" || !d.RetryIsBound {
			t.Errorf("41 of 40: %+v, %v", d, err)
		}
		if list, err := l.Holds(t.Context(), "tokens", "acme"); err != nil || len(list) != 1 || list[0].ID != "req-81" || list[0].Tokens != 60 {
			t.Errorf("%+v, %v", list, err)
		}
		time.Sleep(30 * time.Second)
		if d, err = l.Extend(t.Context(), "req-81", 2*time.Minute); err != nil || !d.Allowed || !d.Expires.Equal(time.UnixMicro(1e15).Add(150*time.Second)) {
			t.Errorf("extended: %+v, %v", d, err)
		}
		time.Sleep(time.Minute)
		if d, err = l.Settle(t.Context(), "req-81", 20); err != nil || !d.Allowed || d.Limit != "tokens" || d.Cost != 20 || d.Remaining != 82 || d.Hold != "req-81" {
			t.Errorf("settled: %+v, %v", d, err) // 2.5 come back in 90 s
		}
		if d, err = l.Settle(t.Context(), "req-81", 20); err != nil || !d.Repeated {
			t.Errorf("settled again: %+v, %v", d, err)
		}
		if _, err = l.Settle(t.Context(), "req-81", 21); !errors.Is(err, dipwell.ErrHoldConflict) {
			t.Errorf("settled to another cost: %v", err)
		}
		if _, err = l.Extend(t.Context(), "req-81", time.Minute); !errors.Is(err, dipwell.ErrHoldConflict) {
			t.Errorf("extended after its end: %v", err)
		}
		if _, err = l.Settle(t.Context(), "req-82"); !errors.Is(err, dipwell.ErrUnknownHold) || errors.Is(err, dipwell.ErrStore) {
			t.Errorf("an unknown hold: %v", err)
		}
	})
}

// TestHoldOfSeveralLimits checks one hold of a limit with a parent and of slots.
func TestHoldOfSeveralLimits(t *testing.T) {
	withHolds(t, func(t *testing.T, l *dipwell.Limiter, _ *tableStore) {
		takes := []dipwell.Take{take("user", "acme/u7", 30), take("slots", "acme", 1)}
		d, err := l.Hold(t.Context(), time.Minute, "", takes...)
		if err != nil || !d.Allowed || len(d.Hold) != 36 || len(d.Limits) != 3 || d.Limits[0].Limit != "user" || d.Limits[1].Limit != "slots" || d.Limits[2].Limit != "tenant" {
			t.Fatalf("%+v, %v", d, err)
		}
		if got := remaining(t, l, "tenant", "acme"); got != 20 {
			t.Errorf("tenant has %d left, want 20", got)
		}
		if d, err := l.Hold(t.Context(), time.Minute, "", takes...); err != nil || d.Allowed || d.Limit != "tenant" {
			t.Errorf("a second one: %+v, %v", d, err)
		}
		if _, err := l.Settle(t.Context(), d.Hold, 10); err == nil || !strings.Contains(err.Error(), "costs") {
			t.Errorf("one cost of two: %v", err)
		}
		if d, err = l.Settle(t.Context(), d.Hold, 10, 1); err != nil || !d.Allowed || len(d.Limits) != 3 {
			t.Errorf("%+v, %v", d, err)
		}
		for limit, want := range map[string]int64{"user": 90, "tenant": 40, "slots": 2} {
			if got := remaining(t, l, limit, map[bool]string{true: "acme/u7", false: "acme"}[limit == "user"]); got != want {
				t.Errorf("%s has %d left, want %d", limit, got, want)
			}
		}
	}, dipwell.Limit{Name: "user", Rate: 100, Period: time.Hour, Parent: "tenant"}, dipwell.Limit{Name: "tenant", Rate: 50, Period: time.Hour, Parts: 1})
}

func TestHoldErrors(t *testing.T) {
	withHolds(t, func(t *testing.T, l *dipwell.Limiter, st *tableStore) {
		for name, c := range map[string]struct {
			ttl   time.Duration
			id    string
			takes []dipwell.Take
			field string
		}{
			"no takes":             {time.Minute, "", nil, "takes"},
			"ttl 0":                {0, "", []dipwell.Take{take("tokens", "k", 1)}, "ttl"},
			"a negative ttl":       {-time.Second, "", []dipwell.Take{take("tokens", "k", 1)}, "ttl"},
			"a year":               {365 * 24 * time.Hour, "", []dipwell.Take{take("tokens", "k", 1)}, "ttl"},
			"longer than one TTL":  {2 * time.Minute, "", []dipwell.Take{take("tokens", "k", 1), take("calls", "k", 1)}, "ttl"},
			"an id of 65 bytes":    {time.Minute, strings.Repeat("x", 65), []dipwell.Take{take("tokens", "k", 1)}, "id"},
			"an id with a space":   {time.Minute, "a b", []dipwell.Take{take("tokens", "k", 1)}, "id"},
			"a leaky bucket":       {time.Minute, "", []dipwell.Take{take("leaky", "k", 1)}, "limit"},
			"a negative cost":      {time.Minute, "", []dipwell.Take{take("tokens", "k", -1)}, "cost"},
			"an empty key":         {time.Minute, "", []dipwell.Take{take("tokens", "k", 1), take("calls", "", 1)}, "takes[1].key"},
			"an unknown plan":      {time.Minute, "", []dipwell.Take{{Limit: "tokens", Key: "k", Plan: "por"}}, "plan"},
			"a plan of overrides":  {time.Minute, "", []dipwell.Take{{Limit: "tokens", Key: "k", Plan: "banned"}}, "plan"},
			"a negative floor":     {time.Minute, "", []dipwell.Take{{Limit: "tokens", Key: "k", Floor: -1}}, "floor"},
			"two plans of one key": {time.Minute, "", []dipwell.Take{{Limit: "tokens", Key: "k", Plan: "pro"}, take("tokens", "k", 1)}, "takes[1].plan"},
		} {
			var field *dipwell.FieldError
			if d, err := l.Hold(t.Context(), c.ttl, c.id, c.takes...); !errors.As(err, &field) || field.Field != c.field || d.Allowed || errors.Is(err, dipwell.ErrStore) {
				t.Errorf("%s: %v, want %s", name, err, c.field)
			}
		}
		if len(st.rows) != 0 || len(st.holds) != 0 {
			t.Errorf("rows %v, holds %v", st.rows, st.holds)
		}
		if _, err := l.Hold(t.Context(), time.Minute, "", take("nobody", "k", 1)); !errors.Is(err, dipwell.ErrUnknownLimit) {
			t.Errorf("an unknown limit: %v", err)
		}
		for _, cost := range []int64{-1, store.MaxInt + 1, 61} {
			d, err := l.Hold(t.Context(), time.Minute, "h", take("calls", "k", 1))
			if err != nil {
				t.Fatal(d, err)
			}
			var field *dipwell.FieldError
			if _, err = l.Settle(t.Context(), "h", cost); !errors.As(err, &field) || field.Field != "cost" {
				t.Errorf("settled to %d: %v", cost, err)
			}
		}
		if _, err := l.Hold(t.Context(), time.Minute, "c", take("calls", "k", 1)); err != nil {
			t.Fatal(err)
		}
		var field *dipwell.FieldError
		if _, err := l.Extend(t.Context(), "c", 2*time.Minute); !errors.As(err, &field) || field.Field != "ttl" {
			t.Errorf("extended beyond the limit's TTL: %v", err)
		}
		d, err := l.Take(t.Context(), "slots", "k", 1)
		if !errors.As(err, &field) || field.Field != "limit" || d.Allowed {
			t.Errorf("a Take of a slot: %+v, %v", d, err)
		}
		if _, err = l.Wait(t.Context(), "slots", "k", 1); !errors.As(err, &field) || field.Field != "limit" {
			t.Errorf("a Wait for a slot: %v", err)
		}
	})
}

// noHolds is a store without holds and overrides.
type noHolds struct{ *tableStore }

func (s noHolds) Abilities() store.Abilities {
	ab := s.tableStore.Abilities()
	ab.Store, ab.Holds, ab.Overrides = s, nil, nil
	return ab
}

// TestStoreWithoutHolds checks that what a store cannot do is an error, and takes nothing.
func TestStoreWithoutHolds(t *testing.T) {
	withHolds(t, func(t *testing.T, l *dipwell.Limiter, st *tableStore) {
		l = l.With(noHolds{st})
		ran := false
		_, err1 := l.Hold(t.Context(), time.Minute, "", take("tokens", "k", 1))
		_, err2 := l.Settle(t.Context(), "h")
		_, err3 := l.Extend(t.Context(), "h", time.Minute)
		_, err4 := l.Holds(t.Context(), "tokens", "k")
		_, err5 := l.Holding(t.Context(), time.Minute, []dipwell.Take{take("tokens", "k", 1)}, func(context.Context) ([]int64, error) { ran = true; return nil, nil })
		_, err6 := l.SetOverride(t.Context(), "tokens", dipwell.Override{Key: "k", Rate: 1})
		_, err7 := l.EndOverride(t.Context(), "tokens", "k", dipwell.AnyOverride)
		_, err8 := l.Overrides(t.Context(), "tokens", "", "", 10)
		for i, err := range []error{err1, err2, err3, err4, err5, err6, err7, err8} {
			if !errors.Is(err, store.ErrNotSupported) {
				t.Errorf("call %d: %v", i+1, err)
			}
		}
		if ran || len(st.rows) != 0 {
			t.Errorf("ran %v, rows %v", ran, st.rows)
		}
	})
}

// TestHoldWhenTheStoreFails checks that the failure modes decide, without a hold, and
// that a conflict is no failure of the store.
func TestHoldWhenTheStoreFails(t *testing.T) {
	withHolds(t, func(t *testing.T, l *dipwell.Limiter, st *tableStore) {
		if _, err := l.Hold(t.Context(), time.Minute, "h", take("open", "k", 1)); err != nil {
			t.Fatal(err)
		}
		if d, err := l.Hold(t.Context(), time.Minute, "h", take("open", "k", 2)); !errors.Is(err, dipwell.ErrHoldConflict) || d.Allowed {
			t.Errorf("another call with the id: %+v, %v", d, err)
		}
		st.fail = errors.New("gone")
		if d, err := l.Hold(t.Context(), time.Minute, "", take("open", "k", 1)); err != nil || !d.Allowed || d.Hold != "" || d.Source != store.SourceFallbackOpen {
			t.Errorf("open: %+v, %v", d, err)
		}
		if d, err := l.Hold(t.Context(), time.Minute, "", take("open", "k", 1), take("calls", "k", 1)); !errors.Is(err, dipwell.ErrStore) || d.Allowed || d.Hold != "" {
			t.Errorf("open and closed: %+v, %v", d, err)
		}
		if d, err := l.Settle(t.Context(), "h", 1); !errors.Is(err, dipwell.ErrStore) || d.Allowed {
			t.Errorf("Settle: %+v, %v", d, err)
		}
		ran := false
		d, err := l.Holding(t.Context(), time.Minute, []dipwell.Take{take("open", "k", 1)}, func(context.Context) ([]int64, error) { ran = true; return []int64{1}, nil })
		if err != nil || !d.Allowed || !ran {
			t.Errorf("Holding: %+v, %v, ran %v", d, err, ran)
		}
	})
}

func TestHolding(t *testing.T) {
	failed := errors.New("failed")
	for name, c := range map[string]struct {
		run       func(ctx context.Context) ([]int64, error)
		err       error
		remaining int64 // of 100
		panics    bool
	}{
		"less":          {func(context.Context) ([]int64, error) { return []int64{20, 1}, nil }, nil, 80, false},
		"more":          {func(context.Context) ([]int64, error) { return []int64{70, 1}, nil }, nil, 30, false},
		"as held":       {func(context.Context) ([]int64, error) { return nil, nil }, nil, 60, false},
		"an error":      {func(context.Context) ([]int64, error) { return []int64{0, 0}, failed }, failed, 100, false},
		"a panic":       {func(context.Context) ([]int64, error) { panic("oh") }, nil, 60, true},
		"wrong costs":   {func(context.Context) ([]int64, error) { return []int64{1}, nil }, &dipwell.FieldError{}, 60, false},
		"a slow one":    {func(context.Context) ([]int64, error) { time.Sleep(10 * time.Second); return []int64{20, 1}, nil }, nil, 80, false},
		"a dead caller": {func(ctx context.Context) ([]int64, error) { <-ctx.Done(); return []int64{10, 1}, ctx.Err() }, context.DeadlineExceeded, 90, false},
	} {
		t.Run(name, func(t *testing.T) {
			withHolds(t, func(t *testing.T, l *dipwell.Limiter, _ *tableStore) {
				ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
				defer cancel()
				d, err, panicked := dipwell.Decision{}, error(nil), false
				func() {
					defer func() { panicked = recover() != nil }()
					d, err = l.Holding(ctx, 6*time.Second, []dipwell.Take{take("tokens", "k", 40), take("slots", "k", 1)}, c.run)
				}()
				var field *dipwell.FieldError
				if panicked != c.panics || !c.panics && !d.Allowed || c.err != nil && !errors.As(c.err, &field) && !errors.Is(err, c.err) || errors.As(c.err, &field) && !errors.As(err, &field) || c.err == nil && err != nil {
					t.Errorf("%+v, %v, panicked %v", d, err, panicked)
				}
				if got := remaining(t, l, "tokens", "k"); got != c.remaining {
					t.Errorf("%d left, want %d", got, c.remaining)
				}
				if got := remaining(t, l, "slots", "k"); got != 2 {
					t.Errorf("%d slots are free, want 2", got)
				}
			})
		})
	}
}

// TestHoldingRefusedCosts checks that work whose costs cannot be settled is charged what
// was held, and not given back when the hold expires.
func TestHoldingRefusedCosts(t *testing.T) {
	for _, costs := range [][]int64{{1}, {1, 1, 1}, {-1, 1}, {1 << 53, 1}, {1 << 40, 1}} {
		withHolds(t, func(t *testing.T, l *dipwell.Limiter, _ *tableStore) {
			d, err := l.Holding(t.Context(), time.Minute, []dipwell.Take{take("tokens", "k", 40), take("slots", "k", 1)},
				func(context.Context) ([]int64, error) { return costs, nil })
			var field *dipwell.FieldError
			if !d.Allowed || !errors.As(err, &field) || !strings.Contains(field.Field, "cost") {
				t.Errorf("%v: %+v, %v", costs, d, err)
			}
			if held, slots := remaining(t, l, "tokens", "k"), remaining(t, l, "slots", "k"); held != 60 || slots != 2 {
				t.Errorf("%v: %d tokens and %d slots left", costs, held, slots)
			}
			if live, err := l.Holds(t.Context(), "tokens", "k"); err != nil || len(live) != 0 {
				t.Errorf("%v: live holds %v, %v", costs, live, err)
			}
		})
	}
}

// TestHoldingRefused checks that a refused hold does not run, and has no error.
func TestHoldingRefused(t *testing.T) {
	withHolds(t, func(t *testing.T, l *dipwell.Limiter, _ *tableStore) {
		slot := []dipwell.Take{take("slots", "k", 1)}
		run := func(ctx context.Context) ([]int64, error) { time.Sleep(time.Minute); return nil, nil }
		for range 2 {
			go func() { _, _ = l.Holding(t.Context(), 3*time.Second, slot, run) }()
		}
		synctest.Wait()
		for range 10 { // they are extended
			time.Sleep(3 * time.Second)
			d, err := l.Holding(t.Context(), 3*time.Second, slot, func(context.Context) ([]int64, error) { t.Error("a third one runs"); return nil, nil })
			if err != nil || d.Allowed || !d.RetryIsBound || d.RetryAfter <= 0 || d.RetryAfter > 3*time.Second {
				t.Errorf("%+v, %v", d, err)
			}
		}
		time.Sleep(time.Minute)
		if d, err := l.Holding(t.Context(), 3*time.Second, slot, run); err != nil || !d.Allowed {
			t.Errorf("after they have ended: %+v, %v", d, err)
		}
	})
}

// TestHoldingOfALostHold checks that run is told if its hold was reset.
func TestHoldingOfALostHold(t *testing.T) {
	withHolds(t, func(t *testing.T, l *dipwell.Limiter, _ *tableStore) {
		_, err := l.Holding(t.Context(), 3*time.Second, []dipwell.Take{take("slots", "k", 1)}, func(ctx context.Context) ([]int64, error) {
			if _, err := l.Reset(t.Context(), "slots", "k"); err != nil {
				t.Error(err)
			}
			<-ctx.Done()
			return nil, context.Cause(ctx)
		})
		if !errors.Is(err, dipwell.ErrHoldConflict) {
			t.Error(err)
		}
	})
}

// TestPlansAndFloors checks the plan and the floor of a Take with each verb.
func TestPlansAndFloors(t *testing.T) {
	withHolds(t, func(t *testing.T, l *dipwell.Limiter, _ *tableStore) {
		do := func(verb store.Verb, n int64, plan string, floor int64) (d dipwell.Decision, err error) {
			err = l.Do(t.Context(), &d, verb, dipwell.Take{Limit: "tokens", Key: "k", Cost: n, Plan: plan, Floor: floor})
			return
		}
		if d, err := do(store.VerbTake, 80, "", 30); err != nil || d.Allowed || !d.Never || d.Remaining != 100 {
			t.Errorf("a floor of 30 beside 80 of 100: %+v, %v", d, err)
		}
		if d, err := do(store.VerbTake, 70, "", 30); err != nil || !d.Allowed || d.Remaining != 30 || d.Plan != "" {
			t.Errorf("%+v, %v", d, err)
		}
		if d, err := do(store.VerbTake, 1, "", 30); err != nil || d.Allowed || d.RetryAfter != 36*time.Second {
			t.Errorf("the floor is reached: %+v, %v", d, err)
		}
		if d, err := do(store.VerbTake, 100, "pro", 0); err != nil || !d.Allowed || d.Plan != "pro" || d.Capacity != 200 || d.Remaining != 30 || d.Limits != nil {
			t.Errorf("%+v, %v", d, err)
		}
		if d, err := do(store.VerbTakeUpTo, 1000, "pro", 0); err != nil || !d.Allowed || d.Granted != 30 {
			t.Errorf("%+v, %v", d, err)
		}
		if d, err := do(store.VerbReserve, 1, "pro", 0); err != nil || !d.Allowed || d.Delay != 18*time.Second || d.Reservation == (dipwell.Reservation{}) {
			t.Errorf("%+v, %v", d, err)
		}
		for _, verb := range []store.Verb{store.VerbTake, store.VerbCheck, store.VerbTakeUpTo, store.VerbReserve} {
			if d, err := do(verb, 1000, "staff", 0); err != nil || !d.Allowed || d.Plan != "staff" || d.Capacity != store.MaxInt || d.Remaining != store.MaxInt || d.Delay != 0 {
				t.Errorf("%s without a limit: %+v, %v", verb, d, err)
			}
		}
		var field *dipwell.FieldError
		_, err := do(store.VerbTake, 1, "por", 0)
		if !errors.As(err, &field) || field.Field != "plan" || !errors.Is(err, store.ErrUnknownPlan) {
			t.Errorf("an unknown plan: %v", err)
		}
		if _, err = do(store.VerbTake, 1, "banned", 0); !errors.As(err, &field) || field.Field != "plan" || errors.Is(err, store.ErrUnknownPlan) {
			t.Errorf("a plan of overrides alone: %v", err)
		}
		for _, verb := range []store.Verb{store.VerbCharge, store.VerbRefund, store.VerbReset} {
			if _, err = do(verb, 1, "pro", 0); !errors.As(err, &field) || field.Field != "plan" {
				t.Errorf("%s with a plan: %v", verb, err)
			}
		}
		for _, verb := range []store.Verb{store.VerbTakeUpTo, store.VerbReserve, store.VerbCharge, store.VerbRefund, store.VerbReset} {
			if _, err = do(verb, 1, "", 1); !errors.As(err, &field) || field.Field != "floor" {
				t.Errorf("%s with a floor: %v", verb, err)
			}
		}
		if err = l.Do(t.Context(), new(dipwell.Decision), store.VerbTake, dipwell.Take{Limit: "calls", Key: "k", Plan: "pro"}); !errors.Is(err, store.ErrUnknownPlan) {
			t.Errorf("a plan of another limit: %v", err)
		}
	})
}

func TestOverrides(t *testing.T) {
	withHolds(t, func(t *testing.T, l *dipwell.Limiter, _ *tableStore) {
		o, err := l.SetOverride(t.Context(), "tokens", dipwell.Override{Key: "acme", Plan: "banned", Note: "ticket 81", Until: 1e15 + time.Hour.Microseconds()})
		if err != nil || o.ID == 0 || o.Note != "ticket 81" {
			t.Fatal(o, err)
		}
		if d, err := l.Take(t.Context(), "tokens", "acme", 1); err != nil || d.Allowed || d.Plan != "banned" || d.RetryAfter != time.Hour {
			t.Errorf("%+v, %v", d, err)
		}
		if list, err := l.Overrides(t.Context(), "tokens", "", "", 10); err != nil || len(list) != 1 || list[0].Key != "acme" {
			t.Errorf("%+v, %v", list, err)
		}
		if ended, err := l.EndOverride(t.Context(), "tokens", "acme", dipwell.AnyOverride); err != nil || ended == nil {
			t.Error(ended, err)
		}
		if d, err := l.Take(t.Context(), "tokens", "acme", 1); err != nil || !d.Allowed || d.Plan != "" {
			t.Errorf("%+v, %v", d, err)
		}
		if _, err = l.SetOverride(t.Context(), "everybody", dipwell.Override{Key: dipwell.Shared, Plan: "staff"}); err != nil {
			t.Error(err)
		}
		if d, err := l.Take(t.Context(), "everybody", dipwell.Shared, 1000); err != nil || !d.Allowed || d.Plan != "staff" || d.Capacity != store.MaxInt {
			t.Errorf("%+v, %v", d, err)
		}
		for name, bad := range map[string]dipwell.Override{
			"key": {Key: strings.Repeat("k", 513), Plan: "pro"}, "plan": {Key: "k", Plan: "por"}, "until": {Key: "k", Plan: "pro", Until: 1}, "burst": {Key: "k", Burst: store.MaxInt},
		} {
			var field *dipwell.FieldError
			if _, err := l.SetOverride(t.Context(), "tokens", bad); !errors.As(err, &field) || field.Field != name {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, err = l.SetOverride(t.Context(), "nobody", dipwell.Override{Key: "k", Plan: "pro"}); !errors.Is(err, dipwell.ErrUnknownLimit) {
			t.Error(err)
		}
	})
}

// TestHoldingAfterItsContext checks that the hold of a run that outlives its context is
// extended until run returns.
func TestHoldingAfterItsContext(t *testing.T) {
	withHolds(t, func(t *testing.T, l *dipwell.Limiter, _ *tableStore) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := l.Holding(ctx, 3*time.Second, []dipwell.Take{take("slots", "k", 1)}, func(context.Context) ([]int64, error) {
			time.Sleep(time.Minute)
			if live, err := l.Holds(t.Context(), "slots", "k"); err != nil || len(live) != 1 {
				t.Errorf("live holds while run works: %v, %v", live, err)
			}
			return nil, nil
		})
		if err != nil {
			t.Error(err)
		}
		if got := remaining(t, l, "slots", "k"); got != 2 {
			t.Errorf("%d slots are free, want 2", got)
		}
	})
}

// A stuckOnce store does not answer the first Extend.
type stuckOnce struct {
	*tableStore
	stuck atomic.Bool
}

func (s *stuckOnce) Abilities() store.Abilities {
	ab := s.tableStore.Abilities()
	ab.Store = s
	return ab
}

func (s *stuckOnce) Apply(ctx context.Context, b *store.Batch) error {
	if h := b.Groups[0].Hold; h != nil && h.Verb == store.ExtendHold && !s.stuck.Swap(true) {
		<-ctx.Done()
		return ctx.Err()
	}
	return s.tableStore.Apply(ctx, b)
}

// TestHoldingWithAStuckExtend checks that an Extend without an answer does not keep the
// next ones from being sent.
func TestHoldingWithAStuckExtend(t *testing.T) {
	withHolds(t, func(t *testing.T, l *dipwell.Limiter, st *tableStore) {
		l = l.With(&stuckOnce{tableStore: st})
		_, err := l.Holding(t.Context(), time.Minute, []dipwell.Take{take("slots", "k", 1)}, func(context.Context) ([]int64, error) {
			time.Sleep(10 * time.Minute)
			if live, err := l.Holds(t.Context(), "slots", "k"); err != nil || len(live) != 1 {
				t.Errorf("live holds while run works: %v, %v", live, err)
			}
			return nil, nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// TestHoldingUnderALowerTTL checks that the hold lives on if a limit's TTL is lowered
// while run works.
func TestHoldingUnderALowerTTL(t *testing.T) {
	withHolds(t, func(t *testing.T, l *dipwell.Limiter, _ *tableStore) {
		_, err := l.Holding(t.Context(), time.Minute, []dipwell.Take{take("slots", "k", 1)}, func(ctx context.Context) ([]int64, error) {
			if _, err := l.Define(ctx, dipwell.Limit{Name: "slots", Algorithm: dipwell.Concurrency, Burst: 2, TTL: 10 * time.Second}, store.OwnerCode); err != nil {
				t.Error(err)
			}
			time.Sleep(10 * time.Minute)
			if live, err := l.Holds(ctx, "slots", "k"); err != nil || len(live) != 1 || ctx.Err() != nil {
				t.Errorf("live holds while run works: %v, %v, %v", live, err, context.Cause(ctx))
			}
			return nil, nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// A briefly failing store does not answer the first Settle, and fails the second.
type brieflyFailing struct {
	*tableStore
	settles, cancels atomic.Int64
}

func (s *brieflyFailing) Abilities() store.Abilities {
	ab := s.tableStore.Abilities()
	ab.Store = s
	return ab
}

func (s *brieflyFailing) Apply(ctx context.Context, b *store.Batch) error {
	switch g := &b.Groups[0]; {
	case g.Cancel && s.cancels.Add(1) <= 2:
		return store.ErrStore
	case g.Hold != nil && g.Hold.Verb == store.SettleHold:
		switch s.settles.Add(1) {
		case 1:
			<-ctx.Done()
			return errors.Join(store.ErrOutcomeUnknown, ctx.Err())
		case 2:
			return store.ErrStore
		}
	}
	return s.tableStore.Apply(ctx, b)
}

// TestHoldingWhileTheStoreFails checks that Holding settles again if the store fails
// briefly after run has returned.
func TestHoldingWhileTheStoreFails(t *testing.T) {
	withHolds(t, func(t *testing.T, l *dipwell.Limiter, st *tableStore) {
		failing := l.With(&brieflyFailing{tableStore: st})
		began := time.Now()
		_, err := failing.Holding(t.Context(), 15*time.Second, []dipwell.Take{take("tokens", "k", 40)}, func(context.Context) ([]int64, error) {
			return []int64{30}, nil
		})
		if took := time.Since(began); err != nil || took > 10*time.Second {
			t.Errorf("%v after %v", err, took)
		}
		if got := remaining(t, l, "tokens", "k"); got != 70 {
			t.Errorf("%d tokens left, want 70", got)
		}
	})
}

// TestEndedWaitWhileTheStoreFails checks that the reservation of a wait that ends is
// cancelled again if the store fails briefly.
func TestEndedWaitWhileTheStoreFails(t *testing.T) {
	withHolds(t, func(t *testing.T, l *dipwell.Limiter, st *tableStore) {
		failing := l.With(&brieflyFailing{tableStore: st})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		time.AfterFunc(time.Minute, cancel)
		if d, err := failing.Wait(ctx, "debt", "k", 8); !errors.Is(err, context.Canceled) {
			t.Errorf("%+v, %v", d, err)
		}
		time.Sleep(time.Second)
		if got := remaining(t, l, "debt", "k"); got != 5 {
			t.Errorf("%d tokens left, want 5", got)
		}
	}, dipwell.Limit{Name: "debt", Rate: 1, Period: time.Hour, Burst: 5, MaxDebt: 5})
}

// A cutOff store decides some calls only after their context has ended, which get
// store.ErrOutcomeUnknown.
type cutOff struct {
	*tableStore
	cuts func(g *store.Group) bool
}

func (s cutOff) Abilities() store.Abilities {
	ab := s.tableStore.Abilities()
	ab.Store = s
	return ab
}

func (s cutOff) Apply(ctx context.Context, b *store.Batch) error {
	g := &b.Groups[0]
	if !s.cuts(g) {
		return s.tableStore.Apply(ctx, b)
	}
	late := store.Group{Ops: append([]store.Op(nil), g.Ops...), ID: g.ID}
	if g.Hold != nil {
		h := *g.Hold
		late.Hold = &h
	}
	<-ctx.Done()
	time.AfterFunc(time.Second, func() {
		_ = s.tableStore.Apply(context.Background(), &store.Batch{Groups: []store.Group{late}})
	})
	return errors.Join(store.ErrOutcomeUnknown, ctx.Err())
}

// TestLostHold checks that what a hold has taken is given back if its answer was lost and
// nobody knows its id.
func TestLostHold(t *testing.T) {
	takes := []dipwell.Take{take("slots", "k", 1), take("tokens", "k", 40)}
	for name, hold := range map[string]func(ctx context.Context, l *dipwell.Limiter) error{
		"Hold": func(ctx context.Context, l *dipwell.Limiter) error {
			_, err := l.Hold(ctx, time.Hour, "", takes...)
			return err
		},
		"Holding": func(ctx context.Context, l *dipwell.Limiter) error {
			_, err := l.Holding(ctx, time.Hour, takes, func(context.Context) ([]int64, error) { t.Error("runs"); return nil, nil })
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			withHolds(t, func(t *testing.T, l *dipwell.Limiter, st *tableStore) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				cut := l.With(cutOff{st, func(g *store.Group) bool { return g.Hold != nil && g.Hold.Verb == store.MakeHold }})
				if err := hold(ctx, cut); !errors.Is(err, store.ErrOutcomeUnknown) {
					t.Error(err)
				}
				time.Sleep(15 * time.Second)
				synctest.Wait()
				if slots, tokens := remaining(t, l, "slots", "k"), remaining(t, l, "tokens", "k"); slots != 2 || tokens != 100 {
					t.Errorf("%d slots and %d tokens left, want 2 and 100", slots, tokens)
				}
			})
		})
	}
}

// TestLostWait checks that what a wait has reserved is given back if its answer was lost.
func TestLostWait(t *testing.T) {
	withHolds(t, func(t *testing.T, l *dipwell.Limiter, st *tableStore) {
		if d, err := l.Take(t.Context(), "debt", "k", 5); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		cut := l.With(cutOff{st, func(g *store.Group) bool { return len(g.Ops) > 0 && g.Ops[0].Verb == store.VerbReserve }})
		if d, err := cut.Wait(t.Context(), "debt", "k", 3); !errors.Is(err, store.ErrOutcomeUnknown) || d.Allowed {
			t.Errorf("%+v, %v", d, err)
		}
		time.Sleep(15 * time.Second)
		synctest.Wait()
		if d, err := l.Reserve(t.Context(), "debt", "k", 1); err != nil || d.Delay > time.Hour {
			t.Errorf("%+v, %v", d, err)
		}
	}, dipwell.Limit{Name: "debt", Rate: 1, Period: time.Hour, Burst: 5, MaxDebt: 5, Timeout: time.Second})
}

// TestLostWaitInTurn checks that a lost wait over limits of which one has no debt gives
// back what it has reserved of the others.
func TestLostWaitInTurn(t *testing.T) {
	withHolds(t, func(t *testing.T, l *dipwell.Limiter, st *tableStore) {
		takes := []dipwell.Take{take("strict", "k", 1), take("drip", "k", 1)}
		if d, err := l.Take(t.Context(), "drip", "k", 1); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		cut := l.With(cutOff{st, func(g *store.Group) bool { return len(g.Ops) > 0 && g.Ops[0].Verb == store.VerbTake }})
		var d dipwell.Decision
		if err := cut.DoWait(t.Context(), &d, takes, forever); !errors.Is(err, store.ErrOutcomeUnknown) || d.Allowed || d.Reservation != (dipwell.Reservation{}) {
			t.Errorf("%+v, %v", d, err)
		}
		time.Sleep(15 * time.Second)
		synctest.Wait()
		if left := remaining(t, l, "strict", "k"); left != 5 {
			t.Errorf("%d tokens left, want 5", left)
		}
		if d, err := l.Reserve(t.Context(), "drip", "k", 1); err != nil || d.Delay > time.Hour {
			t.Errorf("%+v, %v", d, err)
		}
	}, dipwell.Limit{Name: "strict", Rate: 5, Period: time.Hour, MaxDebt: dipwell.NoDebt},
		dipwell.Limit{Name: "drip", Rate: 1, Period: time.Hour, Algorithm: dipwell.LeakyBucket, MaxDebt: 9, Timeout: time.Second})
}

// TestLostReserve checks that a reservation whose answer was lost can be cancelled.
func TestLostReserve(t *testing.T) {
	withHolds(t, func(t *testing.T, l *dipwell.Limiter, st *tableStore) {
		cut := l.With(cutOff{st, func(g *store.Group) bool { return len(g.Ops) > 0 && g.Ops[0].Verb == store.VerbReserve }})
		for name, reserve := range map[string]func() (dipwell.Decision, error){
			"Reserve": func() (dipwell.Decision, error) { return cut.Reserve(t.Context(), "debt", "k", 8) },
			"DoAll": func() (d dipwell.Decision, err error) {
				err = cut.DoAll(t.Context(), &d, store.VerbReserve, []dipwell.Take{take("debt", "k", 8), take("debt", "other", 1)})
				return d, err
			},
		} {
			d, err := reserve()
			if !errors.Is(err, store.ErrOutcomeUnknown) || d.Allowed {
				t.Errorf("%s: %+v, %v", name, d, err)
			}
			time.Sleep(2 * time.Second)
			synctest.Wait()
			if err := l.Cancel(t.Context(), d.Reservation); err != nil {
				t.Errorf("%s: Cancel: %v", name, err)
			}
			if left := remaining(t, l, "debt", "k"); left != 5 {
				t.Errorf("%s: %d tokens left, want 5", name, left)
			}
		}
	}, dipwell.Limit{Name: "debt", Rate: 1, Period: time.Hour, Burst: 5, MaxDebt: 5, Timeout: time.Second})
}

// A panicking store panics in some calls, after it has decided them.
type panicking struct {
	*tableStore
	panics func(g *store.Group) bool
}

func (s panicking) Abilities() store.Abilities {
	ab := s.tableStore.Abilities()
	ab.Store = s
	return ab
}

func (s panicking) Apply(ctx context.Context, b *store.Batch) error {
	err := s.tableStore.Apply(ctx, b)
	if s.panics(&b.Groups[0]) {
		panic("the store is broken")
	}
	return err
}

// TestPanicInTheBackground checks that a store that panics in a call that a Limiter makes
// in a goroutine of its own does not end the process.
func TestPanicInTheBackground(t *testing.T) {
	withHolds(t, func(t *testing.T, l *dipwell.Limiter, st *tableStore) {
		extends, cancels, settles := 0, 0, 0
		broken := l.With(panicking{st, func(g *store.Group) bool {
			switch {
			case g.Cancel:
				cancels++
			case g.Hold != nil && g.Hold.Verb == store.ExtendHold:
				extends++
			default:
				return false
			}
			return true
		}})
		d, err := broken.Holding(t.Context(), time.Minute, []dipwell.Take{take("slots", "k", 1)}, func(ctx context.Context) ([]int64, error) {
			time.Sleep(5 * time.Minute)
			return nil, context.Cause(ctx)
		})
		synctest.Wait()
		if err != nil || !d.Allowed || extends < 10 {
			t.Errorf("%+v, %v, %d times extended", d, err, extends)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if d, err := broken.Wait(ctx, "leaky", "k", 1); err != nil || !d.Allowed {
			t.Errorf("%+v, %v", d, err)
		}
		time.AfterFunc(500*time.Millisecond, cancel)
		d, err = broken.Wait(ctx, "leaky", "k", 1)
		synctest.Wait()
		if !errors.Is(err, context.Canceled) || d.Allowed || cancels == 0 {
			t.Errorf("%+v, %v, %d times cancelled", d, err, cancels)
		}
		cut := l.With(cutOff{st, func(g *store.Group) bool {
			if g.Settles() {
				settles++
				panic("the store is broken")
			}
			return true
		}})
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := cut.Hold(ctx, time.Minute, "", take("slots", "k", 1)); !errors.Is(err, store.ErrOutcomeUnknown) {
			t.Error(err)
		}
		time.Sleep(15 * time.Second)
		synctest.Wait()
		if settles != 6 {
			t.Errorf("%d times settled", settles)
		}
	})
}
