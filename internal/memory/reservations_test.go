package memory_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/memory"
	"github.com/dipwell/dipwell/store"
)

// Each key of a reservation counts towards the bound, because it takes memory.
func TestReservationsAreBoundedByTheirKeys(t *testing.T) {
	now := int64(1)
	s, err := memory.New(memory.Config{MaxReservations: 4, Clock: func() int64 { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l, err := dipwell.New(s, store.Limit{Name: "w", Rate: 1, Period: time.Second, Burst: 1, MaxDebt: 100})
	if err != nil {
		t.Fatal(err)
	}
	reserve := func(keys ...string) (dipwell.Decision, error) {
		var takes []dipwell.Take
		for _, k := range keys {
			takes = append(takes, dipwell.Take{Limit: "w", Key: k, Cost: 2})
		}
		var d dipwell.Decision
		err := l.DoAll(t.Context(), &d, store.VerbReserve, takes)
		return d, err
	}
	d, err := reserve("a", "b", "c")
	if err != nil || d.Reservation == (store.Reservation{}) {
		t.Fatal(d, err)
	}
	if _, err := reserve("d", "e"); !errors.Is(err, store.ErrFull) {
		t.Errorf("3 and 2 of 4: %v", err)
	}
	if _, err := reserve("d"); err != nil {
		t.Errorf("3 and 1 of 4: %v", err)
	}
	if err := l.Cancel(t.Context(), d.Reservation); err != nil {
		t.Fatal(err)
	}
	if _, err := reserve("d", "e", "f"); err != nil {
		t.Errorf("1 and 3 of 4: %v", err)
	}
	if now += 10e6; s.Stats().Reservations != 2 {
		t.Errorf("%d reservations", s.Stats().Reservations)
	}
	if _, err := reserve("g", "h", "i", "j"); err != nil {
		t.Errorf("4 of 4 once the others are due: %v", err)
	}
}

// The memory of names of deleted keys is used again.
func TestTextsAreUsedAgain(t *testing.T) {
	now := int64(1e15)
	s, err := memory.New(memory.Config{MaxKeys: 256, Clock: func() int64 { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l, err := dipwell.New(s, store.Limit{Name: "l", Rate: 1, Period: time.Second, ListKeys: true})
	if err != nil {
		t.Fatal(err)
	}
	early := int64(0)
	for i := range 100_000 {
		now += 20_000 // 50 keys are live at any time
		if d, err := l.Take(t.Context(), "l", fmt.Sprintf("key %06d", i), 1); err != nil || !d.Allowed {
			t.Fatalf("key %d: %+v, %v", i, d, err)
		}
		if i == 1000 {
			early = s.Stats().Bytes
		}
	}
	if late := s.Stats().Bytes; late > early+128<<10 {
		t.Errorf("%d bytes after 1,000 keys, %d after 100,000", early, late)
	}
}

// Ended holds give way to new ones, those that ended first first. Only live ones fill the
// store.
func TestEndedHoldsGiveWay(t *testing.T) {
	now := int64(1e15)
	s, err := memory.New(memory.Config{MaxHolds: 4, Clock: func() int64 { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l, err := dipwell.New(s, store.Limit{Name: "l", Rate: 1, Period: time.Hour, Burst: 10_000},
		store.Limit{Name: "slots", Algorithm: store.Concurrency, Burst: 4})
	if err != nil {
		t.Fatal(err)
	}
	hold := func(id string, ttl time.Duration, keys ...string) error {
		var takes []dipwell.Take
		for _, k := range keys {
			takes = append(takes, dipwell.Take{Limit: "l", Key: k, Cost: 1})
		}
		d, err := l.Hold(t.Context(), ttl, id, takes...)
		if err == nil && (!d.Allowed || d.Repeated) {
			t.Fatalf("%s: %+v", id, d)
		}
		return err
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	settle := func(id string) error {
		_, err := l.Settle(t.Context(), id)
		return err
	}
	for i := range 1000 { // one after the other
		id := fmt.Sprint("one", i)
		must(hold(id, time.Minute, "k"))
		must(settle(id))
		d, err := l.Hold(t.Context(), time.Hour, id+"slot", dipwell.Take{Limit: "slots", Key: "k", Cost: 1})
		if err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		must(settle(id + "slot"))
	}
	if n := s.Stats().Holds; n != 4 {
		t.Errorf("%d holds", n)
	}

	now += 1e6
	must(hold("settled", time.Minute, "k"))
	must(hold("expired", time.Second, "k"))
	must(hold("live", time.Minute, "k"))
	now += 2e6
	must(settle("settled")) // it ends after the one that has expired, and was made before it
	must(hold("two", time.Minute, "k", "l"))
	if err := settle("expired"); !errors.Is(err, store.ErrUnknownHold) {
		t.Errorf("the hold that ended first: %v", err)
	}
	must(settle("settled"))
	if err := hold("more", time.Minute, "k", "l"); !errors.Is(err, store.ErrFull) {
		t.Errorf("3 live and 2 of 4: %v", err)
	}
	must(hold("last", time.Minute, "k"))
	if err := hold("more", time.Minute, "k"); !errors.Is(err, store.ErrFull) {
		t.Errorf("4 live and 1 of 4: %v", err)
	}
	if _, err := l.Extend(t.Context(), "live", time.Second); err != nil {
		t.Fatal(err)
	}
	now += 1e6
	must(hold("more", time.Minute, "k"))
	now += 120e6
	if _, err := s.Sweep(t.Context(), 1000); err != nil || s.Stats().Holds != 0 {
		t.Errorf("%d holds when all are forgotten, %v", s.Stats().Holds, err)
	}
}

// Overrides that have ended give way to new ones.
func TestEndedOverridesGiveWay(t *testing.T) {
	now := int64(1e15)
	s, err := memory.New(memory.Config{MaxOverrides: 4, Clock: func() int64 { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l, err := dipwell.New(s, store.Limit{Name: "l", Rate: 1, Period: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	set := func(key string, until int64) error {
		_, err := s.SetOverride(t.Context(), l.Limit("l"), store.Override{Key: key, Burst: 7, Until: until})
		return err
	}
	for i := range 1000 {
		if err := set(fmt.Sprint("k", i), now+4e6); err != nil {
			t.Fatalf("override %d: %v", i, err)
		}
		now += 1e6
	}
	for i := range 2 {
		if err := set(fmt.Sprint("forever", i), 0); i == 0 && err != nil {
			t.Fatal(err)
		} else if i == 1 && !errors.Is(err, store.ErrFull) {
			t.Errorf("5 of 4: %v", err)
		}
	}
}
