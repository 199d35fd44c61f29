package denycache_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/denycache"
	"github.com/dipwell/dipwell/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture is a deny cache between a limiter and a store whose calls are counted.
type fixture struct {
	*testing.T
	clock atomic.Int64 // of the store and the process, in µs
	calls int          // calls that reached the store
	inner store.Store
	s     *denycache.Store
	l     *dipwell.Limiter
	after func() // called after the store has answered and before the cache sees it
	fail  error
}

const start = int64(1767225600e6)

func setup(t *testing.T, limits ...store.Limit) *fixture {
	b := &fixture{T: t, after: func() {}}
	b.clock.Store(start)
	b.inner = memory(t, b.clock.Load)
	b.s = open(t, b, denycache.Config{Clock: func() int64 { return b.clock.Load() - start }})
	var err error
	if b.l, err = dipwell.New(b.s, limits...); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *fixture) Abilities() store.Abilities { return store.AbilitiesOf(b.inner) }

func (b *fixture) Apply(ctx context.Context, batch *store.Batch) error {
	b.calls++
	err := b.inner.Apply(ctx, batch)
	b.after()
	if b.fail != nil {
		return b.fail
	}
	return err
}

func (b *fixture) advance(d time.Duration) { b.clock.Add(d.Microseconds()) }

// take makes a Take that must not fail.
func (b *fixture) take(key string, n int64) dipwell.Decision {
	b.Helper()
	d, err := b.l.Take(b.Context(), "login", key, n)
	if err != nil {
		b.Fatal(err)
	}
	return d
}

// want checks a decision, and that the store was called only if it decided.
func (b *fixture) want(d dipwell.Decision, allowed bool, source store.Source) {
	b.Helper()
	if d.Allowed != allowed || d.Source != source {
		b.Errorf("allowed %v from %v, want %v from %v", d.Allowed, d.Source, allowed, source)
	}
}

const (
	fromStore = store.SourceStore
	fromCache = store.SourceDenyCache
)

// login refills one token each 200 ms.
var login = store.Limit{Name: "login", Rate: 5, Period: time.Second, Burst: 20}

func TestRefusalLastsUntilRetryTime(t *testing.T) {
	b := setup(t, login)
	b.take("k", 20)
	first := b.take("k", 1)
	b.want(first, false, fromStore)
	b.advance(150*time.Millisecond + 7*time.Microsecond)
	d := b.take("k", 1)
	b.want(d, false, fromCache)
	if want := first.RetryAfter - 150*time.Millisecond - 7*time.Microsecond; d.RetryAfter != want {
		t.Errorf("retry after %v, want %v", d.RetryAfter, want)
	}
	if want := first.ResetAfter - 150*time.Millisecond - 7*time.Microsecond; d.ResetAfter != want {
		t.Errorf("reset after %v, want %v", d.ResetAfter, want)
	}
	b.advance(d.RetryAfter - time.Microsecond)
	b.want(b.take("k", 1), false, fromCache)
	b.advance(time.Microsecond)
	b.want(b.take("k", 1), true, fromStore)
	if b.calls != 3 {
		t.Errorf("%d calls reached the store, want 3", b.calls)
	}
}

// A reservation that has to wait shows that the bucket is in debt until it is due. That is
// remembered only if the key was known to be refused before, and not for its holds.
func TestReservationLengthensRefusal(t *testing.T) {
	for name, refusedBefore := range map[string]bool{"after a refusal": true, "without one": false} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, login)
			b.take("k", 20)
			if refusedBefore {
				b.want(b.take("k", 1), false, fromStore)
			}
			b.advance(200 * time.Millisecond) // a token is there
			d, err := b.l.Reserve(t.Context(), "login", "k", 4)
			if err != nil || d.Delay != 600*time.Millisecond {
				t.Fatalf("%+v %v", d, err)
			}
			source := fromStore
			if refusedBefore {
				source = fromCache
			}
			d = b.take("k", 1)
			b.want(d, false, source)
			if d.RetryAfter != 800*time.Millisecond || d.ResetAfter != 4600*time.Millisecond || d.Remaining != 0 {
				t.Errorf("%+v", d)
			}
			b.advance(800*time.Millisecond - 1000)
			b.want(b.take("k", 1), false, fromCache)
			b.advance(time.Microsecond)
			b.want(b.take("k", 1), true, fromStore)
		})
	}
}

