package store

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// ledger has the row and records of one key, and the calls on it.
type ledger struct {
	t     *testing.T
	def   *Definition
	row   State
	rs    []Record
	calls []call
}

// call is a call that took or gave back tokens.
type call struct {
	at, due int64
	verb    Verb
	units   int64
	waits   bool
	number  int64 // of its record, with mark; 0: none
	mark    int64
	gone    bool // cancelled
	plain   bool // neither a charge nor a refund
}

func newLedger(t *testing.T, rate, burst, debt int64) *ledger {
	return &ledger{t: t, def: mustDefinition(Limit{Name: "l", Rate: rate, Period: time.Second, Burst: burst, MaxDebt: debt, MaxCharge: 1000})}
}

// do makes a call at now. If hold is positive, it makes a record that is due at
// once and ends after hold.
func (l *ledger) do(now int64, verb Verb, n, hold int64) Answer {
	l.t.Helper()
	op := Op{Def: l.def, Key: "k", Verb: verb, Cost: n}
	row, rs := l.row, slices.Clone(l.rs)
	var err error
	if row.Lows != nil {
		if row, rs, err = l.def.Advance(row, "k", now, rs); err != nil {
			l.t.Fatal(err)
		}
	}
	next, write, err := op.Step(now, row, false)
	if err != nil {
		l.t.Fatal(err)
	}
	if !op.Allowed || !write {
		return op.Answer
	}
	l.rs = rs
	c := call{at: now, due: now + op.Delay, verb: verb, units: n * l.def.Rule.Unit, waits: op.Delay > 0, plain: verb < VerbCharge}
	if op.Delay > 0 || hold > 0 {
		r := op.Record(&next, randomReservation(), now, now+max(op.Delay, hold))
		l.rs = append(l.rs, r)
		c.number, c.mark = r.Number, r.Mark
	}
	l.row = next
	l.calls = append(l.calls, c)
	return op.Answer
}

func (l *ledger) cancel(now int64, i int) {
	l.t.Helper()
	c := &l.calls[i]
	c.gone = true
	var err error
	if l.row, l.rs, err = l.def.GiveBack(l.row, "k", now, l.rs, c.number, c.mark); err != nil {
		l.t.Fatal(err)
	}
	if l.row.Used == 0 { // a store may delete it
		l.row = State{}
	}
}

func (l *ledger) free(now int64) int64 {
	return (&Op{Def: l.def, Key: "k", Verb: VerbCheck}).at(now, l.row)
}

func (op *Op) at(now int64, row State) int64 {
	_, _, _ = op.Step(now, row, false)
	return op.Remaining
}

const sec = int64(1e6)

func TestGiveBackCases(t *testing.T) {
	// Charge 1 while a reservation of 50 waits, when time has not returned 20 of
	// them.
	l := newLedger(t, 1, 10, 100)
	l.do(0, VerbReserve, 50, 0)
	l.do(30*sec, VerbCharge, 1, 0)
	l.cancel(30*sec, 0)
	if n := l.free(30 * sec); n != 9 {
		t.Errorf("cancel-of-passed-debt: %d left; want 9", n)
	}

	l = newLedger(t, 1, 10, 100)
	l.do(0, VerbTake, 10, 0)
	l.do(0, VerbReserve, 10, 0)
	l.do(0, VerbReserve, 5, 0)
	l.cancel(0, 1)
	if a := l.do(14*sec+900_000, VerbTake, 3, 0); !a.Allowed {
		t.Error("cancel-before-later: Take 3 was refused")
	}
	l.cancel(14*sec+900_000, 2)
	if n := l.free(14*sec + 900_000); n != 7 {
		t.Errorf("cancel-before-later: %d left; want 7", n)
	}

	// The part of a group that is due at once, cancelled with the group.
	l = newLedger(t, 1, 5, 100)
	l.do(0, VerbReserve, 2, 3*sec)
	l.do(1_999_000, VerbTake, 1, 0)
	l.cancel(2*sec, 0)
	if n := l.free(2 * sec); n != 4 {
		t.Errorf("group-cancel-mints: %d left; want 4", n)
	}

	// A record that is due at once takes the place of a hold.
	l = newLedger(t, 1, 10, 100)
	l.do(0, VerbReserve, 10, 60*sec)
	l.do(0, VerbReserve, 5, 0)
	l.cancel(4*sec+900_000, 0)
	if n := l.free(4*sec + 900_000); n != 4 {
		t.Errorf("hold-before-later: %d left; want 4", n)
	}

	l = newLedger(t, 1, 5, 100)
	l.do(0, VerbReserve, 2, 60*sec)
	l.do(20*sec, VerbReserve, 5, 60*sec)
	l.cancel(20*sec, 0)
	if n := l.free(20 * sec); n != 0 {
		t.Errorf("remade-row: %d left; want 0", n)
	}
	l.row.Lows = &Lows{Mark: l.row.Lows.Mark + 1, Next: 3, Entries: []Low{{1, l.row.Used}}}
	l.cancel(20*sec, 1)
	if n := l.free(20 * sec); n != 0 {
		t.Errorf("a record of another list: %d left; want 0", n)
	}
}

