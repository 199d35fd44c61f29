package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/background"
	"github.com/dipwell/dipwell/internal/redistest"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
)

// failover is a load on one key whose master is lost, with callers of a limit
// that fails closed and of one that fails open.
type failover struct {
	closed, open *load
	l            *dipwell.Limiter
	key          string
}

const (
	failoverBurst   = 1_000_000
	failoverTimeout = 300 * time.Millisecond // of a call
	failoverBound   = time.Minute            // until the last error: node timeout of 1 or 2 s, the election, and a busy machine
)

func failoverLimits() []store.Limit {
	closed, open := drained("closed", failoverBurst), drained("open", failoverBurst)
	closed.Timeout, open.Timeout = failoverTimeout, failoverTimeout
	open.OnStoreError = store.FailOpen
	return []store.Limit{closed, open}
}

func startFailover(t *testing.T, l *dipwell.Limiter, key string) *failover {
	t.Helper()
	taker := func(limit string) func(context.Context, int64) (dipwell.Decision, error) {
		return func(ctx context.Context, _ int64) (dipwell.Decision, error) {
			return l.Take(ctx, limit, key, 1)
		}
	}
	f := &failover{startLoad(3, taker("closed")), startLoad(1, taker("open")), l, key}
	f.closed.awaitGrants(t, 100)
	f.open.awaitGrants(t, 20)
	return f
}

// checkRecovered waits until calls are granted again without errors, ends the
// load, and checks the results. unreplicated is the number of grants that were
// not replicated.
func (f *failover) checkRecovered(t *testing.T, died time.Time, unreplicated int64) {
	t.Helper()
	eventually(t, "calls that failed", func() bool {
		return f.closed.failed.Load()+f.closed.unknown.Load() > 0 && f.open.open.Load() > 0
	})
	for quiet := int64(0); quiet == 0 || f.closed.last.Load() != quiet; { // no error during 200 grants
		quiet = f.closed.last.Load()
		f.closed.awaitGrants(t, 200)
		f.open.awaitGrants(t, 20)
	}
	f.closed.end(t)
	f.open.end(t)
	for _, o := range []*load{f.closed, f.open} {
		o.checkTimes(t, failoverTimeout)
		if end := o.lastFailure(died); end > failoverBound {
			t.Errorf("errors until %v after the fault", end)
		}
	}
	if f.open.failed.Load()+f.open.unknown.Load()+f.open.refused.Load() > 0 {
		t.Errorf("the open limit failed %d and %d times and refused %d", f.open.failed.Load(), f.open.unknown.Load(), f.open.refused.Load())
	}
	// Only unreplicated grants may be missing; calls of unknown outcome may
	// have been charged.
	gone := failoverBurst - left(t, f.l, "closed", f.key)
	granted, unknown := f.closed.granted.Load(), f.closed.unknown.Load()
	t.Logf("errors ended %v after the fault; %d granted, %d failed, %d unknown, %d gone; over-granted %d of %d that were not replicated; open %d times; slowest %v",
		f.closed.lastFailure(died).Round(time.Millisecond), granted, f.closed.failed.Load(), unknown, gone, granted-gone, unreplicated, f.open.open.Load(), time.Duration(f.closed.slowest.Load()).Round(time.Millisecond))
	if granted-gone > unreplicated || gone > granted+unknown {
		t.Errorf("%d granted and %d unknown, %d gone; %d were not replicated", granted, unknown, gone, unreplicated)
	}
}

// killUnreplicated kills a master some time after its replica was cut off, and
// returns the number of grants acknowledged in that time.
func (f *failover) killUnreplicated(t *testing.T, master, replica *redistest.Server) (died time.Time, grants int64) {
	t.Helper()
	before := f.closed.granted.Load()
	if err := replica.Hang(); err != nil {
		t.Fatal(err)
	}
	do(t, master, "client", "kill", "type", "replica") // replication in flight is lost with the master
	f.closed.awaitGrants(t, 200)
	master.Kill()
	died = time.Now()
	grants = f.closed.granted.Load() - before + 3 // plus calls of three callers that are not counted yet
	if err := replica.Continue(); err != nil {
		t.Fatal(err)
	}
	return died, grants
}

