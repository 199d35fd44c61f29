// Package storetest tests stores. Run calls a store through a Limiter and
// compares each answer with a model that computes in exact rationals.
package storetest

import (
	"context"
	"errors"
	"flag"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// Open returns a fresh, empty store whose clock is now, in µs since the Unix
// epoch. Open closes the store through t.Cleanup. now may be called from any
// goroutine, and may step back.
type Open func(t testing.TB, now func() int64) store.Store

// Options say what Run leaves out and how it runs. The zero value runs all cases in full,
// one after the other. With -short, races are shortened as by Quick and the rest as by Brief.
type Options struct {
	// Quick shortens races, histories and loops, for decorators over stores that were
	// tested in full.
	Quick bool
	// Brief shortens races, histories and loops further than Quick, for tests of many
	// combinations. With Quick and Brief, races are as with Quick.
	Brief bool

	// OneKey is for stores that cannot decide different keys in one group: Run skips the
	// cases that do, and histories use one key in each group.
	OneKey bool

	// Parallel runs the cases in parallel, up to the limit of -parallel, for stores
	// whose calls mostly wait for I/O.
	Parallel bool

	// Lacks names abilities that the store does not have yet: "plans", "overrides",
	// "holds", "concurrency", "fractions" or "shards". Run skips the cases of these abilities;
	// another name fails the test.
	Lacks []string
}

// size returns how much work the long cases do.
func (o *Options) size() size {
	switch {
	case o.Brief && !o.Quick:
		return size{rounds: 1, histories: 2, steps: 60, vectors: 47, part: 4, few: 4, Options: *o}
	case o.Brief, testing.Short():
		return size{rounds: 5, histories: 2, steps: 60, vectors: 47, part: 4, few: 4, Options: *o}
	case o.Quick:
		return size{rounds: 5, histories: 6, steps: 150, vectors: 16, part: 4, few: 4, Options: *o}
	}
	return size{rounds: 20, histories: 20, steps: 300, vectors: 1, part: 1, few: 1, Options: *o}
}

// size says how much work the long cases do.
type size struct {
	rounds    int // rounds of a race, each on a new key
	histories int // random histories
	steps     int // calls in a random history
	vectors   int // one in this many golden vectors is played
	part      int // factor by which repetitive loops are shortened
	few       int // factor for numbers of keys, reservations and definitions
	Options
}

var severalKeys = map[string]bool{
	"plan-group": true, "floor-group": true, "hold-several": true, "hold-several-nothing": true, "settle-several-nothing": true, "hold-several-free": true, "concurrency-expires-unused": true, "hold-again": true, "hold-reset": true, "hold-reset-all": true, "hold-drop": true, "hold-parent-drop": true, "settle-beside-dropped": true, "hold-takes-add-up": true, "hold-bad-input": true, "concurrency-beside": true,
	"worked-5-user-and-tenant": true, "group-same-key-adds-up": true, "group-shadow": true, "group-sixteen": true,
	"group-shared-bucket": true, "shards-group": true, "cancel-group": true, "cancel-beside-charge": true, "race-group": true,
	"levels": true, "levels-take-up-to": true, "levels-take-up-to-above-burst": true, "levels-take-up-to-shadow": true, "levels-reserve": true, "plan-levels": true, "race-levels": true, "block-begins-with-others": true, "levels-golden": true, "together-golden": true, "hold-many-changes": true,
}

// seed selects a random history. The message of a failure has the seed.
var seed = flag.Uint64("seed", 0, "storetest: run only the random history with this seed")

// Run tests the store that open returns. Each case opens a store of its own. A
// failure names the duty that the case tests; duties.go lists all duties.
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, func(t testing.TB, now func() int64) store.Store {
//			s := mystore.New(now)
//			t.Cleanup(func() { s.Close() })
//			return s
//		}, storetest.Options{})
//	}
//
// With -short, Run is short enough to run after each change. A random history that
// fails prints its seed, and DIPWELL_SEED=N in the environment repeats it.
func Run(t *testing.T, open Open, o Options) {
	for _, a := range o.Lacks {
		if !slices.Contains(optional, a) {
			t.Errorf("storetest.Options.Lacks has %q; it is one of %v", a, optional)
		}
	}
	for _, group := range cases() {
		for _, c := range group {
			if o.OneKey && severalKeys[c.name] || slices.Contains(o.Lacks, c.ability()) {
				continue
			}
			t.Run(c.name, func(t *testing.T) {
				if o.Parallel {
					t.Parallel()
				}
				logDuty(t, c.name)
				c.run(newEnv(t, open, o.size()))
			})
		}
	}
}

func cases() [][]testCase {
	return [][]testCase{worked, regressions, verbCases, groupCases, shardCases, levelCases, namedCases, reservationCases, givingBackCases, changeCases, windowCases, slidingCases, keyCases, waitCases, planCases, overrideCases, startCases, blockCases, holdCases, concurrencyCases, priceCases, auditCases, usageCases, raceCases, historyCases, goldenCases, goldenCallCases}
}

type testCase struct {
	name string
	run  func(*env)
}

// optional are the abilities that Options.Lacks may name.
var optional = []string{"plans", "overrides", "holds", "concurrency", "fractions", "shards"}

// ability returns the optional ability that a case needs, with which the case's name begins;
// or "".
func (c *testCase) ability() string {
	switch kind, _, _ := strings.Cut(c.name, "-"); kind {
	case "plan", "floor":
		return "plans"
	case "override", "block":
		return "overrides"
	case "hold", "settle", "extend", "expired":
		return "holds"
	case "price":
		return "fractions"
	case "concurrency", "shards":
		return kind
	}
	return ""
}

// epoch is the time at which the clock of each case starts:
// 2026-01-01T00:00:00Z in µs, a multiple of days, hours and tens of seconds.
const epoch = int64(1767225600e6)

// env is what a case works with: a store, its clock, a limiter over it, and the
// model that gets the same calls.
type env struct {
	*testing.T
	size
	open  Open
	clock atomic.Int64
	store store.Store
	l     *dipwell.Limiter
	m     *model
	ctx   context.Context
	late  int // number of limits defined by takeCancelable
}

func newEnv(t *testing.T, open Open, s size) *env {
	e := &env{T: t, size: s, open: open, m: newModel(), ctx: t.Context()}
	e.clock.Store(epoch)
	e.use(open(t, e.clock.Load))
	return e
}

// with opens another store, whose clock is now. The model of that store must not be used.
func (e *env) with(now func() int64) *env {
	w := &env{T: e.T, size: e.size, open: e.open, m: newModel(), ctx: e.ctx}
	w.use(e.open(e.T, now))
	return w
}

// must fails the case on an error. must drops the result, as in
// e.must(e.l.Take(...)).
func (e *env) must(_ any, err error) {
	e.Helper()
	if err != nil {
		e.Fatal(err)
	}
}

func (e *env) mustBe(want, err error) {
	e.Helper()
	if !errors.Is(err, want) {
		e.Fatalf("%v; want %v", err, want)
	}
}

func (e *env) use(store store.Store) {
	var err error
	e.store = store
	if e.l, err = dipwell.New(store); err != nil {
		e.Fatal(err)
	}
}

// at sets the clock to epoch + d.
func (e *env) at(d time.Duration) { e.clock.Store(epoch + d.Microseconds()) }

// advance adds d to the clock.
func (e *env) advance(d time.Duration) { e.clock.Add(d.Microseconds()) }

// define adds or changes a limit in the store and in the model.
func (e *env) define(l store.Limit) *store.Definition {
	e.Helper()
	d, err := e.l.Define(e.ctx, l, store.OwnerCode)
	if err != nil {
		e.Fatalf("define %s: %v", l.Name, err)
	}
	e.m.define(e.clock.Load(), l, d)
	return d
}

func (e *env) drop(name string) {
	e.Helper()
	if err := e.l.Drop(e.ctx, name, store.OwnerCode); err != nil {
		e.Fatalf("drop %s: %v", name, err)
	}
	e.m.drop(name)
}

// bucket defines a token bucket.
func (e *env) bucket(name string, rate int64, per time.Duration, burst int64) {
	e.Helper()
	e.define(store.Limit{Name: name, Rate: rate, Period: per, Burst: burst})
}

// sweep deletes full rows, if the store has the ability Sweep.
func (e *env) sweep() {
	e.Helper()
	if sweep := store.AbilitiesOf(e.store).Sweep; sweep != nil {
		if _, err := sweep(e.ctx, 1000); err != nil {
			e.Fatalf("sweep: %v", err)
		}
	}
}
