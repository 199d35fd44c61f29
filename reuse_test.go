package dipwell_test

import (
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
)

// TestReusedDecision checks that calls into a Decision that was used before leave
// nothing of what it had.
func TestReusedDecision(t *testing.T) {
	s, err := memstore.New(memstore.Config{Clock: func() int64 { return 1e15 }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	l, err := dipwell.New(s,
		dipwell.Limit{Name: "a", Rate: 1, Period: time.Second, Burst: 9, Plans: dipwell.NewPlans(dipwell.Plan{Name: "pro", Burst: 20})},
		dipwell.Limit{Name: "all", Rate: 1, Period: time.Second, Burst: 9},
		dipwell.Limit{Name: "child", Rate: 1, Period: time.Second, Burst: 9, Parent: "all"})
	if err != nil {
		t.Fatal(err)
	}
	used := dipwell.Decision{Never: true, Shadow: true, Source: store.SourceFallbackOpen, Plan: "pro", Granted: 1, Delay: 1, Reservation: dipwell.Reservation{1},
		Limits: []dipwell.Decision{{}}, Hold: "h", Expires: time.Now(), Repeated: true, RetryIsBound: true}
	for name, call := range map[string]func(d *dipwell.Decision) error{
		"check": func(d *dipwell.Decision) error {
			return l.Do(t.Context(), d, store.VerbCheck, dipwell.Take{Limit: "a", Key: "k", Cost: 1})
		},
		"charge": func(d *dipwell.Decision) error {
			return l.Do(t.Context(), d, store.VerbCharge, dipwell.Take{Limit: "a", Key: "k", Cost: 0})
		},
		"shared": func(d *dipwell.Decision) error {
			return l.Do(t.Context(), d, store.VerbCheck, dipwell.Take{Limit: "a", Key: dipwell.Shared, Cost: 1})
		},
		"plan": func(d *dipwell.Decision) error {
			return l.Do(t.Context(), d, store.VerbCheck, dipwell.Take{Limit: "a", Key: "k", Plan: "pro"})
		},
		"floor": func(d *dipwell.Decision) error {
			return l.Do(t.Context(), d, store.VerbCheck, dipwell.Take{Limit: "a", Key: "k", Floor: 1})
		},
		"parent": func(d *dipwell.Decision) error {
			return l.Do(t.Context(), d, store.VerbCheck, dipwell.Take{Limit: "child", Key: "k"})
		},
		"wait": func(d *dipwell.Decision) error {
			return l.DoWait(t.Context(), d, []dipwell.Take{{Limit: "a", Key: "k"}}, 0)
		},
	} {
		var fresh dipwell.Decision
		again := used
		if err := call(&fresh); err != nil {
			t.Fatal(name, err)
		}
		if err := call(&again); err != nil {
			t.Fatal(name, err)
		}
		a, _ := fresh.MarshalJSON()
		if b, _ := again.MarshalJSON(); string(a) != string(b) {
			t.Errorf("%s:\n%s into a Decision that was used\n%s into a new one", name, b, a)
		}
	}
}
