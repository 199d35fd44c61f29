package store_test

import (
	"errors"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/algebra"
	"github.com/dipwell/dipwell/store"
)

const day = 24 * time.Hour

// Large limits compile, with defaults reduced to what fits.
func TestCompileLarge(t *testing.T) {
	for _, l := range []store.Limit{
		{Name: "gib a day", Rate: 1 << 30, Period: day},
		{Name: "prime", Rate: 999_983, Period: 30 * day},
		{Name: "tib", Rate: 1 << 40, Period: 30 * day},
		{Name: "most", Rate: store.MaxInt, Period: time.Second, Burst: 1},
	} {
		r, _, err := compile(l)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, n := range []int64{r.Unit, r.Every, r.Add, r.Cap, r.Debt, r.Most, r.MaxCharge, r.MaxUsed, r.Cap + r.Debt} {
			if n < 0 || n > store.MaxInt {
				t.Errorf("%s: %d is beyond 2^53-1: %+v", l.Name, n, r)
			}
		}
		if full := r.TimeToFull(r.MaxUsed, 0, 0); full < 0 || full > store.MaxInt {
			t.Errorf("%s: full after %d µs", l.Name, full)
		}
	}
}

var atMost = regexp.MustCompile(`at most (\d+)$`)

// The error for a burst that is too large has the largest possible one. That
// one compiles, and one more does not.
func TestCompileNamesTheLargestBurst(t *testing.T) {
	for _, l := range []store.Limit{
		{Name: "month", Rate: 1, Period: 30 * day, Burst: 9_000_000_000},
		{Name: "prime", Rate: 999_983, Period: 30 * day, Burst: store.MaxInt},
		{Name: "debt", Rate: 7, Period: time.Hour, Burst: store.MaxInt, MaxDebt: 1000, MaxCharge: 500},
		{Name: "nodebt", Rate: 1, Period: day, Burst: store.MaxInt, MaxDebt: store.NoDebt},
		{Name: "µs", Rate: 3, Period: 7 * time.Microsecond, Burst: store.MaxInt},
		{Name: "window", Algorithm: store.FixedWindow, Rate: 1, Period: day, Burst: store.MaxInt},
		{Name: "calendar", Algorithm: store.FixedWindow, Rate: 3, Period: store.Month, Burst: store.MaxInt, MaxDebt: 10},
	} {
		if l.Name == "µs" {
			l.Name = "us"
		}
		_, err := store.NewDefinition(l)
		m := []string(nil)
		if err != nil {
			m = atMost.FindStringSubmatch(err.Error())
		}
		if m == nil {
			t.Errorf("%s: %v does not have the largest burst", l.Name, err)
			continue
		}
		var le *store.FieldError
		if !errors.As(err, &le) || le.Field != "burst" || le.Limit != l.Name {
			t.Errorf("%s: %#v", l.Name, err)
		}
		l.Burst, _ = strconv.ParseInt(m[1], 10, 64)
		if _, err := store.NewDefinition(l); err != nil {
			t.Errorf("%s: the burst in the error does not compile: %v", l.Name, err)
		}
		l.Burst++
		if _, err := store.NewDefinition(l); err == nil {
			t.Errorf("%s: %d, one more than the largest burst, compiles", l.Name, l.Burst)
		}
	}
}

// Where no burst fits, the error does not name one.
func TestCompileNamesNoBurst(t *testing.T) {
	for _, algorithm := range []store.Algorithm{store.TokenBucket, store.FixedWindow, store.Interval} {
		_, err := store.NewDefinition(store.Limit{Name: "l", Algorithm: algorithm, Rate: 7, Period: 30 * day, Burst: 1, MaxDebt: 1e15})
		var le *store.FieldError
		if !errors.As(err, &le) || le.Field != "rate" || !strings.Contains(le.Reason, "max_debt and max_charge too large") {
			t.Errorf("%s: %v", algorithm, err)
		}
	}
}

