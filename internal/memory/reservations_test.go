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
