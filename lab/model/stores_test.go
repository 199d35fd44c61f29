package model

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/store"
)

// limitOf writes settings as a limit of the library.
func limitOf(s *settings, prefix string) store.Limit {
	l := store.Limit{
		Name: prefix + s.name, Algorithm: algorithms[s.algorithm], Rate: s.rate,
		Burst: orNone(s.burst, store.NoBurst), MaxDebt: orNone(s.debt, store.NoDebt), MaxCharge: max(0, s.charge),
		Start: s.start.text(), OnChange: store.ChangePolicy(s.onChange), Mode: store.Mode(s.mode),
		Parts: int64(s.parts), Shared: s.shared, Block: micros(s.block), TTL: time.Duration(s.ttl) * time.Microsecond, KeepExpired: s.keeps,
	}
	if s.parent != "" {
		l.Parent = prefix + s.parent
	}
	if l.Period = time.Duration(s.per) * time.Microsecond; s.per < 0 {
		l.Period = store.Month * time.Duration(-s.per)
	}
	var plans []store.Plan
	for _, p := range s.plans {
		q := store.Plan{Name: p.name, Rate: p.rate, Period: time.Duration(p.per) * time.Microsecond, Burst: orNone(p.burst, store.NoBurst), MaxDebt: orNone(p.debt, store.NoDebt), OverrideOnly: p.callable == no, Children: p.callable == children}
		if p.moded {
			q.Mode = store.Mode(p.mode)
		}
		plans = append(plans, q)
	}
	l.Plans = store.NewPlans(plans...)
	return l
}

var algorithms = []store.Algorithm{store.TokenBucket, store.FixedWindow, store.Interval, store.LeakyBucket, store.Concurrency, store.SlidingWindow}

// orNone writes a number whose zero is the default in Go.
func orNone(n, none int64) int64 {
	switch n {
	case absent:
		return 0
	case 0:
		return none
	case limitless:
		return store.UnlimitedDebt
	}
	return n
}

// inGo plays histories through a Limiter.
type inGo struct {
	l            *dipwell.Limiter
	reopen       func() (store.Store, error) // closes the store and opens it again, or nil
	now          *atomic.Int64
	reservations map[string]store.Reservation
	plays        int // how many histories there were
}

func newInGo(t testing.TB, open func(t testing.TB, now func() int64) store.Store) *inGo {
	g := &inGo{now: new(atomic.Int64), reservations: map[string]store.Reservation{}}
	g.now.Store(1_700_000_000e6)
	l, err := dipwell.New(open(t, g.now.Load))
	if err != nil {
		t.Fatal(err)
	}
	g.l = l
	return g
}

func (g *inGo) setClock(now int64) { g.now.Store(now) }

// id makes an id of a hold or a reservation one of this history.
func (g *inGo) id(id string) string { return fmt.Sprint(g.plays, "-", id) }

func (g *inGo) drop(prefix string, limits []string) error {
	g.plays++
	for _, name := range slices.Backward(limits) {
		if err := g.l.Drop(context.Background(), prefix+name, store.OwnerCode); err != nil {
			return err
		}
	}
	return nil
}

func (g *inGo) adapt(*op, *answer) {}

func (g *inGo) do(prefix string, o *op) (a answer, err error) {
	ctx := context.Background()
	var d dipwell.Decision
	switch o.kind {
	case kCall:
		d, err = g.call(ctx, prefix, o)
	case kCancel:
		err = g.l.Cancel(ctx, g.reservations[g.id(o.id)])
		d.Allowed = err == nil
	case kHold:
		d, err = g.l.Hold(ctx, micros(o.ttl), g.id(o.id), g.takes(prefix, o.takes)...)
	case kSettle:
		d, err = g.l.Settle(ctx, g.id(o.id), o.costs...)
	case kExtend:
		d, err = g.l.Extend(ctx, g.id(o.id), micros(o.ttl))
	case kDefine:
		_, err := g.l.Define(ctx, limitOf(&o.settings, prefix), store.OwnerCode)
		return answer{allowed: true}, err
	case kDrop:
		return answer{allowed: true}, g.l.Drop(ctx, prefix+o.name, store.OwnerCode)
	case kOverride:
		return answer{allowed: true}, g.override(ctx, prefix, o)
	case kEndOverride:
		_, err := g.l.EndOverride(ctx, prefix+o.takes[0].limit, goKey(o.takes[0].key), kindOf(o))
		return answer{allowed: true}, err
	case kSweep:
		return answer{allowed: true}, g.sweep(ctx)
	case kInspect:
		return g.inspect(ctx, prefix, o)
	}
	if a.err = class(err); a.err == "" && err != nil {
		return a, err
	}
	if a.err != "" {
		return a, nil
	}
	return g.answer(prefix, o, &d), nil
}

