package memory

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// TestDefaultTexts checks the room for the texts of keys: 64 bytes a key, but so few in all that
// the service's tables fit into the memory that deploy/systemd gives it.
func TestDefaultTexts(t *testing.T) {
	for keys, want := range map[int]int64{0: 256 << 20, 1000: 64_000, 1: 1024, 1 << 30: 256 << 20} {
		c := Config{MaxKeys: keys}
		if err := c.check(); err != nil || c.MaxKeyBytes != want {
			t.Errorf("MaxKeys %d: %d bytes, %v; want %d", keys, c.MaxKeyBytes, err, want)
		}
	}
}

func TestFull(t *testing.T) {
	for _, shards := range []int{0, 1, 16, maxShards} {
		clock := &fake{1e15}
		s := open(t, Config{Clock: clock.now, MaxKeys: 1000, Shards: shards})
		l := limiter(t, s,
			store.Limit{Name: "slow", Rate: 1, Period: time.Hour, Burst: 5},
			store.Limit{Name: "open", Rate: 1, Period: time.Hour, Burst: 5, OnStoreError: store.FailOpen})
		for i := range 1000 {
			take(t, l, "slow", fmt.Sprint(i), 2)
		}
		if d, err := l.Take(ctx, "slow", "new", 1); !errors.Is(err, store.ErrFull) || d.Allowed {
			t.Fatalf("a new key: %+v, %v", d, err)
		}
		if d, err := l.Take(ctx, "open", "new", 1); err != nil || !d.Allowed || d.Source != store.SourceFallbackOpen {
			t.Fatalf("a new key of an open limit: %+v, %v", d, err)
		}
		if _, err := l.TakeAll(ctx, dipwell.Take{Limit: "slow", Key: "7", Cost: 1}, dipwell.Take{Limit: "slow", Key: "new", Cost: 1}); !errors.Is(err, store.ErrFull) {
			t.Fatalf("a group with a new key: %v", err)
		}
		if d := take(t, l, "slow", "check", 0); !d.Allowed {
			t.Fatalf("a call that needs no row: %+v", d)
		}
		for i := range 1000 { // all rows are kept
			if d := take(t, l, "slow", fmt.Sprint(i), 1); d.Remaining != 2 {
				t.Fatalf("key %d: %+v", i, d)
			}
		}
		if st := s.Stats(); st.Keys != 1000 || st.Refused != 3 {
			t.Errorf("%+v", st)
		}
		clock.add(3 * time.Hour) // all of them are full
		for i := range 1000 {
			take(t, l, "slow", fmt.Sprint("second ", i), 3)
		}
		if _, err := l.Take(ctx, "slow", "third", 1); !errors.Is(err, store.ErrFull) {
			t.Errorf("a thousand and one keys: %v", err)
		}
		if n := s.keys.Load(); n != 1000 {
			t.Errorf("%d keys", n)
		}
	}
}

// TestOneFullRow checks that a new key finds room if only one row, anywhere in
// the table, is full.
func TestOneFullRow(t *testing.T) {
	clock := &fake{1e15}
	s := open(t, Config{Clock: clock.now, MaxKeys: 20_000})
	l := limiter(t, s, store.Limit{Name: "slow", Rate: 1, Period: time.Hour, Burst: 5})
	take(t, l, "slow", "short", 1)
	for i := range 19_999 {
		take(t, l, "slow", fmt.Sprint(i), 5)
	}
	clock.add(time.Hour)
	for try := range 200 {
		if _, err := l.Take(ctx, "slow", "new", 1); err == nil {
			t.Logf("room found after %d calls", try)
			return
		}
	}
	t.Error("no room found for a new key, with a full row in the table")
}

// TestChurn checks that the table stays small if millions of keys are used that
// are soon full, without sweeps.
func TestChurn(t *testing.T) {
	clock := &fake{1e15}
	s := open(t, Config{Clock: clock.now})
	l := limiter(t, s, store.Limit{Name: "fast", Rate: 1, Period: time.Millisecond, Burst: 5})
	for i := range 500_000 {
		clock.us++
		take(t, l, "fast", fmt.Sprint(i), 2)
	}
	if n := s.Stats().Keys; n > 10_000 {
		t.Errorf("%d keys are held, of which 2000 are not full", n)
	}
	clock.add(time.Second)
	n, err := s.Sweep(ctx, 100)
	if err != nil || n != 100 {
		t.Errorf("swept %d, %v", n, err)
	}
	if _, err = s.Sweep(ctx, 1<<30); err != nil || s.Stats().Keys != 0 {
		t.Errorf("%d keys after a sweep, %v", s.Stats().Keys, err)
	}
}

