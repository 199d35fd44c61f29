// Command replay compares the replay of access logs in several formats with loops
// that only split the lines and parse their times. Both are benchmarks of package
// replay, run in turns, on one thread and on two.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"

	"github.com/dipwell/dipwell/bench/internal/report"
)

// contenders are the names of the benchmarks, in the order of the table.
var contenders = []struct{ bench, name string }{
	{"BenchmarkReplayInOrder", "replay, a combined log in order"},
	{"BenchmarkReplayLate30s", "replay, lines up to 30 s late: sorted"},
	{"BenchmarkReplayDecisions", "replay in order, decisions written as JSON"},
	{"BenchmarkReplayALB", "replay, a log of an AWS load balancer"},
	{"BenchmarkReplayJSON", "replay, JSON lines"},
	{"BenchmarkReplayCSV", "replay, CSV"},
	{"BenchmarkReplayGrok", "replay, the combined log by a grok pattern of plain words"},
	{"BenchmarkReplayGrokLibrary", "replay, the combined log by the library's COMBINEDAPACHELOG"},
	{"BenchmarkSplitAndParseTime", "split into fields and parse the time (strings.Fields, time.Parse)"},
	{"BenchmarkSplitInPlaceAndParseTime", "find the time in place and parse it (bytes.IndexByte, time.Parse)"},
}

func main() {
	rounds := flag.Int("rounds", 7, "rounds")
	out := flag.String("o", "", "write the table to this file as well")
	flag.Parse()
	if err := run(*rounds, *out); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(rounds int, out string) error {
	figures := map[string][]float64{}
	for range rounds {
		if err := round(figures); err != nil {
			return err
		}
	}
	var w io.Writer = os.Stdout
	if out != "" {
		f, err := os.Create(out)
		if err != nil {
			return err
		}
		defer f.Close()
		w = io.MultiWriter(os.Stdout, f)
	}
	write(w, figures)
	return nil
}

// threads are the values of GOMAXPROCS that are measured.
var threads = []string{"1", "2"}

// line matches a benchmark's output. go test appends the number of threads if
// it is not 1.
var line = regexp.MustCompile(`(?m)^(Benchmark\w+?(?:-2)?)\s.*?([\d.]+) ns/line`)

// round runs each benchmark once and adds its ns/line to figures.
func round(figures map[string][]float64) error {
	cmd := exec.Command("go", "test", "-run", "^$", "-bench", ".", "-benchtime", "1s", "-cpu", strings.Join(threads, ","), "./internal/replay")
	cmd.Dir, cmd.Stderr = "..", os.Stderr
	b, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("go test -bench: %w\n%s", err, b)
	}
	for _, m := range line.FindAllSubmatch(b, -1) {
		ns, err := strconv.ParseFloat(string(m[2]), 64)
		if err != nil {
			return err
		}
		figures[string(m[1])] = append(figures[string(m[1])], ns)
	}
	return nil
}

func write(w io.Writer, figures map[string][]float64) {
	report.Header(w, "Replay", "make bench-replay")
	for _, n := range threads {
		fmt.Fprintf(w, "## %s\n\n", map[string]string{"1": "One thread for everybody (GOMAXPROCS=1)", "2": "Two threads (GOMAXPROCS=2), of which the loops use one"}[n])
		table(w, figures, map[string]string{"1": "", "2": "-2"}[n])
	}
	fmt.Fprintln(w, "The log has 200,000 lines of 5,000 clients (grok: 20,000 and 2,000), held in memory; one limit.")
}

func table(w io.Writer, figures map[string][]float64, suffix string) {
	ours := report.Median(figures[contenders[0].bench+suffix])
	var rows [][]string
	var ratios []report.Ratio
	for i, c := range contenders {
		ns := report.Median(figures[c.bench+suffix])
		rate := ""
		if i > 0 {
			rate = report.Figure(ns / ours)
			ratios = append(ratios, report.Ratio{Against: c.name, Value: ns / ours})
		}
		rows = append(rows, []string{c.name, fmt.Sprintf("%.0f", ns), fmt.Sprintf("%.2f M", 1e3/ns), rate})
	}
	report.Table(w, []string{"", "ns a line", "lines a second", "time of this / of a replay in order"}, rows)
	report.Spread(w, contenders[0].name, ratios)
}
