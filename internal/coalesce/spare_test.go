package coalesce_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/dipwell/dipwell/internal/coalesce"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
	"github.com/dipwell/dipwell/storetest"
)

// addCredits makes calls one after the other. Each adds a credit for a spare lane.
func addCredits(t *testing.T, s store.Store, home *gate) {
	t.Helper()
	for range 20 {
		c := ask(s, "lone")
		(<-home.arrived).finish <- outcome{}
		c.turn(t)
	}
}

// TestSpareLanesAtLowLoad checks that calls use spare lanes instead of waiting.
func TestSpareLanesAtLowLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		home, first, second := newGate(), newGate(), newGate()
		s := newStoreWithLanes(t, coalesce.Config{}, store.Lanes{Stores: []store.Store{home, first, second}, Spare: 2})
		addCredits(t, s, home)
		calls := []*call{ask(s, "a")}
		one := <-home.arrived
		calls = append(calls, ask(s, "b"))
		two := <-first.arrived
		calls = append(calls, ask(s, "c"))
		three := <-second.arrived
		waits := []*call{ask(s, "d"), ask(s, "e")} // all lanes are busy
		for _, st := range []*statement{three, two, one} {
			st.finish <- outcome{}
		}
		for _, c := range calls {
			c.turn(t)
		}
		together := <-home.arrived // nobody queues at a spare lane
		if want := []string{"d", "e"}; !slices.Equal(together.keys, want) {
			t.Errorf("%v ride together, want %v", together.keys, want)
		}
		together.finish <- outcome{}
		for _, c := range waits {
			c.turn(t)
		}
	})
}

// TestSpareLanesNearCapacity checks that spare lanes stay idle.
func TestSpareLanesNearCapacity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		home, spare := newGate(), newGate()
		s := newStoreWithLanes(t, coalesce.Config{}, store.Lanes{Stores: []store.Store{home, spare}, Spare: 1})
		first := ask(s, "a")
		one := <-home.arrived
		other := ask(s, "b") // there is credit for one
		two := <-spare.arrived
		var calls []*call
		for i := range 8 {
			calls = append(calls, ask(s, fmt.Sprint(i)))
		}
		two.finish <- outcome{}
		other.turn(t)
		calls = append(calls, ask(s, "late")) // others wait already
		one.finish <- outcome{}
		first.turn(t)
		together := <-home.arrived
		if len(together.keys) != 9 {
			t.Errorf("%v ride together", together.keys)
		}
		together.finish <- outcome{}
		for _, c := range calls {
			c.turn(t)
		}
	})
}

// TestSpareLaneMustBeConnected checks that a call does not use a lane that would have
// to connect first.
func TestSpareLaneMustBeConnected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		home, spare, connected := newGate(), newGate(), false
		s := newStoreWithLanes(t, coalesce.Config{}, store.Lanes{Stores: []store.Store{home, spare}, Spare: 1, Connected: func(int) bool { return connected }})
		addCredits(t, s, home)
		first := ask(s, "a")
		one := <-home.arrived
		second := ask(s, "b")
		one.finish <- outcome{}
		first.turn(t)
		one = <-home.arrived
		connected = true
		third := ask(s, "c") // b has a runner: c shares the next statement
		one.finish <- outcome{}
		second.turn(t)
		(<-home.arrived).finish <- outcome{}
		third.turn(t)
		synctest.Wait() // for the runner to end
		first = ask(s, "a")
		one = <-home.arrived
		second = ask(s, "b")
		(<-spare.arrived).finish <- outcome{}
		second.turn(t)
		one.finish <- outcome{}
		first.turn(t)
	})
}

// TestStoreWithSpareLanes runs the suite of all stores.
func TestStoreWithSpareLanes(t *testing.T) {
	storetest.Run(t, func(t testing.TB, now func() int64) store.Store {
		inner, err := memstore.New(memstore.Config{Clock: now})
		if err != nil {
			t.Fatal(err)
		}
		s, err := coalesce.New(store.Lanes{Stores: []store.Store{inner, inner, inner, inner}, Spare: 2}, coalesce.Config{MaxBatch: 8})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = s.Close(), inner.Close() })
		return s
	}, storetest.Options{Quick: true})
}