// checkLost checks that the failover did lose unreplicated grants.
func (f *failover) checkLost(t *testing.T) {
	t.Helper()
	if gone := failoverBurst - left(t, f.l, "closed", f.key); f.closed.granted.Load() <= gone {
		t.Errorf("%d granted, %d gone: nothing was lost, though the replica was cut off", f.closed.granted.Load(), gone)
	}
}

// TestClusterFaults runs the faults of a cluster one after the other.
func TestClusterFaults(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	for range rounds(1) {
		if err := cluster.Unwatch(); err != nil {
			t.Fatal(err)
		}
		t.Run("a slot moves", func(t *testing.T) { checkSlotMoves(t, cluster) })
		t.Run("keys of every master", func(t *testing.T) { checkKeysOfEveryMaster(t, cluster) })
		if err := cluster.Watch(); err != nil {
			t.Fatal(err)
		}
		t.Run("a master is killed", func(t *testing.T) { checkMasterLost(t, cluster, 0) })
		t.Run("a master hangs", func(t *testing.T) { checkMasterLost(t, cluster, 1) })
	}
}

// keyIn returns a key in a slot of a shard.
func keyIn(shard int) string {
	for i := 0; ; i++ {
		if key := fmt.Sprint("k", i); int(redisstore.Slot("{"+key+"}")) >= shard*16384/3+2 && int(redisstore.Slot("{"+key+"}")) < (shard+1)*16384/3-2 {
			return key
		}
	}
}

// checkSlotMoves checks that, while a slot moves between masters, the grants
// reported are those charged: takes one by one, in a pipeline, of several
// limits at once and, with all buckets in one slot, many in a script.
func checkSlotMoves(t *testing.T, cluster *redistest.Cluster) {
	const keys, burst = 40, 1000000
	prefix := fmt.Sprint("move", prefixes.Add(1))
	s, l := openURL(t, cluster.URL()+"?prefix="+prefix, redisstore.Config{}, drained("m", burst), drained("n", burst))
	whole, all := openURL(t, cluster.URL()+"?hash_tag=all&prefix="+prefix+"all", redisstore.Config{}, drained("a", burst))
	var ks []string
	for i := range keys {
		ks = append(ks, fmt.Sprintf("{k}%d", i))
	}
	m, n, a := newTally(ks...), newTally(ks...), newTally(ks...)
	workers := []*load{
		startLoad(2, func(ctx context.Context, i int64) (dipwell.Decision, error) {
			key := ks[i%keys]
			d, err := l.Take(ctx, "m", key, 1)
			m.count(key, d.Allowed, err)
			return d, err
		}),
		startLoad(1, func(ctx context.Context, i int64) (dipwell.Decision, error) {
			one, two := ks[i%keys], ks[(i*7+1)%keys]
			d, err := l.TakeAll(ctx, dipwell.Take{Limit: "m", Key: one, Cost: 1}, dipwell.Take{Limit: "n", Key: two, Cost: 1})
			m.count(one, d.Allowed, err)
			n.count(two, d.Allowed, err)
			return d, err
		}),
		startLoad(1, func(context.Context, int64) (dipwell.Decision, error) {
			m.batch(s, l, "m")
			return dipwell.Decision{Allowed: true}, nil
		}),
		startLoad(1, func(context.Context, int64) (dipwell.Decision, error) {
			a.batch(whole, all, "a")
			return dipwell.Decision{Allowed: true}, nil
		}),
	}
	progress := func() {
		for _, i := range []int{0, 2, 3} {
			workers[i].awaitGrants(t, 1)
		}
	}
	progress()
	moved := 0
	for range rounds(2) {
		for _, key := range []string{prefix + ":m:{{k}0}", "{" + prefix + "all}"} {
			slot := int(redisstore.Slot(key))
			from, _, err := cluster.Owner(slot)
			if err != nil {
				t.Fatal(err)
			}
			for _, to := range cluster.Nodes {
				if to.IsMaster() && to != from {
					if err = cluster.MoveSlot(slot, to, func() {
						if moved++; moved%5 == 0 {
							progress()
						}
					}); err != nil {
						t.Fatal(err)
					}
					break
				}
			}
			progress()
		}
	}
	for _, w := range workers {
		w.end(t)
	}
	t.Logf("%d keys were moved; calls of two keys: %d granted, %d failed", moved, workers[1].granted.Load(), workers[1].failed.Load())
	m.checkExact(t, l, "m", burst)
	n.checkExact(t, l, "n", burst)
	a.checkExact(t, all, "a", burst)
	if single := sum(m.failed) - workers[1].failed.Load(); single > 0 || sum(a.failed) > 0 {
		t.Errorf("calls of one key failed %d times, and in one slot %d times", single, sum(a.failed))
	}
	if moved < keys {
		t.Errorf("only %d keys were moved", moved)
	}
}