// false-local-denial: a cached refusal must not answer a smaller cost.
func TestSmallerCostGoesToTheStore(t *testing.T) {
	b := setup(t, login)
	b.take("k", 5)
	b.want(b.take("k", 18), false, fromStore)
	d := b.take("k", 19)
	b.want(d, false, fromCache)
	if d.RetryAfter != 800*time.Millisecond || d.Remaining != 15 {
		t.Errorf("19 of 15: retry %v, remaining %d", d.RetryAfter, d.Remaining)
	}
	b.want(b.take("k", 1), true, fromStore)
	b.want(b.take("k", 18), false, fromStore) // the grant removed the key
	if d = b.take("k", 18); d.RetryAfter != 800*time.Millisecond {
		t.Errorf("18 of 14: retry %v", d.RetryAfter)
	}
	b.want(d, false, fromCache)
}

func TestOtherVerbs(t *testing.T) {
	b := setup(t, login) // has a MaxDebt of 20
	b.take("k", 20)
	b.want(b.take("k", 1), false, fromStore)
	for verb, source := range map[store.Verb]store.Source{
		store.VerbCheck: fromCache, store.VerbTakeUpTo: fromCache, store.VerbTake: fromCache,
	} {
		var d dipwell.Decision
		if err := b.l.Do(t.Context(), &d, verb, dipwell.Take{Limit: "login", Key: "k", Cost: 1}); err != nil {
			t.Fatal(err)
		}
		b.want(d, false, source)
	}
	d, err := b.l.Reserve(t.Context(), "login", "k", 1)
	if err != nil {
		t.Fatal(err)
	}
	b.want(d, true, fromStore)
}

func TestOwnCallsAreSeenAtOnce(t *testing.T) {
	for name, act := range map[string]func(*fixture) error{
		"refund": func(b *fixture) error { _, err := b.l.Refund(b.Context(), "login", "k", 1); return err },
		"reset":  func(b *fixture) error { _, err := b.l.Reset(b.Context(), "login", "k"); return err },
		"change": func(b *fixture) error {
			l := login
			l.Burst = 30
			_, err := b.l.Define(b.Context(), l, store.OwnerCode)
			if err == nil {
				b.advance(time.Microsecond)
			}
			return err
		},
		"shadow": func(b *fixture) error {
			l := login
			l.Mode = store.Shadow
			_, err := b.l.Define(b.Context(), l, store.OwnerCode)
			return err
		},
		"drop and define": func(b *fixture) error {
			if err := b.l.Drop(b.Context(), "login", store.OwnerCode); err != nil {
				return err
			}
			_, err := b.l.Define(b.Context(), login, store.OwnerCode)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, login)
			b.take("k", 20)
			b.want(b.take("k", 1), false, fromStore)
			b.want(b.take("k", 1), false, fromCache)
			if err := act(b); err != nil {
				t.Fatal(err)
			}
			b.want(b.take("k", 1), true, fromStore)
		})
	}
}

func TestChargeLengthensTheRetryTime(t *testing.T) {
	b := setup(t, login)
	b.take("k", 20)
	b.take("k", 1)
	if _, err := b.l.Charge(t.Context(), "login", "k", 2); err != nil {
		t.Fatal(err)
	}
	d := b.take("k", 1)
	b.want(d, false, fromStore)
	if d.RetryAfter != 600*time.Millisecond {
		t.Errorf("retry after %v, want 600ms", d.RetryAfter)
	}
	b.want(b.take("k", 1), false, fromCache)
}

