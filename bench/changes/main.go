// Command changes changes a limit once a minute of a clock that it moves itself, while a
// thousand of its keys are in use, and measures what that takes in the process and in the
// store, and how long the first and the last changes take.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/bench/internal/report"
	"github.com/dipwell/dipwell/filestore"
	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/internal/redistest"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
)

var ctx = context.Background()

const (
	year    = 365 * 24 * 60 // changes
	numKeys = 1000

	sweepEvery = 30  // changes
	ends       = 100 // number of changes timed at the beginning, and at the end
)

// A run is one store and the simulated clock of its calls.
type run struct {
	fast    bool
	now     int64
	limiter *dipwell.Limiter
	define  func(l dipwell.Limit) error // nil: limiter's
	sweep   func() error                // called every half hour; nil: sweeps the store
	stored  func() (versions, bytes int64)
	closers []func()
}

func main() {
	out := flag.String("o", "", "write the table to this file as well")
	only := flag.String("store", "memory,file,redis,postgres,sql,portable", "stores to measure")
	fast := flag.Bool("fast", false, "change the limit as fast as it goes, by the stores' own clocks, 1,020 times")
	n := flag.Int("n", 0, "changes (default a year of minutes in memory and in a file, 50,000 elsewhere)")
	flag.Parse()
	var w io.Writer = os.Stdout
	if *out != "" {
		f := must(os.Create(*out))
		defer f.Close()
		w = io.MultiWriter(os.Stdout, f)
	}
	report.Header(w, "A limit that is changed every minute", "make bench-changes")
	fmt.Fprintf(w, "%d keys are in use at all times, and called one after the other, one each minute. Of 500 changes one resets the limit and the others are, in turns, of the policy keep and proportional. "+
		"The clock is moved from minute to minute, and stores are swept every 30 minutes. Times are of Define alone: the median of %d changes, and the mean with those that convert old rows. "+
		"The process is the growth of the Go heap.\n\n", numKeys, ends)
	var rows [][]string
	for _, c := range []struct {
		name    string
		changes int
		open    func(*run) store.Store
	}{
		{"memory", year, openMemory}, {"file", year, openFile}, {"redis", 50_000, openRedis}, {"postgres", 50_000, openPostgres}, {"sql", 20_000, openSQL}, {"portable", 20_000, openPortable},
	} {
		if strings.Contains(","+*only+",", ","+c.name+",") {
			if *fast {
				c.changes = 1020
			}
			if *n > 0 {
				c.changes = *n
			}
			rows = append(rows, append([]string{c.name}, measure(&run{fast: *fast}, c.open, c.changes)...))
		}
	}
	report.Table(w, []string{"store", "changes", "KB in the process", "versions stored", "KB stored", "first 100: median", "mean", "middle 100: median", "mean", "last 100: median", "mean", "last ÷ first, medians", "target", "reached"}, rows)
}

func measure(r *run, open func(*run) store.Store, changes int) []string {
	r.now = time.Now().UnixMicro()
	s := open(r)
	defer func() {
		for i := len(r.closers) - 1; i >= 0; i-- {
			r.closers[i]()
		}
	}()
	r.limiter = must(dipwell.New(s))
	if r.define == nil {
		r.define = func(l dipwell.Limit) error { _, err := r.limiter.Define(ctx, l, store.OwnerCode); return err }
	}
	if r.sweep == nil {
		r.sweep = func() error {
			if sweep := store.AbilitiesOf(s).Sweep; sweep != nil {
				_, err := sweep(ctx, 100_000)
				return err
			}
			return nil
		}
	}
	limit := dipwell.Limit{Name: "api", Rate: 60, Period: time.Hour, Burst: 1 << 20, MaxDebt: dipwell.NoDebt}
	times := make([]float64, 0, changes)
	change := func(i int) {
		limit.Rate, limit.OnChange = int64(60+i%7), []store.ChangePolicy{store.Keep, store.Proportional}[i%2]
		if i%500 == 499 {
			limit.OnChange = store.StartOver
		}
		start := time.Now()
		check(r.define(limit))
		times = append(times, float64(time.Since(start).Microseconds()))
	}
	use := func() {
		for k := range numKeys {
			check2(r.limiter.Take(ctx, "api", fmt.Sprint("key ", k), limit.Burst/2))
		}
	}
	change(0)
	use()
	times = times[:0]
	before := heap()
	for i := range changes {
		r.now += 60e6
		change(i + 1)
		if limit.OnChange == store.StartOver {
			use()
		}
		check2(r.limiter.Take(ctx, "api", fmt.Sprint("key ", i%numKeys), 1000)) // the cost is what has come back since
		if !r.fast && i%sweepEvery == 0 {
			check(r.sweep())
		}
		if i%1000 == 999 {
			fmt.Fprintf(os.Stderr, "\r%d ", i+1)
		}
	}
	fmt.Fprint(os.Stderr, "\r")
	grown := int64(heap() - before)
	versions, bytes := r.stored()
	first, middle, last := times[:ends], times[changes/2:changes/2+ends], times[changes-ends:]
	ratio := report.Median(last) / report.Median(first)
	us := func(v float64) string { return fmt.Sprintf("%.0f µs", v) }
	return []string{fmt.Sprint(changes), kb(grown), fmt.Sprint(versions), kb(bytes), us(report.Median(first)), us(mean(first)), us(report.Median(middle)), us(mean(middle)),
		us(report.Median(last)), us(mean(last)), report.Figure(ratio), "≤ 1.5, ≤ 1 MB", report.Verdict(ratio <= 1.5 && grown <= 1<<20)}
}