// TestSweepLooksAtEveryRow sweeps shards of more rows than are swept under one lock.
func TestSweepLooksAtEveryRow(t *testing.T) {
	clock := &fake{1e15}
	s := open(t, Config{Clock: clock.now, Shards: 1})
	l := limiter(t, s, store.Limit{Name: "slow", Rate: 1, Period: time.Hour, Burst: 5})
	for i := range 5 * scanWork {
		take(t, l, "slow", fmt.Sprint(i), 1)
	}
	clock.add(time.Hour)
	if n, err := s.Sweep(ctx, 1<<30); n != 5*scanWork || err != nil {
		t.Errorf("%d of %d full rows are swept, %v", n, 5*scanWork, err)
	}
}

func TestSpreadWindowsGo(t *testing.T) {
	clock := &fake{1e15}
	s := open(t, Config{Clock: clock.now})
	l := limiter(t, s,
		store.Limit{Name: "minute", Algorithm: store.FixedWindow, Rate: 5, Period: time.Minute},
		store.Limit{Name: "month", Algorithm: store.FixedWindow, Rate: 5, Period: store.Month})
	for i := range 100 {
		take(t, l, "minute", fmt.Sprint(i), 2)
		take(t, l, "month", fmt.Sprint(i), 2)
	}
	for _, step := range []struct {
		pass time.Duration
		keys int64
	}{{time.Minute, 200}, {time.Minute, 100}, {28 * 24 * time.Hour, 100}, {62 * 24 * time.Hour, 0}} {
		clock.add(step.pass)
		if _, err := s.Sweep(ctx, 1000); err != nil || s.Stats().Keys != step.keys {
			t.Errorf("%d keys after %v more, %v; want %d", s.Stats().Keys, step.pass, err, step.keys)
		}
	}
}

func TestLimitsAreApart(t *testing.T) {
	s := open(t, Config{})
	l := limiter(t, s, store.Limit{Name: "a", Rate: 1, Period: time.Hour, Burst: 5}, store.Limit{Name: "b", Rate: 1, Period: time.Hour, Burst: 5})
	for i := range 1000 {
		key := fmt.Sprint(i)
		take(t, l, "a", key, 5)
		if d := take(t, l, "b", key, 5); !d.Allowed {
			t.Fatalf("%s: %+v", key, d)
		}
	}
}

func TestDrop(t *testing.T) {
	s := open(t, Config{MaxKeys: 100})
	slow := store.Limit{Name: "slow", Rate: 1, Period: time.Hour, Burst: 5}
	l := limiter(t, s, slow)
	for i := range 100 {
		take(t, l, "slow", fmt.Sprint(i), 5)
	}
	if err := l.Drop(ctx, "slow", store.OwnerCode); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Define(ctx, slow, store.OwnerCode); err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		if d := take(t, l, "slow", fmt.Sprint(i%100), 1); !d.Allowed {
			t.Fatalf("key %d after a drop: %+v", i, d)
		}
	}
	if err := l.Drop(ctx, "slow", store.OwnerCode); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Sweep(ctx, 1000); n != 100 || err != nil {
		t.Errorf("swept %d rows of a dropped limit, %v", n, err)
	}
}

// TestManyVersions changes a limit more often than a definition can have past
// versions.
func TestManyVersions(t *testing.T) {
	clock := &fake{1e15}
	s := open(t, Config{Clock: clock.now})
	limit := store.Limit{Name: "api", Rate: 1, Period: time.Hour, Burst: 5000}
	l := limiter(t, s, limit)
	for i := range 3000 {
		limit.Rate = int64(1 + i%2)
		if _, err := l.Define(ctx, limit, store.OwnerCode); err != nil {
			t.Fatal(i, err)
		}
		if d := take(t, l, "api", "k", 1); !d.Allowed || d.Remaining != 4999-int64(i) {
			t.Fatalf("after %d changes: %+v", i, d)
		}
	}
	if n := len(l.Limit("api").Past); n > manyPast {
		t.Errorf("%d versions are remembered", n)
	}
	if n := len(*s.limits.handles.Load()); n > manyPast+20 {
		t.Errorf("%d handles", n)
	}
}

