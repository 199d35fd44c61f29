package store_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/store"
)

func single(def *store.Definition, key string, verb store.Verb, cost int64) store.Group {
	return store.Group{Ops: []store.Op{{Def: def, Key: key, Verb: verb, Cost: cost}}}
}

// Deciding the calls of a row at once has the result of deciding them one after
// the other.
func TestRowDecidesAsOneByOne(t *testing.T) {
	defs := []*store.Definition{
		limittest.Definition(store.Limit{Name: "a", Rate: 3, Period: 7 * time.Second, Burst: 10, MaxDebt: 5}),
		limittest.Definition(store.Limit{Name: "b", Algorithm: store.FixedWindow, Rate: 5, Period: time.Minute}),
		limittest.Definition(store.Limit{Name: "c", Algorithm: store.LeakyBucket, Rate: 2, Period: time.Second, MaxDebt: 4}),
		limittest.Definition(store.Limit{Name: "d", Rate: 1, Period: time.Hour, Burst: 3, Mode: store.Shadow}),
	}
	var m store.Rows
	rapid.Check(t, func(t *rapid.T) {
		now := rapid.Int64Range(0, 1e9).Draw(t, "now")
		n := rapid.IntRange(1, 40).Draw(t, "groups")
		var b store.Batch
		for range n {
			def := rapid.SampledFrom(defs).Draw(t, "limit")
			b.Groups = append(b.Groups, single(def, rapid.SampledFrom([]string{"", "k", "l"}).Draw(t, "key"),
				store.Verb(rapid.IntRange(0, int(store.VerbReset)).Draw(t, "verb")), rapid.Int64Range(0, 12).Draw(t, "cost")))
		}
		type id struct{ limit, key string }
		start := map[id]store.State{}
		for i := range b.Groups {
			op := &b.Groups[i].Ops[0]
			k := id{op.Def.Name, op.Key}
			if _, ok := start[k]; !ok {
				start[k] = store.State{Used: rapid.Int64Range(0, op.Def.Rule.Cap+op.Def.Rule.Debt).Draw(t, "used"),
					TS: rapid.Int64Range(0, 1e9).Draw(t, "ts"), Version: 1}
			}
		}

		rows, want := map[id]store.State{}, make([]store.Group, n)
		for k, v := range start {
			rows[k] = v
		}
		for i, g := range b.Groups {
			want[i] = g
			want[i].Ops = []store.Op{g.Ops[0]}
			k := id{g.Ops[0].Def.Name, g.Ops[0].Key}
			row, write := []store.State{rows[k]}, []bool{false}
			if err := want[i].Decide(now, row, write); err != nil {
				t.Fatal(err)
			}
			if write[0] {
				rows[k] = row[0]
			}
		}

		m.Arrange(&b)
		for i := range m.Rows {
			r := &m.Rows[i]
			k := id{r.Limit, r.Key}
			if i > 0 && (k.limit < m.Rows[i-1].Limit || k.limit == m.Rows[i-1].Limit && k.key <= m.Rows[i-1].Key) {
				t.Fatalf("row %v is not after %s %s", k, m.Rows[i-1].Limit, m.Rows[i-1].Key)
			}
			after, write := r.Decide(now, start[k])
			if !write {
				after = start[k]
			}
			// A row that was written and given back equals one that was never written.
			rule := r.Groups[0].Ops[0].Def.RuleFor(r.Key, new(store.Rule))
			got, exp := rule.Used(after, max(now, after.TS, rows[k].TS)), rule.Used(rows[k], max(now, after.TS, rows[k].TS))
			if got != exp {
				t.Fatalf("row %v is %+v, want %+v", k, after, rows[k])
			}
		}
		for i := range want {
			got, exp := &b.Groups[i], &want[i]
			if got.Allowed != exp.Allowed || got.Reserved != exp.Reserved || got.Ops[0].Answer != exp.Ops[0].Answer {
				t.Fatalf("group %d: %+v, want %+v", i, got.Ops[0], exp.Ops[0])
			}
		}
	})
}

