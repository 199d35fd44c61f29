package storetest

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// A caller sends groups to the store of a case, but not to the model.
type caller struct {
	*env
	limits map[string]*store.Definition
	holds  map[string]string // from the id of the call to the id that the store gave the hold
	calls  uint64
}

// newCaller returns a caller, and defines limits in the form of dipwell.ParseLimit.
func newCaller(e *env, limits ...string) *caller {
	e.Helper()
	b := &caller{env: e, limits: map[string]*store.Definition{}, holds: map[string]string{}}
	for _, l := range limits {
		b.define(l)
	}
	return b
}

// define adds or changes a limit.
func (b *caller) define(text string) {
	b.Helper()
	l, err := dipwell.ParseLimit(text)
	if err != nil {
		b.Fatal(err)
	}
	if b.limits[l.Name], err = b.l.Define(b.ctx, l, store.OwnerCode); err != nil {
		b.Fatal(err)
	}
}

func (b *caller) drop(name string) {
	b.Helper()
	if err := b.l.Drop(b.ctx, name, store.OwnerCode); err != nil {
		b.Fatal(err)
	}
}

// op reads "LIMIT[:PLAN] KEY COST [FLOOR]".
func (b *caller) op(verb store.Verb, call string) (op store.Op) {
	b.Helper()
	var limit string
	if n, _ := fmt.Sscan(call, &limit, &op.Key, &op.Cost, &op.Floor); n < 3 {
		b.Fatal(call)
	}
	name, plan, _ := strings.Cut(limit, ":")
	if op.Def = b.limits[name].WithPlan(plan); op.Def == nil {
		b.Fatal(call)
	}
	op.Verb = verb
	return op
}

func (b *caller) decide(g *store.Group) (*store.Group, error) {
	batch := store.Batch{Groups: []store.Group{*g}}
	for i := range g.Ops {
		if op := &g.Ops[i]; op.Takes == 0 {
			op.Takes = 1 << i
		}
	}
	err := b.store.Apply(b.ctx, &batch)
	g = &batch.Groups[0]
	if err = cmp.Or(err, g.Err); errors.Is(err, store.ErrNotSupported) {
		b.Fatalf("%v; if the store cannot have it, see storetest.Options.Lacks", err)
	}
	return g, err
}

func (b *caller) try(verb store.Verb, calls ...string) (*store.Group, error) {
	b.Helper()
	b.calls++
	g := &store.Group{ID: store.Reservation{1, 14: byte(b.calls >> 8), 15: byte(b.calls)}}
	for _, c := range calls {
		g.Ops = append(g.Ops, b.op(verb, c))
	}
	return b.decide(g)
}

// do makes a call that must not return an error.
func (b *caller) do(verb store.Verb, calls ...string) *store.Group {
	b.Helper()
	g, err := b.try(verb, calls...)
	if err != nil {
		b.Fatalf("%s %v: %v", verb, calls, err)
	}
	return g
}

func (b *caller) tryHold(id string, ttl int64, calls ...string) (*store.Group, error) {
	b.Helper()
	g := &store.Group{Hold: &store.HoldCall{ID: id, TTL: ttl}}
	for _, c := range calls {
		g.Ops = append(g.Ops, b.op(store.VerbTake, c))
	}
	g, err := b.decide(g)
	if err == nil && g.Allowed {
		b.holds[id] = g.Hold.ID
	}
	return g, err
}

// handle returns the id that the store gave a hold.
func (b *caller) handle(id string) string { return cmp.Or(b.holds[id], id) }

func (b *caller) trySettle(id string, costs ...int64) (*store.Group, error) {
	return b.decide(&store.Group{Hold: &store.HoldCall{Verb: store.SettleHold, ID: b.handle(id), Costs: costs}})
}

func (b *caller) tryExtend(id string, ttl int64) (*store.Group, error) {
	return b.decide(&store.Group{Hold: &store.HoldCall{Verb: store.ExtendHold, ID: b.handle(id), TTL: ttl}})
}

// hold makes a hold that must be allowed.
func (b *caller) hold(id string, ttl int64, calls ...string) *store.Group {
	b.Helper()
	g, err := b.tryHold(id, ttl, calls...)
	if err != nil || !g.Allowed {
		b.Fatalf("hold %s %v: %v, %+v", id, calls, err, g)
	}
	return g
}

