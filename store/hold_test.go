package store_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dipwell/dipwell/store"
)

const second = int64(1e6)

// A bench decides calls in a mapTable, in virtual time.
type bench struct {
	t     *testing.T
	table *mapTable
	reg   store.Registry
	now   int64
}

// newBench returns a bench with some limits, in the form of ParseLimit.
func newBench(t *testing.T, limits ...string) *bench {
	b := &bench{t: t, table: newMapTable(), now: 1e15}
	for _, l := range limits {
		b.define(l)
	}
	return b
}

func (b *bench) define(text string) {
	b.t.Helper()
	l, err := store.ParseLimit(text)
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

func (b *bench) wantErr(want error, err error) {
	b.t.Helper()
	if !errors.Is(err, want) {
		b.t.Errorf("error %v; want %v", err, want)
	}
}

func (b *bench) wantField(field string, err error) {
	b.t.Helper()
	var f *store.FieldError
	if !errors.As(err, &f) || f.Field != field {
		b.t.Errorf("error %v; want one of field %s", err, field)
	}
}

func (b *bench) wait(d time.Duration) { b.now += d.Microseconds() }

const slow = "a=1/1h,burst=10" // 1 token an hour: in these tests none comes back by time

// Each case is a sentence of the semantics of holds.
func TestHolds(t *testing.T) {
	for name, test := range map[string]func(b *bench){
		"a hold takes": func(b *bench) {
			g := b.hold("h", 30*second, "a k 4")
			if op := g.Ops[0]; op.Granted != 4 || op.Remaining != 6 || g.Hold.Expires != b.now+30*second || g.Hold.Repeated {
				b.t.Errorf("%+v %+v", op.Answer, g.Hold)
			}
			b.free("a k", 6)
		},
		"a refused hold keeps nothing": func(b *bench) {
			if g, err := b.tryHold("h", 30*second, "a k 11"); err != nil || g.Allowed || !g.Ops[0].Never {
				b.t.Errorf("%v %+v", err, g)
			}
			_, err := b.trySettle("h")
			b.wantErr(store.ErrUnknownHold, err)
			b.hold("h", 30*second, "a k 10")
		},
		"settle gives back what it did not cost": func(b *bench) {
			b.hold("h", 30*second, "a k 4")
			if op := b.settle("h", 1).Ops[0]; op.Granted != 1 || op.Cost != 1 || op.Remaining != 9 || op.Key != "k" {
				b.t.Errorf("%+v", op)
			}
			b.free("a k", 9)
		},
		"settle without costs is as held": func(b *bench) {
			b.hold("h", 30*second, "a k 4")
			b.settle("h")
			b.free("a k", 6)
			if g := b.settle("h", 4); !g.Hold.Repeated {
				b.t.Error("not repeated")
			}
		},
		"settle to 0 releases": func(b *bench) {
			b.hold("h", 30*second, "a k 10")
			b.settle("h", 0)
			b.free("a k", 10)
		},
		"settle to more charges the difference, into debt if need be": func(b *bench) {
			b.hold("h", 30*second, "a k 4")
			b.take("a k 6", true)
			b.settle("h", 7)
			b.wait(3 * time.Hour)
			b.free("a k", 0)
			b.wait(time.Hour)
			b.free("a k", 1)
		},
		"beyond max_charge the error names the largest cost, and the hold stays": func(b *bench) {
			b.hold("h", 30*second, "a k 4")
			_, err := b.trySettle("h", 105)
			if b.wantField("cost", err); !strings.Contains(fmt.Sprint(err), "104") {
				b.t.Error(err)
			}
			b.settle("h", 104)
		},
		"the same settle again answers the same; other costs are an error": func(b *bench) {
			b.hold("h", 30*second, "a k 4")
			b.settle("h", 1)
			if g := b.settle("h", 1); !g.Hold.Repeated || g.Ops[0].Granted != 1 {
				b.t.Errorf("%+v", g)
			}
			_, err := b.trySettle("h", 2)
			b.wantErr(store.ErrHoldConflict, err)
			b.free("a k", 9)
		},
		"an expired hold gave everything back": func(b *bench) {
			b.hold("h", 30*second, "a k 10")
			b.wait(30*time.Second - time.Microsecond)
			if op := b.take("a k 5", false); !op.Bound {
				b.t.Error("a refusal beside a live hold without Bound")
			}
			b.wait(time.Microsecond)
			b.take("a k 10", true)
		},
		"an expired hold that is settled charges the actual cost, once": func(b *bench) {
			b.hold("h", 30*second, "a k 10")
			b.wait(time.Minute)
			b.settle("h", 3)
			b.free("a k", 7)
			b.settle("h", 3)
			b.free("a k", 7)
		},
		"also if a refusal had given it back": func(b *bench) {
			b.hold("h", 30*second, "a k 10")
			b.wait(time.Minute)
			b.take("a k 2", true)
			b.settle("h", 3)
			b.free("a k", 5)
		},
		"an expired hold lets at most max_charge be": func(b *bench) {
			b.hold("h", 30*second, "a k 10")
			b.wait(time.Minute)
			_, err := b.trySettle("h", 101)
			if b.wantField("cost", err); !strings.Contains(fmt.Sprint(err), "100") {
				b.t.Error(err)
			}
			b.settle("h", 100)
		},
		"on_expire keep gives nothing back": func(b *bench) {
			b.define("kept=1/1h,burst=10,on_expire=keep")
			b.hold("h", 30*second, "kept k 10")
			b.hold("i", 30*second, "kept l 4")
			b.hold("j", 30*second, "kept m 4")
			b.settle("j", 1)
			b.free("kept m", 9)
			b.wait(time.Minute)
			b.take("kept k 1", false)
			b.settle("h", 3)
			b.free("kept k", 0)
			b.settle("i", 6)
			b.free("kept l", 4)
		},
		"records of ended holds stay for their ttl, a minute at least": func(b *bench) {
			b.hold("h", 2*second, "a k 4")
			b.settle("h", 1)
			b.wait(time.Minute - time.Microsecond)
			b.settle("h", 1)
			b.wait(time.Microsecond)
			_, err := b.trySettle("h", 1)
			b.wantErr(store.ErrUnknownHold, err)
			b.hold("h", 200*second, "a k 1")
			b.wait(200*time.Second + 199*time.Second)
			b.settle("h", 1)
		},
		"the same call again is the same hold": func(b *bench) {
			first := b.hold("h", 30*second, "a k 4")
			b.wait(10 * time.Second)
			g := b.hold("h", 30*second, "a k 4")
			if !g.Hold.Repeated || g.Hold.Expires != first.Hold.Expires || g.Ops[0].Granted != 4 || g.Ops[0].Remaining != 6 {
				b.t.Errorf("%+v %+v", g, g.Hold)
			}
			b.free("a k", 6)
			for _, call := range []string{"a k 3", "a l 4", "b k 4", "a k 4 1"} {
				_, err := b.tryHold("h", 30*second, call)
				b.wantErr(store.ErrHoldConflict, err)
			}
			_, err := b.tryHold("h", 31*second, "a k 4")
			b.wantErr(store.ErrHoldConflict, err)
			b.free("a k", 6)
		},
		"once it has ended it is an error until the record goes": func(b *bench) {
			b.hold("h", 30*second, "a k 4")
			b.settle("h", 1)
			_, err := b.tryHold("h", 30*second, "a k 4")
			b.wantErr(store.ErrHoldConflict, err)
			b.hold("i", 30*second, "a k 4")
			b.wait(89 * time.Second)
			_, err = b.tryHold("i", 30*second, "a k 4")
			b.wantErr(store.ErrHoldConflict, err)
			b.wait(time.Second)
			if g := b.hold("i", 30*second, "a k 4"); g.Hold.Repeated {
				b.t.Error("repeated")
			}
		},
		"extend moves the expiry": func(b *bench) {
			b.hold("h", 30*second, "a k 10")
			b.wait(20 * time.Second)
			g, err := b.tryExtend("h", 30*second)
			if err != nil || !g.Allowed || g.Hold.Expires != b.now+30*second || g.Ops[0].Granted != 10 {
				b.t.Errorf("%v %+v %+v", err, g, g.Hold)
			}
			b.wait(29 * time.Second)
			b.take("a k 1", false)
			b.wait(time.Second)
			_, err = b.tryExtend("h", 30*second)
			b.wantErr(store.ErrHoldConflict, err)
			b.take("a k 1", true)
		},
		"extend of a settled or unknown hold is an error": func(b *bench) {
			b.hold("h", 30*second, "a k 10")
			b.settle("h")
			_, err := b.tryExtend("h", second)
			b.wantErr(store.ErrHoldConflict, err)
			_, err = b.tryExtend("i", second)
			b.wantErr(store.ErrUnknownHold, err)
		},
		"several limits, all or nothing": func(b *bench) {
			b.hold("h", 30*second, "a k 4", "b k 5")
			if g, err := b.tryHold("i", 30*second, "a k 4", "b k 6"); err != nil || g.Allowed || g.Ops[0].Granted != 0 || !g.Ops[1].Bound || g.Ops[0].Bound {
				b.t.Errorf("%v %+v", err, g)
			}
			b.free("a k", 6)
			g := b.settle("h", 2, 7)
			if len(g.Ops) != 2 || g.Ops[0].Remaining != 8 || g.Ops[1].Remaining != 3 {
				b.t.Errorf("%+v", g)
			}
		},
		"a part that Reset ended neither gives back nor charges": func(b *bench) {
			b.hold("h", 30*second, "a k 4", "b k 5")
			b.hold("i", 30*second, "a k 3")
			b.do(store.VerbReset, "a k 0")
			b.take("a k 5", true)
			b.settle("h", 9, 1)
			b.free("a k", 5)
			b.free("b k", 9)
			b.settle("i", 0)
			b.free("a k", 5)
		},
		"Reset of the last part ends the hold": func(b *bench) {
			b.hold("h", 30*second, "a k 4", "b k 5")
			b.do(store.VerbReset, "a k 0")
			if _, err := b.tryExtend("h", 30*second); err != nil {
				b.t.Error(err)
			}
			b.do(store.VerbReset, "b k 0")
			_, err := b.tryExtend("h", 30*second)
			b.wantErr(store.ErrHoldConflict, err)
			_, err = b.tryHold("h", 30*second, "a k 4", "b k 5")
			b.wantErr(store.ErrHoldConflict, err)
		},
		"an expired part that Reset finds still charges": func(b *bench) {
			b.hold("h", 30*second, "a k 4")
			b.wait(30 * time.Second)
			b.do(store.VerbReset, "a k 0")
			b.settle("h", 3)
			b.free("a k", 7)
		},
		"a hold of nothing": func(b *bench) {
			b.hold("h", 30*second, "a k 0")
			b.settle("h", 3)
			b.free("a k", 7)
		},
		"no unlimited level is charged": func(b *bench) {
			b.hold("h", 30*second, "c:free k 7")
			b.free("c k", 10)
			b.settle("h", 9)
			b.free("c k", 10)
		},
		"no shadow that would have refused is charged": func(b *bench) {
			b.define("s=1/1h,burst=10,mode=shadow")
			b.hold("h", 30*second, "s k 7")
			if g := b.hold("i", 30*second, "s k 7"); g.Ops[0].Granted != 0 || !g.Ops[0].Shadow {
				b.t.Errorf("%+v", g.Ops[0])
			}
			b.settle("i", 9)
			b.free("s k", 3)
			b.settle("h", 9)
			b.free("s k", 1)
		},
		"a blocked plan refuses": func(b *bench) {
			if g, err := b.tryHold("h", 30*second, "c:banned k 1"); err != nil || g.Allowed || !g.Ops[0].Never {
				b.t.Errorf("%v %+v", err, g)
			}
		},
		"a floor": func(b *bench) {
			if g, err := b.tryHold("h", 30*second, "a k 4 7"); err != nil || g.Allowed {
				b.t.Errorf("%v %+v", err, g)
			}
			b.hold("h", 30*second, "a k 4 6")
		},
		"no hold of a leaky bucket": func(b *bench) {
			b.define("l=1/1s,algorithm=leaky_bucket,max_debt=5")
			_, err := b.tryHold("h", 30*second, "l k 1")
			b.wantField("limit", err)
		},
		"bad input": func(b *bench) {
			for _, id := range []string{"", strings.Repeat("x", 65), "a b", "ä", "a\x00"} {
				_, err := b.tryHold(id, 30*second, "a k 1")
				b.wantField("id", err)
				_, err = b.trySettle(id, 1)
				b.wantField("id", err)
			}
			for _, ttl := range []int64{0, -1, 999, 24*3600*second + 1, 365 * 24 * 3600 * second} {
				_, err := b.tryHold("h", ttl, "a k 1")
				b.wantField("ttl", err)
			}
			b.define("short=1/1h,burst=10,ttl=5s")
			_, err := b.tryHold("h", 6*second, "a k 1", "short k 1")
			b.wantField("ttl", err)
			b.hold("h", 5*second, "a k 1", "short k 1")
			_, err = b.tryExtend("h", 6*second)
			b.wantField("ttl", err)
			_, err = b.trySettle("h", 1)
			b.wantField("costs", err)
			_, err = b.trySettle("h", 1, 1, 1)
			b.wantField("costs", err)
			_, err = b.trySettle("h", 1, -1)
			b.wantField("costs[1]", err)
			_, err = b.trySettle("h", 1, 200)
			b.wantField("costs[1]", err)
			b.free("a k", 9)
			b.settle("h", 1, 1)
		},
		"a TakeUpTo that gets less and a Reserve that would wait look for expired holds": func(b *bench) {
			b.hold("h", 30*second, "a k 4")
			b.hold("i", 30*second, "b k 4")
			b.wait(30 * time.Second)
			if g := b.do(store.VerbTakeUpTo, "a k 10"); g.Ops[0].Granted != 10 {
				b.t.Errorf("%+v", g.Ops[0])
			}
			if g := b.do(store.VerbReserve, "b k 10"); g.Ops[0].Delay != 0 || g.Reserved {
				b.t.Errorf("%+v", g.Ops[0])
			}
		},
		"sixteen at a time, the oldest first, until the call fits": func(b *bench) {
			b.define("n=1/1h,burst=100")
			for i := range 40 {
				b.hold(fmt.Sprint("h", i), int64(40-i)*second, "n k 2")
			}
			b.wait(40 * time.Second)
			b.take("n k 20", true) // no scan
			if op := b.take("n k 20", true); op.Remaining != 12 || len(b.table.records["n/k"]) != 24 {
				b.t.Errorf("%d free, %d records", op.Remaining, len(b.table.records["n/k"]))
			}
			for _, r := range b.table.records["n/k"] {
				if r.Expires < b.now-23*second {
					b.t.Errorf("%s was not given back", r.Hold)
				}
			}
			b.take("n k 61", false)
			if n := len(b.table.records["n/k"]); n != 0 {
				b.t.Errorf("%d records", n)
			}
		},
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
		"a limit that is dropped ends its part": func(b *bench) {
			b.hold("h", 30*second, "a k 4", "b k 4")
			if err := b.reg.Drop("a", store.OwnerCode); err != nil {
				b.t.Fatal(err)
			}
			if gone, err := store.SweepRow(b.table, &b.reg, "a", "k", b.now); !gone || err != nil {
				b.t.Error(gone, err)
			}
			b.define(slow)
			b.settle("h", 9, 1)
			b.free("a k", 10)
			b.free("b k", 9)
		},
		"settle beside a dropped limit": func(b *bench) {
			b.hold("h", 30*second, "a k 4", "b k 4")
			if err := b.reg.Drop("a", store.OwnerCode); err != nil {
				b.t.Fatal(err)
			}
			if g := b.settle("h", 9, 1); len(g.Ops) != 1 || g.Ops[0].Remaining != 9 {
				b.t.Errorf("%+v", g)
			}
		},
		"takes of one key add up": func(b *bench) {
			g := &store.Group{Hold: &store.HoldCall{ID: "h", TTL: second}, Ops: []store.Op{b.op(store.VerbTake, "a k 7"), b.op(store.VerbTake, "b k 4")}}
			g.Ops[0].Takes, g.Ops[1].Takes = 1|4, 2
			if _, err := b.decide(g); err != nil || !g.Allowed {
				b.t.Fatal(err, g)
			}
			_, err := b.trySettle("h", 1, 1)
			b.wantField("costs", err)
			b.settle("h", 1, 1, 2)
			b.free("a k", 7)
			b.free("b k", 9)
		},
		"a later version": func(b *bench) {
			b.hold("h", 30*second, "a k 4")
			b.define("a=1/1h,burst=20")
			b.settle("h", 1)
			b.free("a k", 19)
		},
		"the clock steps back after it was given back": func(b *bench) {
			b.hold("h", 30*second, "a k 10")
			b.wait(30 * time.Second)
			b.take("a k 10", true)
			b.wait(-20 * time.Second)
			_, err := b.tryExtend("h", 30*second)
			b.wantErr(store.ErrHoldConflict, err)
			b.settle("h", 2)
			b.wait(2*time.Hour + 20*time.Second)
			b.free("a k", 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			test(newBench(t, slow, "b=1/1h,burst=10", "c=1/1h,burst=10,plans=free:mode=unlimited|banned:mode=blocked"))
		})
	}
}

// The mistakes that the rules of giving back end, with holds.
func TestHoldsGiveBackCases(t *testing.T) {
	b := newBench(t, "a=1/1s,burst=10,max_debt=100", "b=1/1s,burst=5")
	b.hold("h", 60*second, "a k 10")
	b.do(store.VerbReserve, "a k 5")
	b.wait(4900 * time.Millisecond)
	b.settle("h", 0)
	b.free("a k", 4) // hold-before-later

	b.hold("i", 60*second, "b k 2")
	b.wait(20 * time.Second)
	b.hold("j", 60*second, "b k 5")
	b.settle("i", 0)
	b.free("b k", 0) // remade-row
}

// Each case is a sentence of the semantics of concurrency limits.
func TestConcurrency(t *testing.T) {
	for name, test := range map[string]func(b *bench){
		"at most burst tokens are held": func(b *bench) {
			for i := range 5 {
				b.hold(fmt.Sprint(i), int64(10+i)*second, "c k 2")
			}
			g, err := b.tryHold("x", 10*second, "c k 1")
			if err != nil || g.Allowed || g.Ops[0].Retry != 10*second || !g.Ops[0].Bound || g.Ops[0].Reset != 14*second {
				b.t.Errorf("%v %+v", err, g.Ops[0])
			}
			if g, _ = b.tryHold("x", 10*second, "c k 3"); g.Ops[0].Retry != 11*second {
				b.t.Errorf("%+v", g.Ops[0])
			}
			if g, _ = b.tryHold("x", 10*second, "c k 11"); !g.Ops[0].Never || g.Ops[0].Retry != 0 || g.Ops[0].Bound {
				b.t.Errorf("%+v", g.Ops[0])
			}
		},
		"settle to any cost releases": func(b *bench) {
			for i, cost := range []int64{0, 3, 4, 5, store.MaxInt} {
				id := fmt.Sprint(i)
				b.hold(id, 10*second, "c k 4")
				b.hold(id+"x", 10*second, "c k 4")
				b.settle(id, cost)
				b.free("c k", 6)
				b.settle(id + "x")
				b.free("c k", 10)
			}
			if row := b.table.rows["c/k"]; row != (store.State{}) {
				b.t.Errorf("%+v", row)
			}
		},
		"tokens come back when holds expire": func(b *bench) {
			b.hold("h", 10*second, "c k 10")
			b.wait(10*time.Second - time.Microsecond)
			if g, _ := b.tryHold("i", 10*second, "c k 10"); g.Allowed || g.Ops[0].Retry != 1 {
				b.t.Errorf("%+v", g.Ops[0])
			}
			b.wait(time.Microsecond)
			b.hold("i", 10*second, "c k 10")
			b.settle("h", 5) // charges nothing
			b.free("c k", 0)
			b.settle("i")
			b.free("c k", 10)
		},
		"nothing comes back by time": func(b *bench) {
			b.hold("h", 24*3600*second, "c k 10")
			b.wait(24*time.Hour - 1)
			b.free("c k", 0)
		},
		"extend": func(b *bench) {
			b.hold("h", 10*second, "c k 10")
			b.wait(5 * time.Second)
			if _, err := b.tryExtend("h", 20*second); err != nil {
				b.t.Error(err)
			}
			b.wait(19 * time.Second)
			if g, _ := b.tryHold("i", 10*second, "c k 1"); g.Allowed || g.Ops[0].Retry != second {
				b.t.Errorf("%+v", g.Ops[0])
			}
		},
		"check": func(b *bench) {
			b.hold("h", 10*second, "c k 8")
			if g := b.do(store.VerbCheck, "c k 2"); !g.Allowed || g.Ops[0].Remaining != 2 || g.Ops[0].Reset != 10*second || g.Ops[0].Retry != 0 {
				b.t.Errorf("%+v", g.Ops[0])
			}
			if g := b.do(store.VerbCheck, "c k 3"); g.Allowed || g.Ops[0].Retry != 10*second || !g.Ops[0].Bound {
				b.t.Errorf("%+v", g.Ops[0])
			}
			if g := b.do(store.VerbCheck, "c k 2 1"); g.Allowed || g.Ops[0].Retry != 10*second {
				b.t.Errorf("floor: %+v", g.Ops[0])
			}
		},
		"reset": func(b *bench) {
			b.hold("h", 10*second, "c k 8")
			b.do(store.VerbReset, "c k 0")
			b.free("c k", 10)
			b.hold("i", 10*second, "c k 10")
			b.settle("h")
			b.free("c k", 0)
			_, err := b.tryExtend("h", second)
			b.wantErr(store.ErrHoldConflict, err)
		},
		"other verbs are errors": func(b *bench) {
			for _, v := range []store.Verb{store.VerbTake, store.VerbTakeUpTo, store.VerbReserve, store.VerbCharge, store.VerbRefund} {
				_, err := b.decide(&store.Group{Ops: []store.Op{b.op(v, "c k 1")}})
				b.wantField("limit", err)
			}
		},
		"a burst below what is held refuses until enough has ended": func(b *bench) {
			b.hold("h", 10*second, "c k 5")
			b.hold("i", 20*second, "c k 5")
			b.define("c=4,algorithm=concurrency")
			if g, _ := b.tryHold("x", 10*second, "c k 1"); g.Allowed || g.Ops[0].Retry != 20*second || g.Ops[0].Remaining != 0 {
				b.t.Errorf("%+v", g.Ops[0])
			}
			b.settle("i")
			b.settle("h")
			b.free("c k", 4)
		},
		"unlimited counts without a bound": func(b *bench) {
			b.hold("h", 10*second, "c:free k 25")
			b.free("c k", 0)
			if g, _ := b.tryHold("x", 10*second, "c k 1"); g.Allowed || g.Ops[0].Retry != 10*second {
				b.t.Errorf("%+v", g.Ops[0])
			}
			if op := b.hold("i", 20*second, "c:free k 5").Ops[0]; op.Remaining != store.MaxInt || op.Granted != 5 {
				b.t.Errorf("%+v", op)
			}
			b.settle("h")
			b.free("c k", 5)
			b.wait(20 * time.Second)
			b.hold("x", 10*second, "c k 10")
		},
		"an override that ends": func(b *bench) {
			b.hold("h", 30*second, "c k 3")
			d := b.reg.Lookup("c")
			if _, err := d.SetOverrideIn(b.table, "k", &store.Override{Burst: 3, Until: b.now + 10*second}, b.now); err != nil {
				b.t.Fatal(err)
			}
			if g, _ := b.tryHold("x", 10*second, "c k 1"); g.Allowed || g.Ops[0].Retry != 10*second {
				b.t.Errorf("%+v", g.Ops[0])
			}
			if g, _ := b.tryHold("x", 10*second, "c k 8"); g.Allowed || g.Ops[0].Retry != 30*second || g.Ops[0].Never {
				b.t.Errorf("%+v", g.Ops[0])
			}
			b.wait(10 * time.Second)
			b.hold("x", 10*second, "c k 7")
		},
		"the algorithm stays": func(b *bench) {
			for _, text := range []string{"c=10/1s", "a=10,algorithm=concurrency"} {
				l, err := store.ParseLimit(text)
				if err != nil {
					b.t.Fatal(err)
				}
				_, err = b.reg.Define(b.now, l, store.OwnerCode)
				var le *store.LimitError
				if !errors.As(err, &le) || le.Field != "algorithm" {
					b.t.Error(err)
				}
			}
		},
		"beside other limits": func(b *bench) {
			b.hold("h", 10*second, "a k 9", "c k 10")
			if g, _ := b.tryHold("x", 10*second, "a k 2", "c k 1"); g.Allowed || g.Ops[0].Retry < 10*second || g.Ops[1].Retry != 10*second {
				b.t.Errorf("%+v", g.Ops)
			}
			b.settle("h", 2, 1)
			b.hold("i", 10*second, "a k 8", "c k 10")
		},
		"the clock steps back": func(b *bench) {
			b.hold("h", 10*second, "c k 10")
			b.wait(10 * time.Second)
			b.hold("i", 10*second, "c k 10")
			b.wait(-5 * time.Second)
			_, err := b.tryExtend("h", 10*second)
			b.wantErr(store.ErrHoldConflict, err)
			b.settle("h")
			b.free("c k", 0)
		},
		"the sweep": func(b *bench) {
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
		},
	} {
		t.Run(name, func(t *testing.T) {
			test(newBench(t, slow, "c=10,algorithm=concurrency,plans=free:mode=unlimited|banned:mode=blocked"))
		})
	}
}
