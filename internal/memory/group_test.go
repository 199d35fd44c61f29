package memory_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/memory"
	"github.com/dipwell/dipwell/store"
)

// Concurrent groups that have only their last key in common are all counted.
func TestGroupsThatShareOneKey(t *testing.T) {
	now := int64(1e15)
	s, err := memory.New(memory.Config{Clock: func() int64 { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const callers, calls = 4, 20_000
	l, err := dipwell.New(s, store.Limit{Name: "l", Rate: 1, Period: time.Hour, Burst: callers * calls})
	if err != nil {
		t.Fatal(err)
	}
	var done sync.WaitGroup
	for c := range callers {
		done.Go(func() {
			takes := []dipwell.Take{{Limit: "l", Key: fmt.Sprint("own", c), Cost: 1}, {Limit: "l", Key: "shared", Cost: 1}}
			for range calls {
				if d, err := l.TakeAll(t.Context(), takes...); err != nil || !d.Allowed {
					t.Errorf("%+v, %v", d, err)
					return
				}
			}
		})
	}
	done.Wait()
	for key, want := range map[string]int64{"shared": 0, "own0": (callers - 1) * calls, "own3": (callers - 1) * calls} {
		if d, err := l.Check(t.Context(), "l", key, 0); err != nil || d.Remaining != want {
			t.Errorf("%s: %d remain, want %d; %v", key, d.Remaining, want, err)
		}
	}
}

// A call with a definition that was replaced in the meantime is not decided
// under it, because rows must not have a version that was deleted.
func TestQuickLeavesASupersededDefinition(t *testing.T) {
	now := int64(1e15)
	s, err := memory.New(memory.Config{Clock: func() int64 { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	limit := store.Limit{Name: "l", Rate: 1, Period: time.Hour, Burst: 10}
	l, err := dipwell.New(s, limit)
	if err != nil {
		t.Fatal(err)
	}
	old := l.Limit("l")
	var d dipwell.Decision
	for range 2 { // the first call creates the row
		if err := l.Do(t.Context(), &d, store.VerbTake, dipwell.Take{Limit: "l", Key: "k", Cost: 1}); err != nil || !d.Allowed {
			t.Fatalf("%+v, %v", d, err)
		}
	}
	a, held, ok := s.Quick()(old, "k", store.VerbTake, 1, true)
	if !ok || a.Remaining != 7 {
		t.Fatalf("the common call: %+v, %t", a, ok)
	}
	held.Unlock()
	limit.Rate = 2
	if _, err := l.Define(t.Context(), limit, store.OwnerCode); err != nil {
		t.Fatal(err)
	}
	if a, _, ok := s.Quick()(old, "k", store.VerbTake, 1, true); ok {
		t.Errorf("decided under version %d: %+v", old.Number, a)
	}
}