// checkKeysOfEveryMaster checks that the keys of a limit are listed from every
// master, in order and without duplicates.
func checkKeysOfEveryMaster(t *testing.T, cluster *redistest.Cluster) {
	prefix := fmt.Sprint("list", prefixes.Add(1))
	s, l := openURL(t, cluster.URL()+"?prefix="+prefix, redisstore.Config{}, drained("k", 5))
	for i := range 300 {
		if _, err := l.Take(t.Context(), "k", fmt.Sprintf("u%03d", i), 1); err != nil {
			t.Fatal(err)
		}
	}
	after, listed := "", 0
	for {
		page, err := s.Abilities().Keys(t.Context(), l.Limit("k"), "u", after, 70)
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range page {
			if k.Key != fmt.Sprintf("u%03d", listed) {
				t.Fatalf("key %d is %s", listed, k.Key)
			}
			listed++
		}
		if len(page) == 0 {
			break
		}
		after = page[len(page)-1].Key
	}
	holding := 0
	for _, n := range cluster.Nodes {
		if names, ok := do(t, n, "keys", prefix+":k:*").([]any); ok && n.IsMaster() && len(names) > 0 {
			holding++
		}
	}
	if listed != 300 || holding != 3 {
		t.Errorf("%d keys of 300 are listed, from %d masters", listed, holding)
	}
}

// checkMasterLost kills a master under load. Until its replica is promoted,
// callers get their limit's failure mode; afterwards at most the unreplicated
// grants are granted again.
func checkMasterLost(t *testing.T, cluster *redistest.Cluster, shard int) {
	key := keyIn(shard)
	slot := int(redisstore.Slot("{" + key + "}"))
	_, l := openURL(t, cluster.URL()+"?timeout=1s&prefix="+fmt.Sprint("lost", prefixes.Add(1)), redisstore.Config{}, failoverLimits()...)
	if err := cluster.WaitHealthy(); err != nil {
		t.Fatal(err)
	}
	var master, replica *redistest.Server
	eventually(t, "replicated", func() bool {
		m, replicas, err := cluster.Owner(slot)
		if err != nil || len(replicas) == 0 {
			return false
		}
		master, replica = m, replicas[0]
		return true
	})
	f := startFailover(t, l, key)
	if shard == 0 {
		died, grants := f.killUnreplicated(t, master, replica)
		f.checkRecovered(t, died, grants)
		f.checkLost(t)
		if err := master.Start(); err != nil {
			t.Fatal(err)
		}
	} else {
		before := f.closed.granted.Load()
		f.closed.awaitGrants(t, 200)
		if err := master.Hang(); err != nil {
			t.Fatal(err)
		}
		// It hangs until it was replaced: the replica lacks at most the last
		// moments.
		f.checkRecovered(t, time.Now(), f.closed.granted.Load()-before+3)
		if err := master.Continue(); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "a replica", func() bool { return !master.IsMaster() })
	if err := cluster.WaitHealthy(); err != nil {
		t.Fatal(err)
	}
}

// sentinelUnderLoad starts Sentinels, a master and a replica, and a load whose
// rows are replicated.
func sentinelUnderLoad(t *testing.T) (*redistest.Sentinel, *dipwell.Limiter, *failover) {
	t.Helper()
	trio := redistest.StartSentinel(t)
	_, l := openURL(t, trio.URL()+"?timeout=1s", redisstore.Config{}, failoverLimits()...)
	f := startFailover(t, l, "k")
	there := trio.Nodes[1].Client()
	defer there.Close()
	retryUntil(t, testTimeout, func() error { return there.Get(t.Context(), "dipwell:closed:{k}").Err() })
	if err := trio.Watch(); err != nil {
		t.Fatal(err)
	}
	return trio, l, f
}

