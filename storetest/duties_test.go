package storetest

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestDuties: each case is about one duty, and docs/adding-a-store.md has a
// paragraph for each duty.
func TestDuties(t *testing.T) {
	var listed []string
	for _, d := range duties {
		listed = append(listed, strings.Fields(d.cases)...)
	}
	for _, group := range cases() {
		for _, c := range group {
			i := slices.Index(listed, c.name)
			if i < 0 {
				t.Errorf("case %s has no duty", c.name)
				continue
			}
			listed = slices.Delete(listed, i, i+1)
		}
	}
	if len(listed) > 0 {
		t.Errorf("listed twice, or no case: %v", listed)
	}

	page, err := os.ReadFile("../docs/adding-a-store.md")
	if err != nil {
		t.Fatal(err)
	}
	var explained []string
	for _, m := range regexp.MustCompile(`(?m)^\| \*\*([a-z]+)\*\* \|`).FindAllStringSubmatch(string(page), -1) {
		explained = append(explained, m[1])
	}
	for i, d := range duties {
		if i >= len(explained) || explained[i] != d.name {
			t.Fatalf("docs/adding-a-store.md explains %v; the duties are %s at %d, and so on", explained, d.name, i)
		}
	}
	if len(explained) > len(duties) {
		t.Errorf("docs/adding-a-store.md explains %v, which no case is about", explained[len(duties):])
	}
}