func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

func goKey(key string) string {
	if key == "" {
		return dipwell.Shared
	}
	return key
}

func kindOf(o *op) store.OverrideKind {
	switch {
	case o.block:
		return store.AutomaticOverride
	case !o.temporary:
		return store.StandingOverride
	case !o.standing:
		return store.TemporaryOverride
	}
	return store.AnyOverride
}

func (g *inGo) sweep(ctx context.Context) error {
	if g.reopen != nil {
		s, err := g.reopen()
		if err != nil {
			return err
		}
		if g.l, err = dipwell.New(s); err != nil {
			return err
		}
	}
	sweep := store.AbilitiesOf(g.l.Store()).Sweep
	for sweep != nil {
		n, err := sweep(ctx, 1000)
		if err != nil || n == 0 {
			return err
		}
	}
	return nil
}

func (g *inGo) takes(prefix string, takes []take) (out []dipwell.Take) {
	for _, t := range takes {
		out = append(out, dipwell.Take{Limit: prefix + t.limit, Key: goKey(t.key), Cost: t.cost, Plan: t.plan, Floor: t.floor})
	}
	return out
}

func (g *inGo) call(ctx context.Context, prefix string, o *op) (d dipwell.Decision, err error) {
	takes := g.takes(prefix, o.takes)
	v := store.Verb(o.verb)
	if len(takes) == 1 {
		err = g.l.Do(ctx, &d, v, takes[0])
	} else {
		err = g.l.DoAll(ctx, &d, v, takes)
	}
	if err == nil && d.Reservation != (store.Reservation{}) {
		g.reservations[g.id(o.id)] = d.Reservation
	}
	return d, err
}

func (g *inGo) override(ctx context.Context, prefix string, o *op) error {
	set := store.Override{
		Key: goKey(o.takes[0].key), Plan: o.override.plan, Rate: o.override.rate, Period: micros(o.override.per),
		Burst: orNone(o.override.burst, store.NoBurst), Until: o.override.until,
	}
	if o.override.start != nil {
		set.Start = o.override.start.text()
	}
	_, err := g.l.SetOverride(ctx, prefix+o.takes[0].limit, set)
	return err
}

// inspect checks a key, charges it nothing, which its row's own definition answers, and reads its
// overrides.
func (g *inGo) inspect(ctx context.Context, prefix string, o *op) (answer, error) {
	a := answer{allowed: true}
	limit, key := prefix+o.takes[0].limit, goKey(o.takes[0].key)
	for _, v := range []store.Verb{store.VerbCheck, store.VerbCharge} {
		if v == store.VerbCharge && g.l.Limit(limit).Algorithm == store.Concurrency {
			continue
		}
		var d dipwell.Decision
		if err := g.l.Do(ctx, &d, v, dipwell.Take{Limit: limit, Key: key}); err != nil {
			return a, err
		}
		if d.Limits != nil {
			d = d.Limits[0]
		}
		a.levels = append(a.levels, tell(prefix, &d))
	}
	list, err := g.l.Overrides(ctx, limit, o.takes[0].key, "", 1)
	var temporary, standing *override
	for _, set := range list {
		if set.Key == o.takes[0].key {
			temporary, standing = overrideOf(set.Of(store.TemporaryOverride)), overrideOf(set.Of(store.StandingOverride))
		}
	}
	a.overrides = []string{temporary.String(), standing.String()}
	return a, err
}

