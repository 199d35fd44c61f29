package store

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"
)

func TestAdaptiveText(t *testing.T) {
	l := Limit{Name: "up", Rate: 250, Period: time.Second}
	err := l.Set("adaptive", "floor=50;latency=200ms;quantile=0.95;errors=2%;window=1s")
	want := Adaptive{50, 200 * time.Millisecond, 0.95, 0.02, time.Second}
	if err != nil || l.Adaptive != want {
		t.Fatalf("%+v, %v", l.Adaptive, err)
	}
	if got := l.Adaptive.String(); got != "floor=50;latency=200ms;quantile=0.95;errors=0.02;window=1s" {
		t.Error(got)
	}
	back := l
	back.Adaptive = Adaptive{}
	if err := back.Set("adaptive", l.Adaptive.String()); err != nil || back != l {
		t.Errorf("%v comes back as %v: %v", l, back, err)
	}
	for _, share := range []float64{0.000001, 0.1, 0.07, 0.29, 0.333333, 0.999999} {
		if got, err := parseShare(shareText(share)); err != nil || got != share {
			t.Errorf("%v comes back as %v: %v", share, got, err)
		}
	}
	for _, text := range []string{"", "floor", "floor=x", "floor=0", "flor=50", "errors=2", "errors=0%", "errors=-1%", "errors=NaN", "errors=0.0000001", "quantile=1", "latency=5", "window=1s;"} {
		if err := l.Set("adaptive", text); err == nil {
			t.Errorf("%q is read as %v", text, l.Adaptive)
		}
	}
	if err := l.Set("adaptive", "flor=50"); !strings.Contains(err.Error(), "floor") {
		t.Error(err)
	}
}

func TestAdaptiveRefused(t *testing.T) {
	good := Limit{Name: "up", Rate: 250, Period: time.Second, Adaptive: Adaptive{Floor: 50, Latency: time.Second}}
	if d, err := NewDefinition(good); err != nil || d.Warning != "" {
		t.Fatal(d, err)
	}
	for setting, change := range map[string]func(*Limit){
		"is for token buckets":                                              func(l *Limit) { l.Algorithm = FixedWindow },
		"is for token buckets, not for algorithm leaky":                     func(l *Limit) { l.Algorithm = LeakyBucket },
		"is not for a limit with shards":                                    func(l *Limit) { l.Shards, l.MaxDebt = 2, NoDebt },
		"is not for a limit with a lease":                                   func(l *Limit) { l.Lease = 20 * time.Millisecond },
		"is neither for a limit with a parent":                              func(l *Limit) { l.Parent = "all" },
		"is neither for a limit with a parent nor for the parent of others": func(l *Limit) { l.Parts = 1 },
		"floor: 0":                     func(l *Limit) { l.Adaptive.Floor = 0 },
		"floor: 251":                   func(l *Limit) { l.Adaptive.Floor = 251 },
		"latency: a target is missing": func(l *Limit) { l.Adaptive.Latency = 0 },
		"latency: -":                   func(l *Limit) { l.Adaptive.Latency = -time.Second },
		"latency: 2h":                  func(l *Limit) { l.Adaptive.Latency = 2 * time.Hour },
		"quantile: 0.4":                func(l *Limit) { l.Adaptive.Quantile = 0.4 },
		"quantile: 1 ":                 func(l *Limit) { l.Adaptive.Quantile = 1 },
		"quantile: NaN":                func(l *Limit) { l.Adaptive.Quantile = math.NaN() },
		"quantile: 0.66":               func(l *Limit) { l.Adaptive.Quantile = 2. / 3 },
		"quantile: needs a latency":    func(l *Limit) { l.Adaptive = Adaptive{Floor: 50, Quantile: 0.9, Errors: 0.1} },
		"errors: 0.6":                  func(l *Limit) { l.Adaptive.Errors = 0.6 },
		"errors: NaN":                  func(l *Limit) { l.Adaptive.Errors = math.NaN() },
		"window: 99ms":                 func(l *Limit) { l.Adaptive.Window = 99 * time.Millisecond },
		"window: 2h":                   func(l *Limit) { l.Adaptive.Window = 2 * time.Hour },
	} {
		l := good
		change(&l)
		var bad *FieldError
		if _, err := NewDefinition(l); !errors.As(err, &bad) || bad.Field != "adaptive" || !strings.HasPrefix(bad.Reason, setting) {
			t.Errorf("%s: %v", setting, err)
		}
	}
	for setting, change := range map[string]func(*Limit){
		"max_debt": func(l *Limit) { l.MaxDebt = 1 },
		"burst":    func(l *Limit) { l.Burst = NoBurst },
	} {
		l := good
		change(&l)
		var bad *FieldError
		if _, err := NewDefinition(l); !errors.As(err, &bad) || bad.Field != setting {
			t.Errorf("%s: %v", setting, err)
		}
	}
	var limits Registry
	if _, err := limits.Define(1, good, OwnerCode); err != nil {
		t.Fatal(err)
	}
	var bad *FieldError
	if _, err := limits.Define(1, Limit{Name: "below", Rate: 1, Period: time.Second, Parent: "up"}, OwnerCode); !errors.As(err, &bad) || bad.Field != "parent" {
		t.Errorf("a child of an adaptive limit: %v", err)
	}
}

// The units of an adaptive limit, and of its plans, are fine enough for 1024 fractions, and
// count the same rate.
func TestAdaptiveUnits(t *testing.T) {
	for _, l := range []Limit{
		{Rate: 250, Period: time.Second, Adaptive: Adaptive{Floor: 50}},
		{Rate: 7, Period: 13 * time.Second, Adaptive: Adaptive{Floor: 1}},
		{Rate: 300_000, Period: time.Second, Burst: 1000, Adaptive: Adaptive{Floor: 1}, Plans: NewPlans(Plan{Name: "pro", Rate: 1_000_000})},
		{Rate: MaxInt / 2048, Period: time.Hour, Burst: 1000, Adaptive: Adaptive{Floor: MaxInt / 2048}},
	} {
		l.Name, l.Adaptive.Errors = "x", 0.1
		d, err := NewDefinition(l)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, d := range []*Definition{d, d.WithPlan("pro")} {
			if d == nil {
				continue
			}
			r := &d.Rule
			if ticks := d.Period.Microseconds() / r.Every; r.Unit < 1024 || r.Add*ticks != r.Unit*d.Rate || r.Debt != 0 {
				t.Errorf("%v: %+v", d, r)
			}
		}
	}
}

// Reserving, charging and the like are not possible on an adaptive limit, and on its plans.
func TestAdaptiveVerbs(t *testing.T) {
	d, err := NewDefinition(Limit{Name: "x", Rate: 10, Period: time.Second, Adaptive: Adaptive{Floor: 1, Errors: 0.1}, Plans: NewPlans(Plan{Name: "pro", Rate: 20})})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []*Definition{d, d.WithPlan("pro")} {
		for v := VerbTake; v <= VerbReset; v++ {
			possible := v == VerbTake || v == VerbCheck || v == VerbReset
			if err := d.CheckVerb(v, false); (err == nil) != possible {
				t.Errorf("%s: %v", v, err)
			}
		}
		if d.CheckVerb(VerbTake, true) == nil {
			t.Error("a hold")
		}
	}
}
