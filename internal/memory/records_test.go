package memory_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/memory"
	"github.com/dipwell/dipwell/store"
)

// waits returns a store with n reservations that wait on one key.
func waits(t testing.TB, n int, now *int64) (*memory.Store, *dipwell.Limiter, []store.Reservation) {
	t.Helper()
	s, err := memory.New(memory.Config{Clock: func() int64 { return *now }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	l, err := dipwell.New(s, store.Limit{Name: "l", Rate: 1000, Period: time.Second, Burst: 1000, MaxDebt: 1 << 30},
		store.Limit{Name: "late", Rate: 1, Period: time.Second, Burst: store.NoBurst, MaxDebt: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	var ids []store.Reservation
	for range n {
		var d dipwell.Decision
		err := l.DoAll(t.Context(), &d, store.VerbReserve, []dipwell.Take{{Limit: "l", Key: "k", Cost: 1}, {Limit: "late", Key: "k", Cost: 1}})
		if err != nil || d.Reservation == (store.Reservation{}) {
			t.Fatal(d, err)
		}
		ids = append(ids, d.Reservation)
	}
	return s, l, ids
}

// With thousands of reservations of one key, records are advanced only if one
// has fallen due, and the results are exactly those of package store.
func TestThousandsWait(t *testing.T) {
	now := int64(1e15)
	_, l, ids := waits(t, 3000, &now)
	def := l.Limit("l")
	row, records := store.State{}, []store.Record(nil)
	settle := func() {
		var err error
		if row, records, err = def.Advance(row, "k", now, records); err != nil {
			t.Fatal(err)
		}
	}
	number := map[store.Reservation][2]int64{}
	for i, id := range ids {
		op := store.Op{Def: def, Key: "k", Verb: store.VerbReserve, Cost: 1}
		next, _, err := op.Step(now, row, false)
		if err != nil {
			t.Fatal(err)
		}
		r := op.Record(&next, id, now, now+int64(i+1)*1e6)
		row, records = next, append(records, r)
		number[id] = [2]int64{r.Number, r.Mark}
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	rnd.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	for step := range 1200 {
		now += rnd.Int64N(20_000)
		switch step % 3 {
		case 0: // a call that writes, before and after something falls due
			op := store.Op{Def: def, Key: "k", Verb: store.VerbTake, Cost: 1 + rnd.Int64N(20)}
			before, held := row, append([]store.Record(nil), records...)
			if row.Lows != nil {
				settle()
			}
			next, write, err := op.Step(now, row, false)
			if row = next; err != nil {
				t.Fatal(err)
			}
			if !write {
				row, records = before, held
			}
			if d, err := l.Take(t.Context(), "l", "k", op.Cost); err != nil || d.Allowed != op.Allowed || d.ResetAfter.Microseconds() != op.Reset {
				t.Fatalf("step %d: %+v, %v; the reference says %+v", step, d, err, op.Answer)
			}
		case 1:
			id := ids[0]
			ids = ids[1:]
			var err error
			was := len(records)
			if row, records, err = def.GiveBack(row, "k", now, records, number[id][0], number[id][1]); err != nil {
				t.Fatal(err)
			}
			if err = l.Cancel(t.Context(), id); err != nil && was == len(records) {
				t.Fatalf("step %d: %v", step, err)
			}
		}
		op := store.Op{Def: def, Key: "k", Verb: store.VerbCheck}
		if _, _, err := op.Step(now, row, true); err != nil {
			t.Fatal(err)
		}
		if d, err := l.Check(t.Context(), "l", "k", 0); err != nil || d.ResetAfter.Microseconds() != op.Reset || d.Remaining != op.Remaining {
			t.Fatalf("step %d: %d remain, full in %v, %v; the reference says %+v", step, d.Remaining, d.ResetAfter, err, op.Answer)
		}
	}
}

// Records that have ended use no memory, for any key.
func TestRecordsThatEndedGo(t *testing.T) {
	now := int64(1e15)
	s, err := memory.New(memory.Config{MaxReservations: 64, Clock: func() int64 { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l, err := dipwell.New(s, store.Limit{Name: "l", Rate: 1, Period: time.Second, Burst: 1, MaxDebt: 100})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5000 {
		key := fmt.Sprint("k", i)
		now += 1e6 / 8 // 24 wait at any time, for 3 seconds each
		d, err := l.Reserve(t.Context(), "l", key, 4)
		if err != nil || d.Delay != 3*time.Second {
			t.Fatalf("key %d: %+v, %v", i, d, err)
		}
		if i%5 == 0 {
			if err = l.Cancel(t.Context(), d.Reservation); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// BenchmarkTakeBesideWaits measures a Take of a key with reservations that
// wait.
func BenchmarkTakeBesideWaits(b *testing.B) {
	for _, n := range []int{0, 1, 1000, 4000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			now := int64(1e15)
			_, l, _ := waits(b, n, &now)
			b.ReportAllocs()
			for b.Loop() {
				now += 1000
				if _, err := l.Take(b.Context(), "l", "k", 1); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkTakeBesideHolds measures a Take of a key with live holds.
func BenchmarkTakeBesideHolds(b *testing.B) {
	for _, n := range []int{0, 1, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s, err := memory.New(memory.Config{})
			if err != nil {
				b.Fatal(err)
			}
			l, err := dipwell.New(s, dipwell.Limit{Name: "l", Rate: 1, Period: time.Hour, Burst: 2e6})
			if err != nil {
				b.Fatal(err)
			}
			for range n {
				if _, err := l.Hold(b.Context(), time.Hour, "", dipwell.Take{Limit: "l", Key: "k", Cost: 1}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				if d, err := l.Take(b.Context(), "l", "k", 1); err != nil || !d.Allowed {
					b.Fatal(d, err)
				}
			}
		})
	}
}
