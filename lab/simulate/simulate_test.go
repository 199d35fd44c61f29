package main

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestSeeds plays 1,000 histories, or DIPWELL_SEEDS.
func TestSeeds(t *testing.T) {
	n := 1000
	if s := os.Getenv("DIPWELL_SEEDS"); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	} else if testing.Short() {
		n = 100
	}
	r, err := all(t.Context(), n, options{})
	if err != nil {
		t.Fatal(err)
	}
	if r.Violation != nil {
		var b strings.Builder
		r.Print(&b, options{})
		t.Fatalf("seed %d: %v\n%s", r.Seed, r.Violation, b.String())
	}
	for _, fault := range []string{"caller left", "crash", "give-back", "late answer", "lost answer", "partition", "request twice"} {
		if r.Lost[fault] == 0 {
			t.Errorf("no token was lost by %q; the histories are too tame", fault)
		}
	}
	for _, what := range []string{"a block begins", "a block ends", "a block is ended by hand", "a block is reset", "a block over a standing override",
		"a plan over a standing override", "numbers over a standing override", "a standing override again", "a refusal moves a row"} {
		if r.Seen[what] < n/50 {
			t.Errorf("%q %d times in %d histories; they are too tame", what, r.Seen[what], n)
		}
	}
	if r.Leased == 0 {
		t.Error("no token was used from a lease")
	}
	t.Logf("%d calls, %d tokens taken, %d used from leases, lost %v, seen %v", r.Calls, r.Taken, r.Leased, r.Lost, r.Seen)
}

// TestReplay checks that a history is the same each time, to the byte, and that
// dropping a step leaves the others as they are.
func TestReplay(t *testing.T) {
	for seed := range uint64(20) {
		r := run(seed, options{Steps: 60})
		var a, b strings.Builder
		r.Print(&a, options{Steps: 60})
		r.Print(&b, options{Steps: 60})
		if a.String() != b.String() {
			x, y := strings.Split(a.String(), "\n"), strings.Split(b.String(), "\n")
			for i := range min(len(x), len(y)) {
				if x[i] != y[i] {
					t.Fatalf("seed %d: two plays differ:\n%s\n%s", seed, x[i], y[i])
				}
			}
			t.Fatalf("seed %d: two plays have %d and %d lines", seed, len(x), len(y))
		}
		h := options{Steps: 60}.history(seed)
		last := h.steps[len(h.steps)-1]
		h.steps = h.steps[:len(h.steps)-1]
		var whole, part []string
		r.replay(options{Steps: 60}, &whole)
		h.play(func(line string) { part = append(part, line) })
		until := slices.IndexFunc(whole, func(line string) bool { return lineTime(t, line) >= float64(last.at)/1000 })
		if until > len(part) || until > 0 && !slices.Equal(whole[:until], part[:until]) {
			for i := range min(until, len(part)) {
				if whole[i] != part[i] {
					t.Fatalf("seed %d: without its last step the history differs before it:\n%s\n%s", seed, whole[i], part[i])
				}
			}
			t.Fatalf("seed %d: without its last step the history has %d lines before it, not %d", seed, len(part), until)
		}
	}
}

func (r *result) replay(o options, lines *[]string) {
	h := o.history(r.Seed)
	h.play(func(line string) { *lines = append(*lines, line) })
}

func lineTime(t *testing.T, line string) float64 {
	t.Helper()
	ms, err := strconv.ParseFloat(strings.Fields(line)[0], 64)
	if err != nil {
		t.Fatal(err)
	}
	return ms
}
