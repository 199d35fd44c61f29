package store_test

import (
	"sync"
	"testing"
	"time"

	"github.com/dipwell/dipwell/store"
)

// TestAddCallSiteTogether checks that calls which add definitions at the same time, while
// those that no row names end, all get a place, and keep it.
func TestAddCallSiteTogether(t *testing.T) {
	for range 50 {
		var r store.Registry
		if _, err := r.Define(0, store.Limit{Name: "api", Rate: 1, Period: time.Hour, Burst: 10}, store.OwnerCode); err != nil {
			t.Fatal(err)
		}
		if err := r.Lookup("api").SetCallSites(store.Plans{}); err != nil {
			t.Fatal(err)
		}
		const now = 1e15
		none := func() (map[int]bool, error) { return nil, nil }
		add := func(rate int) (index int, err error) {
			index, _, err = r.AddCallSite("api", store.Plan{Rate: int64(rate)}, now, none, nil)
			return index, err
		}
		for i := range 256 {
			if _, err := add(100 + i); err != nil {
				t.Fatal(err)
			}
		}
		const callers = 16
		var group sync.WaitGroup
		got := make([]int, callers)
		begin := make(chan struct{})
		for c := range callers {
			group.Go(func() {
				<-begin
				var err error
				if got[c], err = add(1000 + c); err != nil {
					t.Error(err)
				}
			})
		}
		close(begin)
		group.Wait()
		for c, index := range got { // the same again: what was added is there
			if again, err := add(1000 + c); err != nil || again != index {
				t.Fatalf("%d was at %d, is at %d, %v", c, index, again, err)
			}
		}
		if t.Failed() {
			return
		}
	}
}
