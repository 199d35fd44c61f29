package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/adaptive"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

const upstream = "up=250/1s,burst=100,max_debt=100,adaptive=floor=50;ceiling=500;latency=200ms;errors=2%"

func parsed(t testing.TB, text string) store.Limit {
	t.Helper()
	l, err := dipwell.ParseLimit(text)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestAdaptiveTwin checks that SQL moves rates as Go does, and finds ticks as Go does.
func TestAdaptiveTwin(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	now := new(atomic.Int64)
	st := newStore(t, pool, pgstore.Config{Poll: -1, Clock: now.Load})
	l, err := dipwell.New(st)
	if err != nil {
		t.Fatal(err)
	}
	names := 0
	rapid.Check(t, func(t *rapid.T) {
		now.Store(1.7e15)
		names++
		floor := rapid.Int64Range(1, 1000).Draw(t, "floor")
		limit := store.Limit{Name: fmt.Sprint("up", names), Period: time.Second, Burst: rapid.Int64Range(1, 1000).Draw(t, "burst")}
		limit.Adaptive.Floor, limit.Adaptive.Ceiling = floor, floor*rapid.Int64Range(1, 1000).Draw(t, "ratio")
		limit.Rate = rapid.Int64Range(floor, limit.Adaptive.Ceiling).Draw(t, "rate")
		limit.Adaptive.Latency, limit.Adaptive.Errors = 200*time.Millisecond, rapid.SampledFrom([]float64{0, 0.02, 0.5}).Draw(t, "errors")
		d, err := l.Define(t.Context(), limit, store.OwnerCode)
		if err != nil {
			t.Fatal(err)
		}
		pace := adaptive.NewPace(d.Rule.Pace.Config())
		for range 12 {
			now.Add(rapid.SampledFrom([]int64{-500_000, 0, 250_000, 1e6, 1e6, 1e6, 1.5e6, 3e6, 11e6, 15e6}).Draw(t, "later"))
			count := rapid.Int64Range(0, 200).Draw(t, "count")
			o := store.Observation{Count: count, Slow: rapid.Int64Range(0, count).Draw(t, "slow"), Failed: rapid.Int64Range(0, count/20).Draw(t, "failed"),
				Taken: rapid.Int64Range(0, 2*limit.Adaptive.Ceiling).Draw(t, "taken")}
			if err := st.Abilities().Observe(t.Context(), d, o); err != nil {
				t.Fatal(err)
			}
			pace.Add(now.Load(), adaptive.Sample(o))
			got, want := d.Rule.Pace.State(), pace.State()
			if !slices.Equal(got.History.Changes(), want.History.Changes()) || got.Reason != want.Reason || got.Changed != want.Changed || got.Begun != want.Begun || got.Drifts != want.Drifts {
				t.Fatalf("%+v at %d: SQL has %+v, Go %+v", o, now.Load(), got, want)
			}
		}
		x := now.Load() + rapid.Int64Range(-30e6, 30e6).Draw(t, "x")
		k := pace.Tick(x)
		var tick, boundary int64
		err = pool.QueryRow(t.Context(), "select dipwell_internal.level_tick(levels, $2), dipwell_internal.level_boundary(levels, $3) from dipwell.versions join dipwell.limits l on l.id = limit_id where name = $1",
			limit.Name, x, k).Scan(&tick, &boundary)
		if err != nil || tick != k || boundary != pace.Boundary(k) {
			t.Fatalf("%v: tick %d at %d, want %d; boundary %d, want %d", err, tick, x, k, boundary, pace.Boundary(k))
		}
	})
}

// TestAdaptiveUnlikely compares the test of chance with Go's, whose callers are a window
// with n calls of which k were slow.
func TestAdaptiveUnlikely(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	for n, k := range map[int64]int64{20: 4, 31: 5, 32: 5, 33: 5, 50: 8, 1000: 67, 1 << 20: 53000, 1 << 40: 1 << 36} {
		for k, last := k-2, k+2; k <= last; k++ {
			c := adaptive.Config{Floor: 1, Base: 512, Window: 1, Keep: 1, Slow: 50_000, Failed: -1, Unit: 1, Tick: 1}
			s := c.Begin()
			s.Begun = 1
			want := c.Add(s, 2, adaptive.Sample{Count: n, Slow: k}).Cut
			var got bool
			if err := pool.QueryRow(t.Context(), "select dipwell_internal.unlikely_many($1, $2, 50000)", k, n).Scan(&got); err != nil || got != want {
				t.Errorf("%d of %d: %v, want %v (%v)", k, n, got, want, err)
			}
		}
	}
}

// processes are stores on one database with the same clock.
func processes(t *testing.T, n int) (all []*pgstore.Store, pool *pgxpool.Pool, now *atomic.Int64) {
	t.Helper()
	pool = newPool(t)
	all, now = processesOn(t, pool, n)
	return all, pool, now
}

func processesOn(t *testing.T, pool *pgxpool.Pool, n int) (all []*pgstore.Store, now *atomic.Int64) {
	t.Helper()
	now = new(atomic.Int64)
	now.Store(1.7e15)
	l, err := dipwell.New(newStore(t, pool, pgstore.Config{Poll: -1, Clock: now.Load}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err = l.Define(t.Context(), parsed(t, upstream), store.OwnerCode); err != nil {
		t.Fatal(err)
	}
	for range n {
		all = append(all, newStore(t, pool, pgstore.Config{Poll: -1, Clock: now.Load}))
	}
	return all, now
}

func observed(t *testing.T, s *pgstore.Store, o store.Observation) int64 {
	t.Helper()
	ab := s.Abilities()
	d := ab.Limits.Registry().Lookup("up")
	if err := ab.Observe(t.Context(), d, o); err != nil {
		t.Fatal(err)
	}
	rate, _, _ := d.CurrentRate(1.7e15 + 2e6) // before it drifts
	return rate
}

// TestAdaptiveProcesses checks that the samples of several processes are added, and that
// a process that starts later goes on with the rate.
func TestAdaptiveProcesses(t *testing.T) {
	t.Parallel()
	for kind, pool := range map[string]*pgxpool.Pool{"functions": newPool(t), "portable": portablePool(t)} {
		t.Run(kind, func(t *testing.T) { adaptiveProcesses(t, pool) })
	}
}

func adaptiveProcesses(t *testing.T, pool *pgxpool.Pool) {
	all, now := processesOn(t, pool, 2)
	observed(t, all[0], store.Observation{})
	now.Add(500_000)
	observed(t, all[0], store.Observation{Count: 15, Slow: 10, Taken: 15}) // fewer than 20 each
	now.Add(500_000)
	observed(t, all[1], store.Observation{Count: 15, Slow: 10, Taken: 15})
	observed(t, all[0], store.Observation{})
	for i, s := range append(all, newStore(t, pool, pgstore.Config{Poll: -1, Clock: now.Load})) {
		rate, reason, changed := s.Abilities().Limits.Registry().Lookup("up").CurrentRate(now.Load())
		if rate != 199 || reason != "latency" || changed != now.Load() {
			t.Errorf("process %d has %d, %s, %d", i, rate, reason, changed)
		}
	}
}

// TestAdaptivePoll checks that a process that observes nothing learns of the rate.
func TestAdaptivePoll(t *testing.T) {
	t.Parallel()
	all, pool, now := processes(t, 1)
	idle := newStore(t, pool, pgstore.Config{Poll: 10 * time.Millisecond, Clock: now.Load})
	observed(t, all[0], store.Observation{})
	now.Add(1e6)
	observed(t, all[0], store.Observation{Count: 100, Slow: 100})
	d := idle.Abilities().Limits.Registry().Lookup("up")
	eventually(t, "199", func() bool { rate, _, _ := d.CurrentRate(now.Load()); return rate == 199 })
}

// TestAdaptiveInTransaction checks that a transaction that observes makes nobody wait,
// also if it has ended a window, and that its rollback takes the step back.
func TestAdaptiveInTransaction(t *testing.T) {
	t.Parallel()
	all, pool, now := processes(t, 1)
	observed(t, all[0], store.Observation{})
	now.Add(1e6)
	inTx(t, pool, func(tx pgx.Tx) {
		if rate := observed(t, all[0].With(tx), store.Observation{Count: 100, Slow: 100}); rate != 199 {
			t.Errorf("in the transaction %d", rate)
		}
		observed(t, all[0], store.Observation{Count: 100, Slow: 100})
		l, err := dipwell.New(all[0])
		if err != nil {
			t.Fatal(err)
		}
		if d, err := l.Take(t.Context(), "up", "k", 1); err != nil || !d.Allowed {
			t.Errorf("%+v, %v", d, err)
		}
	})
	now.Add(1)
	if rate := observed(t, all[0], store.Observation{Count: 100, Slow: 100}); rate != 199 { // inTx has rolled back
		t.Errorf("after it %d", rate)
	}
	var reason string
	if err := pool.QueryRow(t.Context(), "select reason || changed from dipwell.paces").Scan(&reason); err != nil || reason != fmt.Sprint("latency", now.Load()) {
		t.Errorf("%s, %v", reason, err)
	}
}

// TestAdaptiveSQL defines an adaptive limit and observes calls in SQL alone.
func TestAdaptiveSQL(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	must(t, pool, `select dipwell.define('up', 250, interval '1 second', adaptive => '{"floor": 50, "window": "100ms", "ceiling": 500, "latency": "200ms", "quantile": 0.950, "errors": "2%"}')`)
	var text string
	var rate int64
	if err := pool.QueryRow(t.Context(), "select adaptive from dipwell.limits").Scan(&text); err != nil || text != "floor=50;ceiling=500;latency=200ms;quantile=0.95;errors=0.02;window=100ms" {
		t.Errorf("%s, %v", text, err)
	}
	eventually(t, "the rate is lower", func() bool {
		err := pool.QueryRow(t.Context(), "select dipwell.observe('up', 300000, true, 100)").Scan(&rate)
		return err != nil || rate < 250
	})
	must(t, pool, "select * from dipwell.take('up', 'k'); select * from dipwell.hold('up', 'k', 2, ttl => interval '1 minute', id => 'h'); select * from dipwell.settle('h', 1)")
	st := newStore(t, pool, pgstore.Config{Poll: -1})
	if s := st.Abilities().Limits.Registry().Lookup("up").Rule.Pace.State(); s.Reason != adaptive.Slow || s.History.LevelAt(s.Changed) >= 512 {
		t.Errorf("%+v; SQL said %d", s, rate)
	}
	for sql, want := range map[string]string{
		"select dipwell.observe('up', -1)":                                                                "latency_us: -1 is negative or null",
		"select dipwell.observe('up', 1, null)":                                                           "ok: is null",
		"select dipwell.observe('up', 1, true, 0)":                                                        "count: 0 is not between 1 and 2^40",
		"select dipwell.observe('down', 1)":                                                               `limit_name: unknown limit "down"`,
		"select dipwell.define('x', 5, interval '1s', adaptive => '5')":                                   "limit x: adaptive: is not an object",
		`select dipwell.define('x', 5, interval '1s', adaptive => '{"a": 5}')`:                            "limit x: adaptive: a: unknown setting",
		`select dipwell.define('x', 5, interval '1s', adaptive => '{"floor": 0}')`:                        `limit x: adaptive: floor: "0" is not a whole number`,
		`select dipwell.define('x', 5, interval '1s', adaptive => '{"errors": "101%"}')`:                  `limit x: adaptive: errors: "101%" is not a share`,
		`select dipwell.define('x', 5, interval '1s', adaptive => '{"latency": "soon"}')`:                 `limit x: adaptive: latency: "soon" is not a length of time`,
		`select dipwell.define('x', 5, interval '1s', adaptive => '{"floor": 6}')`:                        "limit x: adaptive: floor: 6 is not between 1 and the rate, 5",
		`select dipwell.define('x', 5, interval '1s', lease => interval '1s', adaptive => '{"floor":5}')`: "limit x: adaptive: is not for a limit with a lease",
	} {
		_, err := pool.Exec(t.Context(), sql)
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || !strings.HasPrefix(pg.Message, want) {
			t.Errorf("%s: %v; want %s", sql, err, want)
		}
	}
	must(t, pool, "select dipwell.define('up', 250, interval '1 second')")
	if _, err := pool.Exec(context.Background(), "select dipwell.observe('up', 1)"); err == nil || !strings.Contains(err.Error(), "up is not adaptive") {
		t.Error(err)
	}
	must(t, pool, "select dipwell.drop('up')")
	if err := pool.QueryRow(t.Context(), "select count(*) from dipwell.paces").Scan(&rate); err != nil || rate != 0 {
		t.Errorf("%d limits are left, %v", rate, err)
	}
}

// TestPortableRatesGo checks that portable tables keep the rates of versions that rows may
// name, and no others: a sweep deletes those of retired versions, and a drop all.
func TestPortableRatesGo(t *testing.T) {
	t.Parallel()
	pool := portablePool(t)
	all, now := processesOn(t, pool, 1)
	l, err := dipwell.New(all[0])
	if err != nil {
		t.Fatal(err)
	}
	limit := parsed(t, upstream)
	for i := range int64(3) {
		limit.Rate = 250 + i
		if _, err := l.Define(t.Context(), limit, store.OwnerCode); err != nil {
			t.Fatal(err)
		}
		observed(t, all[0], store.Observation{Count: 1})
		now.Add(1e6)
	}
	if n := number(t, pool, "select count(*) from dipwell.rates"); n != 3 {
		t.Errorf("%d rates of 3 versions", n)
	}
	now.Add((24 * time.Hour).Microseconds())
	for range 3 {
		if _, err := all[0].Abilities().Sweep(t.Context(), 1000); err != nil {
			t.Fatal(err)
		}
	}
	if n := number(t, pool, "select count(*) from dipwell.rates"); n > 2 {
		t.Errorf("%d rates after a sweep", n)
	}
	if err := l.Drop(t.Context(), "up", store.OwnerCode); err != nil {
		t.Fatal(err)
	}
	if n := number(t, pool, "select count(*) from dipwell.rates"); n != 0 {
		t.Errorf("%d rates after a drop", n)
	}
}
