package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := command(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "simulate:", err)
		os.Exit(2)
	}
}

// command parses args, plays the histories and prints what they did.
func command(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("simulate", flag.ContinueOnError)
	seed := flags.Int64("seed", -1, "play the history of this `seed`, and print it")
	seeds := flags.Int("seeds", 1000, "play the histories of the seeds 0 to `N`-1; if one breaks a promise, stop and print the steps that are needed for it")
	faults := flags.String("faults", "", "a `list` of the faults that may happen, separated by commas (default all)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var o options
	if *faults != "" {
		o.Faults = strings.Split(*faults, ",")
	}
	if err := checkFaults(o.Faults); err != nil {
		return fmt.Errorf("--faults: %w", err)
	}
	if *seed >= 0 {
		r := run(uint64(*seed), o)
		if err := r.Print(stdout, o); err != nil {
			return err
		}
		return end(stdout, r, 1)
	}
	r, err := all(ctx, *seeds, o)
	if err != nil {
		return err
	}
	if r.Violation != nil {
		if err := r.Print(stdout, o); err != nil {
			return err
		}
	}
	return end(stdout, r, *seeds)
}

// end prints the result of n histories.
func end(w io.Writer, r *result, n int) error {
	if r.Violation != nil {
		return fmt.Errorf("seed %d: %w", r.Seed, r.Violation)
	}
	if _, err := fmt.Fprintf(w, "histories %d, calls %d, tokens taken %d, all promises kept\n", n, r.Calls, r.Taken); err != nil {
		return err
	}
	for _, fault := range slices.Sorted(maps.Keys(r.Lost)) {
		if _, err := fmt.Fprintf(w, "lost by %-14s %d\n", fault, r.Lost[fault]); err != nil {
			return err
		}
	}
	return nil
}
