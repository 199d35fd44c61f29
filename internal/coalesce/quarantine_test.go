package coalesce_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell/internal/coalesce"
	"github.com/dipwell/dipwell/store"
)

// rows is a table whose rows a test can lock. A statement takes a millisecond or takes,
// plus the wait for locks that its connection sets.
type rows struct {
	mu      sync.Mutex
	locked  map[string]chan struct{} // closed when the lock goes
	charged map[string]int64
	waits   map[string]int // statements of lanes that met the lock
	cut     int            // statements whose context ended
	takes   time.Duration  // that a statement takes; 0: a millisecond
	late    time.Duration  // how much longer a statement takes to give up waiting for a lock
}

// metric returns a metric of a store.
func metric(s store.Store, name string) int {
	list := store.AbilitiesOf(s).Metrics()
	return int(list[slices.IndexFunc(list, func(m store.Metric) bool { return m.Name == name })].Value)
}

func newRows() *rows {
	return &rows{locked: map[string]chan struct{}{}, charged: map[string]int64{}, waits: map[string]int{}}
}

func (r *rows) lock(keys ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range keys {
		r.locked[k] = make(chan struct{})
	}
}

func (r *rows) unlock(keys ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range keys {
		close(r.locked[k])
		delete(r.locked, k)
	}
}

func (r *rows) met(key string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.waits[key]
}

// conn is a connection. If a row is locked, a lane's connection fails all groups, unless
// it sorts, and those of the quarantine fail only the groups with that row.
type conn struct {
	*rows
	lane, sorts bool
}

func (c conn) Apply(ctx context.Context, b *store.Batch) error {
	return c.applyWithin(ctx, b, map[bool]time.Duration{true: 10 * time.Millisecond, false: 2 * time.Millisecond}[c.lane])
}

