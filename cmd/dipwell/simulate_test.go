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
