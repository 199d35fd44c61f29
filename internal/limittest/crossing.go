package limittest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/dipwell/dipwell/store"
)

// directions says for each field of a call who sets it: the caller (in), the store (out),
// or first the caller and then the store (both). Fields marked "own" have a check of
// their own. A new field of one of these types must be added here; the test then requires
// that it crosses every decorator.
var directions = map[string]string{
	"Group.Ops": "own", "Group.ID": "in", "Group.Cancel": "in", "Group.Hold": "own", "Group.NoWait": "in",
	"Group.Err": "out", "Group.Allowed": "out", "Group.Reserved": "out",

	"HoldCall.Verb": "in", "HoldCall.ID": "both", "HoldCall.TTL": "in", "HoldCall.Costs": "in",
	"HoldCall.Expires": "out", "HoldCall.Repeated": "out",

	"Op.Def": "both", "Op.Key": "in", "Op.Verb": "in", "Op.Cost": "in", "Op.Bounded": "in", "Op.MaxDelay": "in", "Op.Floor": "in", "Op.Fraction": "in", "Op.Takes": "in",
	"Op.Phase": "in", "Op.held": "own", "Op.Asked": "own", "Op.Answer": "own",

	"Answer.Allowed": "out", "Answer.Never": "out", "Answer.Shadow": "out", "Answer.Source": "out", "Answer.Granted": "out", "Answer.Remaining": "out",
	"Answer.Retry": "out", "Answer.Reset": "out", "Answer.Delay": "out", "Answer.Bound": "out", "Answer.Used": "out", "Answer.TS": "out",

	"Override.Key": "both", "Override.Plan": "both", "Override.Rate": "both", "Override.Period": "both", "Override.Burst": "both", "Override.Start": "both", "Override.Until": "both",
	"Override.Note": "both", "Override.ID": "both", "Override.Version": "both", "Override.Under": "both", "Override.Replaced": "both", "Override.compiled": "own",
}

// A Crossing checks that every field of a call crosses a decorator on its way to the
// inner store, and every field of the answer on its way back; and that the decorator
// has the abilities of the inner store.
type Crossing struct {
	Wrap    func(inner store.Store) store.Store
	Changes []string // fields that the decorator changes, such as "Op.Key"
	Allows  bool     // the decorator changes the answers of refused and failed calls
}

// Run makes calls of all kinds through the decorator.
func (c Crossing) Run(t *testing.T) {
	t.Helper()
	for _, typ := range []any{store.Group{}, store.HoldCall{}, store.Op{}, store.Answer{}, store.Override{}} {
		for f := range reflect.TypeOf(typ).Fields() {
			if name := reflect.TypeOf(typ).Name() + "." + f.Name; directions[name] == "" {
				t.Errorf("package limittest does not know field %s: add it to directions", name)
			}
		}
	}
	in := &inner{t: t, c: &c, def: Definition(store.Limit{Name: "a", Rate: 1, Period: 1e9, Plans: store.NewPlans(store.Plan{Name: "pro", Rate: 2})}), sent: map[store.Reservation]store.Group{}}
	in.decides = in.def.WithPlan("pro")
	s := c.Wrap(in)
	for _, answer := range []string{"allowed", "zero", "refused", "failed"} {
		if c.Allows && answer != "allowed" {
			continue
		}
		in.answer = answer
		for verb := store.VerbTake; verb <= store.VerbReset; verb++ {
			in.call(s, in.group(verb, 1))
		}
		in.call(s, in.group(store.VerbTake, 3), in.group(store.VerbCheck, 1))
		in.call(s, store.Group{Cancel: true})
		for verb := store.MakeHold; verb <= store.ExtendHold; verb++ {
			g := store.Group{Hold: &store.HoldCall{Verb: verb, ID: "hold", TTL: 5e6, Costs: []int64{4, 2}}}
			if verb == store.MakeHold {
				g.Ops = in.group(store.VerbTake, 2).Ops
			}
			in.call(s, g, in.group(store.VerbTake, 2))
		}
	}
	in.abilities(s)
}

// inner is a store that compares the calls that reach it with those that were sent, and
// sets all fields of the answers.
type inner struct {
	t            *testing.T
	c            *Crossing
	def, decides *store.Definition
	answer       string
	count        int64

	mu   sync.Mutex
	sent map[store.Reservation]store.Group // the groups that were sent, and later the answers
}

