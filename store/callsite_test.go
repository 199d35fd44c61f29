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
	if got, ok := d.carryRow(row, "k", now); !ok || got.Used != row.Used {
		t.Errorf("known: %+v, %v", got, ok)
	}
	if d.Full(row, now) || !d.Full(row, now+9*3600e6) {
		t.Error("known: full at the wrong time")
	}
	for name, unknown := range map[string]*Definition{"none": define(), "another": define(Plan{Name: "8", Rate: 1, Burst: 20})} {
		if got, ok := unknown.carryRow(row, "k", now); ok {
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
	if got, ok := ended.carryRow(row, "k", now); !ok || got.Used != row.Used {
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

// TestCallSiteAfterTwoVersions checks that a row under a call site's definition stays
// under it while the limit gets two more versions, so that the retry of a call by the
// limit itself counts at the row's own rate, and a settle leaves the row under it.
func TestCallSiteAfterTwoVersions(t *testing.T) {
	l := Limit{Name: "api", Rate: 10, Period: time.Second, Burst: 10}
	var r Registry
	define := func(now, rate int64) *Definition {
		l.Rate = rate
		d, err := r.Define(now, l, OwnerCode)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	now := int64(1e15)
	d, asked := define(now, 10), l
	asked.Rate, asked.Burst = 1, 20
	site, err := d.CallSite(asked, func(p Plan) (int, Plan, error) { return r.AddCallSite(l.Name, p, now, nil, nil) })
	if err != nil {
		t.Fatal(err)
	}
	row := State{Used: 20 * site.Rule.Unit, TS: now, Version: site.Number}
	define(now+1e6, 40)
	d = define(now+2e6, 100)
	if own := d.own(row, now+3e6); own.Plan != site.Plan || own.Rate != 1 {
		t.Errorf("the row is under %q, %v", own.Plan, own)
	}
	for retry, want := range map[int64]bool{8e6 - 1: false, 8e6: true} { // 17 are used at 3 s, and 9 may be
		op := Op{Def: d, Key: "k", Verb: VerbTake, Cost: 1}
		if _, _, err := op.Step(now+3e6, row, false); err != nil || op.Allowed || op.Retry != 8e6 {
			t.Errorf("%+v, %v", op.Answer, err)
		}
		if _, _, err := op.Step(now+3e6+retry, row, false); err != nil || op.Allowed != want {
			t.Errorf("%d µs later: %+v, %v", retry, op.Answer, err)
		}
	}
	row.Lows = &Lows{Mark: 1, Next: 2, Entries: []Low{{1, row.Used}}}
	records := []Record{{Number: 1, Mark: 1, Units: 5 * site.Rule.Unit, Slack: -1, Version: site.Number, Hold: "h", Ends: MaxInt, Expires: now + 60e6}}
	after, _, err := d.own(row, now+3e6).giveBackRecord(row, "k", now+3e6, records, 1, 1)
	if present := d.WithPlan(site.Plan); err != nil || after.Version != present.Number || after.Used != 12*present.Rule.Unit {
		t.Errorf("after the hold: %+v, %v", after, err)
	}
}

// TestConcurrencyCallSite checks that a definition of a call site without a rate, which is
// one of a concurrency limit, is known when its limit has been read again, and is forgotten
// when no row refers to it.
func TestConcurrencyCallSite(t *testing.T) {
	d, err := NewDefinition(Limit{Name: "slots", Algorithm: Concurrency, Burst: 5})
	if err == nil {
		err = d.SetCallSites(NewPlans(Plan{Name: "7", Burst: 8}))
	}
	if err != nil {
		t.Fatal(err)
	}
	d.publish()
	if site := d.WithPlan("#7"); site == nil || site.Rule.Burst != 8 {
		t.Fatalf("the call site is not known: %+v", site)
	}
	if all := d.sites.all().All(); len(all) != 1 || all[0].Name != "7" {
		t.Errorf("to be stored: %v", all)
	}
	d.sites.forget(1e15, nil)
	if site := d.WithPlan("#7"); site == nil || !site.OverrideOnly {
		t.Errorf("not ended: %+v", site)
	}
	if d.sites.forget(1e15+siteRest+1, nil); d.WithPlan("#7") != nil {
		t.Error("not forgotten")
	}
}