// Of equal calls the first ones are granted, as many as fit.
func TestCallsAlikeAreGrantedFromTheFirstOn(t *testing.T) {
	def := limittest.Definition(store.Limit{Name: "a", Rate: 1, Period: time.Hour, Burst: 20})
	var b store.Batch
	for range 30 {
		b.Groups = append(b.Groups, single(def, "hot", store.VerbTake, 3))
	}
	var m store.Rows
	m.Arrange(&b)
	if len(m.Rows) != 1 {
		t.Fatalf("%d rows", len(m.Rows))
	}
	after, write := m.Rows[0].Decide(1000, store.State{})
	if want := 18 * def.Rule.Unit; !write || after.Used != want {
		t.Errorf("used %d, want %d", after.Used, want)
	}
	for i := range b.Groups {
		if b.Groups[i].Allowed != (i < 6) {
			t.Errorf("call %d: allowed is %v", i, b.Groups[i].Allowed)
		}
	}
}

func TestArrangeLeavesGroupsWhole(t *testing.T) {
	def := limittest.Definition(store.Limit{Name: "a", Rate: 1, Period: time.Hour})
	b := store.Batch{Groups: []store.Group{
		{Ops: []store.Op{{Def: def, Key: "x"}, {Def: def, Key: "y"}}},
		single(def, "x", store.VerbTake, 1),
		{Cancel: true},
		single(def, "x", store.VerbTake, 2),
	}}
	var m store.Rows
	for range 2 { // Arrange may be called again
		m.Arrange(&b)
		if fmt.Sprint(len(m.Rows), len(m.Whole)) != "1 2" {
			t.Errorf("%d rows and %d whole groups", len(m.Rows), len(m.Whole))
		}
	}
}

func TestACallWithAnOldDefinitionFailsAlone(t *testing.T) {
	old := limittest.Definition(store.Limit{Name: "a", Rate: 1, Period: time.Hour, Burst: 20})
	now := *old
	now.Number, now.Past = 2, []*store.Version{{Number: old.Number, Since: old.Since, Rule: old.Rule, Policy: old.Policy}}
	b := store.Batch{Groups: []store.Group{
		single(&now, "k", store.VerbTake, 1), single(old, "k", store.VerbTake, 1), single(&now, "k", store.VerbTake, 1)}}
	var m store.Rows
	m.Arrange(&b)
	after, _ := m.Rows[0].Decide(1000, store.State{Used: old.Rule.Unit, TS: 1000, Version: 1})
	if after.Used != 3*old.Rule.Unit || !errors.Is(b.Groups[1].Err, store.ErrStaleDefinition) || b.Groups[0].Err != nil || b.Groups[2].Err != nil {
		t.Errorf("used %d, errors %v %v %v", after.Used, b.Groups[0].Err, b.Groups[1].Err, b.Groups[2].Err)
	}
}

// A plan, a floor or a hold keeps a call out of its row's sum.
func TestArrangeAddsUpPlainCallsAlone(t *testing.T) {
	def := limittest.Definition(store.Limit{Name: "a", Rate: 1, Period: time.Hour, Plans: store.NewPlans(store.Plan{Name: "pro", Burst: 9})})
	b := store.Batch{Groups: []store.Group{
		single(def, "x", store.VerbTake, 1), single(def.WithPlan("pro"), "x", store.VerbTake, 1),
		single(def, "x", store.VerbTake, 1), single(def, "x", store.VerbTake, 1), {Hold: &store.HoldCall{Verb: store.SettleHold}},
	}}
	b.Groups[2].Ops[0].Floor = 1
	b.Groups[3].Hold = new(store.HoldCall)
	var m store.Rows
	if m.Arrange(&b); len(m.Rows) != 1 || len(m.Rows[0].Groups) != 1 || len(m.Whole) != 4 {
		t.Errorf("%d rows, %d whole groups", len(m.Rows), len(m.Whole))
	}
}

// A refusal leaves the row under the definition that it had.
func TestARefusalWritesNothing(t *testing.T) {
	old := limittest.Definition(store.Limit{Name: "a", Rate: 1, Period: time.Hour, Burst: 20})
	now := *old
	now.Number, now.Past = 2, []*store.Version{{Number: old.Number, Since: old.Since, Rule: old.Rule, Policy: old.Policy}}
	found := store.State{Used: 19 * old.Rule.Unit, TS: 1000, Version: 1}
	b := store.Batch{Groups: []store.Group{single(old, "k", store.VerbTake, 1), single(&now, "k", store.VerbTake, 2)}}
	var m store.Rows
	m.Arrange(&b)
	after, write := m.Rows[0].Decide(1000, found)
	if found.Used += old.Rule.Unit; !write || after != found || b.Groups[1].Allowed {
		t.Errorf("row %+v, want %+v", after, found)
	}
}