// overrideOf is an override as the model has it, but for its start, which is its text.
func overrideOf(o *store.Override) *override {
	if o == nil {
		return nil
	}
	out := &override{plan: o.Plan, numbers: unwritten, until: o.Until, block: o.Kind() == store.AutomaticOverride, text: o.Start}
	out.rate, out.per = o.Rate, o.Period.Microseconds()
	switch o.Burst {
	case 0:
	case store.NoBurst:
		out.burst = 0
	default:
		out.burst = o.Burst
	}
	return out
}

// class names an error that the contract has.
func class(err error) string {
	var field *store.FieldError
	switch {
	case errors.Is(err, store.ErrReservation):
		return "reservation"
	case errors.Is(err, store.ErrUnknownHold):
		return "unknown hold"
	case errors.Is(err, store.ErrHoldConflict):
		return "conflict"
	case errors.As(err, &field) && strings.HasPrefix(field.Field, "cost"):
		return "field cost"
	}
	return ""
}

// answer is what a decision says.
func (g *inGo) answer(prefix string, o *op, d *dipwell.Decision) answer {
	a := answer{allowed: d.Allowed, repeated: d.Repeated, reserved: d.Reservation != store.Reservation{}}
	if o.kind == kCancel {
		return a
	}
	if !d.Expires.IsZero() && o.kind != kSettle {
		a.expires = d.Expires.UnixMicro()
	}
	list := d.Limits
	if list == nil && d.Limit != "" { // all limits of a settled hold may be dropped
		list = []dipwell.Decision{*d}
	}
	for i := range list {
		a.levels = append(a.levels, tell(prefix, &list[i]))
	}
	return a
}

func tell(prefix string, d *dipwell.Decision) told {
	x := told{
		limit: d.Limit[len(prefix):], key: d.Key, allowed: d.Allowed, never: d.Never, shadow: d.Shadow, bound: d.RetryIsBound,
		granted: d.Granted, capacity: d.Capacity, remain: d.Remaining, retry: d.RetryAfter.Microseconds(),
		reset: d.ResetAfter.Microseconds(), delay: d.Delay.Microseconds(), plan: d.Plan, blocked: blockedUntil(d),
	}
	if x.key == dipwell.Shared {
		x.key = ""
	}
	if d.Definition != nil && d.Definition.Override != nil && d.Plan == "" {
		x.plan = "override"
	}
	return x
}

// blockedUntil is what the JSON of a decision says.
func blockedUntil(d *dipwell.Decision) int64 {
	if d.Definition == nil || d.Definition.Mode != store.Blocked {
		return 0
	}
	var said struct {
		Until int64 `json:"blocked_until_us"`
	}
	if b, err := d.MarshalJSON(); err != nil || json.Unmarshal(b, &said) != nil {
		return -1
	}
	return said.Until
}

// TestModel plays random histories on each store: 20,000 steps in memory, where a step takes
// less than a millisecond, and with DIPWELL_LONG=1 on each store.
func TestModel(t *testing.T) {
	for _, s := range []struct {
		name string
		open opener
	}{
		{"memory", openMemory},
		{"file", openFile},
		{"postgres", openPostgres},
		{"portable", openPortable},
		{"redis", openRedis},
		{"cluster", openCluster},
	} {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			run(t, newInGo(t, s.open), seed(t), steps(s.name == "memory"))
		})
	}
	t.Run("reopened", func(t *testing.T) {
		t.Parallel()
		run(t, newReopened(t), seed(t), steps(false))
	})
	t.Run("sql", func(t *testing.T) {
		t.Parallel()
		run(t, newInSQL(t), seed(t), steps(false))
	})
}

// seed is that of the environment, or always the same.
func seed(t *testing.T) uint64 {
	if limittest.SeedIsSet() {
		return limittest.NewSeed(t)
	}
	return 20261123
}

func steps(many bool) int {
	if many || os.Getenv("DIPWELL_LONG") != "" {
		return 20000
	}
	return 300
}
