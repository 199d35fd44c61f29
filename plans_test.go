package dipwell_test

import (
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
)

// TestReserveToldBySlowerPlan shows what the promise for several plans leaves out. A
// Reserve by a slow plan is told a time. If a call by a faster plan moves the key to that
// plan meanwhile, the debt comes back sooner, but the reservation still waits until its
// time: just then others may take a full burst beside it. The documentation says so; if
// this test fails, the promise holds without the exception, and the sentence can go.
func TestReserveToldBySlowerPlan(t *testing.T) {
	now := int64(1e15)
	st, err := memstore.New(memstore.Config{Clock: func() int64 { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	l, err := dipwell.New(st, dipwell.Limit{Name: "api", Rate: 100, Period: time.Second, Burst: 10, MaxDebt: 10,
		Plans: dipwell.NewPlans(dipwell.Plan{Name: "slow", Rate: 1, Burst: 10})})
	if err != nil {
		t.Fatal(err)
	}
	reserve := func(plan string, n int64) dipwell.Decision {
		var d dipwell.Decision
		if err := l.Do(t.Context(), &d, store.VerbReserve, dipwell.Take{Limit: "api", Key: "k", Cost: n, Plan: plan}); err != nil || !d.Allowed {
			t.Fatalf("%+v, %v", d, err)
		}
		return d
	}
	reserve("slow", 10)
	due := now + reserve("slow", 10).Delay.Microseconds()
	if due != now+10e6 {
		t.Fatalf("due after %d µs", due-now)
	}
	now += 1e6
	reserve("", 1) // by the limit itself: the key comes back at 100 a second from now on
	now = due - 1000
	d, err := l.Take(t.Context(), "api", "k", 10)
	if err != nil {
		t.Fatal(err)
	}
	// Within 1 ms the 10 of this call and the 10 that were reserved act; 10.1 were promised.
	if !d.Allowed {
		t.Error("the burst is withheld for the reservation: the exception is gone")
	}
}