func (c conn) applyWithin(ctx context.Context, b *store.Batch, wait time.Duration) error {
	time.Sleep(max(c.takes, time.Millisecond))
	for i := range b.Groups {
		g := &b.Groups[i]
		g.Err = c.waitFor(ctx, g, wait)
		if g.Err != nil && c.sorts {
			time.Sleep(2 * c.takes) // one statement finds the locked rows, and one decides the others
		} else if g.Err != nil && c.lane {
			err := g.Err
			for j := range b.Groups {
				b.Groups[j].Err = err
			}
			return nil
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range b.Groups {
		if g := &b.Groups[i]; g.Err == nil {
			c.charge(g)
		}
	}
	return nil
}

func (c conn) charge(g *store.Group) {
	g.Allowed = true
	for i := range g.Ops {
		op := &g.Ops[i]
		if op.Verb != store.VerbCheck {
			c.charged[op.Key]++
		}
		op.Answer = store.Answer{Allowed: true, Granted: 1, Remaining: c.charged[op.Key]}
	}
}

// waitFor waits for the locks of a group to be released.
func (c conn) waitFor(ctx context.Context, g *store.Group, wait time.Duration) error {
	for i := range g.Ops {
		c.mu.Lock()
		free := c.locked[g.Ops[i].Key]
		if free != nil && c.lane {
			c.waits[g.Ops[i].Key]++
		}
		c.mu.Unlock()
		if free == nil || g.Ops[i].Verb == store.VerbCheck {
			continue
		}
		select {
		case <-free:
		case <-time.After(wait + c.late):
			return fmt.Errorf("%w: %s", store.ErrLocked, g.Ops[i].Key)
		case <-ctx.Done():
			c.mu.Lock()
			c.cut++
			c.mu.Unlock()
			return fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, ctx.Err())
		}
	}
	return nil
}

// newQuarantined returns a store with a quarantine over rows.
func newQuarantined(t testing.TB, r *rows, lanes int) *coalesce.Store {
	t.Helper()
	var all []store.Store
	for range lanes {
		all = append(all, conn{rows: r, lane: true})
	}
	s, err := coalesce.New(store.Lanes{Stores: all, Sorter: conn{rows: r}, Quarantine: conn{rows: r}.applyWithin}, coalesce.Config{Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// one makes a call of one group.
func one(s store.Store, timeout time.Duration, keys ...string) (took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	var b store.Batch
	g, _ := b.Single()
	g.Ops = nil
	for _, k := range keys {
		g.Ops = append(g.Ops, store.Op{Def: def, Key: k, Cost: 1})
	}
	start := time.Now()
	if err = s.Apply(ctx, &b); err == nil {
		err = g.Err
	}
	return time.Since(start), err
}

// callers are goroutines that make calls until a time.
type callers struct {
	sync.WaitGroup
	t     *testing.T
	s     store.Store
	until time.Time
}

// unlocked starts n callers whose calls must be answered within a time.
func (c *callers) unlocked(n int, within time.Duration, keys func(i int) []string) {
	for i := range n {
		c.Go(func() {
			for time.Now().Before(c.until) {
				if took, err := one(c.s, time.Second, keys(i)...); err != nil || took > within {
					c.t.Errorf("%v took %v: %v", keys(i), took, err)
				}
			}
		})
	}
}

// locked starts n callers whose calls must fail with ErrLocked at their deadline.
func (c *callers) locked(n int, timeout time.Duration, keys func(i int) []string) {
	for i := range n {
		c.Go(func() {
			for time.Now().Before(c.until) {
				took, err := one(c.s, timeout, keys(i)...)
				if !errors.Is(err, store.ErrStore) || took != timeout {
					c.t.Errorf("%v took %v: %v", keys(i), took, err)
				}
			}
		})
	}
}

func keyOf(format string, mod int) func(i int) []string {
	return func(i int) []string { return []string{fmt.Sprintf(format, i%mod)} }
}

// TestLockedRows checks that calls for other keys are answered while rows are locked,
// with one delay for the statement that met the lock. Calls for locked keys fail at
// their deadlines, and are answered soon after the lock is released.
func TestLockedRows(t *testing.T) {
	for _, tc := range []struct{ keys, callers int }{{1, 1}, {1, 20}, {4, 4}, {4, 40}} {
		t.Run(fmt.Sprint(tc.callers, " callers of ", tc.keys), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRows()
				s := newQuarantined(t, r, 2)
				defer s.Close()
				var names []string
				for i := range tc.keys {
					names = append(names, fmt.Sprint("stuck", i))
				}
				r.lock(names...)
				c := callers{t: t, s: s, until: time.Now().Add(3 * time.Second)}
				c.locked(tc.callers, 50*time.Millisecond, keyOf("stuck%d", tc.keys))
				c.unlocked(16, 40*time.Millisecond, keyOf("free%d", 16))
				c.Wait()
				stalls := 0
				for _, k := range names {
					stalls += r.met(k)
					if r.charged[k] != 0 {
						t.Errorf("%s was charged", k)
					}
				}
				if stalls > 2*tc.keys {
					t.Errorf("lanes met a lock %d times", stalls)
				}
				if n := metric(s, "dipwell_store_quarantined_keys"); n < tc.keys {
					t.Errorf("%d keys in quarantine", n)
				}
				for _, k := range names { // one lock after the other goes
					r.unlock(k)
					if took, err := one(s, time.Second, k); err != nil || took > 200*time.Millisecond {
						t.Errorf("%s was answered after %v: %v", k, took, err)
					}
				}
				time.Sleep(2 * time.Second)
				for _, k := range names {
					if _, err := one(s, time.Second, k); err != nil {
						t.Error(err)
					}
				}
				if n := metric(s, "dipwell_store_quarantined_keys"); n != 0 {
					t.Errorf("%d keys are left in quarantine", n)
				}
			})
		})
	}
}

// TestOneOfFourLocksIsReleased checks that a key is answered soon after its lock is
// released, while calls wait for other locked keys.
func TestOneOfFourLocksIsReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRows()
		s := newQuarantined(t, r, 2)
		defer s.Close()
		r.lock("stuck0", "stuck1", "stuck2", "stuck3")
		c := callers{t: t, s: s, until: time.Now().Add(5 * time.Second)}
		c.locked(30, 500*time.Millisecond, keyOf("stuck%d", 3))
		time.Sleep(time.Second)
		patient := make(chan time.Time)
		go func() {
			if _, err := one(s, 5*time.Second, "stuck3"); err != nil {
				t.Error(err)
			}
			patient <- time.Now()
		}()
		time.Sleep(time.Second)
		r.unlock("stuck3")
		start := time.Now()
		if took := (<-patient).Sub(start); took > 200*time.Millisecond {
			t.Errorf("answered %v after its lock had gone", took)
		}
		for range 20 { // and so are the calls that come now
			if took, err := one(s, 100*time.Millisecond, "stuck3"); err != nil {
				t.Errorf("after %v: %v", took, err)
			}
		}
		c.Wait()
	})
}

