package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/dipwell/dipwell/internal/simulate"
)

// SimulateCmd plays histories of a cluster with faults, in virtual time.
type SimulateCmd struct {
	Seed   *uint64  `xor:"seed" placeholder:"N" help:"Play the history of seed N, and print it."`
	Seeds  *int     `xor:"seed" placeholder:"N" help:"Play the histories of the seeds 0 to N-1. If one breaks a promise, stop and print the steps that are needed for it. Default 1000."`
	Steps  int      `default:"300" placeholder:"N" help:"Steps of a history: bursts of calls, and faults. Default 300."`
	Plot   string   `placeholder:"FILE" help:"With --seed: draw the history, as .svg."`
	Faults []string `placeholder:"LIST" help:"The faults that may happen, separated by commas. Default: all."`
}

// Help is shown by --help.
func (c *SimulateCmd) Help() string {
	return `Examples:
  dipwell simulate --seeds 1000
  dipwell simulate --seed 7 --plot history.svg
  dipwell simulate --seed 7 --faults lost,clock-back`
}

// Run plays the histories.
func (c *SimulateCmd) Run(e *env) error {
	o := simulate.Options{Steps: c.Steps, Faults: c.Faults}
	seeds := 1000
	if c.Seeds != nil {
		seeds = *c.Seeds
	}
	switch {
	case c.Steps < 1:
		return fmt.Errorf("--steps: %d is less than 1", c.Steps)
	case c.Plot != "" && c.Seed == nil:
		return errors.New("--plot: needs --seed, because it draws one history")
	case c.Plot != "" && plotFormat(c.Plot) != "svg":
		return fmt.Errorf("--plot: %q does not end in .svg", c.Plot)
	case seeds < 1:
		return fmt.Errorf("--seeds: %d is less than 1", seeds)
	}
	if err := simulate.CheckFaults(c.Faults); err != nil {
		return fmt.Errorf("--faults: %w", err)
	}
	if c.Seed != nil {
		r := simulate.Run(*c.Seed, o)
		if err := c.plot(r, o); err != nil {
			return err
		}
		if err := r.Print(e.stdout, o); err != nil {
			return err
		}
		return c.end(e.stdout, r, 1)
	}
	r, err := simulate.All(e.ctx, seeds, o)
	if err != nil {
		return err
	}
	if r.Violation != nil {
		if err := r.Print(e.stdout, o); err != nil {
			return err
		}
	}
	return c.end(e.stdout, r, seeds)
}

// plot writes the picture of a history, if one is asked for.
func (c *SimulateCmd) plot(r *simulate.Result, o simulate.Options) error {
	if c.Plot == "" {
		return nil
	}
	f, err := os.Create(c.Plot)
	if err != nil {
		return err
	}
	return errors.Join(r.Plot(f, o), f.Close())
}

// end prints the result of n histories.
func (c *SimulateCmd) end(w io.Writer, r *simulate.Result, n int) error {
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
