package memory

import (
	"fmt"
	"testing"
	"time"
)

// While the table grows, rows must stay close to the slots that are
// proportional to their hashes. Ordered linear probing expects a distance of 2
// to 3 slots at this load.
func TestRowsLieNearTheirPlaces(t *testing.T) {
	s := open(t, Config{})
	slow := api
	slow.Rate, slow.Period = 10, time.Hour
	l := limiter(t, s, slow)
	const most = 400_000
	for i := range most {
		if _, err := l.Take(ctx, "api", fmt.Sprint("user:", i), 1); err != nil {
			t.Fatal(err)
		}
		if i%20_000 != 19_999 && i != most-1 {
			continue
		}
		if mean, load := displacement(s); mean > 6 || load > 0.9 {
			t.Fatalf("%d keys: rows lie %.1f slots from their places on average, at a load of %.2f", i+1, mean, load)
		}
	}
}

func displacement(s *Store) (mean, load float64) {
	var sum, rows, size int
	for k := range s.shards {
		sh := &s.shards[k]
		for i := range sh.top {
			if p := sh.at(i); p.id != 0 {
				sum += i - sh.home(p.id)
				rows++
			}
		}
		size += int(sh.size)
	}
	return float64(sum) / float64(rows), float64(rows) / float64(size)
}