// TestSentinelFailover is checkMasterLost behind Sentinels.
func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	trio, _, f := sentinelUnderLoad(t)
	died, grants := f.killUnreplicated(t, trio.Nodes[0], trio.Nodes[1])
	f.checkRecovered(t, died, grants)
	f.checkLost(t)
}

// TestSentinelHang checks that a hung master is replaced, and the store does
// not wait for it.
func TestSentinelHang(t *testing.T) {
	t.Parallel()
	trio, l, f := sentinelUnderLoad(t)
	before := f.closed.granted.Load()
	f.closed.awaitGrants(t, 200)
	if err := trio.Nodes[0].Hang(); err != nil {
		t.Fatal(err)
	}
	f.checkRecovered(t, time.Now(), f.closed.granted.Load()-before+3)
	if err := trio.Nodes[0].Continue(); err != nil {
		t.Fatal(err)
	}
	// For a while it still considers itself the master.
	retryUntil(t, testTimeout, func() error { // the limit's timeout may be too short on a busy machine
		was := left(t, l, "closed", "k")
		d, err := l.Take(t.Context(), "closed", "k", 1)
		if err == nil && (!d.Allowed || d.Remaining != was-1) {
			t.Errorf("when the old master is back: %d are left of %d: %+v", d.Remaining, was, d)
		}
		return err
	})
}

// TestScriptFlushUnderLoad checks that callers do not notice when a server
// loses its scripts.
func TestScriptFlushUnderLoad(t *testing.T) {
	t.Parallel()
	const burst = 1000000
	server := redistest.Start(t)
	s, l := openURL(t, server.URL(), redisstore.Config{}, drained("f", burst), drained("g", burst))
	ks := []string{"a", "b", "c", "d", "e"}
	f, g := newTally(ks...), newTally(ks...)
	workers := []*load{
		startLoad(3, func(ctx context.Context, i int64) (dipwell.Decision, error) {
			key := ks[i%5]
			d, err := l.Take(ctx, "f", key, 1)
			f.count(key, d.Allowed, err)
			return d, err
		}),
		startLoad(1, func(ctx context.Context, i int64) (dipwell.Decision, error) {
			one, two := ks[i%5], ks[i%3]
			d, err := l.TakeAll(ctx, dipwell.Take{Limit: "f", Key: one, Cost: 1}, dipwell.Take{Limit: "g", Key: two, Cost: 1})
			f.count(one, d.Allowed, err)
			g.count(two, d.Allowed, err)
			return d, err
		}),
		startLoad(1, func(context.Context, int64) (dipwell.Decision, error) {
			f.batch(s, l, "f")
			return dipwell.Decision{Allowed: true}, nil
		}),
	}
	for range rounds(100) {
		for _, w := range workers {
			w.awaitGrants(t, 1)
		}
		if err := server.FlushScripts(); err != nil {
			t.Fatal(err)
		}
	}
	for _, w := range workers {
		w.end(t)
	}
	f.checkExact(t, l, "f", burst)
	g.checkExact(t, l, "g", burst)
	if sum(f.failed)+sum(g.failed) > 0 {
		t.Errorf("%d and %d failed", sum(f.failed), sum(g.failed))
	}
}

