// Command cores runs benchmarks of state that all processors share, on one processor
// and on two, of this commit and of an earlier one, in turns.
package main

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/dipwell/dipwell/bench/internal/report"
)

// packages lists the packages with these benchmarks, and which benchmarks to run.
var packages = []struct{ name, path, benchmarks string }{
	{"memory", "./internal/memory", "^(BenchmarkTake|BenchmarkTwo|BenchmarkGroups|BenchmarkInsert)$"},
	{"denycache", "./internal/denycache", "."},
	{"coalesce", "./internal/coalesce", "^BenchmarkApply$/^overhead$"},
	{"server", "./internal/server", "^(BenchmarkTake|BenchmarkTakeParallel)$"},
}

// processors lists the values of GOMAXPROCS; the process is bound to as many processors.
var processors = []int{1, 2}

func main() {
	before := flag.String("before", "9e726df", "the earlier commit")
	rounds := flag.Int("rounds", 7, "rounds")
	length := flag.String("length", "200ms", "length of a benchmark in a round")
	out := flag.String("o", "", "write the table to this file as well")
	flag.Parse()
	w := io.Writer(os.Stdout)
	if *out != "" {
		f := must(os.Create(*out))
		defer f.Close()
		w = io.MultiWriter(os.Stdout, f)
	}
	dir := must(os.MkdirTemp("", "bench-cores"))
	defer os.RemoveAll(dir)
	root := strings.TrimSpace(run("", "git", "rev-parse", "--show-toplevel"))
	old := filepath.Join(dir, "before")
	run(root, "git", "worktree", "add", "--detach", old, *before)
	defer run(root, "git", "worktree", "remove", "--force", old)
	var all results
	for r := range *rounds {
		for _, p := range packages {
			for _, from := range []string{old, root} {
				binary := filepath.Join(dir, filepath.Base(from)+"-"+p.name)
				if from == root {
					binary = filepath.Join(dir, "after-"+p.name)
				}
				if r == 0 {
					run(from, "go", "test", "-c", "-o", binary, p.path)
				}
				for _, n := range processors {
					all.add(p.name, from == root, n, run(filepath.Join(from, p.path), "taskset", "-c", fmt.Sprintf("0-%d", n-1),
						binary, "-test.run", "^$", "-test.bench", p.benchmarks, "-test.cpu", strconv.Itoa(n), "-test.benchtime", *length))
				}
			}
		}
	}
	report.Header(w, "One processor and two", "go run ./cores -o results/cores.md")
	fmt.Fprintf(w, "ns a call. Before is commit %s. Each process is bound to as many processors as it may use. %d rounds of %s a benchmark.\n\n", *before, *rounds, *length)
	all.write(w)
}

// results are the figures of each benchmark, in the order of the first round.
type results struct {
	names   []string
	figures map[figure][]float64
}

type figure struct {
	name       string
	after      bool
	processors int
}

func (r *results) add(pkg string, after bool, processors int, output string) {
	if r.figures == nil {
		r.figures = map[figure][]float64{}
	}
	for lines := bufio.NewScanner(strings.NewReader(output)); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) < 4 || !strings.HasPrefix(f[0], "Benchmark") {
			continue
		}
		name := pkg + " " + strings.TrimSuffix(strings.TrimPrefix(f[0], "Benchmark"), "-"+strconv.Itoa(processors))
		if !slices.Contains(r.names, name) {
			r.names = append(r.names, name)
		}
		k := figure{name, after, processors}
		r.figures[k] = append(r.figures[k], must(strconv.ParseFloat(f[2], 64)))
	}
}

func (r *results) write(w io.Writer) {
	head := []string{""}
	for _, n := range processors {
		head = append(head, fmt.Sprintf("before, %d", n), fmt.Sprintf("after, %d", n), "after ÷ before")
	}
	var rows [][]string
	for _, name := range r.names {
		row := []string{name}
		for _, n := range processors {
			before, after := report.Median(r.figures[figure{name, false, n}]), report.Median(r.figures[figure{name, true, n}])
			row = append(row, number(before), number(after), ratio(after, before))
		}
		rows = append(rows, row)
	}
	report.Table(w, head, rows)
}

func number(v float64) string {
	if v == 0 {
		return ""
	}
	return strconv.FormatFloat(v, 'f', 1, 64)
}

func ratio(a, b float64) string {
	if a == 0 || b == 0 {
		return ""
	}
	return report.Figure(a / b)
}

func run(dir, name string, args ...string) string {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	var errs bytes.Buffer
	cmd.Stderr = &errs
	b, err := cmd.Output()
	if err != nil {
		panic(fmt.Sprintf("%s %v: %v\n%s%s", name, args, err, b, errs.Bytes()))
	}
	return string(b)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
