package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// holdTable is a store.Table over maps.
type holdTable struct {
	rows    map[rowID]store.State
	records map[rowID][]store.Record
	pending map[store.Reservation]store.Pending
	holds   map[string]store.Hold
}

func (t *holdTable) Row(limit, key string) (store.State, error) {
	return t.rows[rowID{limit, key}], nil
}

func (t *holdTable) SetRow(limit, key string, row store.State) error {
	t.rows[rowID{limit, key}] = row
	return nil
}

func (t *holdTable) Record(limit, key string, id store.RecordID) (store.Record, error) {
	return store.FindRecord(t.records[rowID{limit, key}], id), nil
}

func (t *holdTable) Records(limit, key string) ([]store.Record, error) {
	return t.records[rowID{limit, key}], nil
}

func (t *holdTable) SetRecord(limit, key string, id store.RecordID, r store.Record) error {
	t.records[rowID{limit, key}] = store.ReplaceRecord(t.records[rowID{limit, key}], id, r)
	return nil
}

func (t *holdTable) Pending(id store.Reservation) (store.Pending, error) { return t.pending[id], nil }

func (t *holdTable) SetPending(id store.Reservation, p store.Pending) error {
	t.pending[id] = p
	return nil
}

func (t *holdTable) SetOverride(string, string, *store.Override) error { return nil }
func (t *holdTable) Hold(id string) (store.Hold, error)                { return t.holds[id], nil }

func (t *holdTable) SetHold(id string, h store.Hold) error {
	t.holds[id] = h
	return nil
}

func (t *holdTable) Live(limit, key string, now int64) (int, error) {
	return len(t.records[rowID{limit, key}]) + store.CountFree(t.holds, limit, key, now), nil
}

// TestHoldModel decides random histories of holds and other calls by the functions and
// in Go over maps. Both must give the same answers and leave the same rows.
func TestHoldModel(t *testing.T) {
	seeds, rounds := uint64(4), 250
	if os.Getenv("DIPWELL_LONG") != "" {
		seeds, rounds = 60, 2500
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			newHoldRun(t, seed).rounds(rounds)
		})
	}
}

type holdRun struct {
	*rand.Rand
	t      *testing.T
	sql    *sqlStore
	table  *holdTable
	now    int64
	limits []string
	made   []string
	last   []store.Reservation
	count  int
}

