package limittest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dipwell/dipwell/store"
)

// Programs has several programs change, define and drop limits of one store at the same time,
// and take from a limit that all of them change. In the end each program has the same
// definitions as one that begins then, and no token more or less was granted. open opens a
// store as another program would; its clock must stand still, and it must look for changes
// often. eventually polls until ok returns true.
func Programs(t testing.TB, open func() store.Store, rounds int, eventually func(t testing.TB, what string, ok func() bool)) {
	const programs, burst = 3, 100_000
	hot := store.Limit{Name: "hot", Rate: 1, Period: time.Hour, Burst: burst}
	define := func(s store.Store, l store.Limit) {
		if _, err := store.AbilitiesOf(s).Limits.Define(t.Context(), l, store.OwnerCode); err != nil {
			t.Errorf("define %s: %v", l.Name, err)
		}
	}
	decide := func(s store.Store, verb store.Verb, cost int64) (op store.Op) {
		var b store.Batch
		g, o := b.Single()
		o.Def, o.Key, o.Verb, o.Cost = store.AbilitiesOf(s).Limits.Registry().Lookup("hot"), "k", verb, cost
		if err := s.Apply(t.Context(), &b); err != nil || g.Err != nil {
			t.Errorf("%v of hot: %v, %v", verb, err, g.Err)
		}
		return *o
	}
	stores := []store.Store{open()}
	define(stores[0], hot)
	define(stores[0], store.Limit{Name: "above", Rate: 1, Period: time.Hour, Burst: burst})
	for range programs - 1 {
		stores = append(stores, open())
	}
	type definition struct {
		store.Limit
		number uint32
		paths  bool
	}
	known := func(s store.Store) (defs []definition) {
		for _, d := range store.AbilitiesOf(s).Limits.Registry().All() {
			defs = append(defs, definition{d.Limit, d.Number, d.Paths})
		}
		return defs
	}
	var granted atomic.Int64
	program := func(p, round int) {
		s := stores[p]
		own := store.Limit{Name: fmt.Sprint("own", p), Rate: 1, Period: time.Hour}
		child := store.Limit{Name: fmt.Sprint("child", p), Rate: 1, Period: time.Hour, Parent: "above"}
		for i := range 4 {
			switch i {
			case round % 4:
				define(s, child)
			case 3:
				if err := store.AbilitiesOf(s).Limits.Drop(t.Context(), child.Name, store.OwnerCode); err != nil && !errors.Is(err, store.ErrUnknownLimit) {
					t.Errorf("drop %s: %v", child.Name, err)
				}
			}
			l := hot
			l.Period = []time.Duration{time.Hour, 24 * time.Hour}[(p+i)%2]
			define(s, l)
			for range 3 {
				op := decide(s, store.VerbTake, 1)
				granted.Add(op.Granted)
			}
			own.Burst = int64(4*round + i + 1)
			define(s, own)
		}
	}
	for round := range rounds {
		var all sync.WaitGroup
		for p := range stores {
			all.Go(func() { program(p, round) })
		}
		all.Wait()
		last := open()
		want := known(last)
		for p, s := range stores {
			eventually(t, fmt.Sprint("the definitions of program ", p, " those in the store"), func() bool { return slices.Equal(known(s), want) })
			if op := decide(s, store.VerbCheck, 0); op.Remaining != burst-granted.Load() {
				t.Errorf("program %d: %d remaining of %d after %d were granted", p, op.Remaining, burst, granted.Load())
			}
		}
		if t.Failed() {
			return
		}
	}
}