func (b *caller) settle(id string, costs ...int64) *store.Group {
	b.Helper()
	g, err := b.trySettle(id, costs...)
	if err != nil || !g.Allowed || len(g.Ops) == 0 {
		b.Fatalf("settle %s %v: %v, %+v", id, costs, err, g)
	}
	return g
}

// free checks how many tokens are free.
func (b *caller) free(call string, want int64) {
	b.Helper()
	if n := b.do(store.VerbCheck, call+" 0").Ops[0].Remaining; n != want {
		b.Errorf("%s: %d free; want %d", call, n, want)
	}
}

// take makes a take, and checks whether it is allowed.
func (b *caller) take(call string, want bool) store.Op {
	b.Helper()
	g := b.do(store.VerbTake, call)
	if g.Allowed != want {
		b.Errorf("take %s: allowed %v; want %v: %+v", call, g.Allowed, want, g.Ops[0].Answer)
	}
	return g.Ops[0]
}

// retry checks that a take is refused until exactly the given time from now, and then
// allowed. Afterwards the clock is at that time.
func (b *caller) retry(call string, want time.Duration) {
	b.Helper()
	if op := b.take(call, false); op.Never || op.Retry != want.Microseconds() {
		b.Fatalf("take %s: never %v, retry after %v; want %v", call, op.Never, time.Duration(op.Retry)*time.Microsecond, want)
	}
	b.wait(want - time.Microsecond)
	b.take(call, false)
	b.wait(time.Microsecond)
	b.take(call, true)
}

// retryWithin checks that a reservation with a bound on its delay is refused until
// exactly the given time from now, and then allowed. Afterwards the clock is at that time.
func (b *caller) retryWithin(call string, within, want time.Duration) {
	b.Helper()
	reserve := func() *store.Op {
		b.calls++
		op := b.op(store.VerbReserve, call)
		op.Bounded, op.MaxDelay = true, within.Microseconds()
		g, err := b.decide(&store.Group{ID: store.Reservation{2, 15: byte(b.calls)}, Ops: []store.Op{op}})
		if err != nil {
			b.Fatal(err)
		}
		return &g.Ops[0]
	}
	if op := reserve(); op.Allowed || op.Never || op.Retry != want.Microseconds() {
		b.Fatalf("reserve %s within %v: %+v; want a retry after %v", call, within, op.Answer, want)
	}
	b.wait(want - time.Microsecond)
	if op := reserve(); op.Allowed || op.Retry != 1 {
		b.Fatalf("reserve %s within %v, 1 µs before the retry: %+v", call, within, op.Answer)
	}
	b.wait(time.Microsecond)
	if op := reserve(); !op.Allowed || op.Delay > within.Microseconds() {
		b.Fatalf("reserve %s within %v, at the retry: %+v", call, within, op.Answer)
	}
}

func (b *caller) wantErr(want error, err error) {
	b.Helper()
	if !errors.Is(err, want) {
		b.Errorf("error %v; want %v", err, want)
	}
}

func (b *caller) wantField(field string, err error) {
	b.Helper()
	var f *store.FieldError
	if !errors.As(err, &f) || f.Field != field {
		b.Errorf("error %v; want one of field %s", err, field)
	}
}

func (b *caller) wait(d time.Duration) { b.advance(d) }

func (b *caller) overrides() store.Overrider { return overriderOf(b, b.store) }

// overriderOf returns the store's ability to set overrides.
func overriderOf(t testing.TB, s store.Store) store.Overrider {
	t.Helper()
	o := store.AbilitiesOf(s).Overrides
	if o == nil {
		t.Fatal(`the store has no ability Overrides; if it cannot have it, name it in storetest.Options.Lacks`)
	}
	return o
}

// override sets the override of a key.
func (b *caller) override(limit string, o store.Override) store.Override {
	b.Helper()
	set, err := b.overrides().SetOverride(b.ctx, b.limits[limit], o)
	if err != nil {
		b.Fatalf("override %s %+v: %v", limit, o, err)
	}
	return set
}

func (b *caller) endOverride(limit, key string) bool {
	b.Helper()
	return b.endKind(limit, key, store.AnyOverride) != nil
}

func (b *caller) endKind(limit, key string, kind store.OverrideKind) *store.Override {
	b.Helper()
	ended, err := b.overrides().EndOverride(b.ctx, b.limits[limit], key, kind)
	if err != nil {
		b.Fatalf("end of the override of %s %q: %v", limit, key, err)
	}
	return ended
}
