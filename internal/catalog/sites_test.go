package catalog

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
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

// TestSearches checks that rows of a limit are searched at most once a second, and for at
// most a tenth of the time, whether others ask meanwhile or not, and that limits do not
// hinder each other.
func TestSearches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Searches
		searched := func(limit string, took time.Duration) bool {
			t.Helper()
			did := false
			named, err := s.Do(limit, time.Now().UnixMicro(), func() (map[int]bool, error) {
				did = true
				time.Sleep(took)
				return map[int]bool{3: true}, nil
			})
			if did != named[3] || did == errors.Is(err, store.ErrFull) {
				t.Errorf("searched %v: %v, %v", did, named, err)
			}
			return did
		}
		if !searched("a", 0) || !searched("b", 0) || searched("a", 0) {
			t.Error("of two limits each is searched once")
		}
		for range 3 {
			time.Sleep(333 * time.Millisecond)
			if searched("a", 0) {
				t.Error("searched again within a second")
			}
		}
		time.Sleep(time.Millisecond)
		go func() {
			if !searched("a", 5*time.Second) {
				t.Error("not searched a second after the last search began")
			}
		}()
		synctest.Wait()
		if searched("a", 0) {
			t.Error("searched by two calls at a time")
		}
		time.Sleep(50*time.Second - time.Microsecond)
		if searched("a", 0) {
			t.Error("searched for more than a tenth of the time")
		}
		time.Sleep(time.Microsecond)
		if !searched("a", 0) || len(s.last) != 1 {
			t.Errorf("not searched after the rest; %d searches are remembered", len(s.last))
		}
	})
}
