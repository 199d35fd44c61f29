package store_test

import (
	"errors"
	"testing"
	"time"

	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

// A drained limit of 1/h that is changed to 100/s an hour later has one token
// at that time and gets 100 a second from then on.
func TestCarry(t *testing.T) {
	var reg store.Registry
	const hour = int64(3600e6)
	define := func(now int64, l store.Limit) *store.Definition {
		t.Helper()
		d, err := reg.Define(now, l, store.OwnerCode)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	old := define(0, store.Limit{Name: "l", Rate: 1, Period: time.Hour, Burst: 100})
	row := store.State{Used: old.Rule.Cap, TS: 0, Version: old.Number}
	d := define(hour, store.Limit{Name: "l", Rate: 100, Period: time.Second, Burst: 100})
	for later, want := range map[int64]int64{0: 1, 9_999: 1, 10_000: 2, 500_000: 51, 990_000: 100} {
		s, ok := d.Carry(row, "k", hour)
		used := d.Rule.Used(s, hour+later)
		if got := d.Rule.Remaining(used, 0); !ok || got != want {
			t.Errorf("%d µs after the change: %d tokens, want %d", later, got, want)
		}
	}
	if _, ok := old.Carry(store.State{Used: 1, Version: d.Number}, "k", hour); ok {
		t.Error("a definition carried a row of a version it does not know")
	}
	reg.Retire("l", d.Number)
	if s, ok := reg.Lookup("l").Carry(row, "k", hour); !ok || s.Used != 0 {
		t.Errorf("a row of a version that was retired: %+v", s)
	}
}

func TestRegistryOwners(t *testing.T) {
	var reg store.Registry
	l := store.Limit{Name: "l", Rate: 1, Period: time.Second}
	first, err := reg.Define(1, l, terms.OwnerFile)
	if err != nil {
		t.Fatal(err)
	}
	changed := l
	changed.Rate = 2
	for _, by := range []string{store.OwnerCode, terms.OwnerAPI, terms.OwnerSQL} {
		var oe *terms.OwnerError
		if _, err := reg.Define(2, changed, by); !errors.As(err, &oe) || oe.Owner != terms.OwnerFile {
			t.Errorf("%s changed a limit of a file: %v", by, err)
		}
		if err := reg.Drop("l", by); !errors.Is(err, store.ErrOwner) {
			t.Errorf("%s dropped a limit of a file: %v", by, err)
		}
	}
	if again, _ := reg.Define(3, l, terms.OwnerFile); again != first {
		t.Error("the same definition began a version")
	}
	if err := reg.Drop("l", terms.OwnerFile); err != nil {
		t.Fatal(err)
	}
	if err := reg.Drop("l", terms.OwnerFile); !errors.Is(err, store.ErrUnknownLimit) {
		t.Errorf("dropped twice: %v", err)
	}
	if d, _ := reg.Define(4, l, terms.OwnerFile); d.Number != first.Number+1 {
		t.Errorf("after a drop the number is %d again", d.Number)
	}
}

// Only a change of settings that affect counting begins a version.
func TestRegistryVersions(t *testing.T) {
	var reg store.Registry
	l := store.Limit{Name: "day", Algorithm: store.FixedWindow, Rate: 5, Period: 24 * time.Hour, Start: "06:00 Europe/Rome"}
	version := uint32(1)
	for _, step := range []struct {
		change func()
		counts bool
	}{
		{func() {}, false},
		{func() { l.Start = "07:00 Europe/Rome" }, true},
		{func() { l.Start = "07:00 Europe/Paris" }, true},
		{func() { l.Mode, l.Auth, l.RetryJitter = store.Shadow, true, 10 }, false},
		{func() { l.Start, l.Period = "00:00 UTC", store.Month }, true},
		{func() { l.Period = 12 * store.Month }, true},
		{func() { l.Start = "" }, true},
		{func() { l.Algorithm = store.Interval }, false},
		{func() { l.Burst = 6 }, true},
	} {
		step.change()
		if step.counts {
			version++
		}
		if d, err := reg.Define(1, l, store.OwnerCode); err != nil || d.Number != version || len(d.Past) != int(version-1) {
			t.Errorf("%s: version %d with a past of %d, want version %d; %v", l, d.Number, len(d.Past), version, err)
		}
	}
}

// A configuration file takes over a limit of a program, but not the reverse.
func TestRegistryFileTakesOver(t *testing.T) {
	var reg store.Registry
	l := store.Limit{Name: "l", Rate: 1, Period: time.Second}
	for _, by := range []string{store.OwnerCode, terms.OwnerFile} {
		l.Rate++
		if d, err := reg.Define(1, l, by); err != nil || d.Owner != by || d.Rate != l.Rate {
			t.Errorf("%s: %+v, %v", by, d, err)
		}
	}
	if err := reg.Drop("l", store.OwnerCode); !errors.Is(err, store.ErrOwner) {
		t.Errorf("the program dropped a limit of a file: %v", err)
	}
}

// The number of past versions is bounded; retiring versions makes room.
func TestRegistryBoundsThePast(t *testing.T) {
	var reg store.Registry
	l := store.Limit{Name: "l", Rate: 1, Period: time.Second}
	define := func() (*store.Definition, error) {
		l.Rate++
		return reg.Define(1, l, store.OwnerCode)
	}
	for range 1025 {
		if _, err := define(); err != nil {
			t.Fatal(err)
		}
	}
	var bad *store.FieldError
	if _, err := define(); !errors.As(err, &bad) || reg.Lookup("l").Number != 1025 {
		t.Errorf("version 1026: %v", err)
	}
	reg.Retire("l", 1000)
	if d, err := define(); err != nil || d.Number != 1026 || len(d.Past) != 26 {
		t.Errorf("once 999 were retired: %v", err)
	}
}

// Different keys have different origins, all within the period.
func TestOriginIsWithinThePeriod(t *testing.T) {
	seen := map[int64]bool{}
	for _, key := range []string{"", "a", "b", "ab", "user:7"} {
		o := terms.Origin(terms.PhaseOf("login", key), 3600e6)
		if o < 0 || o >= 3600e6 || seen[o] {
			t.Errorf("origin of %q: %d", key, o)
		}
		seen[o] = true
	}
	if terms.PhaseOf("a", "bc") == terms.PhaseOf("ab", "c") {
		t.Error("name and key are concatenated")
	}
}

// An op with a phase does not compute it again, under any version. An op
// without one computes and stores it.
func TestOpPhase(t *testing.T) {
	var reg store.Registry
	l := store.Limit{Name: "w", Algorithm: store.FixedWindow, Rate: 10, Period: time.Hour, OnChange: store.Keep}
	if _, err := reg.Define(0, l, store.OwnerCode); err != nil {
		t.Fatal(err)
	}
	l.Period = 7 * time.Minute
	d, err := reg.Define(20*3600e6, l, store.OwnerCode)
	if err != nil {
		t.Fatal(err)
	}
	now := int64(100 * 3600e6)
	step := func(phase int64) (store.Op, store.State) {
		op := store.Op{Def: d, Key: "k", Verb: store.VerbTake, Cost: 1, Phase: phase}
		row, _, err := op.Step(now, store.State{Used: 10, TS: 19 * 3600e6, Version: 1}, false)
		if err != nil {
			t.Fatal(err)
		}
		return op, row
	}
	phase := terms.PhaseOf("w", "k")
	unknown, row := step(0)
	known, same := step(phase)
	other, _ := step(phase + 60e6)
	if unknown != known || row != same || unknown.Phase != phase {
		t.Errorf("%+v %+v and with its phase %+v %+v", unknown, row, known, same)
	}
	if other.Reset != unknown.Reset+60e6 && other.Reset != unknown.Reset+60e6-7*60e6 {
		t.Errorf("a phase a minute later: %+v, %+v", other, unknown)
	}
}
