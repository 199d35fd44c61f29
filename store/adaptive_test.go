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
	err := l.Set("adaptive", "floor=50;ceiling=500;latency=200ms;quantile=0.95;errors=2%;window=1s")
	want := Adaptive{50, 500, 200 * time.Millisecond, 0.95, 0.02, time.Second}
	if err != nil || l.Adaptive != want {
		t.Fatalf("%+v, %v", l.Adaptive, err)
	}
	if got := l.Adaptive.String(); got != "floor=50;ceiling=500;latency=200ms;quantile=0.95;errors=0.02;window=1s" {
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
	good := Limit{Name: "up", Rate: 250, Period: time.Second, Adaptive: Adaptive{Floor: 50, Ceiling: 500, Latency: time.Second}}
	if d, err := NewDefinition(good); err != nil || d.Warning != "" {
		t.Fatal(d, err)
	}
	for setting, change := range map[string]func(*Limit){
		"is for token buckets":                          func(l *Limit) { l.Algorithm = FixedWindow },
		"is for token buckets, not for algorithm leaky": func(l *Limit) { l.Algorithm = LeakyBucket },
		"is not for a limit with shards":                func(l *Limit) { l.Shards, l.MaxDebt = 2, NoDebt },
		"is not for a limit with a lease":               func(l *Limit) { l.Lease = 20 * time.Millisecond },
		"floor: 0":                                      func(l *Limit) { l.Adaptive.Floor = 0 },
		"floor: 251":                                    func(l *Limit) { l.Adaptive.Floor = 251 },
		"ceiling: 249":                                  func(l *Limit) { l.Adaptive.Ceiling = 249 },
		"ceiling: 50001":                                func(l *Limit) { l.Adaptive.Ceiling = 50_001 },
		"latency: a target is missing":                  func(l *Limit) { l.Adaptive.Latency = 0 },
		"latency: -":                                    func(l *Limit) { l.Adaptive.Latency = -time.Second },
		"latency: 2h":                                   func(l *Limit) { l.Adaptive.Latency = 2 * time.Hour },
		"quantile: 0.4":                                 func(l *Limit) { l.Adaptive.Quantile = 0.4 },
		"quantile: 1 ":                                  func(l *Limit) { l.Adaptive.Quantile = 1 },
		"quantile: NaN":                                 func(l *Limit) { l.Adaptive.Quantile = math.NaN() },
		"quantile: 0.66":                                func(l *Limit) { l.Adaptive.Quantile = 2. / 3 },
		"quantile: needs a latency":                     func(l *Limit) { l.Adaptive = Adaptive{Floor: 50, Ceiling: 500, Quantile: 0.9, Errors: 0.1} },
		"errors: 0.6":                                   func(l *Limit) { l.Adaptive.Errors = 0.6 },
		"errors: NaN":                                   func(l *Limit) { l.Adaptive.Errors = math.NaN() },
		"window: 99ms":                                  func(l *Limit) { l.Adaptive.Window = 99 * time.Millisecond },
		"window: 2h":                                    func(l *Limit) { l.Adaptive.Window = 2 * time.Hour },
	} {
		l := good
		change(&l)
		var bad *FieldError
		if _, err := NewDefinition(l); !errors.As(err, &bad) || bad.Field != "adaptive" || !strings.HasPrefix(bad.Reason, setting) {
			t.Errorf("%s: %v", setting, err)
		}
	}
	l := good
	l.Burst = 1 << 40
	var bad *FieldError
	if _, err := NewDefinition(l); !errors.As(err, &bad) || bad.Field != "burst" {
		t.Fatal(err)
	}
	l.Burst, l.MaxDebt, l.MaxCharge = MaxInt/2_048_000, NoDebt, 0
	if _, err := NewDefinition(l); err != nil {
		t.Errorf("the largest burst: %v", err)
	}
	if l.Burst++; !strings.Contains(errorOf(l), "at most 4398046511") {
		t.Errorf("one more: %s", errorOf(l))
	}
	l = good
	l.Adaptive.Window = 300 * time.Millisecond
	if d, err := NewDefinition(l); err != nil || !strings.Contains(d.Warning, "15 calls") {
		t.Errorf("%v, %v", d, err)
	}
}

func errorOf(l Limit) string {
	_, err := NewDefinition(l)
	if err == nil {
		return ""
	}
	return err.Error()
}

// The rule counts in whole units at each level: a second at any level gives that many
// 1/1024 of the ceiling.
func TestAdaptiveRule(t *testing.T) {
	for _, l := range []Limit{
		{Rate: 250, Period: time.Second, Adaptive: Adaptive{Floor: 50, Ceiling: 500}},
		{Rate: 7, Period: 13 * time.Second, Adaptive: Adaptive{Floor: 1, Ceiling: 997}},
		{Rate: 1_000_000, Period: time.Second, Burst: 1000, Adaptive: Adaptive{Floor: 1_000_000, Ceiling: 1_000_000}},
		{Rate: 1000, Period: time.Minute, Adaptive: Adaptive{Floor: 10, Ceiling: 10_000}},
	} {
		l.Name, l.Adaptive.Errors = "x", 0.1
		d, err := NewDefinition(l)
		if err != nil {
			t.Error(err)
			continue
		}
		const at = int64(1 << 50)
		for level := d.Rule.Pace.Config().Floor; level <= 1024; level += 37 {
			s := d.Rule.Pace.Config()
			s.Base = level
			d.Rule.Pace.Set(s.Begin())
			// A period at the level gives ceiling × level / 1024 tokens.
			ticks := d.Rule.tick(at+l.Period.Microseconds()) - d.Rule.tick(at)
			if units, want := ticks*d.Rule.Add*1024, l.Adaptive.Ceiling*level*d.Rule.Unit; units != want {
				t.Fatalf("%v: level %d gives %d units × 1024; want %d", l, level, units, want)
			}
		}
		if r := &d.Rule; r.Cap+r.Debt > r.MaxUsed || r.MaxUsed > MaxInt || r.Most*r.Unit > r.Cap+r.Debt {
			t.Errorf("%v: %+v", l, r)
		}
	}
}
