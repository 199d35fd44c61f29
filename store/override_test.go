package store_test

import (
	"testing"
	"time"

	"github.com/dipwell/dipwell/store"
)

// After a limit has changed, no layer of a key's overrides may have the number that the
// other had before: a program that has not read the change would take it for that one.
func TestOverrideNumbersOfLayers(t *testing.T) {
	t.Parallel()
	const last = 1<<31 - 1 // of the numbers of overrides
	for _, now := range []int64{1e15, 800_000<<31 + last - 3, 800_000<<31 + last - 2, 800_000<<31 + last - 1, 800_000<<31 + last, 800_000 << 31, 800_000<<31 + 1} {
		var reg store.Registry
		limit := store.Limit{Name: "a", Rate: 1, Period: time.Second, Burst: 5}
		d, err := reg.Define(now, limit, store.OwnerCode)
		if err != nil {
			t.Fatal(err)
		}
		table := newMapTable()
		if _, err = d.SetOverrideIn(table, "k", store.Override{Rate: 100, Period: time.Second, Burst: 100, Until: now + 1e9}, now); err != nil {
			t.Fatal(err)
		}
		if _, err = d.SetOverrideIn(table, "k", store.Override{Rate: 10, Period: time.Second, Burst: 10}, now); err != nil {
			t.Fatal(err)
		}
		row, err := table.Row("a", "k")
		if err != nil || row.Override == nil || row.Override.Under == nil {
			t.Fatalf("%+v, %v: want two overrides", row, err)
		}
		before := map[uint32]bool{}
		for o := row.Override; o != nil; o = o.Under {
			before[d.WithOverride(o).Number] = true
		}
		limit.Burst = 6
		if d, err = reg.Define(now+1, limit, store.OwnerCode); err != nil {
			t.Fatal(err)
		}
		after := map[uint32]bool{}
		for o := row.Override; o != nil; o = o.Under {
			number := d.WithOverride(o).Number
			if after[number] = true; before[number] {
				t.Errorf("now %d: the override of %d has the number %d, which one of the two had before", now, o.Burst, number)
			}
		}
		if len(before) != 2 || len(after) != 2 {
			t.Errorf("now %d: numbers %v, then %v: want two and two", now, before, after)
		}
	}
}
