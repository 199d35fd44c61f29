package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell/store"
)

// TestModel sends random batches to a store in every supported way, changes and
// sweeps limits between them, and decides the same groups one by one in Go over
// a map. The groups of a batch may be decided in any order, so some order must
// explain all answers and rows. It has neither plans nor overrides nor holds: batches
// with these are in the histories of limittest.Agree. DIPWELL_LONG=1 makes it a hundred
// times as long.
func TestModel(t *testing.T) {
	seeds, rounds := uint64(4), 150
	if os.Getenv("DIPWELL_LONG") != "" {
		seeds, rounds = 40, 1500
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			m := newModelRun(t, seed)
			for range rounds {
				m.round()
			}
		})
	}
}

// A rowID identifies a bucket.
type rowID struct{ limit, key string }

// A model is the meaning of the rows of a database.
type model struct {
	rows    map[rowID]store.State
	records map[rowID][]store.Record
	held    map[store.Reservation]heldReservation
}

// A heldReservation is a reservation that waits.
type heldReservation struct {
	due   int64
	parts []recordRef
}

type recordRef struct {
	rowID
	number, mark int64
}

func (m model) clone() model {
	c := model{maps.Clone(m.rows), maps.Clone(m.records), maps.Clone(m.held)}
	for k, r := range c.records {
		c.records[k] = slices.Clone(r)
	}
	return c
}

// forget removes the records of some buckets, and each reservation that has
// one.
func (m model) forget(of func(rowID) bool) {
	maps.DeleteFunc(m.records, func(r rowID, _ []store.Record) bool { return of(r) })
	maps.DeleteFunc(m.held, func(_ store.Reservation, h heldReservation) bool {
		return slices.ContainsFunc(h.parts, func(p recordRef) bool { return of(p.rowID) })
	})
}

func (m model) decide(g *store.Group, now int64, reg *store.Registry) error {
	if g.Cancel {
		return m.cancel(g.ID, now, reg)
	}
	states, write := make([]store.State, len(g.Ops)), make([]bool, len(g.Ops))
	records := make([][]store.Record, len(g.Ops))
	for i := range g.Ops {
		op := &g.Ops[i]
		at := rowID{op.Def.Name, op.Key}
		states[i], records[i] = m.rows[at], slices.Clone(m.records[at])
		if states[i].Lows != nil {
			var err error
			if states[i], records[i], err = op.Def.Advance(states[i], op.Key, now, records[i]); err != nil {
				return err
			}
		}
	}
	if err := g.Decide(now, states, write); err != nil {
		return err
	}
	call := heldReservation{due: now + g.Due()}
	for i := range g.Ops {
		op := &g.Ops[i]
		at := rowID{op.Def.Name, op.Key}
		switch {
		case g.Allowed && op.Verb == store.VerbReset:
			delete(m.rows, at)
			m.forget(func(r rowID) bool { return r == at })
		case g.Reserved && op.Granted > 0:
			n := op.Record(&states[i], g.ID, now, call.due)
			records[i] = append(records[i], n)
			m.records[at] = records[i]
			m.rows[at] = states[i]
			call.parts = append(call.parts, recordRef{at, n.Number, n.Mark})
		case write[i]:
			m.rows[at], m.records[at] = states[i], records[i]
		}
	}
	if g.Reserved {
		m.held[g.ID] = call
	}
	return nil
}

func (m model) cancel(id store.Reservation, now int64, reg *store.Registry) error {
	call, known := m.held[id]
	if !known || call.due <= now {
		return store.ErrReservation
	}
	delete(m.held, id)
	for _, p := range call.parts {
		var err error
		if m.rows[p.rowID], m.records[p.rowID], err = reg.Lookup(p.limit).GiveBack(m.rows[p.rowID], p.key, now, m.records[p.rowID], p.number, p.mark); err != nil {
			return err
		}
	}
	return nil
}

// A modelRun is a model and a database.
type modelRun struct {
	*rand.Rand
	t     *testing.T
	sql   *sqlStore
	model model
	now   int64
	high  int64 // latest time of the clock
	count int
	back  bool // the clock may step back; if not, full rows are swept
	names []string
}

func newModelRun(t *testing.T, seed uint64) *modelRun {
	m := &modelRun{t: t, Rand: rand.New(rand.NewPCG(seed, 11)), now: 1_800_000_000_000_000, back: seed%2 == 0,
		model: model{map[rowID]store.State{}, map[rowID][]store.Record{}, map[store.Reservation]heldReservation{}}}
	m.sql = openSQL(t, func() int64 { return m.now }).(*sqlStore)
	for _, name := range []string{"bucket", "slow", "window", "grid", "day", "utc", "leaky", "shadow", "big", "fast", "nothing"} {
		m.names = append(m.names, name)
		m.define(name)
	}
	return m
}

