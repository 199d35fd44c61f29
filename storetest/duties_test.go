package storetest

import (
	"slices"
	"strings"
	"testing"
)

// TestDuties checks that each case is listed for one duty.
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
}
