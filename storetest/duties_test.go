package storetest

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestDuties checks that each case is listed for one duty, and that
// docs/adding-a-store.md describes the duties in the same order.
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
		t.Errorf("listed twice, or not a case: %v", listed)
	}

	page, err := os.ReadFile("../docs/adding-a-store.md")
	if err != nil {
		t.Fatal(err)
	}
	var explained []string
	for _, m := range regexp.MustCompile(`(?m)^\| \*\*([a-z-]+)\*\* \|`).FindAllStringSubmatch(string(page), -1) {
		explained = append(explained, m[1])
	}
	for i, d := range duties {
		if i >= len(explained) || explained[i] != d.name {
			t.Fatalf("docs/adding-a-store.md describes %v; want %s at %d", explained, d.name, i)
		}
	}
	if len(explained) > len(duties) {
		t.Errorf("docs/adding-a-store.md describes %v, for which there are no cases", explained[len(duties):])
	}
}