// A store may delete a full row with its list, or keep both. The next write
// begins a new list either way, so that all stores have the same entries.
func TestLowsEndWithAFullRow(t *testing.T) {
	l := newLedger(t, 1, 5, 100)
	l.do(0, VerbReserve, 2, 60*sec)
	if l.do(20*sec, VerbTake, 1, 0); l.row.Lows != nil {
		t.Errorf("lows %v", l.row.Lows)
	}
}

// After a charge that was clipped at MaxUsed, cancelling an earlier take gives
// nothing back, because it is not known which tokens were clipped.
func TestNothingComesBackFromUnderAClippedCharge(t *testing.T) {
	for _, room := range []int64{0, 1, 2, 3} { // tokens
		l := &ledger{t: t, def: mustDefinition(Limit{Name: "l", Rate: 1, Period: 30 * 24 * time.Hour, Burst: 50, MaxCharge: 3000})}
		r := &l.def.Rule
		l.do(0, VerbCharge, 10, 1)
		l.do(0, VerbCharge, 3000, 0)
		l.do(0, VerbCharge, r.MaxUsed/r.Unit-3010-room, 0)
		l.row.Used += r.MaxUsed % r.Unit
		l.do(0, VerbCharge, 2, 0)
		want := l.row.Used
		if room >= 2 {
			want -= 10 * r.Unit
		}
		if l.cancel(0, 0); l.row.Used != want {
			t.Errorf("room for %d: %d units used; want %d", room, l.row.Used, want)
		}
	}
}

// Beside a record a proportional change keeps the tokens: of 50 used ones, of which the
// record can give back 30, 20 are more than a new burst of 10.
func TestGiveBackAfterProportionalChange(t *testing.T) {
	var reg Registry
	limit := Limit{Name: "l", Rate: 1, Period: time.Hour, Burst: 100, OnChange: Proportional}
	def, err := reg.Define(0, limit, OwnerCode)
	if err != nil {
		t.Fatal(err)
	}
	l := &ledger{t: t, def: def}
	l.do(0, VerbTake, 20, 0)
	l.do(0, VerbReserve, 30, 60*sec)
	limit.Burst = 10
	if l.def, err = reg.Define(0, limit, OwnerCode); err != nil {
		t.Fatal(err)
	}
	l.cancel(0, 1)
	if r := &l.def.Rule; l.row.Used != 20*r.Unit {
		t.Errorf("%d units used; want %d", l.row.Used, 20*r.Unit)
	}
}

// Any number of waits cancelled at once, in any order, leave the row as it was.
func TestCancelledWaitsCostNothing(t *testing.T) {
	for burst := int64(1); burst <= 60; burst++ {
		for seed := range uint64(4) {
			l := newLedger(t, 1, burst, 1000)
			l.do(0, VerbTake, burst, 0)
			for range 50 {
				l.do(0, VerbReserve, 1, 0)
			}
			for _, i := range rand.New(rand.NewPCG(seed, 1)).Perm(50) {
				l.cancel(0, i+1)
			}
			if l.row.Used != l.def.Rule.Cap || l.row.Lows != nil || len(l.rs) != 0 {
				t.Fatalf("burst %d: %d units used of %d, lows %v, records %v", burst, l.row.Used, l.def.Rule.Cap, l.row.Lows, l.rs)
			}
		}
	}
}

// FuzzGiveBack compares random histories with the same histories without the
// cancelled calls, and checks the bound on granted tokens.
func FuzzGiveBack(f *testing.F) {
	for seed := range uint64(200) {
		f.Add(seed, seed*7919)
	}
	f.Fuzz(func(t *testing.T, a, b uint64) { giveBackHistory(t, rand.New(rand.NewPCG(a, b))) })
}

