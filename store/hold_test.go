package store_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

const second = int64(1e6)

// A bench decides calls in a mapTable, in virtual time.
type bench struct {
	t     testing.TB
	table *mapTable
	reg   store.Registry
	now   int64
}

// newBench returns a bench with some limits, in the form of ParseLimit.
func newBench(t testing.TB, limits ...string) *bench {
	b := &bench{t: t, table: newMapTable(), now: 1e15}
	for _, l := range limits {
		b.define(l)
	}
	return b
}

func (b *bench) define(text string) {
	b.t.Helper()
	l, err := dipwell.ParseLimit(text)
	if err == nil {
		_, err = b.reg.Define(b.now, l, store.OwnerCode)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// op reads "LIMIT[:PLAN] KEY COST [FLOOR]".
func (b *bench) op(verb store.Verb, call string) (op store.Op) {
	b.t.Helper()
	var limit string
	if n, _ := fmt.Sscan(call, &limit, &op.Key, &op.Cost, &op.Floor); n < 3 {
		b.t.Fatal(call)
	}
	name, plan, _ := strings.Cut(limit, ":")
	if op.Def = b.reg.Lookup(name).WithPlan(plan); op.Def == nil {
		b.t.Fatal(call)
	}
	op.Verb = verb
	return op
}

func (b *bench) decide(g *store.Group) (*store.Group, error) {
	err := g.DecideIn(b.table, &b.reg, b.now)
	return g, err
}

func (b *bench) do(verb store.Verb, calls ...string) *store.Group {
	b.t.Helper()
	g := &store.Group{ID: store.Reservation{1, byte(b.table.calls), byte(b.table.calls >> 8), 9: byte(b.table.calls)}}
	for _, c := range calls {
		g.Ops = append(g.Ops, b.op(verb, c))
	}
	g, err := b.decide(g)
	if err != nil {
		b.t.Fatal(err)
	}
	return g
}

func (b *bench) tryHold(id string, ttl int64, calls ...string) (*store.Group, error) {
	b.t.Helper()
	g := &store.Group{Hold: &store.HoldCall{ID: id, TTL: ttl}}
	for _, c := range calls {
		g.Ops = append(g.Ops, b.op(store.VerbTake, c))
	}
	return b.decide(g)
}

func (b *bench) trySettle(id string, costs ...int64) (*store.Group, error) {
	return b.decide(&store.Group{Hold: &store.HoldCall{Verb: store.SettleHold, ID: id, Costs: costs}})
}

func (b *bench) tryExtend(id string, ttl int64) (*store.Group, error) {
	return b.decide(&store.Group{Hold: &store.HoldCall{Verb: store.ExtendHold, ID: id, TTL: ttl}})
}

func (b *bench) hold(id string, ttl int64, calls ...string) *store.Group {
	b.t.Helper()
	g, err := b.tryHold(id, ttl, calls...)
	if err != nil || !g.Allowed {
		b.t.Fatalf("hold %s %v: %v, %+v", id, calls, err, g)
	}
	return g
}

func (b *bench) settle(id string, costs ...int64) *store.Group {
	b.t.Helper()
	g, err := b.trySettle(id, costs...)
	if err != nil || !g.Allowed {
		b.t.Fatalf("settle %s %v: %v, %+v", id, costs, err, g)
	}
	return g
}

// free checks how many tokens are free.
func (b *bench) free(call string, want int64) {
	b.t.Helper()
	if n := b.do(store.VerbCheck, call+" 0").Ops[0].Remaining; n != want {
		b.t.Errorf("%s: %d free; want %d", call, n, want)
	}
}

func (b *bench) take(call string, want bool) store.Op {
	b.t.Helper()
	g := b.do(store.VerbTake, call)
	if g.Allowed != want {
		b.t.Errorf("take %s: allowed %v; want %v: %+v", call, g.Allowed, want, g.Ops[0].Answer)
	}
	return g.Ops[0]
}

func (b *bench) wait(d time.Duration) { b.now += d.Microseconds() }

const slow = "a=1/1h,burst=10" // 1 token an hour: in these tests none comes back by time

// What tables get to store; storetest has the other cases of holds.
func TestHolds(t *testing.T) {
	for name, test := range map[string]func(b *bench){
		"a check gives nothing back, but counts it": func(b *bench) {
			b.hold("h", 30*second, "a k 10")
			b.wait(30 * time.Second)
			if g := b.do(store.VerbCheck, "a k 10"); !g.Allowed || len(b.table.records["a/k"]) != 1 {
				b.t.Errorf("%+v", g)
			}
		},
		"the sweep does the rest": func(b *bench) {
			b.hold("h", 30*second, "a k 4")
			b.take("a k 1", true)
			if gone, err := store.SweepRow(b.table, &b.reg, "a", "k", b.now); gone || err != nil || len(b.table.records["a/k"]) != 1 {
				b.t.Error(gone, err)
			}
			b.wait(30 * time.Second)
			if gone, err := store.SweepRow(b.table, &b.reg, "a", "k", b.now); gone || err != nil || len(b.table.records["a/k"]) != 0 {
				b.t.Error(gone, err)
			}
			b.free("a k", 9)
		},
	} {
		t.Run(name, func(t *testing.T) {
			test(newBench(t, slow, "b=1/1h,burst=10", "c=1/1h,burst=10,plans=free:mode=unlimited|banned:mode=blocked"))
		})
	}
}

// If the row was full since a hold was made, nothing of the hold can be given back, and a
// refusal changes nothing of the row though the hold has expired. It forgets the record.
func TestRefusalBesideSpentHold(t *testing.T) {
	b := newBench(t, "a=1/1h,burst=10")
	b.hold("h", second, "a k 1")
	b.wait(20 * time.Hour)
	b.take("a k 10", true)
	row := b.table.rows["a/k"]
	b.wait(time.Second)
	b.take("a k 1", false)
	if now := b.table.rows["a/k"]; now != row || len(b.table.records["a/k"]) != 0 {
		t.Errorf("a refusal made %+v of %+v", now, row)
	}
}

// A version that does not change the plan of a row leaves the row's time as it is, also if
// a hold had expired before: the clock may step back behind the version.
func TestVersionBesideExpiredHold(t *testing.T) {
	b := newBench(t, "a=10/1s,burst=100,plans=slow:rate=1")
	b.take("a:slow k 20", true)
	b.hold("h", second, "a:slow k 2")
	b.wait(10 * time.Second)
	b.define("a=20/1s,burst=100,plans=slow:rate=1")
	b.now -= 5 * second
	op := b.op(store.VerbCheck, "a:slow k 1")
	g := store.Group{Ops: []store.Op{op}}
	if err := g.DecideIn(b.table, &b.reg, b.now); err != nil || g.Ops[0].Remaining != 85 {
		t.Errorf("%d left, want 85: 5 s and the hold gave back 7 of 22 (%v)", g.Ops[0].Remaining, err)
	}
}

func TestSweepRowConcurrency(t *testing.T) {
	b := newBench(t, "c=10,algorithm=concurrency")
	b.hold("h", 10*second, "c k 4")
	b.hold("i", 20*second, "c k 4")
	b.wait(10 * time.Second)
	if gone, err := store.SweepRow(b.table, &b.reg, "c", "k", b.now); gone || err != nil {
		b.t.Error(gone, err)
	}
	b.free("c k", 6)
	b.wait(10 * time.Second)
	if gone, err := store.SweepRow(b.table, &b.reg, "c", "k", b.now); !gone || err != nil || len(b.table.records["c/k"]) > 0 {
		b.t.Error(gone, err)
	}
}

// A request that arrives twice makes its reservation twice, with a list of lows each
// where the row was full in between. Another reservation of the first list gives
// nothing back to the second.
func TestReservationMadeTwice(t *testing.T) {
	b := newBench(t, "a=1/1s,burst=5,max_debt=20", "b=1/1s,burst=5,max_debt=20")
	b.do(store.VerbTake, "b k 5")
	reserve := func(id byte) {
		t.Helper()
		g := &store.Group{ID: store.Reservation{15: id}, Ops: []store.Op{b.op(store.VerbReserve, "a k 1"), b.op(store.VerbReserve, "b k 5")}}
		if _, err := b.decide(g); err != nil || !g.Reserved {
			t.Fatal(err, g.Reserved)
		}
	}
	reserve(1)
	reserve(2)
	b.wait(3 * time.Second) // a is full again
	reserve(1)
	if _, err := b.decide(&store.Group{ID: store.Reservation{15: 2}, Cancel: true}); err != nil {
		t.Fatal(err)
	}
	b.free("a k", 4)
}

// A refusal for ever says what is left once the holds that have expired are given back,
// as each refusal does.
func TestHoldExpiresBeforeNever(t *testing.T) {
	b := newBench(t, "a=1/1h,burst=10,plans=banned:mode=blocked")
	for i, call := range []string{"a k 11", "a:banned k 1"} {
		b.hold(fmt.Sprint("h", i), 30*second, "a k 4")
		b.now += 30 * second
		if op := b.do(store.VerbTake, call).Ops[0]; op.Allowed || !op.Never || op.Remaining != 10 || op.Reset != 0 {
			t.Errorf("take %s: %+v", call, op.Answer)
		}
	}
}