func (in *inner) number() int64 { in.count++; return in.count }

// group returns a call with every field set.
func (in *inner) group(verb store.Verb, n int) (g store.Group) {
	for i := range n {
		op := store.Op{Def: in.def, Key: fmt.Sprint("k", in.number()), Verb: verb, Cost: in.number(), Bounded: true, MaxDelay: in.number(), Floor: in.number(), Fraction: in.number(), Takes: 1 << i, Phase: in.number()}
		g.Ops = append(g.Ops, op)
	}
	return g
}

// fill sets the fields of v that a store sets, or clears them. v is a pointer to a struct.
func (in *inner) fill(v any, answer string) {
	value := reflect.ValueOf(v).Elem()
	for i := range value.NumField() {
		f, d := value.Field(i), directions[value.Type().Name()+"."+value.Type().Field(i).Name]
		if d != "out" {
			continue
		}
		f.SetZero()
		switch f.Kind() {
		case reflect.Bool:
			f.SetBool(answer == "allowed" || answer == "refused" && value.Type().Field(i).Name != "Allowed")
		case reflect.Int64:
			if answer != "zero" {
				f.SetInt(in.number())
			}
		case reflect.Uint8: // a Source
			if answer != "zero" {
				f.SetUint(uint64(store.SourceFallbackClosed))
			}
		}
	}
}

// fillGroup sets all fields that a store sets in a group.
func (in *inner) fillGroup(g *store.Group, answer string) {
	in.fill(g, answer)
	if g.Hold != nil {
		if in.fill(g.Hold, answer); answer != "zero" {
			g.Hold.ID += "@1"
		}
		if g.Settles() {
			g.Ops = in.group(store.VerbTake, 2).Ops
		}
	}
	for i := range g.Ops {
		op := &g.Ops[i]
		in.fill(&op.Answer, answer)
		if answer != "zero" {
			op.Asked, op.Def = cmp.Or(op.Asked, op.Def), in.decides
		}
	}
	if answer == "failed" {
		g.Err = &store.FieldError{Field: "cost", Reason: "is wrong"}
	}
}

// call sends a batch that still has the answers of an earlier one, and compares the new
// answers.
func (in *inner) call(s store.Store, groups ...store.Group) {
	in.t.Helper()
	b := store.Batch{Groups: groups}
	for i := range b.Groups {
		g := &b.Groups[i]
		g.ID[0], g.ID[15] = byte(in.number()>>8), byte(in.count)
		sent := clone(*g)
		if in.fill(g, "allowed"); g.Hold != nil {
			in.fill(g.Hold, "allowed")
		}
		for j := range g.Ops {
			in.fill(&g.Ops[j].Answer, "allowed")
		}
		in.mu.Lock()
		in.sent[g.ID] = sent
		in.mu.Unlock()
	}
	if err := s.Apply(context.Background(), &b); err != nil {
		in.t.Errorf("%s: %v", in.answer, err)
	}
	for i := range b.Groups {
		got := &b.Groups[i]
		want, ok := in.sent[got.ID]
		if !ok {
			in.t.Fatalf("%s: a group is not that which was sent: %+v", in.answer, got)
		}
		if in.answer == "failed" { // after a failure only Err means something
			if !errors.Is(got.Err, want.Err) {
				in.t.Errorf("failed: error %v, want %v", got.Err, want.Err)
			}
			continue
		}
		in.same("answer", got, &want, "out", "both")
		if want.Hold != nil {
			in.same("answer", got.Hold, want.Hold, "out", "both")
		}
		in.sameOps("answer", got, &want, "in", "out", "both")
	}
}

// same compares the fields of two structs that have one of the given directions.
func (in *inner) same(what string, got, want any, of ...string) {
	in.t.Helper()
	g, w := reflect.ValueOf(got).Elem(), reflect.ValueOf(want).Elem()
	for i := range g.NumField() {
		name := g.Type().Name() + "." + g.Type().Field(i).Name
		if slices.Contains(of, directions[name]) && !slices.Contains(in.c.Changes, name) && !reflect.DeepEqual(g.Field(i).Interface(), w.Field(i).Interface()) {
			in.t.Errorf("%s, of the %s: %s is %v, want %v", in.answer, what, name, g.Field(i), w.Field(i))
		}
	}
}

