package limittest_test

import (
	"testing"

	"github.com/dipwell/dipwell/internal/limittest"
)

func TestNew(t *testing.T) {
	t.Setenv(limittest.SeedSetting, "")
	if a, b := limittest.NewSeed(t), limittest.NewSeed(t); a == b || limittest.SeedIsSet() {
		t.Errorf("without %s, New returns %d and %d", limittest.SeedSetting, a, b)
	}
	t.Setenv(limittest.SeedSetting, "7")
	if n := limittest.NewSeed(t); n != 7 || !limittest.SeedIsSet() {
		t.Errorf("New returns %d, want 7", n)
	}
}