// define adds or changes a limit.
func (m *modelRun) define(name string) {
	n := 1 + m.Int64N(9)
	l := map[string]store.Limit{
		"bucket":  {Rate: 10 * n, Period: time.Second, Burst: 3 * n, MaxDebt: store.NoDebt},
		"slow":    {Rate: n, Period: 3 * time.Second, Burst: 9, MaxDebt: 20, MaxCharge: 12},
		"window":  {Algorithm: store.FixedWindow, Rate: n, Period: time.Second, Burst: 2 * n},
		"grid":    {Algorithm: store.Interval, Rate: n, Period: 2 * time.Second, Burst: 15, Start: "0s"},
		"day":     {Algorithm: store.FixedWindow, Rate: 3 * n, Period: 24 * time.Hour, Start: "06:00 Europe/Rome"},
		"utc":     {Algorithm: store.FixedWindow, Rate: 3 * n, Period: 24 * time.Hour, Start: "06:00 UTC", MaxDebt: 9 * n},
		"leaky":   {Algorithm: store.LeakyBucket, Rate: n, Period: time.Second, MaxDebt: 8},
		"shadow":  {Rate: n, Period: time.Second, Mode: store.Shadow, MaxDebt: store.NoDebt},
		"big":     {Rate: 1, Period: 2 * time.Microsecond, Burst: (store.MaxInt - 1) / 2 >> m.IntN(3), MaxDebt: store.NoDebt},
		"fast":    {Rate: 300_000 + n, Period: time.Second, Burst: 2},
		"nothing": {Rate: n, Period: time.Second, Burst: store.NoBurst, MaxDebt: 10},
	}[name]
	l.Name = name
	l.OnChange = []store.ChangePolicy{store.Keep, store.Proportional, store.StartOver}[m.IntN(3)]
	if _, err := m.sql.Define(context.Background(), l, store.OwnerCode); err != nil {
		m.t.Fatal(name, err)
	}
}

func (m *modelRun) drop(name string) {
	if err := m.sql.Drop(context.Background(), name, store.OwnerCode); err != nil {
		m.t.Fatal(name, err)
	}
	maps.DeleteFunc(m.model.rows, func(r rowID, _ store.State) bool { return r.limit == name })
	m.model.forget(func(r rowID) bool { return r.limit == name })
	m.define(name)
}

func (m *modelRun) round() {
	m.count++
	m.move()
	switch n := m.IntN(100); {
	case n < 4 && m.back: // a sweep may convert rows with reservations where the model does not
		m.define(m.names[m.IntN(len(m.names))])
	case n < 6:
		m.drop(m.names[m.IntN(len(m.names))])
	case n < 9 && !m.back:
		if _, err := store.AbilitiesOf(m.sql).Sweep(context.Background(), 1000); err != nil {
			m.t.Fatal(err)
		}
		m.compareRows(m.model, true)
	}
	m.ask()
}

func (m *modelRun) move() {
	scale := []int64{1, 1, 10, 1e4, 1e5, 1e6, 1e7}[m.IntN(7)]
	switch n := m.IntN(100); {
	case n < 3:
		m.now += m.Int64N(30 * 3600e6)
	case n < 8 && m.back:
		m.now -= m.Int64N(3e6)
	default:
		m.now += m.Int64N(scale)
	}
	m.high = max(m.high, m.now)
}

func (m *modelRun) group() store.Group {
	g := store.Group{}
	for i := range g.ID {
		g.ID[i] = byte(m.Uint32())
	}
	if m.IntN(12) == 0 {
		var ids []store.Reservation
		for id, h := range m.model.held {
			if h.due > m.high {
				ids = append(ids, id)
			}
		}
		slices.SortFunc(ids, func(a, b store.Reservation) int { return slices.Compare(a[:], b[:]) })
		if g.Cancel = true; len(ids) > 0 && m.IntN(10) > 0 {
			g.ID = ids[m.IntN(len(ids))]
		}
		return g
	}
	verb, n := store.Verb(m.IntN(7)), 1
	if m.IntN(3) == 0 {
		n = 2 + m.IntN(2)
	}
	for len(g.Ops) < n {
		op := store.Op{Def: m.sql.Registry().Lookup(m.names[m.hotIndex(len(m.names))]), Verb: verb, Key: []string{"a", "b", "c", "d"}[m.hotIndex(4)]}
		if m.IntN(20) == 0 {
			op.Key = fmt.Sprint("new", m.count)
		}
		if n > 1 && m.IntN(6) == 0 {
			op.Verb = store.Verb(m.IntN(7))
		}
		if slices.ContainsFunc(g.Ops, func(o store.Op) bool { return o.Def == op.Def && o.Key == op.Key }) {
			continue
		}
		op.Cost = m.cost(&op)
		if op.Verb == store.VerbReserve && m.IntN(5) == 0 {
			op.Bounded, op.MaxDelay = true, m.Int64N(3e6)
			if op.Def.Rule.Calendar != nil { // about the least delays of calls above the burst
				op.MaxDelay = m.Int64N(4)*86400e6 - m.Int64N(3)*3600e6
				op.MaxDelay = max(0, op.MaxDelay+m.Int64N(3)-1)
			}
		}
		g.Ops = append(g.Ops, op)
	}
	return g
}

