package bounded_test

import (
	"strconv"
	"sync"
	"testing"

	"github.com/dipwell/dipwell/internal/bounded"
	"github.com/dipwell/dipwell/store"
)

// taken returns what was used by key, and of all keys together.
func taken(t *testing.T, w *bounded.Window) (of map[string]store.UsageLine, sum store.UsageLine) {
	t.Helper()
	of = map[string]store.UsageLine{}
	for _, l := range w.TakeUses() {
		if was, twice := of[l.Key]; twice && l.Key != "" {
			t.Errorf("key %s twice: %v, %v", l.Key, was, l)
		}
		was := of[l.Key]
		was.Add(&l)
		of[l.Key] = was
		sum.Add(&l)
	}
	return of, sum
}

// While far more keys are used than there is room for, the busiest are counted exactly from
// the first minute in which they have a place, and nothing is lost in the sum.
func TestUses(t *testing.T) {
	w := bounded.NewWindow(bounded.WindowConfig{Uses: 256})
	const callers, busy, rare = 8, 20, 5000
	for minute := range 4 {
		var wg sync.WaitGroup
		for c := range callers {
			wg.Go(func() {
				for i := range rare {
					w.AddUse("l", "busy "+strconv.Itoa(i%busy), 1, 0, int64(i%busy))
					w.AddUse("l", strconv.Itoa(minute)+" "+strconv.Itoa(c)+" "+strconv.Itoa(i), 0, 1, 0)
				}
			})
		}
		wg.Wait()
		of, sum := taken(t, w)
		if want := (store.UsageLine{Allowed: callers * rare, Refused: callers * rare, Tokens: callers * rare * (busy - 1) / 2}); sum != want {
			t.Errorf("minute %d: the sum is %+v, want %+v", minute, sum, want)
		}
		for i := range int64(busy) {
			key := "busy " + strconv.FormatInt(i, 10)
			n := int64(callers * rare / busy)
			if got := of[key]; got.Allowed != n || got.Refused != 0 || got.Tokens != n*i {
				t.Errorf("minute %d, %s: %+v, want %d calls", minute, key, got, n)
			}
		}
		if len(of) > 256+1 || of[""].Refused < callers*rare-256 {
			t.Errorf("minute %d: %d lines, the rest is %+v", minute, len(of), of[""])
		}
	}
	if of, _ := taken(t, w); len(of) != 0 {
		t.Errorf("what was taken is there again: %v", of)
	}
}

// Limits do not share keys, nor the line for the rest.
func TestUsesOfLimits(t *testing.T) {
	w := bounded.NewWindow(bounded.WindowConfig{Shards: 1, Uses: 1})
	for _, limit := range []string{"a", "b", "c"} {
		w.AddUse(limit, "k", 1, 0, 0)
	}
	of := map[string]string{}
	for _, l := range w.TakeUses() {
		of[l.Limit] += l.Key + strconv.FormatInt(l.Allowed, 10)
	}
	if len(of) != 3 || of["a"] != "k1" || of["b"] != "1" || of["c"] != "1" {
		t.Error(of)
	}
}
