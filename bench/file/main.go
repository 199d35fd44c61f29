// Command file measures filestore: decisions in memory against memstore, and
// durable decisions against one transaction per decision. The contenders take
// turns in one process, on files in one directory.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/bench/internal/cpu"
	"github.com/dipwell/dipwell/bench/internal/report"
	"github.com/dipwell/dipwell/filestore"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
)

var ctx = context.Background()

func main() {
	out := flag.String("o", "", "write the tables to this file as well")
	dir := flag.String("dir", "", "where the files go (default the system's directory for such)")
	rounds := flag.Int("rounds", 9, "rounds per scenario")
	only := flag.String("only", "", "only the scenarios named here: memory, dirty, disk, restart")
	length := flag.Duration("length", 400*time.Millisecond, "of a round")
	flag.Parse()
	var w io.Writer = os.Stdout
	if *out != "" {
		f := must(os.Create(*out))
		defer f.Close()
		w = io.MultiWriter(os.Stdout, f)
	}
	tmp := must(os.MkdirTemp(*dir, "dipwell-bench-file"))
	defer os.RemoveAll(tmp)
	report.Header(w, "In a file: Limiter.Take through filestore", "make bench-file")
	b := &bench{w, tmp, *rounds, *length}
	for _, scenario := range []struct {
		name string
		run  func()
	}{{"memory", b.fromMemory}, {"dirty", b.manyDirty}, {"disk", b.fromDisk}, {"restart", b.restart}} {
		if *only == "" || strings.Contains(*only, scenario.name) {
			scenario.run()
		}
	}
}

type bench struct {
	w      io.Writer
	dir    string
	rounds int
	length time.Duration
}

// limit allows every call of a run.
var limit = dipwell.Limit{Name: "api", Rate: 1, Period: time.Minute, Burst: 100_000_000, MaxDebt: dipwell.NoDebt, MaxCharge: 1}

// drained has no tokens left after a key's first call.
var drained = dipwell.Limit{Name: "drained", Rate: 1, Period: 24 * time.Hour, Burst: 1}

// mostlyRefused makes nine of ten takes from the limit drained.
func mostlyRefused(l *dipwell.Limiter) func(string) error {
	var n atomic.Int64
	return func(key string) error {
		name := drained.Name
		if n.Add(1)%10 == 0 {
			name = limit.Name
		}
		_, err := l.Take(ctx, name, key, 1)
		return err
	}
}

func (b *bench) file(name string, every time.Duration) (*filestore.Store, *dipwell.Limiter) {
	s := must(filestore.Open(filepath.Join(b.dir, name), filestore.Config{Every: every}))
	return s, must(dipwell.New(s, limit))
}

func keys(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = "user:" + strconv.Itoa(i*7919)
	}
	return out
}

// uniform returns the keys in turn, starting at another key for each goroutine.
func uniform(keys []string) func(g int) func() string {
	return func(g int) func() string {
		i := g * 7919
		return func() string {
			i += 31
			return keys[i%len(keys)]
		}
	}
}

// fresh returns a new key.
func fresh(int) func() string {
	return func() string { return "new:" + strconv.FormatInt(seen.Add(1), 10) }
}

var seen atomic.Int64

// load takes from keys on a number of goroutines for a while, and returns
// decisions per second and processor time per decision in µs.
func load(take func(key string) error, goroutines int, keys func(g int) func() string, length time.Duration) (perSecond, us float64) {
	var stop atomic.Bool
	var calls atomic.Int64
	var wg sync.WaitGroup
	used, start := cpu.Own(), time.Now()
	for g := range goroutines {
		next := keys(g)
		wg.Go(func() {
			n := 0
			for ; !stop.Load(); n++ {
				if err := take(next()); err != nil {
					panic(err)
				}
			}
			calls.Add(int64(n))
		})
	}
	time.Sleep(length)
	stop.Store(true)
	wg.Wait()
	n := float64(calls.Load())
	return n / time.Since(start).Seconds(), float64((cpu.Own() - used).Microseconds()) / n
}

func taker(l *dipwell.Limiter) func(string) error {
	return func(key string) error {
		_, err := l.Take(ctx, "api", key, 1)
		return err
	}
}