// hotIndex returns an index below n, usually below 3.
func (m *modelRun) hotIndex(n int) int {
	if m.IntN(2) == 0 {
		return m.IntN(min(n, 3))
	}
	return m.IntN(n)
}

func (m *modelRun) cost(op *store.Op) int64 {
	r := &op.Def.Rule
	switch m.IntN(16) {
	case 0:
		return 0
	case 1:
		return r.Burst + m.Int64N(3) - min(1, r.Burst)
	case 2:
		return min(store.MaxInt, r.Most+m.Int64N(2))
	case 3:
		return min(store.MaxInt, r.MaxCharge+m.Int64N(2))
	case 4:
		return store.MaxInt - m.Int64N(2)
	case 5, 6, 7:
		return 1 + m.Int64N(max(1, r.Burst))
	}
	return 1 + m.Int64N(3)
}

// ask sends a batch in one of the ways, and searches for an order that explains
// it.
func (m *modelRun) ask() {
	var b store.Batch
	for range 1 + m.IntN(4) {
		b.Groups = append(b.Groups, m.group())
	}
	if m.IntN(3) == 0 { // many calls of few keys
		verb := store.Verb(m.IntN(5))
		for i := range b.Groups {
			g, key := &b.Groups[i], []string{"a", "b"}[m.IntN(2)]
			for j := range g.Ops[:min(2, len(g.Ops))] {
				g.Ops[j] = store.Op{Def: m.sql.Registry().Lookup(m.names[(i+j)%2]), Verb: verb, Key: key, Cost: 1 + m.Int64N(9)}
			}
			g.Ops = g.Ops[:min(2, len(g.Ops))]
		}
	}
	asked := slices.Clone(b.Groups)
	for i := range asked {
		asked[i].Ops = slices.Clone(asked[i].Ops)
	}
	way, keeps, inOrder := m.send(&b)
	var why []string
	for order := range permutations(len(asked), inOrder) {
		after := m.model.clone()
		reason := m.explain(after, &b, asked, order, way)
		if reason == "" && keeps {
			reason = m.compareRows(after, false)
		}
		if reason == "" {
			if keeps {
				m.model = after
				m.compareRows(after, false)
			}
			return
		}
		why = append(why, fmt.Sprint(order, ": ", reason))
	}
	m.t.Fatalf("round %d at %d, %s: no order explains\n%s\n%s", m.count, m.now, way, described(b.Groups), strings.Join(why, "\n"))
}

func described(groups []store.Group) string {
	var s strings.Builder
	for i := range groups {
		g := &groups[i]
		fmt.Fprintf(&s, "%d: cancel %v, allowed %v, reserved %v, %v\n", i, g.Cancel, g.Allowed, g.Reserved, g.Err)
		for _, op := range g.Ops {
			fmt.Fprintf(&s, "   %s %s %q %d (version %d, %+v): %+v\n", op.Verb, op.Def.Name, op.Key, op.Cost, op.Def.Number, op.Def.Rule, op.Answer)
		}
	}
	return s.String()
}

// send reports how the batch was sent, whether its effect remains, and whether
// its groups are decided in order.
func (m *modelRun) send(b *store.Batch) (way string, keeps, inOrder bool) {
	ctx := context.Background()
	var err error
	defer func() {
		if err != nil {
			m.t.Fatal(way, err)
		}
	}()
	switch m.IntN(6) {
	case 0:
		err = m.sql.Apply(ctx, b)
		return "SQL", true, true
	case 1:
		for i := range b.Groups {
			one := store.Batch{Groups: b.Groups[i : i+1]}
			if err == nil {
				err = m.sql.Store.Apply(ctx, &one)
			}
		}
		return "one by one", true, true
	case 2:
		var tx pgx.Tx
		level := []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}[m.IntN(3)]
		if tx, err = m.sql.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: level}); err == nil {
			defer func() { _ = tx.Rollback(ctx) }()
			err = m.sql.With(tx).Apply(ctx, b)
		}
		if keeps = m.IntN(3) > 0; err == nil && keeps {
			err = tx.Commit(ctx)
		}
		return fmt.Sprintf("%s, kept %v", level, keeps), keeps, false
	}
	err = m.sql.Store.Apply(ctx, b)
	return "batch", true, false
}

