package away

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// fixture is a fallback between a limiter and a store that fails when told to.
type fixture struct {
	*testing.T
	clock atomic.Int64
	step  atomic.Int64 // how far the store's clock is ahead, µs
	inner *faulty
	s     *Fallback
	l     *dipwell.Limiter
}

// The limits of the tests, named after their failure modes.
var (
	local  = store.Limit{Name: "local", Rate: 1, Period: time.Minute, Burst: 10, OnStoreError: store.FailLocal}
	tenant = store.Limit{Name: "tenant", Rate: 1, Period: time.Minute, Burst: 3, OnStoreError: store.FailLocal}
	open   = store.Limit{Name: "open", Rate: 1, Period: time.Minute, Burst: 10, OnStoreError: store.FailOpen}
	closed = store.Limit{Name: "closed", Rate: 1, Period: time.Minute, Burst: 10}
	shadow = store.Limit{Name: "shadow", Rate: 1, Period: time.Minute, Burst: 10, Mode: store.Shadow}
)

func begin(t *testing.T) *fixture {
	b := &fixture{T: t}
	b.clock.Store(1767225600e6)
	b.s, b.inner = setupClocks(t, func() int64 { return b.clock.Load() + b.step.Load() }, b.clock.Load)
	var err error
	if b.l, err = dipwell.New(b.s, local, tenant, open, closed, shadow); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *fixture) advance(d time.Duration) { b.clock.Add(d.Microseconds()) }

func (b *fixture) take(limit, key string, n int64) dipwell.Decision {
	b.Helper()
	d, err := b.l.Take(b.Context(), limit, key, n)
	if err != nil {
		b.Fatal(err)
	}
	return d
}

func (b *fixture) want(d dipwell.Decision, allowed bool, remaining int64, source store.Source) {
	b.Helper()
	if d.Allowed != allowed || d.Remaining != remaining || d.Source != source {
		b.Errorf("allowed %v, %d remaining, by %v; want %v, %d, by %v", d.Allowed, d.Remaining, d.Source, allowed, remaining, source)
	}
}

const here = store.SourceFallbackLocal

func TestStartsFromTheLastKnownRow(t *testing.T) {
	b := begin(t)
	b.want(b.take("local", "k", 7), true, 3, store.SourceStore)
	b.advance(90 * time.Second) // refills one and a half tokens
	b.inner.fail = errAway
	b.want(b.take("local", "k", 4), true, 0, here)
	d := b.take("local", "k", 1)
	b.want(d, false, 0, here)
	if d.RetryAfter != 30*time.Second {
		t.Errorf("retry after %v, want 30s", d.RetryAfter)
	}
	b.want(b.take("local", "never seen", 10), true, 0, here)
}

// Rows and reservations here outlive the versions that the store keeps.
func TestManyChanges(t *testing.T) {
	b := begin(t)
	b.take("local", "k", 7)
	b.inner.fail = errAway
	r, err := b.l.Reserve(t.Context(), "tenant", "k", 4)
	if err != nil || r.Source != here {
		t.Fatal(r, err)
	}
	b.inner.fail = nil
	for i := range 200 {
		for _, l := range []store.Limit{local, tenant} {
			l.Burst += int64(i+1) % 2
			if _, err := b.l.Define(t.Context(), l, store.OwnerCode); err != nil {
				t.Fatal(err)
			}
		}
		b.take("local", fmt.Sprint("k", i), 1)
		b.take("tenant", fmt.Sprint("k", i), 1)
	}
	b.inner.fail = errAway
	b.want(b.take("local", "k", 1), true, 2, here)
	if err := b.l.Cancel(t.Context(), r.Reservation); err != nil {
		t.Error(err)
	}
}

func TestRefusalsAreRemembered(t *testing.T) {
	b := begin(t)
	other, err := dipwell.New(b.inner)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Take(t.Context(), "local", "k", 9); err != nil { // as another process would
		t.Fatal(err)
	}
	b.want(b.take("local", "k", 2), false, 1, store.SourceStore)
	b.inner.fail = errAway
	b.want(b.take("local", "k", 2), false, 1, here)
	b.want(b.take("local", "k", 1), true, 0, here)
}