func TestCancelIsSeenAtOnce(t *testing.T) {
	b := setup(t, login)
	b.take("k", 20)
	d, err := b.l.Reserve(t.Context(), "login", "k", 5)
	if err != nil {
		t.Fatal(err)
	}
	b.advance(900 * time.Millisecond)
	first := b.take("k", 1)
	b.want(first, false, fromStore)
	if err := b.l.Cancel(t.Context(), d.Reservation); err != nil {
		t.Fatal(err)
	}
	b.want(b.take("k", 1), true, fromStore)
}

// TestRefusalInFlightIsNotKept checks a refusal that was in flight when tokens were
// given back.
func TestRefusalInFlightIsNotKept(t *testing.T) {
	acts := map[string]func(*fixture) error{
		"refund": func(b *fixture) error { _, err := b.l.Refund(b.Context(), "login", "k", 1); return err },
		"reset":  func(b *fixture) error { _, err := b.l.Reset(b.Context(), "login", "k"); return err },
		"unknown outcome": func(b *fixture) error {
			b.fail = store.ErrOutcomeUnknown
			_, err := b.l.Refund(b.Context(), "login", "k", 1)
			if b.fail = nil; !errors.Is(err, store.ErrOutcomeUnknown) {
				return fmt.Errorf("refund: %w", err)
			}
			return nil
		},
	}
	for name, act := range acts {
		t.Run(name, func(t *testing.T) {
			b := setup(t, login)
			b.take("k", 20)
			b.after = func() {
				b.after = func() {}
				if err := act(b); err != nil {
					t.Error(err)
				}
			}
			b.want(b.take("k", 1), false, fromStore)
			b.want(b.take("k", 1), true, fromStore)
		})
	}
	t.Run("cancel", func(t *testing.T) {
		b := setup(t, login)
		b.take("k", 20)
		r, err := b.l.Reserve(t.Context(), "login", "k", 5)
		if err != nil {
			t.Fatal(err)
		}
		b.advance(900 * time.Millisecond)
		b.after = func() {
			b.after = func() {}
			if err := b.l.Cancel(t.Context(), r.Reservation); err != nil {
				t.Error(err)
			}
		}
		b.want(b.take("k", 1), false, fromStore)
		b.want(b.take("k", 1), true, fromStore)
	})
}

// TestOtherProcessesAreSeenWithinMaxAge checks that changes of other processes are
// seen MaxAge after the refused request was sent.
func TestOtherProcessesAreSeenWithinMaxAge(t *testing.T) {
	slow := store.Limit{Name: "login", Rate: 1, Period: time.Hour}
	b := setup(t, slow)
	other, err := dipwell.New(b.inner)
	if err != nil {
		t.Fatal(err)
	}
	b.take("k", 1)
	b.after = func() { b.advance(300 * time.Millisecond) } // a slow answer
	b.want(b.take("k", 1), false, fromStore)
	b.after = func() {}
	if _, err := other.Reset(t.Context(), "login", "k"); err != nil {
		t.Fatal(err)
	}
	b.advance(700*time.Millisecond - time.Microsecond)
	b.want(b.take("k", 1), false, fromCache)
	b.advance(time.Microsecond)
	b.want(b.take("k", 1), true, fromStore)
}

// TestSlowAnswerShortensTheRefusal checks that a refusal never outlives its retry
// time, whatever the duration of the request.
func TestSlowAnswerShortensTheRefusal(t *testing.T) {
	b := setup(t, login)
	b.take("k", 20)
	b.after = func() { b.advance(50 * time.Millisecond) }
	d := b.take("k", 1)
	b.after = func() {}
	b.advance(d.RetryAfter - 50*time.Millisecond - time.Microsecond)
	b.want(b.take("k", 1), false, fromCache)
	b.advance(time.Microsecond)
	b.want(b.take("k", 1), true, fromStore)
}

func TestNever(t *testing.T) {
	b := setup(t, login)
	b.want(b.take("k", 21), false, fromStore)
	d := b.take("k", 30)
	b.want(d, false, fromCache)
	if !d.Never || d.RetryAfter != 0 || d.Remaining != 20 {
		t.Errorf("%+v", d)
	}
	b.want(b.take("k", 20), true, fromStore)
	if d := b.take("k", 21); d.Source != fromStore || d.Remaining != 0 {
		t.Errorf("%d remaining from %v", d.Remaining, d.Source)
	}
}