// TestLockTakenRepeatedly checks that a lock that is released and taken again does
// not block a lane each time.
func TestLockTakenRepeatedly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRows()
		s := newQuarantined(t, r, 2)
		defer s.Close()
		c := callers{t: t, s: s, until: time.Now().Add(3 * time.Second)}
		for range 20 {
			c.Go(func() {
				for time.Now().Before(c.until) {
					if _, err := one(s, time.Second, "busy"); err != nil {
						t.Error(err)
					}
				}
			})
		}
		c.Go(func() {
			for time.Now().Before(c.until) {
				r.lock("busy")
				time.Sleep(50 * time.Millisecond)
				r.unlock("busy")
				time.Sleep(20 * time.Millisecond)
			}
		})
		c.unlocked(16, 40*time.Millisecond, keyOf("free%d", 16))
		c.Wait()
		if n := r.met("busy"); n > 4 {
			t.Errorf("lanes met the lock %d times", n)
		}
		if r.charged["busy"] < 30 {
			t.Errorf("the key was answered %d times", r.charged["busy"])
		}
	})
}

// span returns for how long callers go on. The clock is not the machine's, but each second
// of 100 callers takes seconds of a processor under the race detector, which has -short.
func span() time.Duration {
	if testing.Short() {
		return 2 * time.Second
	}
	return 5 * time.Second
}

// TestOneKeyOfSeveralIsLocked checks that calls for a locked tenant and a user wait,
// and the user's other calls do not.
func TestOneKeyOfSeveralIsLocked(t *testing.T) {
	for _, order := range [][]string{{"tenant", "user%d"}, {"user%d", "tenant"}} {
		synctest.Test(t, func(t *testing.T) {
			r := newRows()
			s := newQuarantined(t, r, 2)
			defer s.Close()
			r.lock("tenant")
			both := func(i int) []string {
				keys := []string{order[0], order[1]}
				for j, k := range keys {
					if k != "tenant" {
						keys[j] = fmt.Sprintf(k, i)
					}
				}
				return keys
			}
			c := callers{t: t, s: s, until: time.Now().Add(span())}
			c.locked(50, 50*time.Millisecond, both)
			time.Sleep(time.Second)
			c.unlocked(50, 40*time.Millisecond, keyOf("user%d", 50))
			c.Wait()
			if n := r.met("tenant"); n > 4 {
				t.Errorf("lanes met the lock %d times", n)
			}
			time.Sleep(100 * time.Millisecond) // until the last statement has ended
			r.unlock("tenant")
			if took, err := one(s, time.Second, both(7)...); err != nil || took > 200*time.Millisecond {
				t.Errorf("answered after %v: %v", took, err)
			}
			if r.charged["tenant"] != 1 {
				t.Errorf("charged %d times", r.charged["tenant"])
			}
		})
	}
}

// TestShortDeadlinesAndALock checks that calls with deadlines shorter than LockWait do
// not cost a lane its connection.
func TestShortDeadlinesAndALock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRows()
		s := newQuarantined(t, r, 2)
		defer s.Close()
		r.lock("stuck")
		c := callers{t: t, s: s, until: time.Now().Add(span())}
		c.locked(5, 5*time.Millisecond, func(int) []string { return []string{"stuck"} })
		c.unlocked(16, 40*time.Millisecond, keyOf("free%d", 16))
		c.Wait()
		if n := r.met("stuck"); n > 2 {
			t.Errorf("lanes met the lock %d times", n)
		}
		r.unlock("stuck")
		if _, err := one(s, 5*time.Millisecond, "stuck"); err != nil {
			t.Error(err)
		}
	})
}

// TestLockOnABusyServer checks that no statement is cancelled because it gives up waiting
// for a lock late: that would cost its connection each time.
func TestLockOnABusyServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRows()
		r.late = 300 * time.Millisecond
		s := newQuarantined(t, r, 2)
		defer s.Close()
		r.lock("stuck")
		for range 10 {
			if _, err := one(s, 200*time.Millisecond, "stuck"); err == nil {
				t.Error("answered")
			}
		}
		r.unlock("stuck")
		if _, err := one(s, time.Second, "stuck"); err != nil {
			t.Error(err)
		}
		if r.cut > 0 {
			t.Errorf("%d statements were cancelled", r.cut)
		}
	})
}

// slowly returns a connection that is opened when it is first used, which takes a while.
func slowly(c conn) func(context.Context, *store.Batch, time.Duration) error {
	connect := sync.OnceFunc(func() { time.Sleep(150 * time.Millisecond) })
	return func(ctx context.Context, b *store.Batch, wait time.Duration) error {
		connect()
		return c.applyWithin(ctx, b, wait)
	}
}