func TestStoreDecidesAgainAtOnce(t *testing.T) {
	b := begin(t)
	b.take("local", "k", 2)
	b.inner.fail = errAway
	b.advance(time.Second)
	b.want(b.take("local", "k", 5), true, 3, here)
	b.inner.fail = nil
	b.advance(time.Second)
	b.want(b.take("local", "k", 1), true, 7, store.SourceStore)
	b.inner.fail = errAway
	b.want(b.take("local", "k", 1), true, 6, here) // the store decides again
}

func TestEachFailureMode(t *testing.T) {
	b := begin(t)
	b.inner.fail = errAway
	b.want(b.take("local", "k", 1), true, 9, here)
	b.want(b.take("open", "k", 1), true, 0, store.SourceFallbackOpen)
	d, err := b.l.Take(t.Context(), "closed", "k", 1)
	if !errors.Is(err, store.ErrStore) || !errors.Is(err, errAway) || d.Allowed {
		t.Errorf("closed: %v, allowed %v", err, d.Allowed)
	}
}

func TestGroups(t *testing.T) {
	takes := func(names ...string) (all []dipwell.Take) {
		for _, n := range names {
			all = append(all, dipwell.Take{Limit: n, Key: "k", Cost: 2})
		}
		return all
	}
	t.Run("all or nothing", func(t *testing.T) {
		b := begin(t)
		b.inner.fail = errAway
		for i, want := range []bool{true, false} { // tenant has 3
			d, err := b.l.TakeAll(t.Context(), takes("local", "tenant")...)
			if err != nil || d.Allowed != want || d.Source != here {
				t.Errorf("call %d: %v by %v (%v)", i, d.Allowed, d.Source, err)
			}
		}
		b.want(b.take("local", "k", 1), true, 7, here) // charged once
	})
	t.Run("with one in shadow mode", func(t *testing.T) {
		b := begin(t)
		b.inner.fail = errAway
		for i, want := range []bool{true, false} { // tenant has 3
			d, err := b.l.TakeAll(t.Context(), takes("shadow", "tenant")...)
			if err != nil || d.Allowed != want || d.Shadow != want {
				t.Errorf("call %d: %+v (%v)", i, d, err)
			}
		}
		if d, err := b.l.TakeAll(t.Context(), takes("shadow", "tenant", "closed")...); err == nil || d.Allowed {
			t.Errorf("%+v (%v)", d, err)
		}
	})
	t.Run("with one that is open", func(t *testing.T) {
		b := begin(t)
		b.inner.fail = errAway
		d, err := b.l.TakeAll(t.Context(), takes("open", "tenant")...)
		if err != nil || !d.Allowed || d.Limits[0].Source != store.SourceFallbackOpen || d.Limits[1].Source != here {
			t.Errorf("%+v (%v)", d, err)
		}
		d, err = b.l.TakeAll(t.Context(), takes("open", "tenant")...)
		if err != nil || d.Allowed || d.Limit != "tenant" || d.Limits[0].Granted != 0 {
			t.Errorf("%+v (%v)", d, err)
		}
	})
	t.Run("with one that is closed", func(t *testing.T) {
		b := begin(t)
		b.inner.fail = errAway
		d, err := b.l.TakeAll(t.Context(), takes("local", "closed", "open")...)
		if !errors.Is(err, errAway) || d.Allowed {
			t.Errorf("allowed %v (%v)", d.Allowed, err)
		}
		b.want(b.take("local", "k", 1), true, 9, here) // nothing was charged
	})
	t.Run("all open", func(t *testing.T) {
		b := begin(t)
		b.inner.fail = errAway
		if d, err := b.l.TakeAll(t.Context(), takes("open")...); err != nil || !d.Allowed {
			t.Errorf("allowed %v (%v)", d.Allowed, err)
		}
	})
}