// TestGroupsOfSeveralKeys checks that a call of several keys goes to the store, and that a
// refusal in its answer is remembered.
func TestGroupsOfSeveralKeys(t *testing.T) {
	b := setup(t, login)
	b.take("k", 20)
	b.take("other", 5)
	for range 3 {
		asked := b.calls
		d, err := b.l.TakeAll(t.Context(), dipwell.Take{Limit: "login", Key: "k", Cost: 1}, dipwell.Take{Limit: "login", Key: "other", Cost: 3})
		if err != nil {
			t.Fatal(err)
		}
		b.want(d, false, fromStore)
		if other := d.Limits[1]; !other.Allowed || other.Remaining != 15 || b.calls != asked+1 {
			t.Errorf("%+v, %d calls reached the store", other, b.calls-asked)
		}
	}
	b.want(b.take("k", 1), false, fromCache) // from the group's answer
	b.want(b.take("other", 15), true, fromStore)
}

// TestReservationsOfSeveralKeysGoToTheStore checks that the cache does not answer them.
func TestReservationsOfSeveralKeysGoToTheStore(t *testing.T) {
	b := setup(t, login)
	b.take("k", 20)
	b.take("k", 21)
	takes := []dipwell.Take{{Limit: "login", Key: "k", Cost: 1}, {Limit: "login", Key: "free", Cost: 1}}
	var d dipwell.Decision
	if err := b.l.DoAll(t.Context(), &d, store.VerbReserve, takes); err != nil {
		t.Fatal(err)
	}
	b.want(d, true, fromStore)
}

// TestStats checks the counts of hits, misses, refusals and keys.
func TestStats(t *testing.T) {
	b := setup(t, login, store.Limit{Name: "watched", Rate: 1, Period: time.Hour, Mode: store.Shadow})
	type stats struct{ Hits, Misses, Refused, Keys float64 }
	want := func(w stats) {
		t.Helper()
		list := store.AbilitiesOf(b.s).Metrics()
		list = list[len(list)-4:] // after those of the inner store
		if got := (stats{list[0].Value, list[1].Value, list[2].Value, list[3].Value}); got != w {
			t.Errorf("%+v, want %+v", got, w)
		}
	}
	b.take("k", 20)
	b.take("k", 5)
	want(stats{Misses: 2, Keys: 1})
	b.take("k", 5)
	want(stats{Hits: 1, Misses: 2, Refused: 1, Keys: 1})
	b.advance(200 * time.Millisecond)
	b.take("k", 1) // fits, so the store decides and the key is removed
	want(stats{Hits: 2, Misses: 2, Refused: 1})
	for range 2 {
		if _, err := b.l.Take(t.Context(), "watched", "k", 2); err != nil {
			t.Fatal(err)
		}
		if _, err := b.l.Charge(t.Context(), "login", "c", 1); err != nil {
			t.Fatal(err)
		}
	}
	want(stats{Hits: 2, Misses: 2, Refused: 1})
	b.take("k", 5)
	b.advance(time.Second)
	b.take("k", 20) // too old
	want(stats{Hits: 2, Misses: 4, Refused: 1, Keys: 1})
}

// TestBatchOfSeveralGroups checks that the answers to a batch are remembered.
func TestBatchOfSeveralGroups(t *testing.T) {
	b := setup(t, login)
	def := b.l.Limit("login")
	var batch store.Batch
	for _, key := range []string{"a", "b", "c"} {
		batch.Groups = append(batch.Groups, store.Group{Ops: []store.Op{{Def: def, Key: key, Cost: 20}}})
	}
	for round := range 2 { // granted, refused
		if err := b.s.Apply(t.Context(), &batch); err != nil {
			t.Fatal(err)
		}
		for i := range batch.Groups {
			if g := &batch.Groups[i]; g.Ops[0].Source == fromCache || g.Allowed != (round == 0) {
				t.Errorf("round %d, key %s: allowed %v by %v", round, g.Ops[0].Key, g.Allowed, g.Ops[0].Source)
			}
		}
	}
	for _, key := range []string{"a", "b", "c"} {
		b.want(b.take(key, 20), false, fromCache)
	}
}

