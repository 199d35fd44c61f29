package randseed_test

import (
	"testing"

	"github.com/dipwell/dipwell/internal/randseed"
)

func TestNew(t *testing.T) {
	t.Setenv(randseed.Setting, "")
	if a, b := randseed.New(t), randseed.New(t); a == b || randseed.IsSet() {
		t.Errorf("without %s, New returns %d and %d", randseed.Setting, a, b)
	}
	t.Setenv(randseed.Setting, "7")
	if n := randseed.New(t); n != 7 || !randseed.IsSet() {
		t.Errorf("New returns %d, want 7", n)
	}
}