// clock returns the clock of stores, or nil for their own.
func (r *run) clock() func() int64 {
	if r.fast {
		return nil
	}
	return func() int64 { return r.now }
}

func openMemory(r *run) store.Store {
	s := must(memstore.New(memstore.Config{MaxKeys: 4096, Clock: r.clock()}))
	r.sweep = func() error { return nil } // a sweep is not needed
	r.closers = append(r.closers, func() { _ = s.Close() })
	r.stored = func() (int64, int64) { return int64(len(r.limiter.Limit("api").Past)) + 1, 0 }
	return s
}

func openFile(r *run) store.Store {
	dir := must(os.MkdirTemp("", "dipwell-bench-changes"))
	path := filepath.Join(dir, "limits.db")
	s := must(filestore.Open(path, filestore.Config{Clock: r.clock()}))
	r.closers = append(r.closers, func() { _ = s.Close(); _ = os.RemoveAll(dir) })
	r.stored = func() (int64, int64) { return int64(len(r.limiter.Limit("api").Past)) + 1, must(os.Stat(path)).Size() }
	return s
}

func openRedis(r *run) store.Store {
	server := must(redistest.New())
	db := redis.NewClient(&redis.Options{Addr: server.Addr()})
	s := must(redisstore.New(ctx, db, redisstore.Config{Clock: r.clock()}))
	r.closers = append(r.closers, server.Close, func() { _ = s.Close(); _ = db.Close() })
	r.stored = func() (int64, int64) {
		n := must(db.MemoryUsage(ctx, "dipwell.limits").Result())
		return int64(len(r.limiter.Limit("api").Past)) + 1, n
	}
	return s
}

// openPool starts a server whose tables have the engine's schema.
func openPool(r *run, engine string) *pgxpool.Pool {
	server := must(pgtest.New())
	pool := must(pgxpool.New(ctx, fmt.Sprintf("postgres:///postgres?user=postgres&port=%d&host=%s", server.Port, url.QueryEscape(server.Dir))))
	check2(pgstore.Migrate(ctx, pool, pgstore.MigrateOptions{Engine: engine}))
	r.closers = append(r.closers, func() { _ = server.Signal(syscall.SIGQUIT); server.Wait(); server.Close() }, pool.Close)
	r.stored = func() (versions, bytes int64) {
		check(pool.QueryRow(ctx, "select count(*), pg_total_relation_size('dipwell.versions') from dipwell.versions").Scan(&versions, &bytes))
		return versions, bytes
	}
	return pool
}

func openStore(r *run, pool *pgxpool.Pool, c pgstore.Config) store.Store {
	s := must(pgstore.New(ctx, pool, c))
	r.closers = append(r.closers, func() { _ = s.Close() })
	return s
}

func openPostgres(r *run) store.Store {
	return openStore(r, openPool(r, ""), pgstore.Config{Clock: r.clock()})
}

func openPortable(r *run) store.Store {
	return openStore(r, openPool(r, "Portable"), pgstore.Config{Clock: r.clock()})
}

// openSQL defines the limit by dipwell.define, which uses the server's clock: to move it
// half an hour, the stored versions are made that much older.
func openSQL(r *run) store.Store {
	pool := openPool(r, "")
	r.define = func(l dipwell.Limit) error {
		_, err := pool.Exec(ctx, "select dipwell.define($1, $2, interval '1 hour', burst => $3, max_debt => 0, on_change => $4)", l.Name, l.Rate, l.Burst, l.OnChange.String())
		return err
	}
	r.sweep = func() error {
		_, err := pool.Exec(ctx, "update dipwell.versions set since = since - 1800000000; select dipwell.sweep(100000)")
		return err
	}
	check(r.define(dipwell.Limit{Name: "api", Rate: 1, Burst: 1 << 20})) // so that the store reads the limit
	return openStore(r, pool, pgstore.Config{})
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // frees what finalizers and pools still held
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func mean(v []float64) (sum float64) {
	for _, x := range v {
		sum += x / float64(len(v))
	}
	return sum
}

func kb(bytes int64) string { return fmt.Sprintf("%d", (bytes+1023)/1024) }

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func check2[T any](_ T, err error) { check(err) }

func must[T any](v T, err error) T {
	check(err)
	return v
}
