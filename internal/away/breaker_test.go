package away_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/dipwell/dipwell/internal/away"
	"github.com/dipwell/dipwell/internal/background"
	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
	"github.com/dipwell/dipwell/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestStore(t *testing.T) {
	storetest.Run(t, func(t testing.TB, now func() int64) store.Store {
		inner, err := memstore.New(memstore.Config{Clock: now})
		must(t, err)
		s := away.NewBreaker(inner, away.BreakerConfig{})
		t.Cleanup(func() { must(t, errors.Join(s.Close(), inner.Close())) })
		return s
	}, storetest.Options{Quick: true})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var def = limittest.Definition(store.Limit{Name: "test", Rate: 1, Period: 1e9})

// server is a store that answers after a delay, hangs or fails.
type server struct {
	mu    sync.Mutex
	takes time.Duration
	hung  chan struct{} // closed by resume; nil if it does not hang
	fault error
	group error
	panic bool // of probes

	asked, checks, most, now atomic.Int64 // calls; probes; most probes at one time
}

func (s *server) Apply(ctx context.Context, b *store.Batch) error {
	s.asked.Add(1)
	if b.Groups[0].Ops[0].Verb == store.VerbCheck {
		s.checks.Add(1)
		s.most.Store(max(s.most.Load(), s.now.Add(1)))
		defer s.now.Add(-1)
	}
	s.mu.Lock()
	takes, hung, fault, group, panics := s.takes, s.hung, s.fault, s.group, s.panic
	s.mu.Unlock()
	if panics && b.Groups[0].Ops[0].Verb == store.VerbCheck {
		panic("probe")
	}
	if hung != nil {
		select {
		case <-hung:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, ctx.Err())
		}
	}
	if err := background.Sleep(ctx, takes); err != nil {
		return fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, err)
	}
	for i := range b.Groups {
		b.Groups[i].Allowed, b.Groups[i].Err = true, group
	}
	return fault
}

func (s *server) set(f func(*server)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s)
}

func (s *server) hang()   { s.set(func(s *server) { s.hung = make(chan struct{}) }) }
func (s *server) resume() { s.set(func(s *server) { close(s.hung); s.hung = nil }) }

// state records the calls of OnChange.
type state struct {
	mu    sync.Mutex
	tells []error
}

func (s *state) record(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tells = append(s.tells, why)
}

func (s *state) changes() []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.tells)
}

func newBreaker(t *testing.T, inner store.Store) (*away.Breaker, *state) {
	t.Helper()
	var heard state
	s := away.NewBreaker(inner, away.BreakerConfig{OnChange: heard.record})
	t.Cleanup(func() { must(t, s.Close()) })
	return s, &heard
}

// take makes a Take with a timeout, and returns its duration.
func take(s store.Store, timeout time.Duration) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return takeIn(ctx, s)
}

func takeIn(ctx context.Context, s store.Store) (time.Duration, error) {
	var b store.Batch
	g, op := b.Single()
	op.Def, op.Key, op.Cost = def, "k", 1
	start := time.Now()
	err := s.Apply(ctx, &b)
	if err == nil {
		err = g.Err
	}
	return time.Since(start), err
}

// TestHung checks that calls fail at once after a few timeouts, that one probe at a
// time is sent, and that the first answer closes the breaker.
func TestHung(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := &server{takes: time.Millisecond}
		s, heard := newBreaker(t, inner)
		if _, err := take(s, time.Second); err != nil {
			t.Fatal(err)
		}
		inner.hang()
		start, waited := time.Now(), 0
		for !s.Open() {
			if _, err := take(s, 100*time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			waited++
		}
		if waited > 9 || time.Since(start) > time.Second {
			t.Errorf("open after %d whole timeouts, %v", waited, time.Since(start))
		}
		before := inner.asked.Load() - inner.checks.Load()
		for range 1000 {
			if took, err := take(s, 100*time.Millisecond); took != 0 || !errors.Is(err, away.ErrOpen) || !errors.Is(err, store.ErrStore) || errors.Is(err, store.ErrOutcomeUnknown) {
				t.Fatalf("open: %v after %v", err, took)
			}
		}
		if n := inner.asked.Load() - inner.checks.Load() - before; n != 0 {
			t.Errorf("%d calls were sent while open", n)
		}
		if s.Refused() != 1000 {
			t.Errorf("%d refused", s.Refused())
		}
		time.Sleep(time.Minute)
		if n := inner.checks.Load(); n < 50 || n > 60 || inner.most.Load() != 1 {
			t.Errorf("%d probes in a minute, %d at one time", n, inner.most.Load())
		}
		inner.resume()
		time.Sleep(time.Second)
		if s.Open() {
			t.Error("still open")
		}
		if _, err := take(s, 100*time.Millisecond); err != nil {
			t.Error(err)
		}
		if told := heard.changes(); len(told) != 2 || told[0] == nil || told[1] != nil {
			t.Errorf("OnChange heard %v", told)
		}
	})
}