// explain decides the groups in an order and compares the answers.
func (m *modelRun) explain(after model, b *store.Batch, asked []store.Group, order []int, way string) string {
	for _, i := range order {
		got, want := &b.Groups[i], asked[i]
		want.Ops, want.ID = slices.Clone(want.Ops), got.ID
		err := after.decide(&want, m.now, m.sql.Registry())
		if !errors.Is(got.Err, err) || got.Err != nil && err == nil {
			return fmt.Sprintf("group %d: error %v, want %v", i, got.Err, err)
		}
		if got.Cancel {
			continue
		}
		if got.Allowed != want.Allowed || got.Reserved != want.Reserved && way != "SQL" {
			return fmt.Sprintf("group %d: allowed %v, reserved %v; want %v, %v", i, got.Allowed, got.Reserved, want.Allowed, want.Reserved)
		}
		for j := range got.Ops {
			a, w := got.Ops[j].Answer, want.Ops[j].Answer
			if way == "SQL" && a.Used == 0 && a.TS == 0 {
				w.Used, w.TS = 0, 0
				w.Shadow, a.Shadow = false, false
				if w.Never { // no time is returned
					w.Retry, a.Retry = 0, 0
				}
			}
			if a != w {
				return fmt.Sprintf("group %d op %d: %+v, want %+v", i, j, a, w)
			}
		}
	}
	return ""
}

// compareRows compares the rows with the model's. A full row may be missing, or
// be there; the model is adapted. If swept, the same is true of a row that is
// full now.
func (m *modelRun) compareRows(after model, swept bool) string {
	rows, err := m.sql.pool.Query(context.Background(), `select l.name, b.key, b.used, b.ts, b.version, b.lows is not null and b.low > 0
		from dipwell.buckets b join dipwell.limits l on l.id = b.limit_id`)
	if err != nil {
		m.t.Fatal(err)
	}
	found := map[rowID]store.State{}
	listed := map[rowID]bool{}
	var at rowID
	var s store.State
	var list bool
	if _, err = pgx.ForEachRow(rows, []any{&at.limit, &at.key, &s.Used, &s.TS, &s.Version, &list}, func() error {
		found[at], listed[at] = s, list
		return nil
	}); err != nil {
		m.t.Fatal(err)
	}
	for at, want := range after.rows {
		got, there := found[at]
		full := want.Used == 0
		if !there && swept {
			d := m.sql.Registry().Lookup(at.limit)
			carried, _ := d.Carry(want, at.key, m.now)
			full = full || carried.Used == 0
			if !full {
				var scratch store.Rule
				full = d.RuleFor(at.key, &scratch).TimeToFull(carried.Used, carried.TS, m.now) <= 0
			}
		}
		switch {
		case !there && full:
			delete(after.rows, at)
			continue
		case full && got.Used == 0:
			after.rows[at] = got
			continue
		}
		if hasLows := want.Lows != nil && want.Lows.Entries[len(want.Lows.Entries)-1].Used > 0; hasLows != listed[at] && m.back { // a sweep removes lists
			return fmt.Sprintf("%v: lows %v, want %v", at, listed[at], hasLows)
		}
		if want.Lows = nil; got != want {
			if swept {
				m.t.Fatalf("round %d: after a sweep %v is %+v, want %+v", m.count, at, got, want)
			}
			return fmt.Sprintf("%v is %+v, want %+v", at, got, want)
		}
	}
	for at, got := range found {
		if _, there := after.rows[at]; !there && got.Used == 0 {
			after.rows[at] = got
		} else if !there {
			return fmt.Sprintf("%v is %+v, want none", at, got)
		}
	}
	return ""
}

// permutations yields all orders of n indexes, starting with the identity.
func permutations(n int, only bool) func(func([]int) bool) {
	return func(yield func([]int) bool) {
		order := make([]int, n)
		for i := range order {
			order[i] = i
		}
		var from func(k int) bool
		from = func(k int) bool {
			if k == n || only {
				return yield(slices.Clone(order))
			}
			for i := k; i < n; i++ {
				order[k], order[i] = order[i], order[k]
				if !from(k + 1) {
					return false
				}
				order[k], order[i] = order[i], order[k]
			}
			return true
		}
		from(0)
	}
}
