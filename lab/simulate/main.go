package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/alecthomas/kong"
)

type flags struct {
	Seed  *uint64 `xor:"seed" placeholder:"N" help:"Play the history of seed N, and print it."`
	Seeds int     `xor:"seed" default:"1000" placeholder:"N" help:"Play the histories of the seeds 0 to N-1. If one breaks a promise, stop and print the steps that are needed for it. Default 1000."`
	options
}

const description = `Simulate a cluster with faults in virtual time, and check its promises.

Examples:
  go run ./lab/simulate --seeds 1000
  go run ./lab/simulate --seed 7`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := command(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "simulate:", err)
		os.Exit(2)
	}
}

func command(ctx context.Context, args []string, stdout io.Writer) error {
	var f flags
	parser, err := kong.New(&f, kong.Name("simulate"), kong.Description(description))
	if err != nil {
		return err
	}
	if _, err := parser.Parse(args); err != nil {
		return err
	}
	switch {
	case f.Steps < 1:
		return fmt.Errorf("--steps: %d is less than 1", f.Steps)
	case f.Seeds < 1:
		return fmt.Errorf("--seeds: %d is less than 1", f.Seeds)
	}
	var r *result
	if f.Seed != nil {
		r, f.Seeds = run(*f.Seed, f.options), 1
	} else if r, err = all(ctx, f.Seeds, f.options); err != nil {
		return err
	}
	if f.Seed != nil || r.Violation != nil {
		r.Print(stdout, f.options)
	}
	return end(stdout, r, f.Seeds)
}

func end(w io.Writer, r *result, n int) error {
	if r.Violation != nil {
		return fmt.Errorf("seed %d: %w", r.Seed, r.Violation)
	}
	fmt.Fprintf(w, "histories %d, calls %d, tokens taken %d, all promises kept\n", n, r.Calls, r.Taken)
	for _, fault := range slices.Sorted(maps.Keys(r.Lost)) {
		fmt.Fprintf(w, "lost by %-14s %d\n", fault, r.Lost[fault])
	}
	return nil
}
