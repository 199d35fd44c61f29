package redisstore_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/internal/redistest"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
)

// TestKeysEnd checks after random histories of all calls that every key has an expiry, but
// for those that the page for operators says live for good: limits, rates and the audit.
func TestKeysEnd(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]func() string{
		"server":  func() string { return redistest.Shared(t).URL() },
		"cluster": func() string { return redistest.SharedCluster(t).URL() },
	} {
		t.Run(name, func(t *testing.T) {
			db := connect(t, url())
			prefix := "ends-" + name
			s := newStore(t, db, redisstore.Config{Prefix: prefix, Poll: -1})
			h := &lasting{TB: t, Rand: rand.New(rand.NewPCG(limittest.NewSeed(t), 0)), s: s}
			h.l = limiter(t, s, lastingLimits(t)...)
			for range rounds(400) {
				h.step()
			}
			counts := map[string]int{}
			for _, key := range keysOf(t, db, prefix) {
				kind, _, _ := strings.Cut(strings.TrimPrefix(key, prefix), ":")
				counts[kind]++
				left := db.PTTL(t.Context(), key).Val()
				lasts := kind == ".limits" || kind == ".audit"
				most := 2 * time.Hour
				if kind == ".top_hours" {
					most = 7 * 24 * time.Hour
				}
				if lasts != (left == -1) || left > most {
					t.Errorf("%s lives for %v", key, left)
				}
			}
			for _, kind := range []string{"", ".records", ".override", ".reservation", ".hold", ".audit", ".top_hours", ".limits"} {
				if counts[kind] == 0 {
					t.Errorf("the history leaves no key that begins with %s%s: %v", prefix, kind, counts)
				}
			}
		})
	}
}

// lastingLimits returns limits that are full after an hour at most.
func lastingLimits(t *testing.T) (limits []store.Limit) {
	for _, text := range []string{
		"bucket=10/1m,burst=20,max_debt=20,max_charge=30,plans=pro:rate=100|staff:mode=unlimited",
		"coarse=10/1m,burst=20,max_debt=20,max_charge=30",
		"window=20/1m,algorithm=fixed_window",
		"spread=5/1m,algorithm=interval,burst=20,max_debt=10",
		"leaky=60/1m,algorithm=leaky_bucket,max_debt=20",
		"jobs=10,algorithm=concurrency,ttl=1m",
		"up=60/1m,burst=20,adaptive=floor=30;errors=2%;window=100ms",
		"shadow=5/1m,mode=shadow",
	} {
		l, err := dipwell.ParseLimit(text)
		if err != nil {
			t.Fatal(text, err)
		}
		limits = append(limits, l)
	}
	return limits
}

// keysOf returns all keys with a prefix.
func keysOf(t *testing.T, db redis.UniversalClient, prefix string) (keys []string) {
	t.Helper()
	var mu sync.Mutex
	scan := func(ctx context.Context, node redis.Cmdable) error {
		names := node.Scan(ctx, 0, prefix+"*", 1000).Iterator()
		for names.Next(ctx) {
			mu.Lock()
			keys = append(keys, names.Val())
			mu.Unlock()
		}
		return names.Err()
	}
	var err error
	if cluster, ok := db.(*redis.ClusterClient); ok {
		err = cluster.ForEachMaster(t.Context(), func(ctx context.Context, node *redis.Client) error { return scan(ctx, node) })
	} else {
		err = scan(t.Context(), db)
	}
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// lasting makes a random history of all calls, on the server's clock.
type lasting struct {
	testing.TB
	*rand.Rand
	s       *redisstore.Store
	l       *dipwell.Limiter
	made    []dipwell.Reservation
	holds   []string
	version int64
}

func (h *lasting) step() {
	limits := []string{"bucket", "coarse", "window", "spread", "leaky", "up", "shadow"}
	name, key := limits[h.IntN(len(limits))], "k"+strconv.Itoa(h.IntN(4))
	take := dipwell.Take{Limit: name, Key: key, Cost: 1 + h.Int64N(12)}
	if name == "bucket" && h.IntN(3) == 0 {
		take.Plan = "pro"
	}
	ctx := h.Context()
	var d dipwell.Decision
	var err error
	switch h.IntN(12) {
	case 0, 1, 2:
		verb := []store.Verb{store.VerbTake, store.VerbTakeUpTo, store.VerbCharge, store.VerbRefund, store.VerbReset, store.VerbCheck}[h.IntN(6)]
		if take.Plan = ""; verb == store.VerbReset {
			take.Cost = 0
		}
		err = h.l.Do(ctx, &d, verb, take)
	case 3, 4:
		take.Plan = ""
		other := dipwell.Take{Limit: "coarse", Key: key, Cost: 1}
		if err = h.l.DoAll(ctx, &d, store.VerbReserve, []dipwell.Take{take, other}[:1+h.IntN(2)]); d.Reservation != (dipwell.Reservation{}) {
			h.made = append(h.made, d.Reservation)
		}
	case 5:
		if n := len(h.made); n > 0 && h.IntN(2) == 0 {
			err = h.l.Cancel(ctx, h.made[h.IntN(n)])
		}
	case 6, 7:
		takes := []dipwell.Take{{Limit: "jobs", Key: key, Cost: 1}, {Limit: "up", Key: key, Cost: 2}, {Limit: "bucket", Key: key, Cost: 3}}
		h.Shuffle(len(takes), func(i, j int) { takes[i], takes[j] = takes[j], takes[i] })
		if d, err = h.l.Hold(ctx, time.Duration(1+h.IntN(1000))*time.Millisecond, "", takes[:1+h.IntN(3)]...); d.Allowed {
			h.holds = append(h.holds, d.Hold)
		}
	case 8:
		if n := len(h.holds); n > 0 {
			if id := h.holds[h.IntN(n)]; h.IntN(3) == 0 {
				_, err = h.l.Extend(ctx, id, 10*time.Second)
			} else {
				_, err = h.l.Settle(ctx, id)
			}
		}
	case 9:
		if h.IntN(4) == 0 {
			_, err = h.l.EndOverride(ctx, "bucket", key, dipwell.AnyOverride)
		} else {
			_, err = h.l.SetOverride(ctx, "bucket", dipwell.Override{Key: key, Burst: 20 + h.Int64N(20), Until: time.Now().Add(time.Duration(1+h.IntN(60)) * time.Minute).UnixMicro()})
		}
	case 10:
		switch h.IntN(3) {
		case 0:
			site := h.l.Limit("coarse").Limit
			site.Burst = 21 + h.Int64N(5)
			_, err = h.l.TakeWith(ctx, site, key, 1)
		case 1:
			err = h.l.Observe("up", 0, h.IntN(2) == 0, 100)
		case 2:
			h.version++
			l := h.l.Limit("spread").Limit
			l.Rate = 5 + h.version%7
			_, err = h.l.Define(ctx, l, store.OwnerCode)
		}
	case 11:
		err = errors.Join(h.s.Abilities().Audit.Record(ctx, store.AuditEntry{Action: "reset", Limit: name, Key: key}),
			h.s.Abilities().TopKeys.Record(ctx, store.AuditEntry{Who: "here", Action: "top", What: "{}"}))
	}
	var bad *dipwell.FieldError
	if err != nil && !errors.Is(err, dipwell.ErrReservation) && !errors.Is(err, dipwell.ErrHoldConflict) && !errors.Is(err, dipwell.ErrUnknownHold) && !errors.As(err, &bad) {
		h.Fatal(err)
	}
}