func (in *inner) sameOps(what string, got, want *store.Group, of ...string) {
	in.t.Helper()
	if len(got.Ops) != len(want.Ops) {
		in.t.Errorf("%s, of the %s: %d ops, want %d", in.answer, what, len(got.Ops), len(want.Ops))
		return
	}
	for i := range got.Ops {
		a, b := &got.Ops[i], &want.Ops[i]
		in.same(what, a, b, of...)
		in.same(what, &a.Answer, &b.Answer, of...)
		if a, b := cmp.Or(a.Asked, a.Def), cmp.Or(b.Asked, b.Def); a != b {
			in.t.Errorf("%s, of the %s: Op.Asked is %q, want %q", in.answer, what, a.Plan, b.Plan)
		}
	}
}

// Apply implements store.Store.
func (in *inner) Apply(_ context.Context, b *store.Batch) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	for i := range b.Groups {
		g := &b.Groups[i]
		sent, ok := in.sent[g.ID]
		if !ok {
			in.t.Errorf("%s: Group.ID is none of those that were sent: %+v", in.answer, g)
			return nil
		}
		in.same("call", g, &sent, "in", "both")
		if (g.Hold == nil) != (sent.Hold == nil) {
			in.t.Errorf("%s: Group.Hold is %+v, want %+v", in.answer, g.Hold, sent.Hold)
			return nil
		}
		if sent.Hold != nil {
			in.same("call", g.Hold, sent.Hold, "in", "both")
		}
		in.sameOps("call", g, &sent, "in", "both")
		in.fillGroup(g, in.answer)
		answer := clone(*g)
		for j := range sent.Ops { // a decorator may have changed the ops on the way
			answer.Ops[j].Key, answer.Ops[j].Phase = sent.Ops[j].Key, sent.Ops[j].Phase
		}
		in.sent[g.ID] = answer
	}
	return nil
}

// lost are the abilities that a decorator may not pass on, because its Apply differs.
var lost = []string{"Store", "Quick", "QuickSource", "Lanes", "InProcess"}

// Abilities returns all abilities.
func (in *inner) Abilities() store.Abilities {
	ab := store.Abilities{Store: in, Limits: NewModel(nil), Overrides: in, Audit: trail{}, TopKeys: trail{}, Minutes: trail{}, Usage: usage{}, Metrics: func() []store.Metric { return nil }, InProcess: true,
		Holds: func(_ context.Context, d *store.Definition, key string) ([]store.KeyHold, error) {
			return []store.KeyHold{{ID: d.Name, Tokens: 3, Expires: 4}}, errors.New("of the inner store")
		}}
	v := reflect.ValueOf(&ab).Elem()
	for i := range v.NumField() {
		if f := v.Field(i); f.Kind() == reflect.Func && f.IsNil() {
			f.Set(reflect.MakeFunc(f.Type(), func([]reflect.Value) (out []reflect.Value) {
				for o := range f.Type().Outs() {
					out = append(out, reflect.Zero(o))
				}
				return out
			}))
		}
	}
	return ab
}

// SetOverride implements store.Overrider.
func (in *inner) SetOverride(_ context.Context, d *store.Definition, o store.Override) (store.Override, error) {
	want := in.override()
	in.same("call", &o, &want, "both")
	o.ID, o.Version = 8, 9
	return o, nil
}

// EndOverride implements store.Overrider.
func (in *inner) EndOverride(context.Context, *store.Definition, string, store.OverrideKind) (*store.Override, error) {
	return new(store.Override), errors.New("of the inner store")
}

// Overrides implements store.Overrider.
func (in *inner) Overrides(context.Context, *store.Definition, string, string, int) ([]store.Override, error) {
	return []store.Override{in.override()}, nil
}

// trail is an Auditor, the audit of the inner store.
type trail struct{}

// Record implements store.Auditor.
func (trail) Record(_ context.Context, e store.AuditEntry) error {
	return fmt.Errorf("recorded %q %q %q %q %q", e.Who, e.Action, e.Limit, e.What, e.Note)
}

// Audit implements store.Auditor.
func (trail) Audit(_ context.Context, before string, n int) ([]store.AuditEntry, error) {
	return []store.AuditEntry{{ID: before, At: int64(n)}}, nil
}

// usage is the UsageKeeper of the inner store.
type usage struct{}

// AddUsage implements store.UsageKeeper.
func (usage) AddUsage(_ context.Context, lines []store.UsageLine) error {
	return fmt.Errorf("added %s %d %d %d %d", lines[0].Limit, lines[0].Hour, lines[0].Allowed, lines[0].Refused, lines[0].Tokens)
}