func newHoldRun(t *testing.T, seed uint64) *holdRun {
	m := &holdRun{Rand: rand.New(rand.NewPCG(seed, 13)), t: t, now: 1_800_000_000_000_000, limits: []string{"bucket", "slow", "kept", "window", "jobs"}}
	m.table = &holdTable{map[rowID]store.State{}, map[rowID][]store.Record{}, map[store.Reservation]store.Pending{}, map[string]store.Hold{}}
	m.sql = openSQL(t, func() int64 { return m.now }).(*sqlStore)
	for _, l := range []store.Limit{
		{Name: "bucket", Rate: 3, Period: time.Second, Burst: 9},
		{Name: "slow", Rate: 1, Period: 2 * time.Second, Burst: 9, MaxDebt: 20, MaxCharge: 12},
		{Name: "kept", Rate: 1, Period: time.Second, Burst: 6, KeepExpired: true},
		{Name: "window", Algorithm: store.FixedWindow, Rate: 6, Period: 5 * time.Second, Burst: 12, Start: "0s"},
		{Name: "jobs", Algorithm: store.Concurrency, Burst: 4},
	} {
		if _, err := m.sql.Define(t.Context(), l, "code"); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func (m *holdRun) rounds(n int) {
	for m.count = range n {
		m.move()
		g := m.group()
		if m.IntN(12) == 0 {
			if _, err := m.sql.pool.Exec(context.Background(), "select dipwell_internal.sweep_at(1000::bigint, $1, null) from generate_series(1, 2)", m.now); err != nil {
				m.t.Fatal(err)
			}
			for at := range m.table.rows {
				if _, err := store.SweepRow(m.table, m.sql.Registry(), at.limit, at.key, m.now); err != nil {
					m.t.Fatal(err)
				}
			}
		}
		m.ask(g)
		m.compareRows()
	}
}

// move moves the clock, often to the time at which a hold expires or is forgotten, or a
// µs from it.
func (m *holdRun) move() {
	var ends []int64
	for _, id := range m.made[max(0, len(m.made)-8):] {
		h := m.table.holds[id]
		ends = append(ends, h.Expires, h.Forget)
	}
	ends = slices.DeleteFunc(ends, func(at int64) bool { return at <= m.now+1 })
	switch n := m.IntN(12); {
	case n < 4:
	case n < 7 && len(ends) > 0:
		at := slices.Min(ends)
		if m.IntN(6) == 0 {
			at = ends[m.IntN(len(ends))]
		}
		m.now = at - 1 + m.Int64N(3)
	default:
		m.now += []int64{0, 1, m.Int64N(1e6), m.Int64N(5e6), m.Int64N(20e6)}[m.IntN(5)]
	}
}

func (m *holdRun) op(verb store.Verb) store.Op {
	op := store.Op{Def: m.sql.Registry().Lookup(m.limits[m.IntN(len(m.limits))]), Verb: verb, Key: []string{"a", "b"}[m.IntN(2)], Cost: m.Int64N(7)}
	if m.IntN(15) == 0 {
		op.Cost = m.Int64N(16)
	}
	return op
}

func (m *holdRun) group() store.Group {
	if len(m.made) > 0 && m.IntN(3) == 0 {
		c := &store.HoldCall{Verb: store.SettleHold, ID: m.made[max(0, len(m.made)-1-m.IntN(6))]}
		switch m.IntN(6) {
		case 0:
		case 1:
			c.Verb, c.TTL = store.ExtendHold, 1000+m.Int64N(20e6)
		default:
			c.Costs = []int64{m.Int64N(8)}
			if h := m.table.holds[c.ID]; len(h.Parts) == 2 || m.IntN(30) == 0 {
				c.Costs = append(c.Costs, m.Int64N(8))
			}
		}
		return store.Group{Hold: c}
	}
	if m.IntN(3) == 0 {
		g := store.Group{Hold: &store.HoldCall{Verb: store.MakeHold, ID: fmt.Sprint("h", m.count), TTL: 1000 + m.Int64N(15e6)}}
		if len(m.made) > 0 && m.IntN(10) == 0 {
			g.Hold.ID = m.made[m.IntN(len(m.made))]
		}
		m.made = append(m.made, g.Hold.ID)
		for range 1 + m.IntN(3)/2 {
			op := m.op(store.VerbTake)
			if !slices.ContainsFunc(g.Ops, func(o store.Op) bool { return o.Def == op.Def && o.Key == op.Key }) {
				g.Ops = append(g.Ops, op)
			}
		}
		return g
	}
	if len(m.last) > 0 && m.IntN(8) == 0 {
		return store.Group{Cancel: true, ID: m.last[m.IntN(len(m.last))]}
	}
	op := m.op([]store.Verb{store.VerbTake, store.VerbTake, store.VerbCheck, store.VerbTakeUpTo, store.VerbReserve, store.VerbCharge, store.VerbRefund, store.VerbReset}[m.IntN(8)])
	if op.Verb == store.VerbReset && m.IntN(3) > 0 || op.Def.Algorithm == store.Concurrency && op.Verb != store.VerbReset {
		op.Verb = store.VerbCheck
	}
	if op.Verb == store.VerbReset {
		op.Cost = 0
	}
	g := store.Group{Ops: []store.Op{op}}
	for i := range g.ID {
		g.ID[i] = byte(m.Uint32())
	}
	return g
}

func (m *holdRun) ask(g store.Group) {
	want := g
	want.Ops = slices.Clone(g.Ops)
	if g.Hold != nil {
		c := *g.Hold
		want.Hold = &c
	}
	err := want.DecideIn(m.table, m.sql.Registry(), m.now)
	b := store.Batch{Groups: []store.Group{g}}
	apply := m.sql.Store.Apply
	way := "Go"
	if m.IntN(2) == 0 {
		apply, way = m.sql.Apply, "SQL"
	}
	if e := apply(m.t.Context(), &b); e != nil {
		m.t.Fatal(e)
	}
	got := &b.Groups[0]
	what := fmt.Sprintf("round %d at %d by %s: %+v %+v", m.count, m.now, way, got.Hold, described(b.Groups))
	var field, wantField *store.FieldError
	switch {
	case err == nil && got.Err == nil:
	case errors.As(err, &wantField) && errors.As(got.Err, &field) && field.Field == wantField.Field:
		return
	case err != nil && errors.Is(got.Err, err):
		return
	default:
		m.t.Fatalf("%s\nerror %v, want %v", what, got.Err, err)
	}
	if got.Cancel {
		return
	}
	if got.Allowed != want.Allowed || len(got.Ops) != len(want.Ops) || got.Hold != nil && want.Allowed && (got.Hold.Expires != want.Hold.Expires || got.Hold.Repeated != want.Hold.Repeated) {
		m.t.Fatalf("%s\nallowed %v, %d ops, %+v; want %v, %d, %+v", what, got.Allowed, len(got.Ops), got.Hold, want.Allowed, len(want.Ops), want.Hold)
	}
	for i := range got.Ops {
		a, w := got.Ops[i].Answer, want.Ops[i].Answer
		if a.TS == 0 || a.Used == 0 && w.Used == 0 { // a full row may be missing
			w.Used, w.TS, a.Used, a.TS = 0, 0, 0, 0
		}
		if way == "SQL" {
			w.Bound = a.Bound
		}
		if a != w || got.Ops[i].Cost != want.Ops[i].Cost || got.Ops[i].Key != want.Ops[i].Key {
			m.t.Fatalf("%s\nop %d (cost %d): %+v\nwant (cost %d) %+v", what, i, got.Ops[i].Cost, a, want.Ops[i].Cost, w)
		}
	}
	if got.Reserved {
		m.table.pending[got.ID] = m.table.pending[want.ID]
		m.last = append(m.last, got.ID)
	}
}

func (m *holdRun) compareRows() {
	rows, err := m.sql.pool.Query(context.Background(), `select l.name, b.key, b.used, b.ts from dipwell.buckets b join dipwell.limits l on l.id = b.limit_id`)
	if err != nil {
		m.t.Fatal(err)
	}
	defer rows.Close()
	found := map[rowID]store.State{}
	for rows.Next() {
		var at rowID
		var s store.State
		if err := rows.Scan(&at.limit, &at.key, &s.Used, &s.TS); err != nil {
			m.t.Fatal(err)
		}
		found[at] = s
	}
	for at, want := range m.table.rows {
		got := found[at]
		d := m.sql.Registry().Lookup(at.limit)
		var scratch store.Rule
		rule := d.RuleFor(at.key, &scratch)
		t := max(m.now, got.TS, want.TS)
		missing := want.Version == 0
		got.Version, want.Version = d.Number, d.Number
		if g, w := rule.Used(got, t), rule.Used(want, t); g != w {
			m.t.Fatalf("round %d: %v has %d in use, want %d (%+v, %+v)", m.count, at, g, w, got, want)
		} else if missing && g == 0 { // as a full row may be
			m.table.rows[at] = found[at]
		}
	}
}

// TestSettleIntoDebt checks that a settle that charges more than was held first gives back
// what other holds took that have expired.
func TestSettleIntoDebt(t *testing.T) {
	now := int64(1_800_000_000_000_000)
	sql := openSQL(t, func() int64 { return now }).(*sqlStore)
	l, err := dipwell.New(sql, store.Limit{Name: "bucket", Rate: 1, Period: time.Hour, Burst: 10})
	if err != nil {
		t.Fatal(err)
	}
	for id, ttl := range map[string]time.Duration{"short": time.Second, "long": time.Minute} {
		if d, err := l.Hold(t.Context(), ttl, id, dipwell.Take{Limit: "bucket", Key: "k", Cost: 3}); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
	}
	now += 2e6
	if d, err := l.Settle(t.Context(), "long", 9); err != nil || d.Remaining != 1 || d.ResetAfter != 9*time.Hour-2*time.Second {
		t.Errorf("%+v, %v", d, err)
	}
}

// TestCheckReadOnly checks that a Check counts expired holds in a read-only transaction,
// and leaves them to be given back by calls that write.
func TestCheckReadOnly(t *testing.T) {
	now := int64(1_800_000_000_000_000)
	sql := openSQL(t, func() int64 { return now }).(*sqlStore)
	l, err := dipwell.New(sql.Store, store.Limit{Name: "bucket", Rate: 1, Period: time.Hour, Burst: 20, Plans: store.NewPlans(store.Plan{Name: "pro", Burst: 30})},
		store.Limit{Name: "jobs", Algorithm: store.Concurrency, Burst: 20})
	if err != nil {
		t.Fatal(err)
	}
	for _, limit := range []string{"bucket", "jobs"} {
		for range 20 { // more than are given back at a time
			if d, err := l.Hold(t.Context(), time.Second, "", dipwell.Take{Limit: limit, Key: "k", Cost: 1}); err != nil || !d.Allowed {
				t.Fatal(d, err)
			}
		}
	}
	now += 2e6
	for _, limit := range []string{"bucket", "jobs"} {
		inTx(t, sql.pool, func(tx pgx.Tx) {
			must(t, tx, fmt.Sprintf("set transaction read only; select set_config('test.now', '%d', true)", now))
			d, err := l.With(sql.Store.With(tx)).Check(t.Context(), limit, "k", 20)
			if err != nil || !d.Allowed || d.Remaining != 20 {
				t.Errorf("Go: %+v, %v", d, err)
			}
			var allowed bool
			if err := tx.QueryRow(t.Context(), "select allowed from dipwell.check($1, 'k', 20)", limit).Scan(&allowed); err != nil || !allowed {
				t.Errorf("SQL: %v, %v", allowed, err)
			}
		})
		if d, err := l.Hold(t.Context(), time.Second, "", dipwell.Take{Limit: limit, Key: "k", Cost: 20}); err != nil || !d.Allowed {
			t.Errorf("a hold of all: %+v, %v", d, err)
		}
	}
}
