package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/redistest"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
)

// TestKnownHoldChangedElsewhere checks a settle by the program that made a hold, and so knows
// it, after another program has changed it.
func TestKnownHoldChangedElsewhere(t *testing.T) {
	t.Parallel()
	db := client(t)
	take := dipwell.Take{Limit: "b", Key: "k", Cost: 10}
	for name, c := range map[string]struct {
		change func(l *dipwell.Limiter, now *int64) error
		want   error
		again  bool
		left   int64 // of 100
	}{
		"extended": {func(l *dipwell.Limiter, now *int64) error {
			_, err := l.Extend(t.Context(), "id", time.Hour)
			*now += 2 * time.Minute.Microseconds()
			return err
		}, nil, false, 97},
		"settled alike": {func(l *dipwell.Limiter, _ *int64) error {
			_, err := l.Settle(t.Context(), "id", 3)
			return err
		}, nil, true, 97},
		"settled otherwise": {func(l *dipwell.Limiter, _ *int64) error {
			_, err := l.Settle(t.Context(), "id", 4)
			return err
		}, store.ErrHoldConflict, false, 96},
		"reset": {func(l *dipwell.Limiter, _ *int64) error {
			_, err := l.Reset(t.Context(), "b", "k")
			return err
		}, nil, false, 100},
		"forgotten": {func(_ *dipwell.Limiter, now *int64) error {
			*now += time.Hour.Microseconds()
			return nil
		}, store.ErrUnknownHold, false, 100},
		"forgotten, and made of another key": {func(l *dipwell.Limiter, now *int64) error {
			*now += time.Hour.Microseconds()
			_, err := l.Hold(t.Context(), time.Minute, "id", dipwell.Take{Limit: "b", Key: "other", Cost: 20})
			return err
		}, nil, false, 100},
		"forgotten, and made with another cost": {func(l *dipwell.Limiter, now *int64) error {
			*now += time.Hour.Microseconds()
			_, err := l.Hold(t.Context(), time.Minute, "id", dipwell.Take{Limit: "b", Key: "k", Cost: 20})
			return err
		}, nil, false, 97},
		"forgotten, and made with another cost before the clock steps back": {func(l *dipwell.Limiter, now *int64) error {
			*now += time.Hour.Microseconds()
			_, err := l.Hold(t.Context(), time.Minute, "id", dipwell.Take{Limit: "b", Key: "k", Cost: 20})
			*now -= time.Hour.Microseconds()
			return err
		}, nil, false, 97},
	} {
		t.Run(name, func(t *testing.T) {
			now := int64(1e15)
			config := redisstore.Config{Prefix: fmt.Sprint("known", prefixes.Add(1)), Poll: -1, Clock: func() int64 { return now }}
			b := store.Limit{Name: "b", Rate: 100, Period: 24 * time.Hour}
			mine, others := limiter(t, newStore(t, db, config), b), limiter(t, newStore(t, db, config), b)
			if d, err := mine.Hold(t.Context(), time.Minute, "id", take); err != nil || !d.Allowed {
				t.Fatal(d, err)
			}
			if err := c.change(others, &now); err != nil {
				t.Fatal(err)
			}
			d, err := mine.Settle(t.Context(), "id", 3)
			if !errors.Is(err, c.want) || d.Repeated != c.again {
				t.Errorf("settle: %+v, %v; want %v, repeated %v", d, err, c.want, c.again)
			}
			if d, err = others.Check(t.Context(), "b", "k", 0); err != nil || d.Remaining != c.left {
				t.Errorf("%d left, %v; want %d", d.Remaining, err, c.left)
			}
		})
	}
}

// lostSettle loses the first answer of settle.lua.
type lostSettle struct{ lost bool }

func (*lostSettle) DialHook(next redis.DialHook) redis.DialHook { return next }
func (*lostSettle) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
func (l *lostSettle) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if args := cmd.Args(); err == nil && !l.lost && len(args) > 1 && redisstore.IsSettle(args[1]) {
			l.lost, err = true, io.ErrUnexpectedEOF
			cmd.SetErr(err)
		}
		return err
	}
}

// TestKnownHoldSettleLost settles a hold that the program has made, and so knows, and loses the
// answer. The next settle does not settle it a second time.
func TestKnownHoldSettleLost(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]string{"one": redistest.Shared(t).URL(), "cluster": redistest.SharedCluster(t).URL()} {
		for cost, want := range map[int64]int64{0: 100, 3: 97, 10: 90, 12: 88} {
			db := connect(t, url)
			l := limiter(t, newStore(t, db, redisstore.Config{Prefix: fmt.Sprint("lostsettle", prefixes.Add(1)), Poll: -1}), drained("b", 100))
			lost := &lostSettle{}
			var held dipwell.Decision
			for _, id := range []string{"first", "id"} { // the first settle loads the script
				var err error
				if held, err = l.Hold(t.Context(), time.Minute, id, dipwell.Take{Limit: "b", Key: "k", Cost: 10}); err != nil || !held.Allowed {
					t.Fatal(held, err)
				}
				if id == "first" {
					_, err = l.Settle(t.Context(), held.Hold, 0)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			db.AddHook(lost)
			if d, err := l.Settle(t.Context(), held.Hold, cost); !errors.Is(err, store.ErrOutcomeUnknown) || !lost.lost {
				t.Errorf("%s, cost %d: the lost settle: %+v, %v", name, cost, d, err)
			}
			for range 2 {
				if d, err := l.Settle(t.Context(), held.Hold, cost); err != nil || !d.Repeated || d.Remaining != want {
					t.Errorf("%s, cost %d: %+v, %v; want a repeated one, %d left", name, cost, d, err, want)
				}
			}
			if d, err := l.Settle(t.Context(), held.Hold, cost+1); !errors.Is(err, store.ErrHoldConflict) {
				t.Errorf("%s, cost %d: %+v, %v; want a conflict", name, cost, d, err)
			}
			if n := left(t, l, "b", "k"); n != want {
				t.Errorf("%s, cost %d: %d left; want %d", name, cost, n, want)
			}
		}
	}
}

// TestRecordsOutliveRow checks that the records of a fast limit live as long as the row, which a
// change to a slower limit may need: after a take at the end of a hold, and after a hold of a full
// bucket beside one that ends soon.
func TestRecordsOutliveRow(t *testing.T) {
	t.Parallel()
	db, now := client(t), int64(1e15)
	config := redisstore.Config{Prefix: fmt.Sprint("outlive", prefixes.Add(1)), Poll: -1, Clock: func() int64 { return now }}
	l := limiter(t, newStore(t, db, config), store.Limit{Name: "b", Rate: 10, Period: time.Second})
	hold := func(key string, ttl time.Duration) {
		if d, err := l.Hold(t.Context(), ttl, "", dipwell.Take{Limit: "b", Key: key, Cost: 10}); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
	}
	hold("take", 1500*time.Millisecond)
	hold("hold", 3*time.Second)
	for _, after := range []time.Duration{900, 500} {
		now += int64(after) * 1000
		if d, err := l.Take(t.Context(), "b", "take", 5); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
	}
	now += 1500 * 1000
	hold("hold", time.Millisecond)
	for _, key := range []string{"take", "hold"} {
		records := db.PTTL(t.Context(), config.Prefix+".records:b:{"+key+"}").Val() // first, so that a pause in between does no harm
		if row := db.PTTL(t.Context(), config.Prefix+":b:{"+key+"}").Val(); row <= 0 || records < row {
			t.Errorf("%s: the row lives for %v, its records for %v less", key, row, row-records)
		}
	}
}