// TestManyVersionsBesideOverrides does so while keys have overrides, whose rows and
// records name no version.
func TestManyVersionsBesideOverrides(t *testing.T) {
	clock := &fake{1e15}
	s := open(t, Config{Clock: clock.now})
	limit := store.Limit{Name: "api", Rate: 1, Period: time.Hour, Burst: 10}
	l := limiter(t, s, limit)
	for _, key := range []string{"row", "hold", "no row"} {
		if _, err := s.SetOverride(ctx, l.Limit("api"), store.Override{Key: key, Rate: 2, Burst: 40}); err != nil {
			t.Fatal(err)
		}
	}
	take(t, l, "api", "row", 40)
	h, err := l.Hold(ctx, time.Hour, "", dipwell.Take{Limit: "api", Key: "hold", Cost: 40})
	if err != nil || !h.Allowed {
		t.Fatal(h, err)
	}
	for i := range 4 * manyPast {
		limit.Rate = int64(2 - i%2)
		if _, err := l.Define(ctx, limit, store.OwnerCode); err != nil {
			t.Fatal(i, err)
		}
		take(t, l, "api", "other", 0)
	}
	for key, want := range map[string]int64{"row": 0, "hold": 0, "no row": 40} {
		if d, err := l.Check(ctx, "api", key, 0); err != nil || d.Remaining != want || d.Capacity != 40 {
			t.Errorf("%s: %+v, %v; want %d remaining", key, d, err, want)
		}
	}
	if d, err := l.Settle(ctx, h.Hold, 10); err != nil || d.Remaining != 30 {
		t.Errorf("settled: %+v, %v", d, err)
	}
}

func TestReservationsAreBounded(t *testing.T) {
	clock := &fake{1e15}
	s := open(t, Config{Clock: clock.now, MaxReservations: 2})
	l := limiter(t, s, store.Limit{Name: "work", Rate: 1, Period: time.Second, Burst: 1, MaxDebt: 100})
	reserve := func(key string) (dipwell.Decision, error) { return l.Reserve(ctx, "work", key, 2) }
	first, err := reserve("a")
	if err != nil || first.Delay != time.Second {
		t.Fatal(first, err)
	}
	if _, err = reserve("b"); err != nil {
		t.Fatal(err)
	}
	if _, err = reserve("c"); !errors.Is(err, store.ErrFull) {
		t.Fatalf("a third reservation: %v", err)
	}
	if d := take(t, l, "work", "c", 1); !d.Allowed {
		t.Errorf("a reservation that failed was charged: %+v", d)
	}
	if err = l.Cancel(ctx, first.Reservation); err != nil {
		t.Fatal(err)
	}
	if err = l.Cancel(ctx, first.Reservation); !errors.Is(err, store.ErrReservation) {
		t.Errorf("a second cancel: %v", err)
	}
	if d, err := reserve("d"); err != nil || d.Delay != time.Second {
		t.Errorf("%+v, %v", d, err)
	}
	clock.add(time.Second)
	for _, key := range []string{"e", "f"} { // the others are due by now
		if _, err := reserve(key); err != nil {
			t.Error(err)
		}
	}
	if n := s.Stats().Reservations; n != 2 || s.reservations.parts != 2 || s.reservations.due.Len() != 2 {
		t.Errorf("%d reservations, %d parts, %d in the heap", n, s.reservations.parts, s.reservations.due.Len())
	}
}

