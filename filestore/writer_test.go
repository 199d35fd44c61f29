package filestore

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// TestManyKeysAreWrittenEarly changes half as many keys as may wait to be written. They
// are written at once and not at the end of Config.Every, until which calls would fail as
// soon as the other half has changed too.
func TestManyKeysAreWrittenEarly(t *testing.T) {
	s := open(t, fresh(t), Config{Every: time.Hour})
	s.dirty.max = 10
	l, err := dipwell.New(s, slow)
	if err != nil {
		t.Fatal(err)
	}
	first := s.dirty.current.Load()
	for i := range 5 {
		if d, err := l.Take(ctx, slow.Name, fmt.Sprint(i), 1); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
	}
	select {
	case <-first.done:
	case <-time.After(time.Minute):
		t.Fatalf("after a minute: %+v", s.metrics())
	}
}

// TestRepeatedHoldWaits repeats a hold, and a settle, whose first call is not on the disk
// yet: with Each the repeat is not answered before it is.
func TestRepeatedHoldWaits(t *testing.T) {
	s := open(t, fresh(t), Config{Every: Each})
	l, err := dipwell.New(s, slow)
	if err != nil {
		t.Fatal(err)
	}
	s.writer.mu.Lock() // no cycle ends
	locked := true
	defer func() {
		if locked {
			s.writer.mu.Unlock()
		}
	}()
	gone, cancel := context.WithCancel(ctx)
	cancel() // calls do not wait
	hold := func(ctx context.Context) (dipwell.Decision, error) {
		return l.Hold(ctx, time.Minute, "id", dipwell.Take{Limit: slow.Name, Key: "k", Cost: 2})
	}
	settle := func(ctx context.Context) (dipwell.Decision, error) { return l.Settle(ctx, "id", 1) }
	for range 2 {
		if d, err := hold(gone); !errors.Is(err, store.ErrOutcomeUnknown) {
			t.Errorf("hold: %+v, %v", d, err)
		}
	}
	for range 2 {
		if d, err := settle(gone); !errors.Is(err, store.ErrOutcomeUnknown) {
			t.Errorf("settle: %+v, %v", d, err)
		}
	}
	s.writer.mu.Unlock()
	locked = false
	if d, err := settle(ctx); err != nil || !d.Repeated {
		t.Errorf("a repeat of what is on the disk: %+v, %v", d, err)
	}
}

// TestSweepOfExpiredHolds sweeps holds that have expired, and crashes: the file has the
// records of the holds until it has the rows to which they were given back.
func TestSweepOfExpiredHolds(t *testing.T) {
	now := int64(1767225600e6)
	c := Config{Clock: func() int64 { return now }, Every: time.Hour}
	s := open(t, fresh(t), c)
	l, err := dipwell.New(s, slow, store.Limit{Name: "jobs", Algorithm: store.Concurrency, Burst: 5})
	if err != nil {
		t.Fatal(err)
	}
	for _, limit := range []string{"slow", "jobs"} {
		if d, err := l.Hold(ctx, time.Minute, "", dipwell.Take{Limit: limit, Key: "k", Cost: 5}); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
	}
	if err = s.writer.flush(); err != nil {
		t.Fatal(err)
	}
	now += 2 * time.Minute.Microseconds()
	if _, err = s.sweep(ctx, 100); err != nil {
		t.Fatal(err)
	}
	after := open(t, copied(t, s.path), c)
	if _, err = after.sweep(ctx, 100); err != nil {
		t.Fatal(err)
	}
	crashed, err := dipwell.New(after)
	if err != nil {
		t.Fatal(err)
	}
	for limit, want := range map[string]int64{"slow": slow.Burst, "jobs": 5} {
		if d, err := crashed.Check(ctx, limit, "k", 0); err != nil || d.Remaining != want {
			t.Errorf("%s: %d remaining, want %d (%v)", limit, d.Remaining, want, err)
		}
	}
}

// TestSweepOfEndedOverride sweeps an override that has ended, and crashes: the file has its
// row until it has the converted one.
func TestSweepOfEndedOverride(t *testing.T) {
	now := int64(1767225600e6)
	c := Config{Clock: func() int64 { return now }, Every: time.Hour}
	s := open(t, fresh(t), c)
	l, err := dipwell.New(s, slow)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = s.Abilities().Overrides.SetOverride(ctx, l.Limit("slow"), store.Override{Key: "k", Burst: 50, Until: now + 60e6}); err != nil {
		t.Fatal(err)
	}
	if d, err := l.Take(ctx, "slow", "k", 30); err != nil || d.Remaining != 20 {
		t.Fatal(d, err)
	}
	if err = s.writer.flush(); err != nil {
		t.Fatal(err)
	}
	now += 61e6
	if _, err = s.sweep(ctx, 100); err != nil {
		t.Fatal(err)
	}
	crashed, err := dipwell.New(open(t, copied(t, s.path), c))
	if err != nil {
		t.Fatal(err)
	}
	if d, err := crashed.Check(ctx, "slow", "k", 0); err != nil || d.Remaining != slow.Burst-30 {
		t.Errorf("%d remaining, want %d (%v)", d.Remaining, slow.Burst-30, err)
	}
}