// TestOutOfMemory checks that a server without memory charges nothing that it
// cannot store, and still decides all calls that need no memory.
func TestOutOfMemory(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	server := redistest.Start(t)
	open, debt := drained("open", 10), drained("debt", 10)
	open.OnStoreError = store.FailOpen
	s, l := openURL(t, server.URL(), redisstore.Config{}, drained("closed", 10), open, debt)
	for limit, n := range map[string]int64{"closed": 6, "open": 6, "debt": 10} {
		if d, err := l.Take(ctx, limit, "used", n); err != nil || !d.Allowed {
			t.Fatalf("%+v, %v", d, err)
		}
	}
	if d, err := l.Take(ctx, "closed", "empty", 10); err != nil || !d.Allowed {
		t.Fatalf("%+v, %v", d, err)
	}
	reserved, err := l.Reserve(ctx, "debt", "used", 3)
	if err != nil || reserved.Delay == 0 {
		t.Fatalf("%+v, %v", reserved, err)
	}
	junk := strings.Repeat("x", 1<<20)
	for i := range 4 {
		do(t, server, "set", fmt.Sprint("junk", i), junk)
	}
	do(t, server, "config", "set", "maxmemory", "3mb")

	for _, key := range []string{"used", "new"} {
		was := left(t, l, "closed", key)
		for name, call := range map[string]func() (dipwell.Decision, error){
			"take":    func() (dipwell.Decision, error) { return l.Take(ctx, "closed", key, 1) },
			"charge":  func() (dipwell.Decision, error) { return l.Charge(ctx, "closed", key, 1) },
			"up to":   func() (dipwell.Decision, error) { return l.TakeUpTo(ctx, "closed", key, 1) },
			"reserve": func() (dipwell.Decision, error) { return l.Reserve(ctx, "closed", key, 1) },
			"take all": func() (dipwell.Decision, error) {
				return l.TakeAll(ctx, dipwell.Take{Limit: "open", Key: key, Cost: 1}, dipwell.Take{Limit: "closed", Key: key, Cost: 1})
			},
		} {
			if d, err := call(); !errors.Is(err, store.ErrStore) || errors.Is(err, store.ErrOutcomeUnknown) || d.Allowed || !strings.Contains(err.Error(), "maxmemory") {
				t.Errorf("%s of a %s bucket: %+v, %v", name, key, d, err)
			}
		}
		if d, err := l.Take(ctx, "open", key, 1); err != nil || d.Source != store.SourceFallbackOpen {
			t.Errorf("an open limit: %+v, %v", d, err)
		}
		y := newTally(key, "others")
		y.batch(s, l, "closed")
		if sum(y.failed) != 2 {
			t.Errorf("a batch: %d granted, %d failed", sum(y.granted), sum(y.failed))
		}
		if now := left(t, l, "closed", key); now != was {
			t.Errorf("%d were left of %s, and %d are", was, key, now)
		}
	}
	if d, err := l.Take(ctx, "closed", "empty", 1); err != nil || d.Allowed || d.Source != store.SourceStore {
		t.Errorf("a refusal: %+v, %v", d, err)
	}
	if d, err := l.Refund(ctx, "closed", "used", 2); err != nil || d.Remaining != 6 {
		t.Errorf("a refund of a part: %+v, %v", d, err)
	}
	if d, err := l.Refund(ctx, "closed", "used", 9); err != nil || d.Remaining != 10 {
		t.Errorf("a refund of all: %+v, %v", d, err)
	}
	if d, err := l.Reset(ctx, "closed", "empty"); err != nil || d.Remaining != 10 {
		t.Errorf("a reset: %+v, %v", d, err)
	}
	if err := l.Cancel(ctx, reserved.Reservation); err != nil {
		t.Errorf("a cancellation: %v", err)
	}
	if d, err := l.Check(ctx, "debt", "used", 0); err != nil || d.ResetAfter < 9*time.Hour || d.ResetAfter > 10*time.Hour {
		t.Errorf("ten are used: %+v, %v", d, err)
	}
	do(t, server, "del", "junk0", "junk1", "junk2", "junk3")
	if d, err := l.Take(ctx, "closed", "used", 1); err != nil || d.Remaining != 9 {
		t.Errorf("with memory again: %+v, %v", d, err)
	}
}