type applyFunc func(context.Context, *store.Batch) error

func (f applyFunc) Apply(ctx context.Context, b *store.Batch) error { return f(ctx, b) }

// TestOtherKeysOnABusyServer checks that the calls of other keys keep a short deadline
// beside a locked row: they wait neither for the lock nor for the connections of the
// quarantine.
func TestOtherKeysOnABusyServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRows()
		r.takes = 40 * time.Millisecond
		lane := conn{rows: r, lane: true, sorts: true}
		sorter := slowly(conn{rows: r})
		s, err := coalesce.New(store.Lanes{Stores: []store.Store{lane, lane}, Quarantine: slowly(conn{rows: r}), Sorter: applyFunc(func(ctx context.Context, b *store.Batch) error {
			return sorter(ctx, b, 2*time.Millisecond)
		})}, coalesce.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		r.lock("stuck")
		c := callers{t: t, s: s, until: time.Now().Add(6 * time.Second)}
		c.unlocked(16, 200*time.Millisecond, keyOf("free%d", 40))
		c.locked(1, 200*time.Millisecond, func(int) []string { return []string{"stuck"} })
		c.Wait()
		if n := r.met("stuck"); n > 1 {
			t.Errorf("lanes met the lock %d times", n)
		}
		r.unlock("stuck")
	})
}

// TestKeyLockedForAMoment checks that a call whose row is locked for a moment, as by another
// statement of the same service, does not wait for the turn of a key that is locked for long.
func TestKeyLockedForAMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRows()
		s := newQuarantined(t, r, 2)
		defer s.Close()
		r.lock("stuck")
		c := callers{t: t, s: s, until: time.Now().Add(6 * time.Second)}
		c.locked(1, 200*time.Millisecond, func(int) []string { return []string{"stuck"} })
		for i := range 50 {
			time.Sleep(time.Duration(37+i) * time.Millisecond)
			key := fmt.Sprint("free", i)
			r.lock(key)
			time.AfterFunc(30*time.Millisecond, func() { r.unlock(key) })
			if took, err := one(s, 200*time.Millisecond, key); err != nil || took > 100*time.Millisecond {
				t.Errorf("%s, locked for 30 ms, took %v: %v", key, took, err)
			}
		}
		c.Wait()
		r.unlock("stuck")
	})
}

// TestChecksOfLockedRow checks that Check is answered, because it takes no lock.
func TestChecksOfLockedRow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRows()
		s := newQuarantined(t, r, 1)
		defer s.Close()
		r.lock("stuck")
		if _, err := one(s, 100*time.Millisecond, "stuck"); err == nil {
			t.Fatal("answered")
		}
		var b store.Batch
		g, op := b.Single()
		op.Def, op.Key, op.Verb = def, "stuck", store.VerbCheck
		start := time.Now()
		if err := s.Apply(t.Context(), &b); err != nil || g.Err != nil || time.Since(start) > 2*time.Millisecond {
			t.Errorf("%v, %v after %v", err, g.Err, time.Since(start))
		}
		r.unlock("stuck")
	})
}

// TestQuarantineIsBounded checks that calls beyond the bounds fail at once.
func TestQuarantineIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRows()
		s := newQuarantined(t, r, 1)
		defer s.Close()
		r.lock("stuck", "other")
		var calls sync.WaitGroup
		var mu sync.Mutex
		atOnce := 0
		for range 1500 {
			calls.Go(func() {
				if took, err := one(s, 2*time.Second, "stuck"); !errors.Is(err, store.ErrLocked) && !errors.Is(err, store.ErrOutcomeUnknown) {
					t.Error(err)
				} else if took < time.Second {
					mu.Lock()
					atOnce++
					mu.Unlock()
				}
			})
		}
		time.Sleep(500 * time.Millisecond)
		if n := metric(s, "dipwell_store_quarantine_refused_total"); n < 400 || n > 500 {
			t.Errorf("%d were refused of 1500", n)
		}
		if took, err := one(s, 100*time.Millisecond, "other"); took != 100*time.Millisecond || err == nil {
			t.Errorf("another key: %v after %v", err, took)
		}
		calls.Wait()
		if atOnce != metric(s, "dipwell_store_quarantine_refused_total") {
			t.Errorf("%d were answered at once", atOnce)
		}
		r.unlock("stuck", "other")
	})
}