func TestOneGroupOfABatchFails(t *testing.T) {
	b := begin(t)
	b.inner.failing = store.ErrOutcomeUnknown
	b.want(b.take("local", "k", 4), true, 6, here)
	if _, err := b.l.Take(t.Context(), "closed", "k", 1); !errors.Is(err, store.ErrOutcomeUnknown) {
		t.Error(err)
	}
}

func TestBatchOfSeveralGroups(t *testing.T) {
	b := begin(t)
	b.inner.fail = errAway
	var batch store.Batch
	for _, name := range []string{"local", "closed", "tenant"} {
		batch.Groups = append(batch.Groups, store.Group{Ops: []store.Op{{Def: b.l.Limit(name), Key: "k", Cost: 1}}})
	}
	if err := b.s.Apply(t.Context(), &batch); err != nil {
		t.Fatal(err)
	}
	for i := range batch.Groups {
		g := &batch.Groups[i]
		if closed := i == 1; closed != errors.Is(g.Err, errAway) || g.Allowed == closed {
			t.Errorf("group %d: allowed %v (%v)", i, g.Allowed, g.Err)
		}
	}
}

// TestErrorsOfTheCaller checks that invalid input and cancelled calls are not decided
// locally.
func TestErrorsOfTheCaller(t *testing.T) {
	for _, err := range []error{
		&store.FieldError{Field: "cost", Reason: "is wrong"}, store.ErrReservation,
		fmt.Errorf("%w %q", store.ErrUnknownLimit, "local"), store.ErrNotSupported, context.Canceled,
	} {
		b := begin(t)
		b.inner.fail = err
		if d, got := b.l.Take(t.Context(), "local", "k", 1); !errors.Is(got, err) || d.Allowed {
			t.Errorf("%v: allowed %v (%v)", err, d.Allowed, got)
		}
	}
}

func TestTimeoutIsDecidedLocally(t *testing.T) {
	b := begin(t)
	b.inner.fail = fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, context.DeadlineExceeded)
	b.want(b.take("local", "k", 1), true, 9, here)
}

func TestReservations(t *testing.T) {
	b := begin(t)
	b.take("local", "k", 10)
	inStore, err := b.l.Reserve(t.Context(), "local", "k", 1)
	if err != nil {
		t.Fatal(err)
	}
	b.inner.fail = errAway
	b.advance(time.Millisecond)
	mine, err := b.l.Reserve(t.Context(), "local", "k", 2)
	if err != nil || mine.Reservation == (store.Reservation{}) || mine.Source != here {
		t.Fatalf("%+v (%v)", mine, err)
	}
	if err := b.l.Cancel(t.Context(), inStore.Reservation); !errors.Is(err, errAway) {
		t.Errorf("a reservation of the store, which is away: %v", err)
	}
	b.inner.fail = nil
	if err := b.l.Cancel(t.Context(), mine.Reservation); err != nil {
		t.Errorf("a reservation made here, with the store back: %v", err)
	}
	if err := b.l.Cancel(t.Context(), mine.Reservation); !errors.Is(err, store.ErrReservation) {
		t.Errorf("the same again: %v", err)
	}
	if err := b.l.Cancel(t.Context(), inStore.Reservation); err != nil {
		t.Errorf("a reservation of the store: %v", err)
	}
}

func TestFullTableFailsClosed(t *testing.T) {
	b := begin(t)
	s, err := NewFallback(b.inner, FallbackConfig{MaxKeys: 2, Clock: b.clock.Load})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l := b.l.With(s)
	for _, key := range []string{"a", "b", "c"} { // more than fit in the table
		if _, err := l.Take(t.Context(), "local", key, 1); err != nil {
			t.Fatal(err)
		}
	}
	b.inner.fail = errAway
	if d, err := l.Take(t.Context(), "local", "a", 1); err != nil || d.Remaining != 8 {
		t.Errorf("%+v (%v)", d, err)
	}
	d, err := l.Take(t.Context(), "local", "c", 1)
	if !errors.Is(err, errAway) || !errors.Is(err, store.ErrFull) || d.Allowed {
		t.Errorf("allowed %v (%v)", d.Allowed, err)
	}
}

