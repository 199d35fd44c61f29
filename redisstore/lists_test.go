package redisstore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/dipwell/dipwell/internal/redistest"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
)

// TestCallsBesideReservations checks that a take of a bucket with reservations is at most
// three calls: the script that leaves it alone, one that reads and one that writes.
func TestCallsBesideReservations(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s, l := openURL(t, server.URL(), redisstore.Config{Poll: -1}, store.Limit{Name: "a", Rate: 1, Period: time.Hour, Burst: 1000, MaxDebt: 10})
	keys := make([]string, 50)
	for i := range keys {
		keys[i] = fmt.Sprint("k", i)
		if _, err := l.Charge(t.Context(), "a", keys[i], 1000); err != nil {
			t.Fatal(err)
		}
		if d, err := l.Reserve(t.Context(), "a", keys[i], 1); err != nil || d.Delay == 0 {
			t.Fatalf("%+v, %v", d, err)
		}
		if _, err := l.Refund(t.Context(), "a", keys[i], 900); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		keys []string
		most int
	}{{keys[:1], 3}, {keys, 151}} {
		do(t, server, "config", "resetstat")
		y := newTally(c.keys...)
		y.batch(s, l, "a")
		if n := commands(t, server)["evalsha"]; n > c.most || sum(y.failed) > 0 || sum(y.granted) != int64(len(c.keys)) {
			t.Errorf("%d takes: %d calls, at most %d; %d granted, %d failed", len(c.keys), n, c.most, sum(y.granted), sum(y.failed))
		}
	}
}