// TestReadOnly checks that a replica grants nothing, and that the count is
// exact after a master was demoted under load and promoted again.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	const burst = 1000000
	ctx := t.Context()
	master := redistest.Start(t, "--repl-diskless-sync-delay", "0")
	open := drained("open", burst)
	open.OnStoreError = store.FailOpen
	_, l := openURL(t, master.URL(), redisstore.Config{}, drained("closed", burst), open)
	if _, err := l.Take(ctx, "closed", "k", 4); err != nil {
		t.Fatal(err)
	}
	replica := redistest.Start(t, "--replicaof", fmt.Sprintf("127.0.0.1 %d", master.Port))
	db := replica.Client()
	defer db.Close()
	retryUntil(t, testTimeout, func() error { return db.Get(ctx, "dipwell:closed:{k}").Err() })

	s, reader := openURL(t, replica.URL(), redisstore.Config{Lazy: true})
	for range 3 {
		if d, err := reader.Take(ctx, "closed", "k", 1); !errors.Is(err, store.ErrStore) || errors.Is(err, store.ErrOutcomeUnknown) || d.Allowed || !strings.Contains(err.Error(), "replica") {
			t.Errorf("a take on a replica: %+v, %v", d, err)
		}
	}
	if d, err := reader.Take(ctx, "open", "k", 1); err != nil || d.Source != store.SourceFallbackOpen {
		t.Errorf("an open limit on a replica: %+v, %v", d, err)
	}
	if d, err := reader.Check(ctx, "closed", "k", 1); err != nil || d.Remaining != burst-4 {
		t.Errorf("a check on a replica: %+v, %v", d, err)
	}
	if err := store.AbilitiesOf(s).Ready(ctx); err == nil || !strings.Contains(err.Error(), "Sentinels") {
		t.Errorf("ready: %v", err)
	}

	o := startLoad(3, func(ctx context.Context, _ int64) (dipwell.Decision, error) { return l.Take(ctx, "closed", "k", 1) })
	o.awaitGrants(t, 100)
	do(t, master, "replicaof", "127.0.0.1", "1") // no such master, so it keeps its data
	eventually(t, "calls that failed", func() bool { return o.failed.Load() > 3 })
	was := left(t, l, "closed", "k")
	if d, err := l.Take(ctx, "closed", "k", 1); !errors.Is(err, store.ErrStore) || d.Allowed || left(t, l, "closed", "k") != was {
		t.Errorf("demoted: %+v, %v", d, err)
	}
	do(t, master, "replicaof", "no", "one")
	o.awaitGrants(t, 100)
	o.end(t)
	o.checkCharged(t, burst-4-left(t, l, "closed", "k"))
	if o.unknown.Load() > 0 {
		t.Errorf("%d unknown, though the server has answered", o.unknown.Load())
	}
}

// TestHung checks that while a server hangs every call is answered in time by
// the limit's failure mode, goroutines do not pile up, no call is sent twice,
// and the store recovers.
func TestHung(t *testing.T) {
	t.Parallel()
	const burst = 1000000
	ctx := t.Context()
	server := redistest.Start(t)
	limit := func(name string, timeout time.Duration, f store.FailureMode) store.Limit {
		l := drained(name, burst)
		l.Timeout, l.OnStoreError = timeout, f
		return l
	}
	limits := []store.Limit{limit("closed", 50*time.Millisecond, store.FailClosed), limit("open", 50*time.Millisecond, store.FailOpen), limit("untimed", 0, store.FailClosed)}
	_, l := openURL(t, server.URL()+"?pool_size=8&timeout=400ms", redisstore.Config{}, limits...)
	var granted, unknown, calls atomic.Int64
	for _, limit := range limits {
		retryUntil(t, testTimeout, func() error { // 50 ms may not be enough on a busy machine
			d, err := l.Take(ctx, limit.Name, "k", 1)
			if err == nil && d.Source == store.SourceStore {
				granted.Add(1)
				return nil
			}
			unknown.Add(1)
			return errors.Join(errors.New("not granted"), err)
		})
	}
	if err := server.Hang(); err != nil {
		t.Fatal(err)
	}
	const workers, each = 30, 4
	late := watchLateness()
	before := runtime.NumGoroutine()
	var most, slowest atomic.Int64
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			name := limits[w%3].Name
			for range each {
				began := time.Now()
				d, err := l.Take(ctx, name, "k", 1)
				calls.Add(1)
				slowest.Store(max(slowest.Load(), int64(time.Since(began))))
				switch {
				case errors.Is(err, store.ErrOutcomeUnknown), name == "open":
					unknown.Add(1)
				}
				if name == "open" && (err != nil || d.Source != store.SourceFallbackOpen) {
					t.Errorf("open: %+v, %v", d, err)
				}
				if name != "open" && (!errors.Is(err, store.ErrStore) || d.Allowed) {
					t.Errorf("%s: %+v, %v", name, d, err)
				}
				most.Store(max(most.Load(), int64(runtime.NumGoroutine())))
			}
		})
	}
	wg.Wait()
	if got := time.Duration(slowest.Load()); got > 2*400*time.Millisecond+late.slack() { // for a free connection, and for an answer
		t.Errorf("a call took %v", got)
	}
	if err := server.Continue(); err != nil {
		t.Fatal(err)
	}
	continued := time.Now()
	retryUntil(t, testTimeout, func() error {
		d, err := l.Take(ctx, "closed", "k", 1)
		if err == nil && d.Allowed {
			granted.Add(1)
			return nil
		}
		if errors.Is(err, store.ErrOutcomeUnknown) {
			unknown.Add(1)
		}
		calls.Add(1)
		return errors.Join(errors.New("not healed"), err)
	})
	t.Logf("healed in %v; the slowest call took %v; %d of %d calls are of unknown outcome", time.Since(continued), time.Duration(slowest.Load()), unknown.Load(), calls.Load())
	var gone int64
	for _, limit := range limits {
		gone += burst - left(t, l, limit.Name, "k")
	}
	if gone < granted.Load() || gone > granted.Load()+unknown.Load() {
		t.Errorf("%d granted and %d unknown, and %d are gone", granted.Load(), unknown.Load(), gone)
	}
	t.Logf("%d goroutines before, %d at most, with other tests at the same time", before, most.Load())
}