// TestOnlyAnswersOfTheStoreAreRemembered checks that answers of a decorator are not
// copied.
func TestOnlyAnswersOfTheStoreAreRemembered(t *testing.T) {
	b := begin(t)
	b.inner.source = store.SourceDenyCache
	b.take("local", "k", 10)
	if n := b.s.local.Stats().Keys; n != 0 {
		t.Errorf("%d keys in memory", n)
	}
}

// TestAnswersOutOfOrder checks that the row of the latest time remains, and of these
// the one with the most used.
func TestAnswersOutOfOrder(t *testing.T) {
	b := begin(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { b.take("local", "k", 1) })
	}
	wg.Wait()
	b.inner.fail = errAway
	b.want(b.take("local", "k", 3), false, 2, here)
}

// TestTimeOfTheStoreContinues checks that windows begin by the store's clock, even if
// it differs from the process's.
func TestTimeOfTheStoreContinues(t *testing.T) {
	b := begin(t)
	day := store.Limit{Name: "day", Algorithm: store.FixedWindow, Rate: 5, Period: 24 * time.Hour, Start: "0s", OnStoreError: store.FailLocal}
	if _, err := b.l.Define(t.Context(), day, store.OwnerCode); err != nil {
		t.Fatal(err)
	}
	b.advance(24*time.Hour - time.Second)
	b.want(b.take("day", "k", 5), true, 0, store.SourceStore)
	b.inner.fail = errAway
	d := b.take("day", "k", 1)
	if b.want(d, false, 0, here); d.RetryAfter != time.Second {
		t.Errorf("retry after %v, want 1s", d.RetryAfter)
	}
	b.advance(time.Second)
	b.want(b.take("day", "k", 1), true, 4, here)
}

// TestSlowAnswerDoesNotSetTimeBack checks that a call at the retry time of a local
// refusal is allowed, even after a slow answer about another key.
func TestSlowAnswerDoesNotSetTimeBack(t *testing.T) {
	b := begin(t)
	b.take("local", "k", 10)
	b.inner.fail = errAway
	d := b.take("local", "k", 1)
	b.want(d, false, 0, here)
	b.inner.fail, b.inner.after = nil, func() { b.advance(419 * time.Millisecond) }
	b.take("local", "other", 1)
	b.inner.fail, b.inner.after = errAway, nil
	b.advance(d.RetryAfter - 419*time.Millisecond - time.Microsecond)
	b.want(b.take("local", "k", 1), false, 0, here)
	b.advance(time.Microsecond)
	b.want(b.take("local", "k", 1), true, 0, here)
}

// TestStoreClockSteps checks that the next answer of the store shows the step.
func TestStoreClockSteps(t *testing.T) {
	for _, step := range []time.Duration{-time.Hour, time.Hour} {
		b := begin(t)
		b.take("local", "k", 1)
		b.step.Store(step.Microseconds())
		b.take("local", "other", 1)
		if got, want := b.s.now(), b.clock.Load()+step.Microseconds(); got != want {
			t.Errorf("after a step by %v: %d, want %d", step, got, want)
		}
	}
}

func TestLimitsThatFailOtherwiseAreNotRemembered(t *testing.T) {
	b := begin(t)
	b.take("closed", "k", 1)
	b.take("open", "k", 1)
	if n := b.s.local.Stats().Keys; n != 0 {
		t.Errorf("%d keys in memory", n)
	}
}

func TestBadConfig(t *testing.T) {
	if _, err := NewFallback(nil, FallbackConfig{}); err == nil {
		t.Error("no inner store")
	}
	b := begin(t)
	if _, err := NewFallback(b.inner, FallbackConfig{MaxKeys: -1}); err == nil || !strings.Contains(err.Error(), "MaxKeys") {
		t.Errorf("MaxKeys -1: %v", err)
	}
}