// hangingHolds is a server that can list holds.
type hangingHolds struct{ *server }

func (s hangingHolds) Abilities() store.Abilities {
	return store.Abilities{Holds: func(ctx context.Context, _ *store.Definition, _ string) ([]store.KeyHold, error) {
		return nil, s.Apply(ctx, batchOf("k"))
	}}
}

func batchOf(key string) *store.Batch {
	b := new(store.Batch)
	_, op := b.Single()
	op.Def, op.Key = def, key
	return b
}

// TestVerbsWhileOpen checks that other verbs than Apply fail at once while the breaker is
// open, as calls do.
func TestVerbsWhileOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := &server{}
		s, _ := newBreaker(t, hangingHolds{inner})
		holds := store.AbilitiesOf(s).Holds
		if _, err := holds(t.Context(), def, "k"); err != nil {
			t.Error(err)
		}
		inner.hang()
		for !s.Open() {
			_, _ = take(s, 100*time.Millisecond)
		}
		start := time.Now()
		if _, err := holds(t.Context(), def, "k"); !errors.Is(err, away.ErrOpen) || time.Since(start) > 0 {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		inner.resume()
		time.Sleep(time.Second)
		if _, err := holds(t.Context(), def, "k"); err != nil {
			t.Error(err)
		}
	})
}

// TestProbePanics checks that a panic of the store during a probe does not end the
// process, and that the breaker does not open: the store has answered.
func TestProbePanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := &server{panic: true, fault: fmt.Errorf("%w: %w", store.ErrStore, io.EOF)}
		s, _ := newBreaker(t, inner)
		for range 20 {
			if _, err := take(s, time.Second); !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		if n := inner.checks.Load(); n != 4 || s.Open() {
			t.Errorf("%d probes, open %v", n, s.Open())
		}
	})
}

// TestShortDeadlines checks that calls with deadlines shorter than the store needs do
// not open the breaker.
func TestShortDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := &server{takes: 20 * time.Millisecond}
		s, heard := newBreaker(t, inner)
		for range 1000 {
			if _, err := take(s, time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			if s.Open() {
				t.Fatal("open")
			}
		}
		if _, err := take(s, time.Second); err != nil {
			t.Error(err)
		}
		if n := inner.checks.Load(); n > 10 {
			t.Errorf("%d probes in a second", n)
		}
		if told := heard.changes(); len(told) != 0 {
			t.Errorf("OnChange heard %v", told)
		}
	})
}

// TestOtherCallIsAnswered checks that an answer to any call keeps a hanging probe from
// opening the breaker.
func TestOtherCallIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := &server{}
		s, _ := newBreaker(t, inner)
		inner.hang()
		for range 5 {
			if _, err := take(s, 10*time.Millisecond); err == nil {
				t.Fatal("answered")
			}
		}
		synctest.Wait()
		if inner.now.Load() != 1 {
			t.Fatal("no probe is in flight")
		}
		inner.set(func(s *server) { s.hung = nil }) // the probe keeps hanging
		if _, err := take(s, time.Second); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if s.Open() || inner.now.Load() != 0 {
			t.Errorf("open %v, %d probes in flight", s.Open(), inner.now.Load())
		}
	})
}

