// Command faults measures the rates of `dipwell serve` while rows are locked by
// another program's transaction, and while its store hangs, and compares them
// with undisturbed rates. The command runs the built program with a PostgreSQL
// and a Redis that it starts.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/dipwell/dipwell/bench/internal/report"
)

func main() {
	out := flag.String("o", "", "write the tables to this file as well")
	bin := flag.String("bin", "", "the program to measure; default: built from this tree")
	rounds := flag.Int("rounds", 2, "rounds of each scenario with locked rows")
	name := flag.String("scenario", "", "only scenarios with locked rows whose names have this text")
	only := flag.String("only", "", "locks or hangs; default both")
	flag.Parse()
	var w io.Writer = os.Stdout
	if *out != "" {
		f := must(os.Create(*out))
		defer f.Close()
		w = io.MultiWriter(os.Stdout, f)
	}
	dir := must(os.MkdirTemp("", "bench-faults"))
	defer os.RemoveAll(dir)
	if *bin == "" {
		*bin = filepath.Join(dir, "dipwell")
		build := exec.Command("go", "build", "-o", *bin, "./cmd/dipwell")
		build.Dir, build.Stderr = "..", os.Stderr
		check(build.Run())
	}
	report.Header(w, "Locked rows and hung stores", "make bench-faults")
	if *only != "hangs" {
		locks(w, *bin, *rounds, *name)
	}
	if *only != "locks" {
		hangs(w, *bin)
	}
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// times formats a ratio with two decimals.
func times(a, b float64) string { return fmt.Sprintf("%.2f", a/b) }