func TestCompileErrors(t *testing.T) {
	ok := store.Limit{Name: "l", Rate: 1, Period: time.Second}
	for field, cases := range map[string][]func(*store.Limit){
		"name":           {func(l *store.Limit) { l.Name = "" }, func(l *store.Limit) { l.Name = strings.Repeat("n", 129) }, func(l *store.Limit) { l.Name = "é" }, func(l *store.Limit) { l.Name = " a" }},
		"rate":           {func(l *store.Limit) { l.Rate = 0 }, func(l *store.Limit) { l.Rate = -1 }, func(l *store.Limit) { l.Rate = 1 << 53 }},
		"per":            {func(l *store.Limit) { l.Period = 0 }, func(l *store.Limit) { l.Period = store.Month }, func(l *store.Limit) { l.Period = 1500 * time.Nanosecond }},
		"burst":          {func(l *store.Limit) { l.Burst = -2 }, func(l *store.Limit) { l.Burst, l.MaxDebt = store.NoBurst, store.NoDebt }},
		"max_debt":       {func(l *store.Limit) { l.MaxDebt = -3 }},
		"max_charge":     {func(l *store.Limit) { l.MaxCharge = -1 }},
		"start":          {func(l *store.Limit) { l.Start = "0s" }, func(l *store.Limit) { l.Algorithm, l.Start = store.FixedWindow, "25:00 UTC" }, func(l *store.Limit) { l.Algorithm, l.Start = store.FixedWindow, "06:00 Nowhere/City" }, func(l *store.Limit) { l.Algorithm, l.Start = store.FixedWindow, "06:00 UTC" }},
		"algorithm":      {func(l *store.Limit) { l.Algorithm = 9 }},
		"on_change":      {func(l *store.Limit) { l.OnChange = 9 }},
		"mode":           {func(l *store.Limit) { l.Mode = 9 }},
		"on_store_error": {func(l *store.Limit) { l.OnStoreError = 9 }},
		"retry_jitter":   {func(l *store.Limit) { l.RetryJitter = 101 }, func(l *store.Limit) { l.RetryJitter = -1 }},
		"timeout":        {func(l *store.Limit) { l.Timeout = -1 }},
		"lease":          {func(l *store.Limit) { l.Lease = -time.Second }, func(l *store.Limit) { l.Lease = time.Minute }, func(l *store.Limit) { l.Lease = 1500 * time.Microsecond }},
		"ttl":            append(holdless(func(l *store.Limit) { l.TTL = time.Hour }), func(l *store.Limit) { l.TTL = -time.Second }, func(l *store.Limit) { l.TTL = 32 * 24 * time.Hour }),
		"on_expire":      holdless(func(l *store.Limit) { l.KeepExpired = true }),
		"plans":          holdless(func(l *store.Limit) { l.Plans = store.NewPlans(store.Plan{Name: "p", Rate: 1, Children: true}) })[1:],
	} {
		for i, spoil := range cases {
			l := ok
			spoil(&l)
			_, err := store.NewDefinition(l)
			var le *store.FieldError
			if !errors.As(err, &le) || le.Field != field {
				t.Errorf("%s %d: %v", field, i, err)
			} else if strings.Contains(le.Reason, "mo is") { // how months are kept: a time below 0
				t.Errorf("%s %d: a time below 0 is written as months: %v", field, i, err)
			}
		}
	}
}

// holdless sets something in limits that have no holds, and of which all but the first are no
// parents.
func holdless(set func(*store.Limit)) (cases []func(*store.Limit)) {
	for _, kind := range []func(*store.Limit){
		func(l *store.Limit) { l.Algorithm = store.LeakyBucket },
		func(l *store.Limit) { l.Algorithm = store.SlidingWindow },
		func(l *store.Limit) { l.Burst, l.Shards = 2, 2 },
		func(l *store.Limit) { l.Adaptive = store.Adaptive{Floor: 1, Latency: time.Second} },
	} {
		cases = append(cases, func(l *store.Limit) { kind(l); set(l) })
	}
	return cases
}