// TestRestart checks what a server that is killed under load has kept. With
// appendfsync everysec and a slow disk it acknowledges writes for up to two
// seconds before they are on disk, so grants are lost even if only the process
// is killed.
func TestRestart(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		settings []string
		loses    time.Duration
		inOrder  bool
	}{
		"without persistence":     {nil, forgets, false},
		"appendfsync everysec":    {[]string{"--appendonly", "yes", "--appendfsync", "everysec"}, 2 * time.Second, false},
		"appendfsync always":      {[]string{"--appendonly", "yes", "--appendfsync", "always"}, 0, false},
		"restarted in good order": {[]string{"--appendonly", "yes", "--appendfsync", "everysec"}, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testRestart(t, redistest.Start(t, c.settings...), c.loses, c.inOrder)
		})
	}
}

const forgets = time.Duration(1<<63 - 1) // loses everything

func testRestart(t *testing.T, server *redistest.Server, loses time.Duration, inOrder bool) {
	const burst, callers = 1000000, 2
	_, l := openURL(t, server.URL(), redisstore.Config{}, drained("r", burst))
	o := startLoad(callers, func(ctx context.Context, _ int64) (dipwell.Decision, error) {
		d, err := l.Take(ctx, "r", "k", 1)
		_ = background.Sleep(ctx, time.Millisecond)
		return d, err
	})
	o.awaitGrants(t, 100)
	kept := o.granted.Load() // at the start of the time that may be lost
	if loses == 2*time.Second {
		_ = background.Sleep(t.Context(), loses+time.Second) // and a second for a slow disk
	}
	o.awaitGrants(t, 100)
	if loses == 0 {
		kept = o.granted.Load()
	}
	if inOrder {
		server.Stop()
	} else {
		server.Kill()
	}
	died := time.Now()
	eventually(t, "calls that failed", func() bool { return o.failed.Load() > 0 })
	atDeath := o.granted.Load()
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	started := time.Now()
	o.awaitGrants(t, 100)
	o.end(t)
	granted, unknown, gone := o.granted.Load(), o.unknown.Load(), burst-left(t, l, "r", "k")
	after := granted - atDeath
	t.Logf("%d granted before the end and %d after, %d failed, %d unknown, %d gone; errors ended %v after the server was back, %v after its end",
		atDeath, after, o.failed.Load(), unknown, gone, max(0, o.lastFailure(started)).Round(time.Millisecond), o.lastFailure(died).Round(time.Millisecond))
	// Each caller may have counted a grant of the time before only after atDeath was read.
	low, high := kept+after-callers, granted+unknown
	switch loses {
	case forgets:
		low, high = after-callers, after+unknown
	case 0:
		low = granted
	}
	if gone < low || gone > high {
		t.Errorf("%d are gone, not from %d to %d", gone, low, high)
	}
	if o.lastFailure(started) > failoverBound {
		t.Errorf("errors until %v after the start", o.lastFailure(started))
	}
}

