package redisstore_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dipwell/dipwell/internal/redistest"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
)

// TestProgramWithoutLists checks that an older program reads and writes a row
// with records as a plain row. The list is void then: a cancellation succeeds
// and gives nothing back, and the next reservation starts a new list.
func TestProgramWithoutLists(t *testing.T) {
	t.Parallel()
	db := client(t)
	prefix := fmt.Sprint("older", prefixes.Add(1))
	l := limiter(t, newStore(t, db, redisstore.Config{Prefix: prefix, Poll: -1}), store.Limit{Name: "a", Rate: 1, Period: time.Hour, Burst: 10, MaxDebt: 100})
	name := prefix + ":a:{k}"
	reserve := func(n int64) store.Reservation {
		d, err := l.Reserve(t.Context(), "a", "k", n)
		if err != nil || d.Delay == 0 {
			t.Fatalf("%+v, %v", d, err)
		}
		return d.Reservation
	}
	cancel := func(id store.Reservation, free int64) {
		t.Helper()
		if err := l.Cancel(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if d, err := l.Reserve(t.Context(), "a", "k", free+1); err != nil || d.Allowed {
			t.Errorf("%d are free: %+v, %v", free+1, d, err)
		}
		d, err := l.Reserve(t.Context(), "a", "k", free)
		if err != nil || !d.Allowed {
			t.Errorf("%d are not free: %+v, %v", free, d, err)
		} else if err = l.Cancel(t.Context(), d.Reservation); err != nil {
			t.Error(err)
		}
	}
	if _, err := l.Take(t.Context(), "a", "k", 10); err != nil {
		t.Fatal(err)
	}
	cancel(reserve(20), 100)
	if row := db.Get(t.Context(), name).Val(); strings.HasPrefix(row, "0") {
		t.Errorf("without records the row is %q", row)
	}
	before := reserve(20)
	row := db.Get(t.Context(), name).Val()
	if !strings.HasPrefix(row, "0") {
		t.Fatalf("with a record the row is %q", row)
	}
	db.Set(t.Context(), name, strings.TrimPrefix(row, "0"), time.Hour)
	cancel(before, 80)
	cancel(reserve(30), 80)
}

// TestCallsBesideReservations checks that a batch of takes of many buckets with
// reservations is two round trips, and a single take two calls.
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
	}{{keys[:1], 2}, {keys, 51}} {
		do(t, server, "config", "resetstat")
		y := newTally(c.keys...)
		y.batch(s, l, "a")
		if n := commands(t, server)["evalsha"]; n > c.most || sum(y.failed) > 0 || sum(y.granted) != int64(len(c.keys)) {
			t.Errorf("%d takes: %d calls, at most %d; %d granted, %d failed", len(c.keys), n, c.most, sum(y.granted), sum(y.failed))
		}
	}
}
