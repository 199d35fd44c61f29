package store

import (
	"errors"
	"testing"
	"time"

	"github.com/dipwell/dipwell/internal/number"
)

// TestUnknownCallSite checks that a row under a definition of a call site that another
// process has made is not full: the limit must be read again. One that has ended
// still converts its rows, and no call site gets it.
func TestUnknownCallSite(t *testing.T) {
	l := Limit{Name: "api", Rate: 1, Period: time.Hour, Burst: 10}
	define := func(sites ...Plan) *Definition {
		d, err := NewDefinition(l)
		if err == nil {
			err = d.SetCallSites(NewPlans(sites...))
		}
		if err != nil {
			t.Fatal(err)
		}
		d.publish()
		return d
	}
	now := time.Now().UnixMicro()
	site := Plan{Name: "7", Rate: 1, Period: time.Hour, Burst: 20}
	d := define(site)
	row := State{Used: 8 * d.Rule.Unit, TS: now, Version: number.Of(number.FirstCallSite+7, 1)}
	if got, ok := d.Carry(row, "k", now); !ok || got.Used != row.Used {
		t.Errorf("known: %+v, %v", got, ok)
	}
	if d.Full(row, now) || !d.Full(row, now+9*3600e6) {
		t.Error("known: full at the wrong time")
	}
	for name, unknown := range map[string]*Definition{"none": define(), "another": define(Plan{Name: "8", Rate: 1, Burst: 20})} {
		if got, ok := unknown.Carry(row, "k", now); ok {
			t.Errorf("%s: carried to %+v", name, got)
		}
		if unknown.Full(row, now+1e15) {
			t.Errorf("%s: full", name)
		}
	}
	asked := l
	asked.Burst = 20
	kept := 0
	keep := func(p Plan) (int, Plan, error) { kept++; return 9, p, nil }
	if got, err := d.CallSite(asked, keep); err != nil || got.Plan != "#7" || kept != 0 {
		t.Errorf("%+v, %v, %d were kept", got, err, kept)
	}
	site.OverrideOnly = true
	ended := define(site)
	if got, ok := ended.Carry(row, "k", now); !ok || got.Used != row.Used {
		t.Errorf("ended: %+v, %v", got, ok)
	}
	if got, err := ended.CallSite(asked, keep); err != nil || got.Plan != "#9" || got.Number != number.Of(number.FirstCallSite+9, 1) || kept != 1 {
		t.Errorf("%+v, %v, %d were kept", got, err, kept)
	}
	if _, err := NewDefinition(l); err != nil || d.SetCallSites(NewPlans(Plan{Name: "1024", Rate: 1})) == nil {
		t.Error("an index beyond the last")
	}
}

// TestRefreshedCallSites checks that a call is decided with the definitions of call
// sites that its store has read, and not with those of the caller's Def. A site that
// the store does not know must be read first.
func TestRefreshedCallSites(t *testing.T) {
	l := Limit{Name: "api", Rate: 1, Period: time.Hour, Burst: 10, Plans: NewPlans(Plan{Name: "pro", Burst: 30})}
	define := func(sites ...Plan) (*Definition, *Registry) {
		d, err := NewDefinition(l)
		if err == nil {
			err = d.SetCallSites(NewPlans(sites...))
		}
		if err != nil {
			t.Fatal(err)
		}
		r := new(Registry)
		r.Install([]*Definition{d})
		return d, r
	}
	before, old := define()
	after, limits := define(Plan{Name: "7", Rate: 1, Period: time.Hour, Burst: 20})
	for _, d := range []*Definition{before, before.WithPlan("pro"), after.WithPlan("#7")} {
		op := Op{Def: d, Key: "k"}
		if err := op.refresh(limits, false); err != nil || op.Def.Base() != after || op.Def.Plan != d.Plan || op.Asked != op.Def {
			t.Errorf("plan %q: %v, %+v", d.Plan, err, op.Def)
		}
	}
	op := Op{Def: after.WithPlan("#7"), Key: "k"}
	if err := op.refresh(old, false); !errors.Is(err, ErrStaleDefinition) {
		t.Errorf("a site that was not read: %v", err)
	}
}
