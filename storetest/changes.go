package storetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

// changeCases change limits that have used tokens.
var changeCases = []testCase{
	{"change-keep", func(e *env) { changePolicy(e, store.Keep, 3) }},
	{"change-proportional", func(e *env) { changePolicy(e, store.Proportional, 6) }},
	{"change-reset", func(e *env) { changePolicy(e, store.StartOver, 10) }},
	{"change-several-versions", changeSeveralVersions},
	{"change-many-times", changeManyTimes},
	{"change-after-hundreds", changeAfterHundreds},
	{"hold-many-changes", holdManyChanges},
	{"change-algorithm", changeAlgorithm},
	{"change-mode-only", changeModeOnly},
	{"define-again", defineAgain},
	{"change-with-reservation", changeWithReservation},
	{"drop-and-redefine", dropAndRedefine},
	{"owners", owners},
	{"owner-files", fileOwners},
	{"first-use", firstUse},
}

// A drained limit of 1/h that is changed to 100/s an hour later has one token at
// that time and gets 100 a second from then on; a second case tests the reverse.
func staleAfterChange(e *env) {
	e.bucket("x", 1, time.Hour, 100)
	e.allowed("x", "k", 100, 0)
	e.allowed("x", "half", 100, 0)
	e.refused("x", "k", 1, time.Hour)
	e.at(30 * time.Minute)
	e.left("x", "half", 0)
	e.at(time.Hour)
	e.bucket("x", 100, time.Second, 100)
	e.sweep()
	e.left("x", "half", 1)
	e.allowed("x", "k", 1, 0)
	e.refused("x", "k", 1, 10*time.Millisecond)
	e.advance(10*time.Millisecond - time.Microsecond)
	e.refused("x", "k", 1, time.Microsecond)
	e.advance(time.Microsecond)
	e.allowed("x", "k", 1, 0)
	e.advance(time.Second)
	e.allowed("x", "k", 100, 0)

	e.advance(5 * time.Millisecond) // half a token came back; the other half takes 30 minutes
	e.bucket("x", 1, time.Hour, 100)
	e.refused("x", "k", 1, 30*time.Minute)
	e.advance(30*time.Minute - time.Microsecond)
	e.sweep()
	e.refused("x", "k", 1, time.Microsecond)
	e.advance(time.Microsecond)
	e.allowed("x", "k", 1, 0)
	e.refused("x", "k", 1, time.Hour)
}

// 7 of 20 tokens are used; the burst changes to 10 and back to 20.
func changePolicy(e *env, p store.ChangePolicy, down int64) {
	l := store.Limit{Name: "p", Rate: 1, Period: time.Hour, Burst: 20, OnChange: p}
	e.define(l)
	e.allowed("p", "k", 7, 13)
	l.Burst = 10
	e.define(l)
	e.left("p", "k", down)
	e.check("p", "untouched", 10)
	l.Burst = 20
	e.define(l)
	e.left("p", "k", map[store.ChangePolicy]int64{store.Keep: 13, store.Proportional: 13, store.StartOver: 20}[p])
	e.allowed("p", "later", 14, 6)
	l.Rate, l.Period = 7, 3*time.Minute
	e.define(l)
	e.check("p", "later", 1)
	e.check("p", "k", 1)
}

// The row of a key that was not called during several versions is stepped
// through each of them.
func changeSeveralVersions(e *env) {
	l := store.Limit{Name: "v", Rate: 1, Period: time.Hour, Burst: 50}
	e.define(l)
	for _, key := range []string{"a", "b", "c", "d"} {
		e.allowed("v", key, 50, 0)
	}
	for i, next := range []store.Limit{
		{Rate: 10, Period: time.Hour, Burst: 30},
		{Rate: 1, Period: time.Minute, Burst: 40, OnChange: store.Proportional},
		{Rate: 999983, Period: 30 * 24 * time.Hour, Burst: 10},
		{Rate: 3, Period: 7 * time.Second, Burst: 100, OnChange: store.Proportional},
		{Rate: 1, Period: time.Hour, Burst: 50, MaxDebt: store.NoDebt},
	} {
		e.advance(17*time.Minute + 123457*time.Microsecond)
		next.Name = "v"
		e.define(next)
		e.sweep()
		if i == 1 {
			e.check("v", "b", 1)
			e.do(store.VerbRefund, "v", "b", 3)
		}
		if i == 2 {
			e.take("v", "c", 5)
		}
	}
	for _, key := range []string{"a", "b", "c", "d"} {
		e.take("v", key, 1)
		e.take("v", key, 20)
	}
	e.advance(time.Minute)
	e.take("v", "d", 1)
}

