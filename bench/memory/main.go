// Command memory measures limiters that keep their buckets in the process:
// dipwell's memstore through Limiter.Take and the keyed limiters of other
// libraries, each in a process of its own, in turns.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/dipwell/dipwell/bench/internal/report"
)

func main() {
	if len(os.Args) > 4 && os.Args[1] == "child" {
		n, _ := strconv.Atoi(os.Args[4])
		child(os.Args[2], os.Args[3], n)
		return
	}
	if len(os.Args) > 2 && os.Args[1] == "growth" {
		growth(os.Args[2])
		return
	}
	rounds := flag.Int("rounds", 15, "rounds per scenario")
	out := flag.String("o", "", "write the tables to this file as well")
	quick := flag.Bool("quick", false, "leave out the runs with 10M keys")
	only := flag.String("only", "", "only scenarios whose title holds this")
	flag.Parse()
	var w io.Writer = os.Stdout
	if *out != "" {
		f := must(os.Create(*out))
		defer f.Close()
		w = io.MultiWriter(os.Stdout, f)
	}
	report.Header(w, "In memory: Limiter.Take through memstore", "make bench-memory")
	b := bench{w: w, rounds: *rounds, only: *only}
	b.all(*quick)
}

type bench struct {
	w      io.Writer
	rounds int
	only   string
}

var allContenders = []string{"dipwell", "x/time map", "GCRA map", "go-limiter", "throttled", "ulule", "httprate", "(loop only)"}

// The lists below name the contenders that support each workload.
var (
	windowed = []string{"dipwell", "dipwell, a window", "dipwell, a window with start", "go-limiter", "ulule", "httprate"}
	costed   = []string{"dipwell", "x/time map", "GCRA map", "throttled"}
	two      = []string{"dipwell", "x/time map", "GCRA map"}
)

func (b *bench) all(quick bool) {
	b.scenario("One hot key", "", 1, 1_000_000, allContenders)
	b.scenario("10,000 keys", "", 10_000, 500_000, allContenders)
	b.scenario("1,000,000 keys", "", 1_000_000, 500_000, allContenders)
	if !quick {
		b.scenario("10,000,000 keys", "", 10_000_000, 1_000_000, []string{"dipwell", "x/time map", "(loop only)"})
	}
	b.scenario("Windows: one hot key", "", 1, 500_000, windowed)
	b.scenario("Windows: 10,000 keys", "", 10_000, 500_000, windowed)
	b.scenario("Costs from 1 to 5, 10,000 keys", "costs", 10_000, 500_000, costed)
	b.scenario("Nine of ten refused, 10,000 keys", "refused", 10_000, 500_000, allContenders)
	b.scenario("Zipf(1.1) over 1,000,000 keys", "zipf", 1_000_000, 500_000, allContenders)
	b.scenario("Keys seen for the first time", "new", 0, 50_000, allContenders)
	b.concurrent("Two goroutines, 10,000 shared keys", 10_000, 1_000_000)
	b.concurrent("Two goroutines, 1,000,000 shared keys", 1_000_000, 1_000_000)
	if !quick {
		b.growth()
	}
}

// process is a running process of a contender.
type process struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func start(name, kind string, keys int) *process {
	p := &process{cmd: exec.Command(must(os.Executable()), "child", name, kind, strconv.Itoa(keys))}
	p.in = must(p.cmd.StdinPipe())
	p.out = bufio.NewScanner(must(p.cmd.StdoutPipe()))
	p.cmd.Stderr = os.Stderr
	if err := p.cmd.Start(); err != nil {
		panic(err)
	}
	p.out.Scan()
	return p
}

func (p *process) ask(format string, args ...any) (v [4]float64) {
	fmt.Fprintf(p.in, format+"\n", args...)
	if !p.out.Scan() {
		panic("a contender ended early")
	}
	fmt.Sscan(p.out.Text(), &v[0], &v[1], &v[2], &v[3])
	return v
}

func (p *process) stop() {
	p.in.Close()
	p.cmd.Wait()
}

// turns sends commands to contenders in turns, and returns the medians of
// each contender's answers.
func (b *bench) turns(procs map[string]*process, names, questions []string) map[string][][4]float64 {
	all := map[string][][4][]float64{}
	for _, name := range names {
		all[name] = make([][4][]float64, len(questions))
	}
	for range b.rounds {
		for _, name := range names {
			for q, question := range questions {
				for i, v := range procs[name].ask("%s", question) {
					all[name][q][i] = append(all[name][q][i], v)
				}
			}
		}
	}
	medians := map[string][][4]float64{}
	for _, name := range names {
		for q := range questions {
			var m [4]float64
			for i, v := range all[name][q] {
				m[i] = report.Median(v)
			}
			medians[name] = append(medians[name], m)
		}
	}
	return medians
}

func startAll(names []string, kind string, keys int) map[string]*process {
	procs := map[string]*process{}
	for _, name := range names {
		procs[name] = start(name, kind, keys)
	}
	return procs
}