func TestGiveBackHistories(t *testing.T) {
	n := uint64(60_000)
	if testing.Short() {
		n = 5_000
	}
	for seed := range n {
		giveBackHistory(t, rand.New(rand.NewPCG(seed, 42)))
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func giveBackHistory(t *testing.T, rnd *rand.Rand) {
	burst := 1 + rnd.Int64N(12)
	l := newLedger(t, 1+rnd.Int64N(4), burst, 1+rnd.Int64N(40))
	charges, waits := rnd.IntN(3) == 0, rnd.IntN(2) == 0
	var now int64
	for range 5 + rnd.IntN(40) {
		if rnd.IntN(3) > 0 {
			now += rnd.Int64N(3 * sec)
		}
		n := 1 + rnd.Int64N(burst+3)
		switch k := rnd.IntN(10); {
		case k < 3:
			l.do(now, VerbTake, n, 0)
		case k < 5 && !waits:
			if l.free(now) >= n {
				l.do(now, VerbReserve, n, 1+rnd.Int64N(20*sec))
			}
		case k < 5:
			l.do(now, VerbReserve, n, rnd.Int64N(2)*rnd.Int64N(20*sec))
		case k == 5 && charges:
			l.do(now, VerbCharge, n, 0)
		case k == 6 && charges && rnd.IntN(4) == 0:
			l.do(now, VerbRefund, n, 0)
		default:
			var live []int
			for i := range l.calls {
				c := &l.calls[i]
				if c.number > 0 && !c.gone && slices.ContainsFunc(l.rs, func(r Record) bool {
					return r.Number == c.number && r.Mark == c.mark && !r.Rest && r.Ends > now
				}) {
					live = append(live, i)
				}
			}
			if len(live) > 0 {
				l.cancel(now, live[rnd.IntN(len(live))])
			}
		}
		l.compare(now)
	}
	if !charges {
		l.checkBound()
	}
}

// compare replays the history without the cancelled calls.
func (l *ledger) compare(now int64) {
	l.t.Helper()
	r := &l.def.Rule
	var s State
	waited, refunds := false, false
	for _, c := range l.calls {
		waited, refunds = waited || c.waits, refunds || c.verb == VerbRefund
		if c.gone {
			continue
		}
		s.Used, s.TS = r.usedAt(&s, c.at), c.at
		if c.verb == VerbRefund {
			s.Used = max(0, s.Used-c.units)
		} else {
			s.Used += c.units
		}
	}
	want := r.usedAt(&s, now)
	got := r.usedAt(&l.row, max(now, l.row.TS))
	if got < want {
		l.t.Errorf("at %d: %d units used, %d without the cancelled calls: too few", now, got, want)
	}
	if got != want && !waited && !refunds && (l.row.Lows == nil || len(l.row.Lows.Entries) < MaxLows) {
		l.t.Errorf("at %d: %d units used, %d without the cancelled calls, and no call waited", now, got, want)
	}
}

// checkBound checks granted(t0,t1) <= max(capacity, largest Reserve) +
// rate·(t1-t0) for any two times at which something was granted. Due times are
// rounded up to a tick, so one more tick may have passed.
func (l *ledger) checkBound() {
	l.t.Helper()
	r := &l.def.Rule
	var acts []call
	most := r.Cap
	for _, c := range l.calls {
		if !c.gone {
			acts = append(acts, c)
			most = max(most, c.units)
		}
	}
	slices.SortStableFunc(acts, func(a, b call) int { return int(a.due - b.due) })
	for i := range acts {
		var sum int64
		for j := i; j < len(acts); j++ {
			sum += acts[j].units
			if limit := most + (acts[j].due-acts[i].due+1)*r.Add; sum > limit {
				l.t.Errorf("%d units granted from %d to %d; at most %d", sum, acts[i].due, acts[j].due, limit)
			}
		}
	}
}

func randomReservation() (r Reservation) {
	binary.BigEndian.PutUint64(r[8:], rand.Uint64())
	return r
}

// mustDefinition is limittest.Definition, which tests inside the package cannot import.
func mustDefinition(l Limit) *Definition {
	d, err := NewDefinition(l)
	if err != nil {
		panic(err)
	}
	return d
}
