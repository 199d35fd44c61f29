// Command memory measures limiters that keep their buckets in the process:
// dipwell's memstore through Limiter.Take against the keyed limiters of other
// libraries, each in a process of its own, taking turns.
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
	if len(os.Args) > 3 && os.Args[1] == "child" {
		n, _ := strconv.Atoi(os.Args[3])
		child(os.Args[2], n)
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

var everyone = []string{"dipwell", "x/time map", "go-limiter", "throttled", "ulule", "httprate", "(loop only)"}

func (b *bench) all(quick bool) {
	b.scenario("One hot key", 1, 2_000_000, everyone, "run")
	b.scenario("10,000 keys", 10_000, 1_000_000, everyone, "run")
	b.scenario("1,000,000 keys", 1_000_000, 1_000_000, everyone, "run")
	if !quick {
		b.scenario("10,000,000 keys", 10_000_000, 1_000_000, []string{"dipwell", "x/time map", "(loop only)"}, "run")
	}
	b.scenario("Two goroutines, 10,000 shared keys", 10_000, 1_000_000, []string{"dipwell", "x/time map"}, "both")
	b.scenario("Two goroutines, 1,000,000 shared keys", 1_000_000, 1_000_000, []string{"dipwell", "x/time map"}, "both")
	if !quick {
		b.growth()
	}
}

// process is a contender that waits for its turn.
type process struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func start(name string, keys int) *process {
	p := &process{cmd: exec.Command(must(os.Executable()), "child", name, strconv.Itoa(keys))}
	p.in = must(p.cmd.StdinPipe())
	p.out = bufio.NewScanner(must(p.cmd.StdoutPipe()))
	p.cmd.Stderr = os.Stderr
	if err := p.cmd.Start(); err != nil {
		panic(err)
	}
	p.out.Scan()
	return p
}

func (p *process) ask(format string, args ...any) (a, b float64) {
	fmt.Fprintf(p.in, format+"\n", args...)
	if !p.out.Scan() {
		panic("a contender ended early")
	}
	fmt.Sscan(p.out.Text(), &a, &b)
	return a, b
}

func (p *process) stop() {
	p.in.Close()
	p.cmd.Wait()
}

// scenario lets the contenders take turns. In "both", one goroutine and two
// take turns as well, so that their ratio comes from the same minutes.
func (b *bench) scenario(title string, keys, n int, names []string, mode string) {
	if !strings.Contains(title, b.only) {
		return
	}
	procs := map[string]*process{}
	for _, name := range names {
		procs[name] = start(name, keys)
	}
	one, two, allocs := map[string][]float64{}, map[string][]float64{}, map[string][]float64{}
	for range b.rounds {
		for _, name := range names {
			if mode == "run" {
				ns, al := procs[name].ask("run %d", n)
				one[name], allocs[name] = append(one[name], ns), append(allocs[name], al)
				continue
			}
			ns, _ := procs[name].ask("one %d", n)
			one[name] = append(one[name], ns)
			ns, _ = procs[name].ask("two %d", n)
			two[name] = append(two[name], ns)
		}
	}
	fmt.Fprintf(b.w, "## %s\n\n", title)
	if mode == "both" {
		b.bothTable(names, one, two)
	} else {
		b.oneTable(names, keys, one, allocs, procs)
	}
	for _, p := range procs {
		p.stop()
	}
}

func (b *bench) oneTable(names []string, keys int, ns, allocs map[string][]float64, procs map[string]*process) {
	ours := report.Median(ns["dipwell"])
	var rows [][]string
	for _, name := range names {
		m := report.Median(ns[name])
		row := []string{name, fmt.Sprintf("%.0f", m), fmt.Sprintf("%.2f", ours/m), fmt.Sprintf("%.2f", m/ours), fmt.Sprintf("%.2f", report.Median(allocs[name]))}
		if keys >= 1_000_000 {
			gc, _ := procs[name].ask("gc")
			row = append(row, fmt.Sprintf("%.1f", gc))
		}
		rows = append(rows, row)
	}
	head := []string{"", "ns a call", "dipwell takes × its time", "dipwell is × faster", "allocations a call"}
	if keys >= 1_000_000 {
		head = append(head, "forced full GC, ms")
	}
	report.Table(b.w, head, rows)
}

func (b *bench) bothTable(names []string, one, two map[string][]float64) {
	var rows [][]string
	for _, name := range names {
		o, t := report.Median(one[name]), report.Median(two[name])
		rows = append(rows, []string{name, fmt.Sprintf("%.2f", 1e3/o), fmt.Sprintf("%.2f", 1e3/t), fmt.Sprintf("%.2f", o/t),
			fmt.Sprintf("%.2f", report.Median(two["x/time map"])/t)})
	}
	report.Table(b.w, []string{"", "one goroutine, M calls/s", "two, M calls/s", "two / one", "two / x/time map's two"}, rows)
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