// TestCut checks that a call whose connection is cut returns ErrOutcomeUnknown
// and is not sent again, on one server and in a cluster.
func TestCut(t *testing.T) {
	t.Parallel()
	t.Run("one server", func(t *testing.T) {
		t.Parallel()
		server := redistest.Start(t)
		p := newProxy(t).to(server)
		testCut(t, p, fmt.Sprintf("redis://%s?pool_size=1", p.Addr()), server.URL())
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		p := newProxy(t)
		server := redistest.Start(t, "--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1", "--cluster-announce-port", fmt.Sprint(p.port()))
		p.to(server)
		do(t, server, "cluster", "addslotsrange", 0, 16383)
		eventually(t, "a cluster", func() bool { return strings.Contains(fmt.Sprint(do(t, server, "cluster", "info")), "cluster_state:ok") })
		testCut(t, p, fmt.Sprintf("redis+cluster://%s?pool_size=1", p.Addr()), server.URL())
	})
}

func testCut(t *testing.T, p *proxy, url, direct string) {
	const burst = 1000000
	ctx := t.Context()
	limits := []store.Limit{drained("cut", burst), drained("other", burst)}
	s, l := openURL(t, url, redisstore.Config{Poll: -1}, limits...)
	_, near := openURL(t, direct, redisstore.Config{Poll: -1})
	batch := func() (d dipwell.Decision, err error) {
		b := store.Batch{Groups: []store.Group{take(l, "cut", "k"), take(l, "other", "k"), take(l, "other", "j")}}
		b.Groups[1].Ops[0].Verb = store.VerbCharge
		whole := s.Apply(ctx, &b)
		return dipwell.Decision{Allowed: b.Groups[0].Allowed}, errors.Join(whole, b.Groups[0].Err)
	}
	calls := map[string]func() (dipwell.Decision, error){
		"take":   func() (dipwell.Decision, error) { return l.Take(ctx, "cut", "k", 1) },
		"charge": func() (dipwell.Decision, error) { return l.Charge(ctx, "cut", "k", 1) },
		"take all": func() (dipwell.Decision, error) {
			return l.TakeAll(ctx, dipwell.Take{Limit: "cut", Key: "k", Cost: 1}, dipwell.Take{Limit: "other", Key: "k", Cost: 1})
		},
		"batch": batch,
	}
	for name, call := range calls {
		for cut, cost := range map[int32]int64{cutBefore: 0, cutAfter: 1, cutMiddle: 1} {
			retryUntil(t, testTimeout, func() error { _, err := call(); return err }) // caches the script and opens the connection
			was := left(t, near, "cut", "k")
			other := left(t, near, "other", "k")
			p.cut.Store(cut)
			d, err := call()
			if !errors.Is(err, store.ErrOutcomeUnknown) || d.Allowed {
				t.Errorf("%s cut (%d): %+v, %v", name, cut, d, err)
			}
			eventually(t, "done by the server", func() bool { return left(t, near, "cut", "k") == was-cost })
			if d, err := call(); err != nil || !d.Allowed || left(t, near, "cut", "k") != was-cost-1 {
				t.Errorf("%s after a cut (%d): %+v, %v, %d left of %d", name, cut, d, err, left(t, near, "cut", "k"), was)
			}
			if now := left(t, near, "other", "k"); name == "batch" && now != other-cost-1 {
				t.Errorf("%s cut (%d): %d left of the other's %d", name, cut, now, other)
			}
		}
	}
	if d, err := l.Check(ctx, "cut", "k", 1); err != nil || !d.Allowed {
		t.Errorf("%+v, %v", d, err)
	}
}