// Rows of very old versions are stepped through each of several hundred versions, also if
// the store has converted them before they are called.
func changeManyTimes(e *env) {
	e.histories = max(1, e.histories/5) // each history is long
	e.seeded(1, func(e *env, rnd *rand.Rand) {
		change := func() {
			l := store.Limit{
				Name:      "many",
				Algorithm: pick(rnd, store.TokenBucket, store.TokenBucket, store.TokenBucket, store.FixedWindow, store.Interval),
				Rate:      1 + rnd.Int64N(30),
				Period:    pick(rnd, time.Hour, 24*time.Hour, 7*24*time.Hour),
				Burst:     20 + rnd.Int64N(100),
				MaxDebt:   pick[int64](rnd, 0, 7, store.NoDebt),
				OnChange:  pick(rnd, store.Keep, store.Proportional),
			}
			if l.Algorithm != store.TokenBucket {
				l.Start = pick(rnd, "", "0s")
			}
			if rnd.IntN(100) == 0 {
				l.OnChange = store.StartOver
			}
			e.define(l)
		}
		change()
		for i := range manyChanges / e.part {
			change()
			e.advance(time.Duration(rnd.Int64N(int64(20*time.Minute/time.Microsecond))) * time.Microsecond)
			if rnd.IntN(3) == 0 || i < 20 {
				verb := pick(rnd, store.VerbTake, store.VerbTake, store.VerbTakeUpTo, store.VerbReserve, store.VerbCheck, store.VerbRefund)
				e.do(verb, "many", fmt.Sprint("k", rnd.IntN(20)), 1+rnd.Int64N(20))
			}
			if rnd.IntN(50) == 0 {
				e.sweep()
			}
		}
		for i := range 20 {
			e.do(store.VerbTake, "many", fmt.Sprint("k", i), 1)
		}
	})
}

// Keys used under the first version and called again after hundreds of changes, one a
// minute, have the tokens of a row stepped through each version.
func changeAfterHundreds(e *env) {
	limits := []store.Limit{
		{Name: "bucket", Period: 30 * 24 * time.Hour, Burst: 10_000},
		{Name: "window", Algorithm: store.FixedWindow, Period: 30 * 24 * time.Hour}, // windows of its keys begin at different times
	}
	change := func(i int) {
		for _, l := range limits {
			l.Rate, l.OnChange = 9000+int64(i%7), []store.ChangePolicy{store.Keep, store.Proportional}[i%2]
			e.define(l)
		}
	}
	change(0)
	for _, l := range limits {
		e.take(l.Name, "often", 5000)
		e.take(l.Name, "once", 8000)
		e.take(l.Name, "never again", 8000)
	}
	changes := 1000 / e.part // a Registry whose store does not call Retire keeps at most 1024 versions
	for i := range changes {
		e.advance(time.Minute)
		change(i + 1)
		if i%20 == 0 {
			e.sweep()
			e.take("bucket", "often", 1)
		}
	}
	for _, l := range limits {
		e.check(l.Name, "once", 1)
		e.take(l.Name, "once", 1)
		e.check(l.Name, "often", 1)
		if n := e.l.Limit(l.Name).Number; int(n) != changes+1 {
			e.Errorf("version %d after %d changes", n, changes)
		}
	}
}

// manyChanges is several times the number of versions that stores keep.
const manyChanges = 200

// The same test with plans, overrides, holds and reservations.
func holdManyChanges(e *env) {
	for seed := range uint64(max(1, e.histories/5)) {
		e.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			now := epoch
			s := e.open(t, func() int64 { return atomic.LoadInt64(&now) })
			overriderOf(t, s)
			limittest.AgreeOnChanges(t, s, &now, seed, 3*manyChanges/e.part, limittest.Differences{Sweeps: true, Forget: true})
		})
	}
}

func changeAlgorithm(e *env) {
	e.bucket("x", 10, time.Minute, 10)
	e.allowed("x", "k", 8, 2)
	e.advance(3 * time.Second) // 7.5 tokens are used, which Keep rounds up to 8
	e.define(store.Limit{Name: "x", Algorithm: store.FixedWindow, Rate: 10, Period: time.Minute, Start: "0s"})
	e.left("x", "k", 2)
	e.refused("x", "k", 3, 57*time.Second)
	e.at(time.Minute)
	e.left("x", "k", 10)
	e.allowed("x", "k", 4, 6)
	e.define(store.Limit{Name: "x", Algorithm: store.LeakyBucket, Rate: 10, Period: time.Minute, MaxDebt: 20})
	e.take("x", "k", 1)
	e.advance(time.Minute)
	e.take("x", "k", 1)
	e.define(store.Limit{Name: "x", Algorithm: store.Interval, Rate: 3, Period: 20 * time.Second, Burst: 12})
	e.take("x", "k", 5)
	e.advance(31 * time.Second)
	e.take("x", "k", 5)
}

