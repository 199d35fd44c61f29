package main

import (
	"os"
	"strings"
	"testing"
)

// The histories of a seed are those that the documentation shows.
func TestSimulateAsDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/reference/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	_, shown, ok := strings.Cut(string(page), "$ dipwell simulate --seeds 100\n")
	shown, _, closed := strings.Cut(shown, "```")
	if code, out, stderr := program(t, "simulate", "--seeds", "100"); !ok || !closed || code != 0 || out != shown {
		t.Errorf("exit %d\n%s%s; want\n%s", code, out, stderr, shown)
	}
}

func TestSimulatePictureAsDocumented(t *testing.T) {
	want, err := os.ReadFile("../../docs/img/simulator.svg")
	if err != nil {
		t.Fatal(err)
	}
	name := t.TempDir() + "/history.svg"
	if code, _, stderr := program(t, "simulate", "--seed", "19", "--steps", "60", "--plot", name); code != 0 {
		t.Fatal(code, stderr)
	}
	if got, err := os.ReadFile(name); err != nil || string(got) != string(want) {
		t.Errorf("docs/img/simulator.svg is of another program; make picture draws it: %v", err)
	}
}

func TestSimulateBadInput(t *testing.T) {
	dir := t.TempDir()
	for _, tc := range []struct {
		args string
		want string
	}{
		{"--seed 7 --seeds 3", "--seed and --seeds can't be used together"},
		{"--seed 7 --plot " + dir + "/history.png", `history.png" does not end in .svg`},
		{"--plot " + dir + "/history.svg", "--plot: needs --seed"},
		{"--seeds 0", "--seeds: 0 is less than 1"},
		{"--steps 0", "--steps: 0 is less than 1"},
		{"--faults lost,foo", `--faults: unknown fault "foo"; the faults are lost, lost-answers, twice, `},
	} {
		if code, out, stderr := program(t, append([]string{"simulate"}, strings.Fields(tc.args)...)...); code != 2 || out != "" || !strings.Contains(stderr, tc.want) {
			t.Errorf("simulate %s: exit %d\n%s%s; want %s", tc.args, code, out, stderr, tc.want)
		}
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 0 {
		t.Error(files, err)
	}
}