func TestKeys(t *testing.T) {
	clock := &fake{1e15}
	s := open(t, Config{Clock: clock.now})
	slow := store.Limit{Name: "slow", Rate: 1, Period: time.Hour, Burst: 5, ListKeys: true}
	quiet := store.Limit{Name: "quiet", Rate: 1, Period: time.Hour, Burst: 5}
	l := limiter(t, s, slow, quiet)
	var want []string
	for i := range 20_000 {
		key := fmt.Sprintf("%c:%d", 'a'+i%3, i)
		if i%5 == 0 { // now full
			take(t, l, "slow", key, 1)
			if _, err := l.Refund(ctx, "slow", key, 1); err != nil {
				t.Fatal(err)
			}
			continue
		}
		take(t, l, "quiet", key, 1)
		take(t, l, "slow", key, 1)
		if key[0] == 'b' {
			want = append(want, key)
		}
	}
	slices.Sort(want)
	var got []string
	for after := ""; ; after = got[len(got)-1] {
		page, err := l.Keys(ctx, "slow", "b:", after, 700)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		for _, k := range page {
			got = append(got, k.Key)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%d keys listed; want %d", len(got), len(want))
	}
	if _, err := l.Keys(ctx, "quiet", "", "", 10); !errors.Is(err, store.ErrNotSupported) {
		t.Errorf("a limit without a list: %v", err)
	}
	quiet.ListKeys = true
	if _, err := l.Define(ctx, quiet, store.OwnerCode); err != nil {
		t.Fatal(err)
	}
	take(t, l, "quiet", want[0], 1)
	take(t, l, "quiet", "a", 1)
	if page, err := l.Keys(ctx, "quiet", "", "", 10); err != nil || len(page) != 2 || page[0].Key != "a" || page[1].Key != want[0] {
		t.Errorf("a list begun late: %v, %v", page, err)
	}
	clock.add(time.Hour)
	if page, err := l.Keys(ctx, "slow", "", "", 10); err != nil || len(page) != 0 {
		t.Errorf("keys that are full: %v, %v", page, err)
	}
}

// TestRace has concurrent callers insert the same keys while the table grows
// and is swept and listed. Each bucket must grant exactly its burst.
func TestRace(t *testing.T) {
	s := open(t, Config{})
	l := limiter(t, s,
		store.Limit{Name: "slow", Rate: 1, Period: 24 * time.Hour, Burst: 3, ListKeys: true},
		store.Limit{Name: "gone", Rate: 1000, Period: time.Millisecond, Burst: 1000})
	const callers, keys = 8, 3000
	var granted atomic.Int64
	var ready, done sync.WaitGroup
	ready.Add(callers)
	for range callers {
		done.Go(func() {
			ready.Done()
			ready.Wait()
			for i := range keys {
				key := fmt.Sprint(i)
				d, err := l.TakeAll(ctx, dipwell.Take{Limit: "slow", Key: key, Cost: 1}, dipwell.Take{Limit: "gone", Key: key, Cost: 1})
				if err != nil {
					t.Error(err)
				}
				if d.Allowed {
					granted.Add(1)
				}
				if d, err = l.Take(ctx, "slow", key, 1); err != nil {
					t.Error(err)
				} else if d.Allowed {
					granted.Add(1)
				}
				if i%1000 == 0 {
					if _, err := l.Keys(ctx, "slow", "", "", 10); err != nil {
						t.Error(err)
					}
					s.Sweep(ctx, 1000)
				}
			}
		})
	}
	done.Wait()
	if n := granted.Load(); n != 3*keys {
		t.Errorf("%d tokens granted; want %d", n, 3*keys)
	}
	for i := range s.shards {
		sh := &s.shards[i]
		rows := 0
		sh.scan(scanWork, func(*slot, int) { rows++ })
		if rows != sh.rows {
			t.Errorf("shard %d has %d rows and counts %d", i, rows, sh.rows)
		}
	}
}

// A call that finds no room for its reservation creates no row for its key.
func TestFailedReservationsTakeNoRoom(t *testing.T) {
	clock := &fake{1e15}
	s := open(t, Config{Clock: clock.now, MaxReservations: 1, MaxKeys: 4})
	l := limiter(t, s, store.Limit{Name: "work", Rate: 1, Period: time.Second, Burst: 1, MaxDebt: 100})
	if _, err := l.Reserve(ctx, "work", "a", 2); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if _, err := l.Reserve(ctx, "work", "b", 2); !errors.Is(err, store.ErrFull) {
			t.Fatalf("a second reservation: %v", err)
		}
	}
	if n := s.Stats().Keys; n != 1 {
		t.Errorf("%d keys are held, want 1", n)
	}
}

// Definitions of one version are kept apart while calls use them, but their
// number is bounded.
func TestDefinitionsOfOneVersionAreBounded(t *testing.T) {
	s := open(t, Config{})
	limit := store.Limit{Name: "l", Rate: 1, Period: time.Hour, Burst: 10_000}
	l := limiter(t, s, limit)
	for i := range 5_000 {
		limit.RetryJitter = 1 + i%100
		if _, err := l.Define(ctx, limit, store.OwnerCode); err != nil {
			t.Fatal(err)
		}
		if d := take(t, l, "l", "k", 1); !d.Allowed || d.Remaining != int64(9999-i) {
			t.Fatalf("%d: %+v", i, d)
		}
	}
	bound := 0
	s.limits.bound.Range(func(any, any) bool { bound++; return true })
	if n := len(s.limits.byName["l"].bindings); n > aliveMax || bound > aliveMax {
		t.Errorf("%d bindings, %d to be found", n, bound)
	}
}

// TestPresentDefinitionStaysUsable changes a limit so often, without a new version, that the
// first call of a plan ends the definitions which calls may hold. Who still holds one of an
// older version gets the present one.
func TestPresentDefinitionStaysUsable(t *testing.T) {
	s := open(t, Config{})
	limit := store.Limit{Name: "l", Rate: 1, Period: time.Hour, Plans: store.NewPlans(store.Plan{Name: "pro", Rate: 2})}
	old := limiter(t, s, limit).Limit("l")
	limit.Rate = 3
	for i := range 2 * aliveMax {
		limit.RetryJitter = 1 + i
		if _, err := s.Define(ctx, limit, store.OwnerCode); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.bind(s.Registry().Lookup("l").WithPlan("pro")); err != nil {
		t.Fatal(err)
	}
	if b, err := s.bind(old); err != nil || b.dead.Load() || b.def.Rate != 3 {
		t.Errorf("%+v, %v", b, err)
	}
}