// A limit with shards has something for each of them, and nothing that more than one
// would have to count.
func TestCompileShards(t *testing.T) {
	for _, c := range []struct{ limit, field string }{
		{"l=16/1s,shards=8", ""},
		{"l=16/1s,shards=8,max_debt=0", ""},
		{"l=1/1d,burst=128,shards=64,plans=pro:rate=5;callable=false|off:mode=blocked;callable=false", ""},
		{"l=16/1s,shards=8,plans=pro:burst=23;callable=false", ""},
		{"l=16/1s,shards=8,plans=pro:burst=24", "plans"},
		{"l=16/1s,shards=8,ttl=1m", "ttl"},
		{"l=16/1s,shards=8,on_expire=give_back", ""},
		{"l=8/1s,algorithm=fixed_window,burst=16,shards=8", "shards"},
		{"l=20/1s,shards=8", "burst"},
		{"l=16/1s,shards=8,parts=1", "shards"},
		{"l=16/1s,shards=8,parent=p", "shards"},
		{"l=1/1s,burst=1,shards=1,max_debt=5", ""},
		{"l=200/1s,shards=65", "shards"},
		{"l=7/1s,shards=8", "burst"},
		{"l=1/1s,burst=0,max_debt=0,shards=2", "burst"},
		{"l=16/1s,shards=8,max_debt=1", "max_debt"},
		{"l=16/1s,shards=8,max_debt=unlimited", "max_debt"},
		{"l=16/1s,algorithm=leaky_bucket,shards=8", "shards"},
		{"l=16,algorithm=concurrency,shards=8", "shards"},
		{"l=100/1s,lease=100ms,shards=8", "lease"},
		{"l=16/1s,shards=8,plans=small:burst=7;callable=false", "plans"},
		{"l=16/1s,shards=8,plans=debt:max_debt=1;callable=false", "plans"},
	} {
		l, err := dipwell.ParseLimit(c.limit)
		if err == nil {
			var d *store.Definition
			if d, err = store.NewDefinition(l); err == nil && (d.Rule.Debt != 0) != (l.Shards < 2) {
				t.Errorf("%s: a debt of %d", c.limit, d.Rule.Debt)
			}
		}
		var bad *store.FieldError
		if c.field == "" && err != nil || c.field != "" && (!errors.As(err, &bad) || bad.Field != c.field) {
			t.Errorf("%s: %v, want field %q", c.limit, err, c.field)
		}
	}
}

func TestCompileWarns(t *testing.T) {
	for _, c := range []struct {
		l    store.Limit
		warn bool
	}{
		{store.Limit{Name: "l", Rate: 300_000, Period: time.Second, Burst: 1}, true},
		{store.Limit{Name: "l", Rate: 300_000, Period: time.Second, Burst: 2}, false},
		{store.Limit{Name: "l", Rate: 10, Period: time.Second, Burst: 1}, false},
		{store.Limit{Name: "l", Algorithm: store.FixedWindow, Rate: 10, Period: time.Second, Burst: 5}, true},
		{store.Limit{Name: "l", Algorithm: store.FixedWindow, Rate: 10, Period: time.Second}, false},
		{store.Limit{Name: "l", Algorithm: store.Concurrency, Burst: 10}, false},
	} {
		if _, w, err := compile(c.l); err != nil || (w != "") != c.warn {
			t.Errorf("%v: warning %q, %v", c.l, w, err)
		}
	}
}

// The default max_debt is reduced to what an explicit max_charge leaves.
func TestDefaultDebtLeavesRoomForCharges(t *testing.T) {
	r, _, err := compile(store.Limit{Name: "l", Rate: 1, Period: 365 * 24 * time.Hour, Burst: 150, MaxCharge: 100})
	if err != nil {
		t.Fatal(err)
	}
	if most := r.MaxUsed / r.Unit; r.Debt != (most-250)*r.Unit || r.MaxCharge != 100 || r.Debt == 0 {
		t.Errorf("%d tokens can be counted, and the debt is %d beside a burst of 150 and charges of 100", most, r.Debt/r.Unit)
	}
}

// After Ready, a rule with the same fields equals a compiled one.
func TestRuleReady(t *testing.T) {
	r, _, err := compile(store.Limit{Name: "x", Rate: 1, Period: time.Microsecond, Burst: 1 << 40})
	if err != nil {
		t.Fatal(err)
	}
	want, _, err := compile(store.Limit{Name: "x", Rate: 7, Period: time.Hour, Burst: 1 << 12})
	if err != nil {
		t.Fatal(err)
	}
	r.Unit, r.Add, r.Cap, r.Burst, r.Debt, r.Most, r.MaxCharge, r.MaxUsed = want.Unit, want.Add, want.Cap, want.Burst, want.Debt, want.Most, want.MaxCharge, want.MaxUsed
	if r.Enough = algebra.QuoUp(r.MaxUsed, r.Add); r != want {
		t.Errorf("%+v, want %+v", r, want)
	}
}

// compile returns the rule of a limit, and the warning of its definition.
func compile(l store.Limit) (r store.Rule, warning string, err error) {
	d, err := store.NewDefinition(l)
	if err != nil {
		return r, "", err
	}
	return d.Rule, d.Warning, nil
}