// A change of settings that do not affect counting keeps the limit's version
// and rows.
func changeModeOnly(e *env) {
	l := store.Limit{Name: "m", Rate: 1, Period: time.Hour, Burst: 5, OnChange: store.StartOver}
	first := e.define(l)
	e.allowed("m", "k", 5, 0)
	l.Mode, l.RetryJitter = store.Shadow, 10
	if d := e.define(l); d.Number != first.Number {
		e.Fatalf("a change of mode began version %d, want the same version", d.Number)
	}
	if d := e.take("m", "k", 1); !d.Allowed || !d.Shadow {
		e.Fatalf("in shadow mode: allowed %v, shadow %v", d.Allowed, d.Shadow)
	}
	l.Mode = store.Enforce
	e.define(l)
	e.refused("m", "k", 1, time.Hour)
}

// A limit that is defined again with the same settings keeps its version, whatever
// these are: programs define limits each time they start.
func defineAgain(e *env) {
	second := func(name string) store.Limit {
		return store.Limit{Name: name, Rate: 1000, Period: time.Second, Burst: 1000}
	}
	plans, leased, sharded := second("plans"), second("leased"), second("sharded")
	plans.Plans = store.NewPlans(store.Plan{Name: "pro", Rate: 2000}, store.Plan{Name: "staff", Mode: store.Unlimited})
	leased.Lease, sharded.Shards, sharded.MaxDebt = 100*time.Millisecond, 8, store.NoDebt
	both := second("both")
	both.Plans, both.Lease = plans.Plans, leased.Lease
	for _, l := range []store.Limit{second("plain"), plans, leased, both, sharded,
		{Name: "window", Algorithm: store.FixedWindow, Rate: 5, Period: 24 * time.Hour, Start: "06:00 Europe/Rome", KeepExpired: true, TTL: time.Minute},
		{Name: "leaky", Algorithm: store.LeakyBucket, Rate: 5, Period: time.Second, MaxDebt: store.UnlimitedDebt},
		{Name: "slow", Rate: 5, Period: 30 * 24 * time.Hour, Burst: store.NoBurst, MaxDebt: 3, MaxCharge: 7, Mode: store.Shadow, OnStoreError: store.FailOpen},
		{Name: "slots", Algorithm: store.Concurrency, Burst: 3},
	} {
		if slices.Contains(e.Lacks, "plans") && l.Plans != (store.Plans{}) || slices.Contains(e.Lacks, "concurrency") && l.Algorithm == store.Concurrency {
			continue
		}
		first, err := e.l.Define(e.ctx, l, store.OwnerCode)
		if err != nil {
			e.Fatal(err)
		}
		e.advance(time.Second)
		d, err := e.l.Define(e.ctx, l, store.OwnerCode)
		if err != nil || d.Number != first.Number || d.Since != first.Since {
			e.Fatalf("limit %s, defined again as it is, has version %d since %d; want %d since %d; %v", l.Name, d.Number, d.Since, first.Number, first.Since, err)
		}
	}
}

// Cancelling after a change gives back the tokens as the change converted them; a change
// with the policy reset has ended the reservations.
func changeWithReservation(e *env) {
	for _, p := range []store.ChangePolicy{store.Keep, store.Proportional, store.StartOver} {
		name, want := p.String(), error(nil)
		if p == store.StartOver {
			want = store.ErrReservation
		}
		l := store.Limit{Name: name, Rate: 1, Period: time.Minute, Burst: 10, MaxDebt: 20, OnChange: p}
		e.define(l)
		e.allowed(name, "k", 10, 0)
		a, b := e.reserve(name, "k", 7), e.reserve(name, "k", 3)
		e.advance(20 * time.Second)
		l.Rate, l.Period, l.Burst = 3, 100*time.Second, 20
		e.define(l)
		e.mustBe(want, e.cancel(a.Reservation))
		e.check(name, "k", 1)
		e.advance(time.Second)
		l.Rate, l.Burst = 7, 5
		e.define(l)
		e.mustBe(want, e.cancel(b.Reservation))
		e.check(name, "k", 1)
		e.take(name, "k", 2)
	}
}

