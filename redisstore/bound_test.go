package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/redistest"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
)

// TestRecordsAreBounded checks that a key has at most 10,000 live records, by the script of
// holds and in Go, and of them at most 4,096 reservations that wait. All but a few are
// copies of one that the store has made.
func TestRecordsAreBounded(t *testing.T) {
	t.Parallel()
	db := connect(t, redistest.Start(t).URL()+"?timeout=1m")
	s := newStore(t, db, redisstore.Config{Poll: -1, Prefix: "dipwell"})
	l, err := dipwell.New(s,
		store.Limit{Name: "n", Rate: 1, Period: time.Hour, Burst: 1_000_000, MaxDebt: 1_000_000, Plans: store.NewPlans(store.Plan{Name: "free", Mode: store.Unlimited})},
		store.Limit{Name: "slots", Algorithm: store.Concurrency, Burst: 1_000_000},
		store.Limit{Name: "late", Rate: 1, Period: time.Hour, Burst: 1, MaxDebt: 1_000_000})
	if err != nil {
		t.Fatal(err)
	}
	hold := func(id string, take dipwell.Take) error {
		d, err := l.Hold(t.Context(), time.Hour, id, take)
		if err == nil && !d.Allowed {
			t.Fatalf("%+v", d)
		}
		return err
	}
	want := func(what string, err error, full bool) {
		t.Helper()
		var f *store.FieldError
		if full && (!errors.As(err, &f) || f.Field != "key") || !full && err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	for i, take := range []dipwell.Take{{Limit: "n", Key: "paid", Cost: 1}, {Limit: "n", Plan: "free", Key: "free", Cost: 1}, {Limit: "slots", Key: "slots", Cost: 1}} {
		want("the first", hold(fmt.Sprint("first", i), take), false)
		copyRecords(t, db, take.Limit, take.Key, 9_999)
		want("the last", hold(fmt.Sprint("last", i), take), false)
		for _, plan := range []string{"", "free"} {
			if more := (dipwell.Take{Limit: take.Limit, Plan: plan, Key: take.Key, Cost: 1}); plan == "" || take.Limit == "n" {
				want(fmt.Sprintf("%+v", more), hold("", more), true)
			}
		}
		want("of another key", hold("", dipwell.Take{Limit: take.Limit, Key: "other", Cost: 1}), false)
		if _, err := l.Settle(t.Context(), fmt.Sprint("first", i)); err != nil {
			t.Fatal(err)
		}
		want("after a settle", hold("", take), false)
		want("once more", hold("", take), true)
	}
	d, err := l.Reserve(t.Context(), "late", "k", 2)
	want("the first reservation", err, false)
	copyRecords(t, db, "late", "k", 4096)
	_, err = l.Reserve(t.Context(), "late", "k", 1)
	want("one more", err, true)
	if err := l.Cancel(t.Context(), d.Reservation); err != nil {
		t.Fatal(err)
	}
	_, err = l.Reserve(t.Context(), "late", "k", 2)
	want("after a cancellation", err, false)
}

// copyRecords makes n records of the one that a key has. The copies are of lists that the
// row had before.
func copyRecords(t testing.TB, db redis.UniversalClient, limit, key string, n int) {
	t.Helper()
	ctx := context.Background()
	name := func(kind string) string { return fmt.Sprintf("dipwell.%s:%s:{%s}", kind, limit, key) }
	p := db.Pipeline()
	for field, text := range db.HGetAll(ctx, name("records")).Val() {
		for i := 1; i < n && field != ""; i++ {
			words := strings.Fields(text)
			words[1] = fmt.Sprint(i) // the mark
			if copied := fmt.Sprintf("copy%d", i); field[0] == ':' {
				p.HSet(ctx, name("records"), ":"+words[0]+" "+words[1], strings.Join(words, " "))
			} else {
				p.HSet(ctx, name("records"), copied, strings.Join(words, " "))
			}
		}
	}
	for _, kind := range []string{"due", "free"} {
		for _, one := range db.ZRangeWithScores(ctx, name(kind), 0, -1).Val() {
			for i := 1; i < n; i++ {
				p.ZAdd(ctx, name(kind), redis.Z{Score: one.Score, Member: fmt.Sprintf("copy%d", i)})
			}
		}
	}
	if _, err := p.Exec(ctx); err != nil {
		t.Fatal(err)
	}
}