func TestShadowLimitsGoToTheStore(t *testing.T) {
	l := login
	l.Mode = store.Shadow
	b := setup(t, l)
	b.take("k", 20)
	for range 3 {
		if d := b.take("k", 1); !d.Allowed || !d.Shadow || d.Source != fromStore {
			t.Errorf("%+v", d)
		}
	}
}

func TestErrorRemovesTheKey(t *testing.T) {
	b := setup(t, login)
	b.take("k", 20)
	b.take("k", 1)
	b.fail = store.ErrOutcomeUnknown
	if _, err := b.l.Refund(t.Context(), "login", "k", 1); err == nil {
		t.Fatal("no error")
	}
	b.fail = nil
	b.want(b.take("k", 1), true, fromStore)
}

func TestMemoryIsBounded(t *testing.T) {
	b := setup(t, login)
	b.s = open(t, b, denycache.Config{Keys: 64, Clock: b.clock.Load})
	b.l = b.l.With(b.s)
	for round := range 2 {
		for i := range 1000 {
			key := fmt.Sprint("k", i)
			if round == 0 {
				b.take(key, 20)
			}
			if d := b.take(key, 1); d.Allowed {
				t.Fatalf("%s was allowed", key)
			}
		}
	}
	hits := 0
	for i := range 1000 {
		if b.take(fmt.Sprint("k", i), 1).Source == fromCache {
			hits++
		}
	}
	if hits > 64 {
		t.Errorf("%d of 64 slots answered", hits)
	}
}

func TestNoAllocations(t *testing.T) {
	b := setup(t, login)
	b.take("k", 20)
	b.take("k", 1)
	if n := testing.AllocsPerRun(100, func() { b.take("k", 1) }); n > 0 {
		t.Errorf("%v allocations a refusal", n)
	}
}

func TestBadConfig(t *testing.T) {
	inner := memory(t, nil)
	for want, c := range map[string]denycache.Config{
		"MaxAge": {MaxAge: -1},
	} {
		if _, err := denycache.New(inner, c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if _, err := denycache.New(nil, denycache.Config{}); err == nil {
		t.Error("no inner store")
	}
}

// TestRefusalDuringRefund checks that calls may be refused from the cached row while a
// refund is in flight, and not after it has returned.
func TestRefusalDuringRefund(t *testing.T) {
	b := setup(t, login)
	b.take("k", 20)
	b.want(b.take("k", 1), false, fromStore)
	b.after = func() {
		b.after = func() {}
		b.want(b.take("k", 1), false, fromCache)
		b.want(b.take("k", 1), false, fromCache)
	}
	if _, err := b.l.Refund(t.Context(), "login", "k", 1); err != nil {
		t.Fatal(err)
	}
	b.want(b.take("k", 1), true, fromStore)
}

// TestPanicOfTheStore checks that a batch in which the store panicked is not sent again with
// a later one.
func TestPanicOfTheStore(t *testing.T) {
	b := setup(t, store.Limit{Name: "login", Rate: 10, Period: time.Hour}, store.Limit{Name: "api", Rate: 10, Period: time.Hour})
	takes := []dipwell.Take{{Limit: "login", Key: "k", Cost: 1}, {Limit: "api", Key: "k", Cost: 1}}
	b.after = func() { panic("oh") }
	for range 3 {
		func() {
			defer func() { _ = recover() }()
			_, _ = b.l.TakeAll(t.Context(), takes...)
		}()
	}
	b.after = func() {}
	for i := range 3 {
		if d, err := b.l.TakeAll(t.Context(), takes...); err != nil || !d.Allowed || d.Remaining != int64(10-3-1-i) {
			t.Errorf("%+v, %v", d, err)
		}
	}
}
