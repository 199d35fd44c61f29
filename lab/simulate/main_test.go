package main

import (
	"os"
	"strings"
	"testing"
)

// program runs the command with args, and returns what it prints.
func program(t *testing.T, args ...string) (stdout string, err error) {
	t.Helper()
	var out strings.Builder
	err = command(t.Context(), args, &out)
	return out.String(), err
}

// TestAsDocumented checks that the histories are those that the documentation shows.
func TestAsDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/explanation/simulator.md")
	if err != nil {
		t.Fatal(err)
	}
	_, shown, ok := strings.Cut(string(page), "$ go run ./lab/simulate --seeds 100\n")
	shown, _, closed := strings.Cut(shown, "```")
	if out, err := program(t, "--seeds", "100"); !ok || !closed || err != nil || out != shown {
		t.Errorf("%v\n%s; want\n%s", err, out, shown)
	}
}

func TestBadInput(t *testing.T) {
	for _, tc := range []struct {
		args string
		want string
	}{
		{"--seed 7 --seeds 3", "--seed and --seeds can't be used together"},
		{"--seeds 0", "--seeds: 0 is less than 1"},
		{"--steps 0", "--steps: 0 is less than 1"},
	} {
		if out, err := program(t, strings.Fields(tc.args)...); err == nil || out != "" || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v\n%s; want %s", tc.args, err, out, tc.want)
		}
	}
}
