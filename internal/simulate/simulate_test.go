package simulate

import (
	"os"
	"strconv"
	"testing"
)

func TestSeeds(t *testing.T) {
	n := 1000
	if s := os.Getenv("DIPWELL_SEEDS"); s != "" {
		n, _ = strconv.Atoi(s)
	}
	var granted int64
	lost := map[string]int64{}
	for seed := range uint64(n) {
		r := Run(seed, Options{})
		if r.Violation != nil {
			r = Shrink(seed, Options{})
			if err := r.Print(os.Stdout, Options{}); err != nil {
				t.Error(err)
			}
			t.Fatalf("seed %d: %v", seed, r.Violation)
		}
		granted += r.Granted
		for k, v := range r.Lost {
			lost[k] += v
		}
	}
	t.Log(granted, lost)
}