func (b *bench) fromMemory() {
	mem := must(memstore.New(memstore.Config{}))
	defer mem.Close()
	memory := taker(must(dipwell.New(mem, limit)))
	s, l := b.file("every.db", 0)
	defer s.Close()
	file, busy := taker(l), uniform(keys(2000))
	var rm, rf, ratio []float64
	for range b.rounds + 1 {
		m, _ := load(memory, 64, busy, b.length)
		f, _ := load(file, 64, busy, b.length)
		rm, rf, ratio = append(rm, m), append(rf, f), append(ratio, f/m)
	}
	st := metrics(s)
	fmt.Fprint(b.w, "## Every 100ms: 64 goroutines, 2,000 busy keys\n\n")
	report.Table(b.w, []string{"", "M decisions/s", "of memstore (median of rounds)", "groups", "rows", "widest window, ms"}, [][]string{
		{"memstore", fmt.Sprintf("%.2f", report.Median(rm[1:])/1e6), "1.00", "", "", ""},
		{"filestore", fmt.Sprintf("%.2f", report.Median(rf[1:])/1e6), fmt.Sprintf("%.2f", report.Median(ratio[1:])), fmt.Sprintf("%.0f", st["groups_total"]), fmt.Sprintf("%.0f", st["rows_total"]), ms(seconds(st["widest_window_seconds"]))},
	})
}

// manyDirty calls 100,000 keys in turn from one goroutine, as fast as possible,
// so that all of them are always dirty, and times each call.
func (b *bench) manyDirty() {
	mem := must(memstore.New(memstore.Config{}))
	defer mem.Close()
	s, l := b.file("dirty.db", 0)
	defer s.Close()
	many := keys(100_000)
	var rows [][]string
	for _, c := range []struct {
		name string
		take func(string) error
	}{{"memstore", taker(must(dipwell.New(mem, limit)))}, {"filestore", taker(l)}} {
		for _, k := range many {
			c.take(k)
		}
		var took []time.Duration
		dirty := 0.0
		for start, i := time.Now(), 0; time.Since(start) < 4*time.Second; i++ {
			before := time.Now()
			if err := c.take(many[i%len(many)]); err != nil {
				panic(err)
			}
			took = append(took, time.Since(before))
			if i%10_000 == 0 {
				dirty = max(dirty, metrics(s)["dirty_keys"])
			}
		}
		slices.Sort(took)
		over := len(took) - must2(slices.BinarySearch(took, time.Millisecond))
		row := []string{c.name, fmt.Sprintf("%.2f", float64(len(took))/4e6), ns(took[len(took)/2]), ns(took[len(took)*999/1000]),
			fmt.Sprintf("%.1f", float64(over)/float64(len(took))*1e6), ms(took[len(took)-1]), "", "", ""}
		if c.name == "filestore" {
			st := metrics(s)
			row[6], row[7], row[8] = fmt.Sprintf("%.0f", dirty), ms(seconds(st["widest_window_seconds"])), fmt.Sprintf("%.0f of %.0f", st["late_groups_total"], st["groups_total"])
		}
		rows = append(rows, row)
	}
	fmt.Fprint(b.w, "## Every 100ms: 100,000 keys that are dirty all the time\n\nOne caller, beside whom the rows are written; each call is timed. What the disk cannot take in time widens the window.\n\n")
	report.Table(b.w, []string{"", "M calls/s", "median, ns", "99.9 %, ns", "over 1 ms, a million", "slowest, ms", "most dirty keys", "widest window, ms", "late groups"}, rows)
}

