// Package storetest says what every store must do: Run drives a store through
// a Limiter and compares each answer with a model in exact rationals.
package storetest

import (
	"context"
	"flag"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// Open returns a fresh, empty store whose clock is now, in µs since the Unix
// epoch. It closes the store through t.Cleanup. now may be called from any
// goroutine, and may step back.
type Open func(t testing.TB, now func() int64) store.Store

// Option changes the size of a run.
type Option func(*size)

// size is how much work the long cases do.
type size struct {
	rounds    int // of a race, each on a fresh key
	histories int // random ones
	steps     int // calls in a history
	vectors   int // golden vectors: one of so many
	part      int // series of calls that are alike are one such part as long
	oneKey    bool
	parallel  bool
}

// Quick is a fraction of the rounds and histories: for -short, and for stores
// over stores that were tested in full.
func Quick(s *size) { s.rounds, s.histories, s.steps, s.vectors, s.part = 5, 6, 150, 16, 4 }

// OneKey is for stores that can ask several limits in one call only about one
// key: cases that ask about several are left out, and histories keep to one.
func OneKey(s *size) { s.oneKey = true }

// Parallel runs the cases at once, as many as -parallel says. It is for stores
// whose calls wait more than they compute.
func Parallel(s *size) { s.parallel = true }

var severalKeys = map[string]bool{
	"worked-5-user-and-tenant": true, "group-same-key-adds-up": true, "group-shadow": true, "group-sixteen": true,
	"group-shared-bucket": true, "cancel-group": true, "race-group": true,
}

// seed replays a random history: the number is in the failure's message.
var seed = flag.Uint64("seed", 0, "storetest: run only the random history with this seed")

// Run checks a store against the contract. Every case opens a store of its own.
// A failure ends with the duty of a store that the case is about, in the words of
// docs/adding-a-store.md.
func Run(t *testing.T, open Open, options ...Option) {
	s := size{rounds: 20, histories: 20, steps: 300, vectors: 1, part: 1}
	if testing.Short() {
		Quick(&s)
	}
	for _, o := range options {
		o(&s)
	}
	for _, group := range cases() {
		for _, c := range group {
			if s.oneKey && severalKeys[c.name] {
				continue
			}
			t.Run(c.name, func(t *testing.T) {
				if s.parallel {
					t.Parallel()
				}
				names(t, c.name)
				c.run(newEnv(t, open, s))
			})
		}
	}
}

func cases() [][]testCase {
	return [][]testCase{worked, regressions, verbCases, groupCases, reservationCases, givingBackCases, changeCases, windowCases, keyCases, waitCases, raceCases, historyCases, goldenCases}
}

type testCase struct {
	name string
	run  func(*env)
}

// epoch is where the clock of each case starts: 2026-01-01T00:00:00Z, a whole
// number of days, hours and tens of seconds.
const epoch = int64(1767225600e6)

// env is one case: a store with its clock, a limiter over it, and the model
// that is asked the same questions.
type env struct {
	*testing.T
	size
	open  Open
	clock atomic.Int64
	store store.Store
	l     *dipwell.Limiter
	m     *model
	ctx   context.Context
	late  int // limits that hold has defined
}

func newEnv(t *testing.T, open Open, s size) *env {
	e := &env{T: t, size: s, open: open, m: newModel(), ctx: t.Context()}
	e.clock.Store(epoch)
	e.use(open(t, e.clock.Load))
	return e
}

// with is the same case over another store, whose clock is now. The model is of
// no use there.
func (e *env) with(now func() int64) *env {
	w := &env{T: e.T, size: e.size, open: e.open, m: newModel(), ctx: e.ctx}
	w.use(e.open(e.T, now))
	return w
}

// must fails on an error: e.must(e.l.Take(...)).
func (e *env) must(_ any, err error) {
	e.Helper()
	if err != nil {
		e.Fatal(err)
	}
}

func (e *env) use(store store.Store) {
	var err error
	e.store = store
	if e.l, err = dipwell.New(store); err != nil {
		e.Fatal(err)
	}
}

// at moves the clock to d after the epoch.
func (e *env) at(d time.Duration) { e.clock.Store(epoch + d.Microseconds()) }

// pass moves the clock on by d.
func (e *env) pass(d time.Duration) { e.clock.Add(d.Microseconds()) }

// define adds or changes a limit, in the store and in the model.
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

// sweep deletes full rows where the store can.
func (e *env) sweep() {
	e.Helper()
	if sweep := store.AbilitiesOf(e.store).Sweep; sweep != nil {
		if _, err := sweep(e.ctx, 1000); err != nil {
			e.Fatalf("sweep: %v", err)
		}
	}
}
