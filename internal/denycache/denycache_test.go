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

// bench is a deny cache between a limiter and a store whose calls are counted.
type bench struct {
	*testing.T
	clock atomic.Int64 // both the store's and the process's, in µs
	asked int          // calls that reached the store
	inner store.Store
	s     *denycache.Store
	l     *dipwell.Limiter
	after func() // runs when the store has answered, before the cache learns of it
	fail  error
}

const start = int64(1767225600e6)

func setup(t *testing.T, limits ...store.Limit) *bench {
	b := &bench{T: t, after: func() {}}
	b.clock.Store(start)
	b.inner = memory(t, b.clock.Load)
	b.s = open(t, b, denycache.Config{Clock: func() int64 { return b.clock.Load() - start }})
	var err error
	if b.l, err = dipwell.New(b.s, limits...); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bench) Abilities() store.Abilities { return store.AbilitiesOf(b.inner) }

func (b *bench) Apply(ctx context.Context, batch *store.Batch) error {
	b.asked++
	err := b.inner.Apply(ctx, batch)
	b.after()
	if b.fail != nil {
		return b.fail
	}
	return err
}

func (b *bench) pass(d time.Duration) { b.clock.Add(d.Microseconds()) }

// take asks and says where the answer came from.
func (b *bench) take(key string, n int64) dipwell.Decision {
	b.Helper()
	d, err := b.l.Take(b.Context(), "login", key, n)
	if err != nil {
		b.Fatal(err)
	}
	return d
}

// want checks an answer, and that only those from the store reached it.
func (b *bench) want(d dipwell.Decision, allowed bool, source store.Source) {
	b.Helper()
	if d.Allowed != allowed || d.Source != source {
		b.Errorf("allowed %v from %v, want %v from %v", d.Allowed, d.Source, allowed, source)
	}
}

const (
	fromStore = store.SourceStore
	fromCache = store.SourceDenyCache
)

// login gives one token each 200 ms.
var login = store.Limit{Name: "login", Rate: 5, Period: time.Second, Burst: 20}

func TestARefusedKeyIsAnsweredUntilItsRetryTime(t *testing.T) {
	b := setup(t, login)
	b.take("k", 20)
	first := b.take("k", 1)
	b.want(first, false, fromStore)
	b.pass(150*time.Millisecond + 7*time.Microsecond)
	d := b.take("k", 1)
	b.want(d, false, fromCache)
	if want := first.RetryAfter - 150*time.Millisecond - 7*time.Microsecond; d.RetryAfter != want {
		t.Errorf("retry after %v, want %v", d.RetryAfter, want)
	}
	if want := first.ResetAfter - 150*time.Millisecond - 7*time.Microsecond; d.ResetAfter != want {
		t.Errorf("reset after %v, want %v", d.ResetAfter, want)
	}
	b.pass(d.RetryAfter - time.Microsecond)
	b.want(b.take("k", 1), false, fromCache)
	b.pass(time.Microsecond)
	b.want(b.take("k", 1), true, fromStore)
	if b.asked != 3 {
		t.Errorf("%d calls reached the store, want 3", b.asked)
	}
}

// false-local-denial: a cached refusal must not answer a smaller cost.
func TestASmallerCostGoesThrough(t *testing.T) {
	b := setup(t, login)
	b.take("k", 5)
	b.want(b.take("k", 18), false, fromStore)
	d := b.take("k", 19)
	b.want(d, false, fromCache)
	if d.RetryAfter != 800*time.Millisecond || d.Remaining != 15 {
		t.Errorf("19 of 15: retry %v, remaining %d", d.RetryAfter, d.Remaining)
	}
	b.want(b.take("k", 1), true, fromStore)
	b.want(b.take("k", 18), false, fromStore) // the grant made the key another
	if d = b.take("k", 18); d.RetryAfter != 800*time.Millisecond {
		t.Errorf("18 of 14: retry %v", d.RetryAfter)
	}
	b.want(d, false, fromCache)
}

