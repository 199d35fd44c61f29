package redisstore_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/internal/redistest"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
	"github.com/dipwell/dipwell/storetest"
)

// TestAgreesWithModelAsKeysExpire plays random histories while the keys expire as they
// would by the server's clock.
func TestAgreesWithModelAsKeysExpire(t *testing.T) {
	t.Parallel()
	db, first := connect(t, redistest.Start(t).URL()+"?timeout=1m"), limittest.NewSeed(t)
	for i := range uint64(rounds(12)) {
		seed := first + i
		now, prefix := int64(1767225600e6), fmt.Sprint("expiring", prefixes.Add(1))
		clock, gone := redistest.Expiring(t, db, prefix, func() int64 { return now }, 0)
		s := newStore(t, db, redisstore.Config{Clock: clock, Poll: -1, Prefix: prefix})
		limittest.Agree(t, s, &now, seed, 200, limittest.Differences{Forget: true})
		if n := gone(); n < 10 {
			t.Errorf("only %d keys expired", n)
		}
	}
}

// TestAgreesWithTableAsKeysExpire plays the histories of TestAgreesWithTable, with holds,
// overrides, plans and changes, while the keys expire. Limits are also dropped and defined
// again, and the store is swept.
func TestAgreesWithTableAsKeysExpire(t *testing.T) {
	t.Parallel()
	db, first, gone := connect(t, redistest.Start(t).URL()+"?timeout=1m"), limittest.NewSeed(t), 0
	for i := range uint64(rounds(40)) {
		seed := first + i
		if i == 0 {
			seed = 15261800663481073849 // settles a hold that had expired before its limit was dropped
		}
		h := newHistory(t, db, redisstore.Config{}, true, seed)
		for range 80 {
			if h.step(); t.Failed() {
				t.Fatalf("seed %d:\n%s", seed, strings.Join(h.log, "\n"))
			}
		}
		gone += h.gone()
	}
	if gone < 400 {
		t.Errorf("only %d keys expired", gone)
	}
}

// TestStoreAsKeysExpire runs the suite while keys expire as they would by the server's
// clock.
func TestStoreAsKeysExpire(t *testing.T) {
	t.Parallel()
	db := connect(t, redistest.Start(t).URL()+"?timeout=1m")
	var one sync.Mutex
	storetest.Run(t, func(t testing.TB, now func() int64) store.Store {
		one.Lock()
		defer one.Unlock()
		prefix := fmt.Sprint("expiring", prefixes.Add(1))
		clock, _ := redistest.Expiring(t, db, prefix, now, 30e6) // the clock steps back by less
		t.Cleanup(func() { _ = db.FlushAll(context.Background()) })
		return newStore(t, db, redisstore.Config{Clock: clock, Poll: -1, Prefix: prefix})
	}, storetest.Options{Brief: true})
}

