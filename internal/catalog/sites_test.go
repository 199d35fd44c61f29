package catalog

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/dipwell/dipwell/store"
)

// TestSites checks that a limit has at most 256 definitions of call sites, that those end
// which no row names, and that the index of one is used again only if it has ended long
// ago and still no row names it.
func TestSites(t *testing.T) {
	const rest = time.Minute
	var s Sites
	now, named, looks := int64(1e15), map[int]bool{}, 0
	add := func(rate int64) (index int, err error) {
		t.Helper()
		index, kept, err := s.Add(store.Plan{Rate: rate, Period: time.Hour}, rest, func() (int64, map[int]bool, error) {
			looks++
			return now, named, nil
		})
		if err == nil && (kept.Rate != rate || kept.Name != fmt.Sprint(index)) {
			t.Errorf("definition %d is kept as %+v", rate, kept)
		}
		return index, err
	}
	want := func(rate int64, index int) {
		t.Helper()
		if got, err := add(rate); err != nil || got != index {
			t.Errorf("definition %d has the index %d (%v), want %d", rate, got, err, index)
		}
	}
	for i := range 256 {
		want(int64(1+i), i)
		named[i] = true
	}
	want(7, 6)
	if looks != 0 {
		t.Errorf("%d searches of the rows", looks)
	}
	if _, err := add(1000); !errors.Is(err, store.ErrFull) {
		t.Errorf("one more than rows may name: %v", err)
	}
	use := func(rate int64, index int) {
		t.Helper()
		want(rate, index)
		named[index] = true
	}
	delete(named, 3)
	use(1000, 256)
	delete(named, 5)
	use(4, 257)     // the one before has ended
	named[3] = true // by a program that did not know
	now += rest.Microseconds() + 1
	delete(named, 7)
	use(2000, 5)
	delete(named, 3)
	delete(named, 8)
	use(3000, 3) // 7 has not rested yet
	before := s.Text
	now += rest.Microseconds() / 2
	delete(named, 9)
	use(4000, 258)
	if s.Text == before {
		t.Error("nothing ended")
	}
	now += rest.Microseconds()/2 + 1
	delete(named, 10)
	use(5000, 7)
	var d store.Definition
	if err := s.Install(&d); err != nil {
		t.Error(err)
	}
	s.Text = "0:rate=x"
	if _, err := add(1); err == nil || s.Install(&d) == nil {
		t.Error("a text that cannot be read gives no error")
	}
}

// TestSitesOfManyPrograms checks that definitions that come and go all the time do not keep
// each other from being forgotten.
func TestSitesOfManyPrograms(t *testing.T) {
	const rest = time.Minute
	var s Sites
	now := int64(1e15)
	for i := range int64(1100) {
		now += (100 * time.Millisecond).Microseconds()
		_, _, err := s.Add(store.Plan{Rate: 1 + i, Period: time.Hour}, rest, func() (int64, map[int]bool, error) { return now, nil, nil })
		if err != nil {
			t.Fatalf("definition %d: %v", i, err)
		}
	}
}