// scenario has each contender make n calls in each round, on one goroutine.
func (b *bench) scenario(title, kind string, keys, n int, names []string) {
	if !strings.Contains(title, b.only) {
		return
	}
	procs := startAll(names, kind, keys)
	v := b.turns(procs, names, []string{fmt.Sprintf("run %d", n)})
	fmt.Fprintf(b.w, "## %s\n\n", title)
	const work = 1 // index of the processor time in a run's figures: other programs affect it least
	ours := v["dipwell"][0][work]
	head := []string{"", "ns a call", "of processor time", "dipwell takes × its processor time", "dipwell is × faster", "allocations a call", "allowed"}
	if keys >= 1_000_000 {
		head = append(head, "forced full GC, ms")
	}
	var rows [][]string
	for _, name := range names {
		m := v[name][0]
		row := []string{name, fmt.Sprintf("%.0f", m[0]), fmt.Sprintf("%.0f", m[1]), fmt.Sprintf("%.2f", ours/m[work]), fmt.Sprintf("%.2f", m[work]/ours),
			fmt.Sprintf("%.2f", m[2]), fmt.Sprintf("%.0f %%", 100*m[3])}
		if keys >= 1_000_000 {
			row = append(row, fmt.Sprintf("%.1f", procs[name].ask("gc")[0]))
		}
		rows = append(rows, row)
	}
	report.Table(b.w, head, rows)
	b.judge(title, func(name string) float64 { return v[name][0][work] }, names)
	for _, p := range procs {
		p.stop()
	}
}

// concurrent compares contenders with one goroutine and with two, in turns.
func (b *bench) concurrent(title string, keys, n int) {
	if !strings.Contains(title, b.only) {
		return
	}
	procs := startAll(two, "", keys)
	v := b.turns(procs, two, []string{fmt.Sprintf("one %d", n), fmt.Sprintf("two %d", n)})
	fmt.Fprintf(b.w, "## %s\n\n", title)
	var rows [][]string
	for _, name := range two {
		o, t := v[name][0], v[name][1]
		rows = append(rows, []string{name, fmt.Sprintf("%.2f", 1e3/o[0]), fmt.Sprintf("%.2f", 1e3/t[0]), fmt.Sprintf("%.2f", o[0]/t[0]), fmt.Sprintf("%.0f", t[1]),
			fmt.Sprintf("%.2f", v["dipwell"][1][0]/t[0])})
	}
	report.Table(b.w, []string{"", "one goroutine, M calls/s", "two, M calls/s", "two / one", "two: ns of processor time a call", "dipwell takes × its time"}, rows)
	b.judge(title, func(name string) float64 { return v[name][1][0] }, two)
	for _, p := range procs {
		p.stop()
	}
}

// A target is the largest allowed ratio of a contender's time to another's.
type target struct {
	ours, over string
	most       float64
}

// targets maps a scenario's title to its targets. Targets compare processor
// time, with two goroutines elapsed time.
var targets = map[string][]target{
	"One hot key":                        {{"dipwell", "x/time map", 0.45}, {"dipwell", "GCRA map", 1.25}},
	"10,000 keys":                        {{"dipwell", "GCRA map", 0.95}},
	"Windows: one hot key":               {{"dipwell, a window", "dipwell", 1.25}},
	"Windows: 10,000 keys":               {{"dipwell, a window", "dipwell", 1.25}},
	"Two goroutines, 10,000 shared keys": {{"dipwell", "GCRA map", 1.1}},
}

// judge writes whether a table's targets are met, and the worst and best
// ratio of the others' time to dipwell's.
func (b *bench) judge(title string, ns func(name string) float64, names []string) {
	for _, t := range targets[title] {
		r := ns(t.ours) / ns(t.over)
		fmt.Fprintf(b.w, "%s: %.2f × the time of %s; target ≤ %g: %s\n\n", t.ours, r, t.over, t.most, report.Verdict(r <= t.most))
	}
	var ratios []report.Ratio
	for _, name := range names {
		if !strings.HasPrefix(name, "dipwell") && name != "(loop only)" {
			ratios = append(ratios, report.Ratio{Against: name, Value: ns(name) / ns("dipwell")})
		}
	}
	report.Spread(b.w, "dipwell's rate", ratios)
}

func (b *bench) growth() {
	title := "Growth from 1M to 10M keys"
	if !strings.Contains(title, b.only) {
		return
	}
	fmt.Fprintf(b.w, "## %s\n\n", title)
	var rows [][]string
	for _, name := range []string{"dipwell", "x/time map"} {
		text := string(must(exec.Command(must(os.Executable()), "growth", name).Output()))
		var worst, end float64
		var at, slow, own, slowest, control int
		fmt.Sscan(strings.TrimSpace(text), &worst, &at, &end, &slow, &own, &slowest, &control)
		rows = append(rows, []string{name, fmt.Sprintf("%.1f (at %.1fM)", worst, float64(at)/1e6), fmt.Sprintf("%.1f", end),
			strconv.Itoa(slow), fmt.Sprintf("%.2f", float64(slow)/9), strconv.Itoa(own), fmt.Sprintf("%.2f", float64(own)/9), fmt.Sprintf("%.2f", float64(slowest)/1e6), strconv.Itoa(control)})
	}
	report.Table(b.w, []string{"", "resident B/key, worst", "at 10M", "calls over 1 ms in 9M", "a million", "over 1 ms of processor time", "a million", "slowest, ms", "an empty loop's over 1 ms in the same time"}, rows)
}