// TestSettleAfterRowExpired checks that a live hold is settled once although the key of
// its row, which was full, has expired, and a reservation or a Reset came after that.
func TestSettleAfterRowExpired(t *testing.T) {
	t.Parallel()
	db := client(t)
	ctx := t.Context()
	for _, then := range []string{"reserve", "reset"} {
		prefix := fmt.Sprint("outlived", prefixes.Add(1))
		s := newStore(t, db, redisstore.Config{Prefix: prefix})
		l := limiter(t, s, drained("api", 10))
		hold, err := l.Hold(ctx, time.Hour, "", dipwell.Take{Limit: "api", Key: "k", Cost: 5})
		if err != nil || !hold.Allowed {
			t.Fatal(hold, err)
		}
		if n := db.Del(ctx, prefix+":api:{k}").Val(); n != 1 { // as if it had been full and had expired
			t.Fatalf("%d rows were deleted", n)
		}
		want := int64(-1)
		if then == "reset" {
			if _, err := l.Reset(ctx, "api", "k"); err != nil {
				t.Fatal(err)
			}
			want = 10
		} else {
			if d, err := l.Take(ctx, "api", "k", 10); err != nil || !d.Allowed {
				t.Fatal(d, err)
			}
			if d, err := l.Reserve(ctx, "api", "k", 1); err != nil || !d.Allowed {
				t.Fatal(d, err)
			}
		}
		before, err := l.Check(ctx, "api", "k", 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = l.Settle(ctx, hold.Hold, 5); err != nil {
			t.Fatal(err)
		}
		after, err := l.Check(ctx, "api", "k", 0)
		if err != nil || after.ResetAfter > before.ResetAfter || want >= 0 && after.Remaining != want {
			t.Errorf("%s: a settle as held changed %+v to %+v, %v", then, before, after, err)
		}
	}
}

// TestLateWrite checks that a call that Go decides is decided again if its write comes so
// late that another call could have charged a key, which has expired, since it was read.
func TestLateWrite(t *testing.T) {
	t.Parallel()
	ctx, db, prefix := t.Context(), connect(t, redistest.Shared(t).URL()), fmt.Sprint("late", prefixes.Add(1))
	limits := []store.Limit{{Name: "a", Rate: 1, Period: time.Millisecond, Burst: 1}, drained("b", 5)}
	limits[1].Plans = store.NewPlans(store.Plan{Name: "free", Mode: store.Unlimited}) // no script decides it
	other := limiter(t, newStore(t, client(t), redisstore.Config{Poll: -1, Prefix: prefix}), limits...)
	row, expired := prefix+":a:{k}", time.Time{}
	late := &beforeWrite{do: func() {
		if d, err := other.Take(ctx, "a", "k", 1); err != nil || !d.Allowed {
			t.Errorf("in between: %+v, %v", d, err)
		}
		eventually(t, "expired", func() bool { return db.Exists(ctx, row).Val() == 0 })
		expired = db.Time(ctx).Val()
	}}
	db.AddHook(late)
	l := limiter(t, newStore(t, db, redisstore.Config{Poll: -1, Prefix: prefix}), limits...)
	d, err := l.TakeAll(ctx, dipwell.Take{Limit: "a", Key: "k", Cost: 1}, dipwell.Take{Limit: "b", Key: "k", Plan: "free", Cost: 1})
	if err != nil || !d.Allowed {
		t.Fatalf("%+v, %v", d, err)
	}
	var used, ts, version int64
	if _, err := fmt.Sscan(db.Get(ctx, row).Val(), &used, &ts, &version); err != nil || ts < expired.UnixMicro() {
		t.Errorf("decided at %d, before %d; %v", ts, expired.UnixMicro(), err)
	}
}

// TestConcurrencyAsHoldsExpire checks that what expired holds had is free, although no
// call has given it back.
func TestConcurrencyAsHoldsExpire(t *testing.T) {
	t.Parallel()
	db := client(t)
	s := newStore(t, db, redisstore.Config{})
	l := limiter(t, s, store.Limit{Name: "slots", Algorithm: store.Concurrency, Burst: 1})
	ctx := t.Context()
	for _, key := range []string{"k", "override"} {
		if key == "override" {
			if _, err := l.SetOverride(ctx, "slots", dipwell.Override{Key: key, Burst: 1}); err != nil {
				t.Fatal(err)
			}
		}
		hold, err := l.Hold(ctx, 20*time.Millisecond, "", dipwell.Take{Limit: "slots", Key: key, Cost: 1})
		if err != nil || !hold.Allowed {
			t.Fatal(hold, err)
		}
		eventually(t, "expired", func() bool {
			at, err := db.Time(ctx).Result()
			return err == nil && at.After(hold.Expires.Add(2*time.Millisecond))
		})
		if d, err := l.Check(ctx, "slots", key, 1); err != nil || !d.Allowed {
			t.Errorf("%s: %+v, %v", key, d, err)
		}
		if hold, err = l.Hold(ctx, time.Minute, "", dipwell.Take{Limit: "slots", Key: key, Cost: 1}); err != nil || !hold.Allowed {
			t.Errorf("%s: %+v, %v", key, hold, err)
		}
	}
}

// TestServerStops checks that a hold shortens the life of no key if the server stops while
// a script runs, so that keys seem to expire earlier than they do.
func TestServerStops(t *testing.T) {
	t.Parallel()
	db, prefix := client(t), fmt.Sprint("stops", prefixes.Add(1))
	s := newStore(t, db, redisstore.Config{Prefix: prefix, Poll: -1})
	l := limiter(t, s, store.Limit{Name: "api", Rate: 1000, Period: time.Second, Burst: 5}, store.Limit{Name: "slots", Algorithm: store.Concurrency, Burst: 5})
	s.StopAfterTime()
	for limit, key := range map[string]string{"api": prefix + ".records:api:{k}", "slots": prefix + ":slots:{k}"} {
		last := time.Duration(0)
		for _, ttl := range []time.Duration{time.Minute, time.Minute - 200*time.Millisecond} {
			if d, err := l.Hold(t.Context(), ttl, "", dipwell.Take{Limit: limit, Key: "k", Cost: 1}); err != nil || !d.Allowed {
				t.Fatalf("%+v, %v", d, err)
			}
			at := db.PExpireTime(t.Context(), key).Val()
			if at < last {
				t.Errorf("%s: a second hold made %s expire %v earlier", limit, key, last-at)
			}
			last = at
		}
	}
}
