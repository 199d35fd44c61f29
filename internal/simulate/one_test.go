package simulate

import (
	"os"
	"strconv"
	"testing"
)

func TestOne(t *testing.T) {
	s := os.Getenv("DIPWELL_SEED")
	if s == "" {
		t.Skip()
	}
	seed, _ := strconv.ParseUint(s, 10, 64)
	r := Shrink(seed, Options{})
	if err := r.Print(os.Stdout, Options{}); err != nil || r.Violation != nil {
		t.Fatal(err, r.Violation)
	}
}