// fromDisk measures with 1 to 512 goroutines that wait until each decision is
// on disk.
func (b *bench) fromDisk() {
	s, l := b.file("each.db", filestore.Each)
	defer s.Close()
	one := newSingles(filepath.Join(b.dir, "single.db"))
	defer one.close()
	bare := newUpserts(filepath.Join(b.dir, "upsert.db"))
	defer bare.close()
	ol := must(dipwell.New(one, limit, drained))
	must(l.Define(ctx, drained, store.OwnerCode))
	fmt.Fprintf(b.w, "## Each: a decision is answered when it is on the disk\n\n\"%s\" reads the row, steps it and writes it. \"%s\" only counts, in one statement. All have journal_mode=wal and synchronous=full. µs are processor time of the process a decision.\n\n", transaction, upsert)
	busy := uniform(keys(2000))
	for _, c := range []struct {
		title              string
		keys               func(int) func() string
		single, file, bare func(string) error
	}{
		{"2,000 busy keys", busy, taker(ol), taker(l), bare.take},
		{"keys seen for the first time", fresh, taker(ol), taker(l), bare.take},
		{"90 % of the calls refused", busy, mostlyRefused(ol), mostlyRefused(l), nil},
	} {
		for _, goroutines := range []int{1, 64, 512} {
			cs := []*contender{{name: "filestore", take: c.file}, {name: transaction, take: c.single}}
			if c.bare != nil {
				cs = append(cs, &contender{name: upsert, take: c.bare})
			}
			b.turns(c.title+", "+report.Goroutines(goroutines), cs, goroutines, c.keys)
		}
	}
}

const (
	transaction = "a transaction a decision, by hand"
	upsert      = "a bare upsert a decision"
)

type contender struct {
	name          string
	take          func(string) error
	perSecond, us []float64
}

// turns measures contenders in turns and writes a table, dipwell first. The
// first round is a warm-up.
func (b *bench) turns(title string, cs []*contender, goroutines int, keys func(int) func() string) {
	for round := range b.rounds + 1 {
		for _, c := range cs {
			n, us := load(c.take, goroutines, keys, b.length)
			if round > 0 {
				c.perSecond, c.us = append(c.perSecond, n), append(c.us, us)
			}
		}
	}
	ours := report.Median(cs[0].perSecond)
	var rows [][]string
	var ratios []report.Ratio
	for i, c := range cs {
		m := report.Median(c.perSecond)
		row := []string{c.name, fmt.Sprintf("%.0f", m), fmt.Sprintf("%.1f", report.Median(c.us)), ""}
		if i > 0 {
			row[3] = report.Figure(ours / m)
			ratios = append(ratios, report.Ratio{Against: c.name, Value: ours / m})
		}
		rows = append(rows, row)
	}
	fmt.Fprintf(b.w, "### %s\n\n", title)
	report.Table(b.w, []string{"", "decisions/s", "µs", "filestore ÷ it"}, rows)
	report.Spread(b.w, "filestore", ratios)
}

func (b *bench) restart() {
	s, l := b.file("restart.db", 0)
	take := taker(l)
	for _, k := range keys(1_000_000) {
		if err := take(k); err != nil {
			panic(err)
		}
	}
	start := time.Now()
	if err := s.Close(); err != nil {
		panic(err)
	}
	stop := time.Since(start)
	size := must(os.Stat(filepath.Join(b.dir, "restart.db"))).Size()
	var took []float64
	for range 5 {
		start = time.Now()
		s, _ = b.file("restart.db", 0)
		took = append(took, time.Since(start).Seconds())
		if n := metrics(s)["keys"]; n != 1_000_000 {
			panic(fmt.Sprint(n, " keys came back"))
		}
		if err := s.Close(); err != nil {
			panic(err)
		}
	}
	fmt.Fprint(b.w, "## Restart with 1,000,000 live keys\n\n")
	report.Table(b.w, []string{"open, s (median of 5)", "slowest, s", "file, MB", "the first close, with what was left to write, s"},
		[][]string{{fmt.Sprintf("%.2f", report.Median(took)), fmt.Sprintf("%.2f", slices.Max(took)), fmt.Sprint(size / 1e6), fmt.Sprintf("%.2f", stop.Seconds())}})
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d)/1e6) }
func ns(d time.Duration) string { return fmt.Sprint(d.Nanoseconds()) }

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func must2[T any](v T, _ bool) T { return v }

// metrics returns a store's metrics by name, without the names' common prefix.
func metrics(s *filestore.Store) map[string]float64 {
	all := map[string]float64{}
	for _, m := range s.Abilities().Metrics() {
		all[strings.TrimPrefix(strings.TrimPrefix(m.Name, "dipwell_"), "file_")] = m.Value
	}
	return all
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