func dropAndRedefine(e *env) {
	e.bucket("d", 1, time.Hour, 5)
	e.allowed("d", "k", 5, 0)
	e.drop("d")
	if _, err := e.l.Take(e.ctx, "d", "k", 1); err == nil {
		e.Fatal("a take of a dropped limit returned no error")
	}
	e.bucket("d", 1, time.Hour, 5)
	e.allowed("d", "k", 2, 3)
	e.allowed("d", "new", 5, 0)
	e.bucket("d", 2, time.Hour, 5)
	e.left("d", "k", 3)
	e.refused("d", "new", 1, 30*time.Minute)
}

func owners(e *env) {
	e.bucket("mine", 1, time.Hour, 5)
	e.allowed("mine", "k", 2, 3)
	l := store.Limit{Name: "mine", Rate: 100, Period: time.Second}
	if _, err := e.l.Define(e.ctx, l, terms.OwnerAPI); err == nil {
		e.Fatal("owner api changed a limit of owner code")
	}
	if err := e.l.Drop(e.ctx, "mine", terms.OwnerAPI); err == nil {
		e.Fatal("owner api dropped a limit of owner code")
	}
	e.left("mine", "k", 3)
}

// A file takes over a limit of any owner except another named file, and an older
// revision of the same file changes nothing.
func fileOwners(e *env) {
	main := func(revision int64, digest string) string {
		return terms.FileOwner{Revision: revision, Digest: digest}.String()
	}
	billing := terms.FileOwner{Name: "billing", Digest: "b1"}.String()
	l := e.define(store.Limit{Name: "shared", Rate: 1, Period: time.Hour, Burst: 5}).Limit
	e.allowed("shared", "k", 2, 3)
	fast := l
	fast.Rate = 2
	for _, step := range []struct {
		limit store.Limit
		owner string
		field string // field of the wanted error; "owner" for ErrOwner
	}{
		{l, terms.OwnerFile, ""}, // a file as earlier releases stored it, without a digest
		{l, billing, ""},         // the file billing takes the limit over
		{fast, main(7, "m7"), "owner"},
		{fast, terms.OwnerAPI, "owner"},
		{fast, terms.OwnerRLS, "owner"},
		{fast, terms.FileOwner{Name: "billing", Revision: 3, Digest: "b3"}.String(), ""},
		{l, terms.FileOwner{Name: "billing", Revision: 2, Digest: "b2"}.String(), "revision"},
		{l, billing, "revision"},
		{fast, terms.FileOwner{Name: "billing", Revision: 3, Digest: "b4"}.String(), ""},
	} {
		_, err := e.l.Define(e.ctx, step.limit, step.owner)
		var bad *store.FieldError
		field := ""
		switch {
		case errors.Is(err, store.ErrOwner):
			field = "owner"
		case errors.As(err, &bad):
			field = bad.Field
		case err != nil:
			e.Fatal(err)
		}
		if field != step.field {
			e.Fatalf("%s by %q: %v, want an error about %q", step.limit, step.owner, err, step.field)
		}
	}
	def := e.l.Limit("shared")
	if f, ok := terms.ParseFileOwner(def.Owner); !ok || f != (terms.FileOwner{Name: "billing", Revision: 3, Digest: "b4"}) || def.Limit != fast || def.Number != 2 {
		e.Fatalf("owner %q, %+v", def.Owner, def)
	}
	if err := e.l.Drop(e.ctx, "shared", terms.OwnerFile); !errors.Is(err, store.ErrOwner) {
		e.Fatalf("drop by another owner's file: %v, want ErrOwner", err)
	}
	if d, err := e.l.Check(e.ctx, "shared", "k", 0); err != nil || d.Remaining != 3 {
		e.Fatalf("%+v, %v", d, err)
	}
	if err := e.l.Drop(e.ctx, "shared", billing); err != nil {
		e.Fatal(err)
	}
}

// A definition by a call site does not change an existing limit, even if the
// process has not loaded that limit.
func firstUse(e *env) {
	def := store.AbilitiesOf(e.l.Store()).Limits
	if def == nil {
		return
	}
	was := e.define(store.Limit{Name: "first", Rate: 1, Period: time.Hour, Burst: 5})
	other := was.Limit
	other.Rate = 100
	got, err := def.Define(e.ctx, other, "call site")
	if err != nil || got.Limit != was.Limit || got.Number != was.Number {
		e.Fatalf("%+v, %v", got, err)
	}
}