func TestOtherVerbsAreJudgedByTheirOwnRule(t *testing.T) {
	b := setup(t, login) // may go 20 into debt
	b.take("k", 20)
	b.want(b.take("k", 1), false, fromStore)
	for verb, source := range map[store.Verb]store.Source{
		store.VerbCheck: fromCache, store.VerbTakeUpTo: fromCache, store.VerbTake: fromCache,
	} {
		var d dipwell.Decision
		if err := b.l.Do(t.Context(), &d, verb, "login", "k", 1); err != nil {
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

func TestWhatHappensHereIsSeenAtOnce(t *testing.T) {
	for name, act := range map[string]func(*bench) error{
		"refund": func(b *bench) error { _, err := b.l.Refund(b.Context(), "login", "k", 1); return err },
		"reset":  func(b *bench) error { _, err := b.l.Reset(b.Context(), "login", "k"); return err },
		"change": func(b *bench) error {
			l := login
			l.Burst = 30
			_, err := b.l.Define(b.Context(), l, store.OwnerCode)
			if err == nil {
				b.pass(time.Microsecond)
			}
			return err
		},
		"shadow": func(b *bench) error {
			l := login
			l.Mode = store.Shadow
			_, err := b.l.Define(b.Context(), l, store.OwnerCode)
			return err
		},
		"drop and define": func(b *bench) error {
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

func TestAChargeLengthensTheRetryTime(t *testing.T) {
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

func TestACancelledReservationIsSeenAtOnce(t *testing.T) {
	b := setup(t, login)
	b.take("k", 20)
	d, err := b.l.Reserve(t.Context(), "login", "k", 5)
	if err != nil {
		t.Fatal(err)
	}
	b.pass(900 * time.Millisecond)
	first := b.take("k", 1)
	b.want(first, false, fromStore)
	if err := b.l.Cancel(t.Context(), d.Reservation); err != nil {
		t.Fatal(err)
	}
	b.want(b.take("k", 1), true, fromStore)
}

// A refusal that was on its way when tokens were given back is not kept.
func TestARefusalInFlightIsNotKept(t *testing.T) {
	acts := map[string]func(*bench) error{
		"refund": func(b *bench) error { _, err := b.l.Refund(b.Context(), "login", "k", 1); return err },
		"reset":  func(b *bench) error { _, err := b.l.Reset(b.Context(), "login", "k"); return err },
		"unknown outcome": func(b *bench) error {
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
		b.pass(900 * time.Millisecond)
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

// What another process does is seen MaxAge after the refused request was sent.
func TestOthersAreSeenWithinMaxAge(t *testing.T) {
	slow := store.Limit{Name: "login", Rate: 1, Period: time.Hour}
	b := setup(t, slow)
	other, err := dipwell.New(b.inner)
	if err != nil {
		t.Fatal(err)
	}
	b.take("k", 1)
	b.after = func() { b.pass(300 * time.Millisecond) } // the answer takes its time
	b.want(b.take("k", 1), false, fromStore)
	b.after = func() {}
	if _, err := other.Reset(t.Context(), "login", "k"); err != nil {
		t.Fatal(err)
	}
	b.pass(700*time.Millisecond - time.Microsecond)
	b.want(b.take("k", 1), false, fromCache)
	b.pass(time.Microsecond)
	b.want(b.take("k", 1), true, fromStore)
}

// A slow answer shortens what is kept: a refusal never outlives its retry time.
func TestTheRetryTimeCountsFromTheSending(t *testing.T) {
	b := setup(t, login)
	b.take("k", 20)
	b.after = func() { b.pass(50 * time.Millisecond) }
	d := b.take("k", 1)
	b.after = func() {}
	b.pass(d.RetryAfter - 50*time.Millisecond - time.Microsecond)
	b.want(b.take("k", 1), false, fromCache)
	b.pass(time.Microsecond)
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

// One key that is known to be refused refuses a call of several; the store is
// asked about the others alone, and charges nothing.
func TestGroupsOfSeveralKeys(t *testing.T) {
	b := setup(t, login)
	b.take("k", 20)
	b.take("other", 5)
	takes := []dipwell.Take{{Limit: "login", Key: "k", Cost: 1}, {Limit: "login", Key: "other", Cost: 3}}
	all := func() dipwell.Decision {
		t.Helper()
		d, err := b.l.TakeAll(t.Context(), takes...)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	first := all()
	b.want(first, false, fromStore)
	for range 3 {
		asked := b.asked
		d := all()
		b.want(d, false, fromCache)
		k, other := d.Limits[0], d.Limits[1]
		if k.Allowed || k.Source != fromCache || k.RetryAfter != first.RetryAfter || !other.Allowed || other.Source != fromStore ||
			other.Remaining != 15 || other.Granted != 0 || b.asked != asked+1 {
			t.Errorf("%+v\n%+v, %d calls reached the store", k, other, b.asked-asked)
		}
	}
	b.want(b.take("k", 1), false, fromCache) // learnt from the group
	b.want(b.take("other", 15), true, fromStore)
	b.want(b.take("other", 3), false, fromStore)
	asked := b.asked
	if b.want(all(), false, fromCache); b.asked != asked {
		t.Error("the store was asked, though both keys are known to be refused")
	}
	b.fail = errors.New("gone")
	b.pass(first.RetryAfter) // k may be free again, other is not
	if _, err := b.l.TakeAll(t.Context(), takes...); !errors.Is(err, store.ErrStore) {
		t.Errorf("the store's error about the rest is %v", err)
	}
	if st := b.s.Stats(); st.Refused != 6 {
		t.Errorf("%+v, want 6 refused", st)
	}
}

// A call of several keys that is a reservation goes to the store whole.
func TestReservationsOfSeveralKeysPassThrough(t *testing.T) {
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

// Stats tell lookups that found a refusal, those that did not, what was refused
// here, and what is in memory.
func TestStats(t *testing.T) {
	b := setup(t, login, store.Limit{Name: "watched", Rate: 1, Period: time.Hour, Mode: store.Shadow})
	want := func(w denycache.Stats) {
		t.Helper()
		if got := b.s.Stats(); got != w {
			t.Errorf("%+v, want %+v", got, w)
		}
	}
	b.take("k", 20)
	b.take("k", 5)
	want(denycache.Stats{Misses: 2, Keys: 1})
	b.take("k", 5)
	want(denycache.Stats{Hits: 1, Misses: 2, Refused: 1, Keys: 1})
	b.pass(200 * time.Millisecond)
	b.take("k", 1) // it fits, so the store decides, and the key is forgotten
	want(denycache.Stats{Hits: 2, Misses: 2, Refused: 1})
	for range 2 {
		if _, err := b.l.Take(t.Context(), "watched", "k", 2); err != nil {
			t.Fatal(err)
		}
		if _, err := b.l.Charge(t.Context(), "login", "c", 1); err != nil {
			t.Fatal(err)
		}
	}
	want(denycache.Stats{Hits: 2, Misses: 2, Refused: 1})
	b.take("k", 5)
	b.pass(time.Second)
	b.take("k", 20) // too old to be believed
	want(denycache.Stats{Hits: 2, Misses: 4, Refused: 1, Keys: 1})
}

func TestABatchOfSeveralGroups(t *testing.T) {
	b := setup(t, login)
	for _, key := range []string{"b", "d"} {
		b.take(key, 20)
		b.take(key, 1)
	}
	asked := b.asked
	def := b.l.Limit("login")
	var batch store.Batch
	for _, key := range []string{"a", "b", "c", "d", "e"} {
		batch.Groups = append(batch.Groups, store.Group{Ops: []store.Op{{Def: def, Key: key, Cost: 20}}})
	}
	for round, fromStore := range []string{"ace", "ace", ""} { // granted, refused, all known
		if err := b.s.Apply(t.Context(), &batch); err != nil {
			t.Fatal(err)
		}
		for i := range batch.Groups {
			g, op := &batch.Groups[i], &batch.Groups[i].Ops[0]
			if asked := strings.Contains(fromStore, op.Key); asked == (op.Source == fromCache) || g.Allowed != (asked && round == 0) {
				t.Errorf("round %d, key %s: allowed %v by %v", round, op.Key, g.Allowed, op.Source)
			}
		}
	}
	if b.asked != asked+2 {
		t.Errorf("%d statements, want 2", b.asked-asked)
	}
}

func TestShadowPassesThrough(t *testing.T) {
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

func TestAnErrorForgets(t *testing.T) {
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

func TestNothingIsAllocated(t *testing.T) {
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
		"MaxAge": {MaxAge: -1}, "Keys": {Keys: 1 << 27},
	} {
		if _, err := denycache.New(inner, c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if _, err := denycache.New(nil, denycache.Config{}); err == nil {
		t.Error("no inner store")
	}
}

// While a refund is under way, a refusal may be of the row before it; once it is
// answered, none is.
func TestARefusalOverlapsARefund(t *testing.T) {
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