// TestUnusedKeysAreRemoved checks that a locked key without calls is removed.
func TestUnusedKeysAreRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRows()
		s := newQuarantined(t, r, 1)
		r.lock("stuck")
		if _, err := one(s, 100*time.Millisecond, "stuck"); err == nil || metric(s, "dipwell_store_quarantined_keys") != 1 {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if n := metric(s, "dipwell_store_quarantined_keys"); n != 0 {
			t.Errorf("%d keys", n)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestCloseWithLockedKeys checks that Close makes queued calls fail, waits for the
// statement in flight and leaves no goroutine.
func TestCloseWithLockedKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRows()
		s := newQuarantined(t, r, 1)
		r.lock("stuck", "other")
		var calls sync.WaitGroup
		for i := range 10 {
			calls.Go(func() {
				if took, err := one(s, 4*time.Second, []string{"stuck", "other"}[i%2]); !errors.Is(err, coalesce.ErrClosed) || took > 2*time.Second {
					t.Errorf("%v after %v", err, took)
				}
			})
		}
		time.Sleep(time.Second)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		calls.Wait()
		if _, err := one(s, time.Second, "stuck"); !errors.Is(err, coalesce.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}

// TestAnswersMatchChargesWithLocks checks that the answers add up to what was charged
// while rows are locked and unlocked at random.
func TestAnswersMatchChargesWithLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRows()
		s := newQuarantined(t, r, 3)
		until := time.Now().Add(8 * time.Second)
		var told [4]answers
		var mu sync.Mutex
		var all sync.WaitGroup
		for i := range told {
			told[i].turns = map[string]bool{}
		}
		for range 24 {
			all.Go(func() {
				for time.Now().Before(until) {
					keys := rand.Perm(len(told))[:1+rand.IntN(2)]
					names := make([]string, len(keys))
					for i, k := range keys {
						names[i] = fmt.Sprint(k)
					}
					_, err := one(s, time.Duration(1+rand.IntN(200))*time.Millisecond, names...)
					mu.Lock()
					for _, k := range keys {
						switch {
						case err == nil:
							told[k].granted++
						case errors.Is(err, store.ErrOutcomeUnknown):
							told[k].unknown++
						}
					}
					mu.Unlock()
				}
			})
		}
		for i := range told {
			all.Go(func() {
				for time.Now().Before(until) {
					time.Sleep(time.Duration(rand.IntN(500)) * time.Millisecond)
					r.lock(fmt.Sprint(i))
					time.Sleep(time.Duration(rand.IntN(300)) * time.Millisecond)
					r.unlock(fmt.Sprint(i))
				}
			})
		}
		all.Wait()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		for i := range told {
			charged := r.charged[fmt.Sprint(i)]
			if charged < told[i].granted || charged > told[i].granted+told[i].unknown || told[i].granted == 0 || told[i].unknown == 0 {
				t.Errorf("key %d: %d charged, %d granted, %d unknown", i, charged, told[i].granted, told[i].unknown)
			}
		}
	})
}

// TestCallsThatDoNotWait checks that calls with NoWait fail with ErrLocked at once while the
// key is in quarantine, do not extend its stay, and are decided again after it.
func TestCallsThatDoNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRows()
		s := newQuarantined(t, r, 1)
		defer s.Close()
		unwaiting := func() (time.Duration, error) {
			b := store.Batch{Groups: []store.Group{{Ops: []store.Op{{Def: def, Key: "k", Cost: 1}}, NoWait: true}}}
			start := time.Now()
			err := s.Apply(t.Context(), &b)
			return time.Since(start), cmp.Or(err, b.Groups[0].Err)
		}
		r.lock("k")
		if _, err := one(s, 100*time.Millisecond, "k"); !errors.Is(err, store.ErrStore) || metric(s, "dipwell_store_quarantined_keys") != 1 {
			t.Fatalf("%v, %d keys in quarantine", err, metric(s, "dipwell_store_quarantined_keys"))
		}
		met := r.met("k")
		r.unlock("k")
		for end := time.Now().Add(1900 * time.Millisecond); metric(s, "dipwell_store_quarantined_keys") > 0 && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			if took, err := unwaiting(); !errors.Is(err, store.ErrLocked) || took > 0 {
				t.Fatalf("in quarantine: %v after %v", err, took)
			}
		}
		if took, err := unwaiting(); err != nil || took > 10*time.Millisecond {
			t.Errorf("after the stay: %v after %v", err, took)
		}
		if n := r.met("k"); n != met {
			t.Errorf("%d statements of lanes met the lock", n-met)
		}
	})
}
