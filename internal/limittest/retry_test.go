package limittest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/dipwell/dipwell/store"
)

// prober is a Model that checks the retry of each refusal: nobody else calls, and the
// same call is made again before and at that time.
type prober struct {
	*Model
	t      *testing.T
	now    *int64
	counts map[string]int
}

func (p *prober) Apply(ctx context.Context, b *store.Batch) error {
	asked := make([]store.Group, len(b.Groups))
	for i := range b.Groups {
		asked[i] = clone(b.Groups[i])
		one := store.Batch{Groups: b.Groups[i : i+1]}
		if err := p.Model.Apply(ctx, &one); err != nil {
			return err
		}
		g := &b.Groups[i]
		if g.Err != nil || g.Cancel || g.Settles() {
			continue
		}
		for j := range g.Ops {
			if op := &g.Ops[j]; (!op.Allowed || op.Shadow) && (g.Hold == nil || op.Cost > 0) { // nobody can hold nothing
				p.probe(&asked[i], j, op)
			}
		}
	}
	return nil
}

// probe makes a refused call of one key again. Its row is as the refusal has left it; that
// of a check, as a take's.
func (p *prober) probe(asked *store.Group, j int, got *store.Op) {
	if got.Verb == store.VerbCheck {
		before := p.clone()
		defer func() { p.table = before }()
		g := clone(store.Group{Ops: slices.Clone(asked.Ops[j : j+1])})
		g.Ops[0].Verb = store.VerbTake
		_ = p.Model.Apply(context.Background(), &store.Batch{Groups: []store.Group{g}}) // not every limit has takes
	}
	again := func(at int64) (allowed bool) {
		now, before := *p.now, p.clone()
		defer func() { *p.now, p.table = now, before }()
		*p.now = at
		g := clone(store.Group{Ops: slices.Clone(asked.Ops[j : j+1]), Hold: asked.Hold})
		if g.Hold != nil {
			g.Hold.ID = "probe"
		}
		b := store.Batch{Groups: []store.Group{g}}
		if err := p.Model.Apply(context.Background(), &b); err != nil || b.Groups[0].Err != nil {
			p.t.Fatal(err, b.Groups[0].Err)
		}
		op := &b.Groups[0].Ops[0]
		// The retry in shadow mode is what enforcing would answer.
		return op.Allowed && (!op.Shadow || !got.Shadow)
	}
	k := at{got.Def.Name, got.Key}
	if got.Def.Mode != store.Blocked && p.overrides[k].Of(store.AutomaticOverride) != nil {
		return // the take has begun a block, of which a check before it says nothing
	}
	wrong := func(what string, at int64) {
		p.t.Errorf("%s at %d µs: %s cost %d floor %d of %s %q plan %q, override %+v, row %+v, records %+v: %+v", what, at-*p.now, got.Verb, got.Cost, got.Floor, k.limit, k.key, asked.Ops[j].Def.Plan, p.overrides[k], p.rows[k], p.records[k], got.Answer)
	}
	if !got.Never {
		p.counts["retry"]++
		o, at := p.overrides[k], *p.now+got.Retry
		if got.Bound && o != nil && o.Until > *p.now {
			p.counts["bound beside an override that ends"]++
		}
		if !again(at) && (!got.Bound || o == nil || o.Until != at) { // at the end of an override it may be refused again
			wrong("the call is refused", at)
		} else if !got.Bound && again(at-1) {
			wrong("the call is allowed", at-1)
		}
		return
	}
	p.counts["never"]++
	times := []int64{*p.now + 1, *p.now + 1e6, *p.now + 1e9, *p.now + 1e13}
	if o := p.overrides[k]; o != nil && o.Until > *p.now {
		times = append(times, o.Until-1, o.Until, o.Until+1)
	}
	for _, r := range p.records[k] {
		times = append(times, max(*p.now, r.Expires), max(*p.now, r.Due))
	}
	for _, at := range times {
		if again(at) {
			wrong("a call that never succeeds is allowed", at)
			return
		}
	}
}

// TestRetryOfModel checks that the retry of each refusal is the first time at which the
// call succeeds if nobody else comes, beside live holds not too early, or the end of an
// override; and that a call which never succeeds does not.
func TestRetryOfModel(t *testing.T) {
	counts := map[string]int{}
	for seed := range uint64(40) {
		now := int64(1e15)
		clock := func() int64 { return now }
		Agree(t, &prober{NewModel(clock), t, &now, counts}, &now, seed, 300, Differences{})
	}
	for seed := range uint64(4000) {
		playHolds(t, rand.New(rand.NewPCG(seed, 14)), counts)
		if t.Failed() {
			t.Fatalf("in the history with seed %d", seed)
		}
	}
	if counts["retry"] < 2000 || counts["never"] < 2000 || counts["bound beside an override that ends"] < 500 {
		t.Errorf("refusals: %v", counts)
	}
}

// playHolds makes holds of one key, and sets overrides that end while they live.
func playHolds(t *testing.T, r *rand.Rand, counts map[string]int) {
	now := int64(1e15)
	p := &prober{NewModel(func() int64 { return now }), t, &now, counts}
	ctx, l := context.Background(), limitsOfHistories[r.IntN(len(limitsOfHistories))]
	d, err := p.Define(ctx, l, store.OwnerCode)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 12 {
		now += []int64{0, 1, 1000, 300e3, 2e6}[r.IntN(5)]
		if r.IntN(4) == 0 {
			o := store.Override{Key: "k", Plan: []string{"", "", "pro", "staff", "banned", "slow", "quiet"}[r.IntN(7)]}
			if o.Plan == "" {
				o.Burst = 1 + r.Int64N(25)
			}
			if r.IntN(4) > 0 {
				o.Until = now + 1 + r.Int64N(4e6)
			}
			_, _ = p.SetOverride(ctx, d, o) // not every limit has the plan
			continue
		}
		op := store.Op{Def: d, Key: "k", Cost: r.Int64N(7), Verb: store.VerbTake}
		if plan := d.WithPlan([]string{"", "", "pro", "staff", "banned", "slow", "quiet"}[r.IntN(7)]); plan != nil {
			op.Def = plan
		}
		g := store.Group{Ops: []store.Op{op}}
		switch verb := store.Verb(r.IntN(4)); {
		case l.Algorithm == store.Concurrency || r.IntN(2) == 0:
			g.Hold = &store.HoldCall{ID: fmt.Sprint("h", i), TTL: 1 + r.Int64N(5e6)}
		default:
			g.ID[0], g.Ops[0].Verb = byte(1+i), verb
		}
		if g.Ops[0].Verb <= store.VerbCheck && r.IntN(4) == 0 {
			g.Ops[0].Floor = r.Int64N(3)
		}
		if err := p.Apply(ctx, &store.Batch{Groups: []store.Group{g}}); err != nil {
			t.Fatal(err)
		}
	}
}
