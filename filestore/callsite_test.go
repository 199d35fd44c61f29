package filestore

import (
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/number"
	"github.com/dipwell/dipwell/store"
)

// TestFailedDefine makes a definition of a call site, for which others end, during a
// change of another limit that fails on the disk: only the change is undone.
func TestFailedDefine(t *testing.T) {
	var during func() // a change of a limit
	s := open(t, fresh(t), Config{Every: time.Hour, Clock: func() int64 {
		if f := during; f != nil {
			during = nil
			f()
		}
		return 1e15
	}})
	here, there := store.Limit{Name: "here", Rate: 1, Period: time.Second, Burst: 1}, store.Limit{Name: "there", Rate: 1, Period: time.Second}
	l, err := dipwell.New(s, here, there)
	if err != nil {
		t.Fatal(err)
	}
	if err = s.disk.exec("create trigger fails before update on limits when new.name = 'there' begin select raise(abort, 'no'); end"); err != nil {
		t.Fatal(err)
	}
	add := func(burst int64) {
		none := func() (map[int]bool, error) { return map[int]bool{}, nil }
		if _, _, err := s.limits.reg.AddCallSite("here", store.Plan{Rate: 1, Period: time.Second, Burst: burst}, 1e15, none, nil); err != nil {
			t.Error(err)
		}
	}
	for i := range int64(number.MaxCallSites) {
		add(2 + i)
	}
	before := s.limits.reg.Lookup("here")
	during = func() { add(1000) }
	if _, err = l.Define(ctx, store.Limit{Name: "there", Rate: 2, Period: time.Second}, store.OwnerCode); err == nil {
		t.Error("a change that cannot be written succeeds")
	}
	if d := s.limits.reg.Lookup("there"); d.Rate != 1 {
		t.Errorf("the limit whose change failed is %+v", d.Limit)
	}
	if d := s.limits.reg.Lookup("here"); d == before || d.WithPlan("#256") == nil {
		t.Error("a definition of a call site of another limit was undone")
	}
}

// TestFailedTarget changes the target of an adaptive limit, which begins no version, while
// the disk fails: the target is that of before.
func TestFailedTarget(t *testing.T) {
	s := open(t, fresh(t), Config{Every: time.Hour, Clock: func() int64 { return 1e15 }})
	limit := store.Limit{Name: "moves", Rate: 10, Period: time.Second, Adaptive: store.Adaptive{Floor: 5, Ceiling: 20, Latency: time.Second}}
	l, err := dipwell.New(s, limit)
	if err != nil {
		t.Fatal(err)
	}
	if err = s.disk.exec("create trigger fails before update on limits begin select raise(abort, 'no'); end"); err != nil {
		t.Fatal(err)
	}
	before := s.limits.reg.Lookup("moves").Rule.Pace.Config()
	limit.Adaptive.Window = 9 * time.Second
	if _, err = l.Define(ctx, limit, store.OwnerCode); err == nil {
		t.Error("a change that cannot be written succeeds")
	}
	d := s.limits.reg.Lookup("moves")
	if after := d.Rule.Pace.Config(); after != before || d.Adaptive.Window != 0 {
		t.Errorf("the target is %+v, and was %+v", after, before)
	}
}
