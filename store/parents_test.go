package store_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/dipwell/dipwell/store"
)

func under(name, parent string) store.Limit {
	return store.Limit{Name: name, Rate: 1, Period: time.Minute, Parent: parent}
}

func slots(name, parent string) store.Limit {
	return store.Limit{Name: name, Algorithm: store.Concurrency, Burst: 2, Parent: parent}
}

// TestParents defines limits one after the other; the last one has the mistake.
func TestParents(t *testing.T) {
	for name, c := range map[string]struct {
		limits []store.Limit
		field  string // "": valid
		reason string
	}{
		"four levels":                {[]store.Limit{under("a", ""), under("b", "a"), under("c", "b"), under("d", "c")}, "", ""},
		"five levels":                {[]store.Limit{under("a", ""), under("b", "a"), under("c", "b"), under("d", "c"), under("e", "d")}, "parent", "4 levels"},
		"five levels, from above":    {[]store.Limit{under("top", ""), under("a", ""), under("b", "a"), under("c", "b"), under("d", "c"), under("a", "top")}, "parent", "5 levels"},
		"missing":                    {[]store.Limit{under("tenant", ""), under("user", "tenat")}, "parent", "there is no limit tenat"},
		"a circle":                   {[]store.Limit{under("a", ""), under("b", "a"), under("c", "b"), under("a", "c")}, "parent", "above it"},
		"itself":                     {[]store.Limit{under("a", "a")}, "parent", "its own parent"},
		"slots of slots":             {[]store.Limit{slots("a", ""), slots("b", "a")}, "", ""},
		"a rate under slots":         {[]store.Limit{slots("a", ""), under("b", "a")}, "parent", "concurrency"},
		"slots under a rate":         {[]store.Limit{under("a", ""), slots("b", "a")}, "parent", "concurrency"},
		"slots above a rate, later":  {[]store.Limit{under("a", ""), under("b", "a"), slots("a", "")}, "algorithm", "limit b"},
		"another parent":             {[]store.Limit{under("a", ""), under("b", ""), under("c", "a"), under("c", "b")}, "", ""},
		"a burst of a parent":        {[]store.Limit{under("a", ""), under("b", "a"), {Name: "a", Rate: 2, Period: time.Minute}}, "", ""},
		"a limit of another's chain": {[]store.Limit{under("a", ""), under("b", "a"), under("c", ""), under("d", "c"), under("c", "b")}, "", ""},
	} {
		var r store.Registry
		var err error
		for i, l := range c.limits {
			if _, err = r.Define(int64(i), l, store.OwnerCode); err != nil && i < len(c.limits)-1 {
				t.Fatalf("%s: %v", name, err)
			}
		}
		var bad *store.FieldError
		switch {
		case c.field == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.field != "" && (!errors.As(err, &bad) || bad.Field != c.field || !strings.Contains(bad.Reason, c.reason)):
			t.Errorf("%s: %v, want %s: %s", name, err, c.field, c.reason)
		}
	}
}

func TestDropOfAParent(t *testing.T) {
	var r store.Registry
	for _, l := range []store.Limit{under("a", ""), under("b", "a")} {
		if _, err := r.Define(0, l, store.OwnerCode); err != nil {
			t.Fatal(err)
		}
	}
	var bad *store.FieldError
	if err := r.Drop("a", store.OwnerCode); !errors.As(err, &bad) || bad.Limit != "a" {
		t.Errorf("a parent was dropped: %v", err)
	}
	for _, name := range []string{"b", "a"} {
		if err := r.Drop(name, store.OwnerCode); err != nil {
			t.Error(err)
		}
	}
}

// TestPaths checks which limits have keys that are paths.
func TestPaths(t *testing.T) {
	var r store.Registry
	define := func(l store.Limit) *store.Definition {
		d, err := r.Define(0, l, store.OwnerCode)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	if d := define(store.Limit{Name: "global", Rate: 1, Period: time.Minute, Plans: store.NewPlans(store.Plan{Name: "pro", Rate: 2})}); d.Paths {
		t.Error("a limit without parent and children has paths")
	}
	if d := define(under("tenant", "global")); !d.Paths {
		t.Error("a limit with a parent has no paths")
	}
	global := r.Lookup("global")
	if !global.Paths {
		t.Error("a parent has no paths")
	}
	if pro := global.WithPlan("pro"); pro.Base() != global {
		t.Error("the base of a plan is not the limit's definition")
	}
	two := under("global", "")
	two.Parts = 2
	define(two)
	if err := r.Drop("tenant", store.OwnerCode); err != nil {
		t.Fatal(err)
	}
	define(under("global", ""))
	if r.Lookup("global").Paths {
		t.Error("a limit without children has paths")
	}
}

// TestTakeUpToOfSeveralLevels checks that each level takes the least that one grants.
func TestTakeUpToOfSeveralLevels(t *testing.T) {
	user, _ := store.NewDefinition(store.Limit{Name: "user", Rate: 10, Period: time.Hour})
	tenant, _ := store.NewDefinition(store.Limit{Name: "tenant", Rate: 100, Period: time.Hour, Burst: 7})
	watched, _ := store.NewDefinition(store.Limit{Name: "watched", Rate: 1, Period: time.Hour, Mode: store.Shadow})
	const now = 1e15
	full := store.State{Used: watched.Rule.Cap, TS: now, Version: 1}
	for _, c := range []struct {
		n    int64
		want [3]int64 // granted by each
	}{{5, [3]int64{5, 5, 0}}, {9, [3]int64{7, 7, 0}}, {100, [3]int64{7, 7, 0}}} {
		g := store.Group{Ops: []store.Op{
			{Def: user, Key: "a/u", Verb: store.VerbTakeUpTo, Cost: c.n},
			{Def: tenant, Key: "a", Verb: store.VerbTakeUpTo, Cost: c.n},
			{Def: watched, Verb: store.VerbTakeUpTo, Cost: c.n},
		}}
		rows, write := []store.State{{}, {}, full}, make([]bool, 3)
		if err := g.Decide(now, rows, write); err != nil || !g.Allowed {
			t.Fatal(err)
		}
		for i, want := range c.want {
			op := &g.Ops[i]
			if op.Granted != want || op.Cost != c.n || i < 2 && rows[i].Used != want*op.Def.Rule.Unit || write[i] != (want > 0) {
				t.Errorf("%d of %s: granted %d, used %d, written %v", c.n, op.Def.Name, op.Granted, rows[i].Used, write[i])
			}
		}
	}
	g := store.Group{Ops: []store.Op{{Def: user, Key: "a/u", Verb: store.VerbTakeUpTo, Cost: 3}, {Def: tenant, Key: "a", Verb: store.VerbTakeUpTo, Cost: 3}}}
	empty := store.State{Used: tenant.Rule.Cap, TS: now, Version: 1}
	rows, write := []store.State{{}, empty}, make([]bool, 2)
	if err := g.Decide(now, rows, write); err != nil || g.Allowed || write[0] || g.Ops[0].Granted != 0 {
		t.Errorf("one level is empty: %+v, %v", g.Ops, err)
	}
}