// TestWhichErrorsCount checks that only unanswered calls count.
func TestWhichErrorsCount(t *testing.T) {
	netError := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	for name, tc := range map[string]struct {
		fault, group error
		opens        bool
	}{
		"no connection":         {fault: fmt.Errorf("%w: %w", store.ErrStore, netError), opens: true},
		"connection cut":        {group: fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, io.ErrUnexpectedEOF), opens: true},
		"timeout of a group":    {group: fmt.Errorf("%w: %w", store.ErrStore, context.DeadlineExceeded), opens: true},
		"bad input":             {group: &store.FieldError{Field: "cost", Reason: "is bad"}},
		"an error of the store": {group: fmt.Errorf("%w: read only", store.ErrStore)},
		"full":                  {group: store.ErrFull},
		"a caller that left":    {fault: fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, context.Canceled)},
		"a locked row":          {group: fmt.Errorf("%w: %w", store.ErrLocked, context.DeadlineExceeded)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				inner := &server{fault: tc.fault, group: tc.group}
				s, _ := newBreaker(t, inner)
				for range 100 {
					_, _ = take(s, time.Second)
				}
				synctest.Wait()
				if s.Open() != tc.opens {
					t.Errorf("open: %v, want %v", s.Open(), tc.opens)
				}
				inner.set(func(s *server) { s.fault, s.group = nil, nil })
				time.Sleep(time.Second)
				if s.Open() {
					t.Error("the store answers and the breaker is open")
				}
			})
		})
	}
}

// TestLockedRowsWhileTheStoreHangs checks that ErrLocked of calls that were not sent
// is not counted as an answer.
func TestLockedRowsWhileTheStoreHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := &server{}
		inner.hang()
		held := storeFunc(func(ctx context.Context, b *store.Batch) error {
			if b.Groups[0].Ops[0].Key == "locked" {
				<-ctx.Done()
				b.Groups[0].Err = fmt.Errorf("%w: %w", store.ErrLocked, ctx.Err())
				return nil
			}
			return inner.Apply(ctx, b)
		})
		s, _ := newBreaker(t, held)
		for range 20 {
			_, _ = take(s, 50*time.Millisecond)
			var b store.Batch
			_, op := b.Single()
			op.Def, op.Key, op.Cost = def, "locked", 1
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			_ = s.Apply(ctx, &b)
			cancel()
		}
		if !s.Open() {
			t.Error("not open")
		}
	})
}

type storeFunc func(context.Context, *store.Batch) error

func (f storeFunc) Apply(ctx context.Context, b *store.Batch) error { return f(ctx, b) }

// TestCloseEndsProbes checks that Close waits for the probe in flight, and that none
// starts afterwards.
func TestCloseEndsProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := &server{}
		inner.hang()
		s := away.NewBreaker(inner, away.BreakerConfig{})
		for range 5 {
			_, _ = take(s, 10*time.Millisecond)
		}
		must(t, s.Close())
		n := inner.checks.Load()
		for range 50 {
			_, _ = take(s, 10*time.Millisecond)
		}
		if inner.checks.Load() != n || inner.now.Load() != 0 {
			t.Errorf("%d probes after Close", inner.checks.Load()-n)
		}
	})
}

// TestReadyWithoutSpace checks that the store is not ready for a while after a call
// found no space.
func TestReadyWithoutSpace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := &server{group: store.ErrNoSpace}
		s := away.NewBreaker(inner, away.BreakerConfig{})
		defer s.Close()
		ready := store.AbilitiesOf(s).Ready
		if err := ready(t.Context()); err != nil {
			t.Errorf("before any call: %v", err)
		}
		var b store.Batch
		_, op := b.Single()
		op.Def, op.Key, op.Verb, op.Cost = def, "k", store.VerbTake, 1
		must(t, s.Apply(t.Context(), &b))
		time.Sleep(9 * time.Second)
		if err := ready(t.Context()); !errors.Is(err, store.ErrNoSpace) {
			t.Errorf("after a call without space: %v", err)
		}
		time.Sleep(2 * time.Second)
		if err := ready(t.Context()); err != nil {
			t.Errorf("11 seconds later: %v", err)
		}
	})
}