// Usage implements store.UsageKeeper.
func (usage) Usage(_ context.Context, d *store.Definition, key string, from, to int64) ([]store.UsageLine, error) {
	return []store.UsageLine{{Limit: d.Name, Key: key, Hour: from, Allowed: to}}, nil
}

func (in *inner) override() store.Override {
	return store.Override{Key: "k", Rate: 2, Period: 3e9, Burst: 4, Until: 1 << 52, Note: "ticket 81", ID: 6, Version: 7, Under: &store.Override{Key: "k", Plan: "pro"}, Replaced: &store.Override{Key: "k", Burst: 5}}
}

func (in *inner) abilities(s store.Store) {
	in.t.Helper()
	ab := store.AbilitiesOf(s)
	for f, v := range reflect.ValueOf(ab).Fields() {
		if v.IsZero() && !slices.Contains(lost, f.Name) {
			in.t.Errorf("the decorator has not the ability %s", f.Name)
		}
	}
	ctx := context.Background()
	set, err := ab.Overrides.SetOverride(ctx, in.def, in.override())
	want := in.override()
	if want.ID, want.Version = 8, 9; err != nil {
		in.t.Error(err)
	}
	in.same("override", &set, &want, "both")
	if set.Key != "k" {
		in.t.Errorf("the key of the override is %q", set.Key)
	}
	if ended, err := ab.Overrides.EndOverride(ctx, in.def, "k", store.AnyOverride); ended == nil || err == nil || !strings.Contains(err.Error(), "of the inner store") {
		in.t.Errorf("the end of an override: %v, %v", ended, err)
	}
	if list, err := ab.Overrides.Overrides(ctx, in.def, "", "", 1); err != nil || len(list) != 1 || list[0].Note != "ticket 81" {
		in.t.Errorf("overrides: %v, %v", list, err)
	}
	if err := ab.Audit.Record(ctx, store.AuditEntry{Who: "w", Action: "a", Limit: "l", Key: "k", What: "x", Note: "n"}); err == nil || err.Error() != `recorded "w" "a" "l" "x" "n"` {
		in.t.Errorf("an entry of the audit: %v", err)
	}
	if err := ab.TopKeys.Record(ctx, store.AuditEntry{Who: "w", Action: "top", What: `{"hour":"2030-01-31T18:00:00Z"}`}); err == nil || !strings.HasPrefix(err.Error(), `recorded "w" "top" "" "{\"hour\":\"2030-01-31T18:00:00Z\"`) {
		in.t.Errorf("an entry of the top keys: %v", err)
	}
	if err := ab.Minutes.Record(ctx, store.AuditEntry{Who: "w", Action: "minute", What: `{"hour":"2030-01-31T18:00:00Z","counts":{"a":1}}`}); err == nil || !strings.HasPrefix(err.Error(), `recorded "w" "minute" "" "{\"hour\":\"2030-01-31T18:00:00Z\"`) || !strings.Contains(err.Error(), `\"counts\":{\"a\":1}`) {
		in.t.Errorf("an entry of the minutes: %v", err)
	}
	if list, err := ab.TopKeys.Audit(ctx, "b", 3); err != nil || len(list) != 1 || list[0].ID != "b" || list[0].At != 3 {
		in.t.Errorf("top keys: %v, %v", list, err)
	}
	if err := ab.Usage.AddUsage(ctx, []store.UsageLine{{Limit: "l", Key: "k", Hour: 1, Allowed: 2, Refused: 3, Tokens: 4}}); err == nil || err.Error() != "added l 1 2 3 4" {
		in.t.Errorf("lines of usage: %v", err)
	}
	if list, err := ab.Usage.Usage(ctx, in.def, "k", 5, 6); err != nil || len(list) != 1 || list[0] != (store.UsageLine{Limit: in.def.Name, Key: "k", Hour: 5, Allowed: 6}) {
		in.t.Errorf("usage: %v, %v", list, err)
	}
	if list, err := ab.Audit.Audit(ctx, "b", 3); err != nil || len(list) != 1 || list[0].ID != "b" || list[0].At != 3 {
		in.t.Errorf("audit: %v, %v", list, err)
	}
	if list, err := ab.Holds(ctx, in.def, "k"); len(list) != 1 || list[0].ID != "a" || err == nil {
		in.t.Errorf("holds: %v, %v", list, err)
	}
}
