package redisstore_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/redistest"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
)

// The server's statistics of each command.
var commandCalls = regexp.MustCompile(`cmdstat_([a-z|]+):calls=(\d+)`)

func commands(t testing.TB, s *redistest.Server) map[string]int {
	t.Helper()
	counts := map[string]int{}
	for _, m := range commandCalls.FindAllStringSubmatch(fmt.Sprint(do(t, s, "info", "commandstats")), -1) {
		n, err := strconv.Atoi(m[2])
		if err != nil {
			t.Fatal(err)
		}
		if m[1] != "info" && !strings.HasPrefix(m[1], "config") && !strings.HasPrefix(m[1], "client") && m[1] != "hello" && m[1] != "ping" {
			counts[m[1]] = n
		}
	}
	return counts
}

// TestCallsPerDecision checks that a decision is one call of a script, which
// reads the row once and, if it charges, writes it once; so are a batch of
// callers of one bucket, and one of up to 64 buckets of one limit.
func TestCallsPerDecision(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s, l := openURL(t, server.URL(), redisstore.Config{Poll: -1}, drained("a", 5), drained("b", 1000), store.Limit{Name: "jobs", Algorithm: store.Concurrency, Burst: 20},
		store.Limit{Name: "w", Algorithm: store.FixedWindow, Rate: 5, Period: 24 * time.Hour, Start: "06:00 Europe/Rome"})
	ctx := t.Context()
	pro := drained("o", 10)
	pro.Plans = store.NewPlans(store.Plan{Name: "pro", Burst: 50})
	if _, err := l.Define(ctx, pro, store.OwnerCode); err != nil {
		t.Fatal(err)
	}
	now, err := s.Abilities().Now(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.SetOverride(ctx, "o", dipwell.Override{Key: "vip", Burst: 20, Until: now + 3600e6}); err != nil {
		t.Fatal(err)
	}
	takes := func(limit string, keys ...string) func() error {
		return func() error {
			y := newTally(keys...)
			y.batch(s, l, limit)
			if sum(y.failed) > 0 {
				return fmt.Errorf("%d failed", sum(y.failed))
			}
			return nil
		}
	}
	same, many := make([]string, 50), make([]string, 128)
	for i := range same {
		same[i] = "same"
	}
	for i := range many {
		many[i] = fmt.Sprint("key", i)
	}
	one := func(call func() (dipwell.Decision, error)) func() error {
		return func() error { _, err := call(); return err }
	}
	var holds []string
	held := func(limit, key string) func() (dipwell.Decision, error) {
		return func() (dipwell.Decision, error) {
			d, err := l.Hold(ctx, time.Hour, "", dipwell.Take{Limit: limit, Key: key, Cost: 10})
			holds = append(holds, d.Hold)
			return d, err
		}
	}
	hold, slot := held("b", "held"), held("jobs", "held")
	settleBy := func(l *dipwell.Limiter) func() (dipwell.Decision, error) {
		return func() (dipwell.Decision, error) {
			id := holds[0]
			holds = holds[1:]
			return l.Settle(ctx, id, 3)
		}
	}
	_, other := openURL(t, server.URL(), redisstore.Config{Poll: -1})
	settle, elsewhere := settleBy(l), settleBy(other)
	// A settle that fails leaves the hold as it is.
	unsettled := func(costs ...int64) func() error {
		return func() error {
			var f *dipwell.FieldError
			if _, err := l.Settle(ctx, holds[0], costs...); !errors.As(err, &f) {
				return fmt.Errorf("a settle to %d: %w", costs, err)
			}
			return nil
		}
	}
	for _, c := range []struct {
		name string
		call func() error
		want string
	}{
		{"warm, hold", one(held("b", "warm")), ""},
		{"warm, settle", one(settle), ""},
		{"warm", one(func() (dipwell.Decision, error) { return l.Take(ctx, "b", "warm", 1) }), ""},
		{"warm, several rows", takes("b", "warm", "warmer"), ""},
		{"warm, refund", one(func() (dipwell.Decision, error) { return l.Refund(ctx, "b", "warm", 1) }), ""},
		{"warm, several limits", one(func() (dipwell.Decision, error) {
			return l.TakeAll(ctx, dipwell.Take{Limit: "b", Key: "warm", Cost: 1}, dipwell.Take{Limit: "b", Key: "warmer", Cost: 1})
		}), ""},
		{"warm, override", one(func() (dipwell.Decision, error) { return l.Take(ctx, "o", "vip", 1) }), ""},
		{"warm, calendar window", one(func() (dipwell.Decision, error) { return l.Check(ctx, "w", "warm", 1) }), ""},
		{"first call", one(func() (dipwell.Decision, error) { return l.Take(ctx, "a", "k", 1) }), "evalsha 1, get 1, set 1, time 1"},
		{"admitted", one(func() (dipwell.Decision, error) { return l.Take(ctx, "a", "k", 4) }), "evalsha 1, get 1, set 1, time 1"},
		{"refused", one(func() (dipwell.Decision, error) { return l.Take(ctx, "a", "k", 1) }), "evalsha 1, get 1, time 1"},
		{"never", one(func() (dipwell.Decision, error) { return l.Take(ctx, "a", "k", 6) }), "evalsha 1, get 1, time 1"},
		{"check", one(func() (dipwell.Decision, error) { return l.Check(ctx, "a", "k", 1) }), "evalsha 1, get 1, time 1"},
		{"check of a new key", one(func() (dipwell.Decision, error) { return l.Check(ctx, "a", "new", 1) }), "evalsha 1, get 1, time 1"},
		{"charge", one(func() (dipwell.Decision, error) { return l.Charge(ctx, "a", "k", 1) }), "evalsha 1, get 1, set 1, time 1"},
		{"refund", one(func() (dipwell.Decision, error) { return l.Refund(ctx, "a", "k", 1) }), "del 1, evalsha 1, get 1, set 1, time 1"},
		{"calendar window", one(func() (dipwell.Decision, error) { return l.Take(ctx, "w", "k", 1) }), "evalsha 2"},
		{"two limits", one(func() (dipwell.Decision, error) {
			return l.TakeAll(ctx, dipwell.Take{Limit: "b", Key: "k", Cost: 1}, dipwell.Take{Limit: "b", Key: "j", Cost: 1})
		}), "evalsha 1, mget 1, set 2, time 1"},
		{"50 callers of one bucket", takes("b", same...), "evalsha 1, get 1, set 1, time 1"},
		{"50 of them refused", takes("a", same...), "evalsha 1, get 1, set 1, time 1"},
		{"50 more", takes("a", same...), "evalsha 1, get 1, time 1"},
		{"128 buckets", takes("b", many...), "evalsha 2, mget 2, set 128, time 2"},
		{"beside overrides, first call", one(func() (dipwell.Decision, error) { return l.Take(ctx, "o", "first", 1) }), "evalsha 1, get 1, set 1, time 1"},
		{"beside overrides, 50 callers of one bucket", takes("o", same...), "evalsha 1, get 1, set 1, time 1"},
		{"under an override", one(func() (dipwell.Decision, error) { return l.Take(ctx, "o", "vip", 1) }), "evalsha 1, get 1, set 1, time 1"},
		{"under an override, refused", one(func() (dipwell.Decision, error) { return l.Take(ctx, "o", "vip", 21) }), "evalsha 1, get 1, time 1"},
		{"under an override, two limits", one(func() (dipwell.Decision, error) {
			return l.TakeAll(ctx, dipwell.Take{Limit: "o", Key: "vip", Cost: 1}, dipwell.Take{Limit: "b", Key: "k", Cost: 1})
		}), "evalsha 2"},
		{"hold", one(hold), "evalsha 1, get 1, hlen 1, hset 1, pexpireat 1, set 2, time 1, zcard 1"},
		{"second hold", one(hold), "evalsha 1, get 1, hlen 1, hset 1, pexpireat 1, pttl 1, set 2, time 1, zcard 1"},
		{"beside holds", one(func() (dipwell.Decision, error) { return l.Take(ctx, "b", "held", 1) }), "evalsha 1, get 1, set 1, time 1"},
		{"settle, too many costs", unsettled(1, 2), ""},
		{"settle, too large", unsettled(1e9), ""},
		{"settle", one(settle), "evalsha 1, get 1, hdel 1, hget 1, hlen 1, set 2, time 1"},
		{"settle the last", one(settle), "evalsha 1, get 1, hdel 1, hget 1, hlen 1, set 2, time 1"},
		{"take a slot", one(slot), "evalsha 1, get 1, hlen 1, hset 1, pexpireat 1, set 2, time 1, zcard 1"},
		{"free a slot", one(settle), "del 1, evalsha 1, get 1, hdel 1, hget 1, set 1, time 1"},
		{"hold again", one(hold), "evalsha 1, get 1, hlen 1, hset 1, pexpireat 1, set 2, time 1, zcard 1"},
		{"settle it in another program", one(elsewhere), "evalsha 1, get 2, hdel 1, hget 1, set 2, time 1"},
		{"under a plan, first call", one(func() (dipwell.Decision, error) {
			return l.TakeAll(ctx, dipwell.Take{Limit: "o", Key: "planned", Plan: "pro", Cost: 1})
		}), "evalsha 1, get 1, set 1, time 1"},
		{"under a plan", one(func() (dipwell.Decision, error) {
			return l.TakeAll(ctx, dipwell.Take{Limit: "o", Key: "planned", Plan: "pro", Cost: 1})
		}), "evalsha 1, get 1, set 1, time 1"},
	} {
		do(t, server, "config", "resetstat")
		if err := c.call(); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		counts := commands(t, server)
		if c.want == "evalsha 2" && counts["evalsha"] == 2 { // decided in Go: one that reads and one that writes
			counts = map[string]int{"evalsha": 2}
		}
		var got []string
		for _, name := range []string{"del", "eval", "evalsha", "get", "hdel", "hget", "hlen", "hset", "mget", "pexpireat", "pttl", "set", "time", "zcard"} {
			if counts[name] > 0 {
				got = append(got, fmt.Sprint(name, " ", counts[name]))
				delete(counts, name)
			}
		}
		for name, n := range counts {
			got = append(got, fmt.Sprint(name, " ", n))
		}
		if c.want != "" && strings.Join(got, ", ") != c.want {
			t.Errorf("%s: %v, not %s", c.name, got, c.want)
		}
	}
}

// TestExpiryIsTimeToFull checks that a row expires when it is full, rounded up
// to ms, or two seconds after it was written if that is later.
func TestExpiryIsTimeToFull(t *testing.T) {
	t.Parallel()
	db := client(t)
	prefix := fmt.Sprint("full", prefixes.Add(1))
	for i, limit := range []store.Limit{
		{Rate: 7, Period: time.Minute, Burst: 5},
		{Rate: 1, Period: 30 * 24 * time.Hour, Burst: 31},
		{Rate: 999983, Period: 30 * 24 * time.Hour},
		{Rate: 300000, Period: time.Second, Burst: 2},
		{Rate: 1 << 30, Period: 24 * time.Hour},
		{Algorithm: store.FixedWindow, Rate: 9, Period: 17 * time.Second, Burst: 40},
		{Algorithm: store.Interval, Rate: 3, Period: time.Hour, Burst: 20},
		{Algorithm: store.FixedWindow, Rate: 9, Period: 24 * time.Hour, Start: "06:00 Europe/Rome"},
		{Algorithm: store.FixedWindow, Rate: 9, Period: 24 * time.Hour, Start: "06:00 Europe/Rome", Burst: 60},
		{Algorithm: store.Interval, Rate: 2, Period: store.Month, Start: "00:00 Europe/Rome", Burst: 60},
	} {
		limit.Name = fmt.Sprint("x", i)
		l := limiter(t, newStore(t, db, redisstore.Config{Prefix: prefix, Poll: -1}), limit)
		d := l.Limit(limit.Name)
		for n := int64(1); n <= d.Rule.Burst; n = 2*n + 1 {
			key := fmt.Sprint("k", n)
			for _, call := range []func() (dipwell.Decision, error){
				func() (dipwell.Decision, error) { return l.Take(t.Context(), limit.Name, key, n) },
				func() (dipwell.Decision, error) { return l.Refund(t.Context(), limit.Name, key, n/2) },
				func() (dipwell.Decision, error) { return l.Charge(t.Context(), limit.Name, key, 1) },
			} {
				before := db.Time(t.Context()).Val().UnixMicro()
				if _, err := call(); err != nil {
					t.Fatal(err)
				}
				name := fmt.Sprintf("%s:%s:{%s}", prefix, limit.Name, key)
				pipe := db.TxPipeline() // a row may expire between two commands
				at, get, expires := pipe.Time(t.Context()), pipe.Get(t.Context(), name), pipe.PExpireTime(t.Context(), name)
				if _, err := pipe.Exec(t.Context()); err != nil && !errors.Is(err, redis.Nil) {
					t.Fatal(err)
				}
				after := at.Val().UnixMicro()
				var used, ts, version int64
				row, err := get.Result()
				if errors.Is(err, redis.Nil) && (limit.Rate > 1000 || n == 1 || after > before+2000000) {
					continue // it is full at once, everything was given back, or the machine is slow
				}
				if _, err := fmt.Sscan(row, &used, &ts, &version); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				var scratch store.Rule
				full := d.RuleFor(key, &scratch).TimeToFull(used, ts, 0)
				want := (max(full, ts+2000000) + 999) / 1000
				got := expires.Val().Milliseconds()
				// ts may lie before the call, by less than what a token takes. A script
				// adds one millisecond even to a time that is a whole number of them.
				most := max(full, after+2000000)/1000 + 1
				if d.Rule.Every == 0 { // the script uses an upper bound for later windows
					most += (used/d.Rule.Add + 1) * (4 * 24 * time.Hour).Milliseconds()
				}
				if got < want || got > most {
					t.Errorf("%s: %d used at %d: full at %d, expires at %d ms, not from %d to %d", name, used, ts, full, got, want, most)
				}
			}
		}
	}
}

// TestReservationsExpireWhenDue checks that the set of a bucket's reservations
// lives until the last of them is due, in any order of creation, and the key of
// a reservation until it is due.
func TestReservationsExpireWhenDue(t *testing.T) {
	t.Parallel()
	db := client(t)
	prefix := fmt.Sprint("due", prefixes.Add(1))
	limit := store.Limit{Rate: 1, Period: time.Minute, Burst: 1, MaxDebt: 1000}
	other := limit
	limit.Name, other.Name = "a", "b"
	l := limiter(t, newStore(t, db, redisstore.Config{Prefix: prefix, Poll: -1}), limit, other)
	if _, err := l.Take(t.Context(), "a", "k", 1); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Charge(t.Context(), "b", "k", 9); err != nil {
		t.Fatal(err)
	}
	var last int64 // ms
	for i, takes := range [][]dipwell.Take{
		{{Limit: "a", Key: "k", Cost: 2}},
		{{Limit: "a", Key: "k", Cost: 1}, {Limit: "b", Key: "k", Cost: 100}}, // due when b's part is
		{{Limit: "a", Key: "k", Cost: 3}},
	} {
		before := time.Now()
		var d dipwell.Decision
		err := l.DoAll(t.Context(), &d, store.VerbReserve, takes)
		if err != nil || d.Delay == 0 {
			t.Fatalf("%+v, %v", d, err)
		}
		after := time.Now()
		held := db.PExpireTime(t.Context(), prefix+".reservation:"+d.Reservation.String()).Val().Milliseconds()
		if held < before.Add(d.Delay).UnixMilli() || held > after.Add(d.Delay).UnixMilli()+1 {
			t.Errorf("reservation %d, due in %v: its key expires at %d ms", i, d.Delay, held)
		}
		last = max(last, held)
		name := prefix + ".records:a:{k}"
		if got := db.PExpireTime(t.Context(), name).Val().Milliseconds(); got != last {
			t.Errorf("reservation %d: %s expires at %d ms, not %d", i, name, got, last)
		}
		if n := db.HLen(t.Context(), name).Val(); n != int64(i+1) {
			t.Errorf("reservation %d: %d records", i, n)
		}
	}
}

// TestRowExpiresAfterCancel checks that a cancelled reservation leaves a row
// that expires, and not before it is full.
func TestRowExpiresAfterCancel(t *testing.T) {
	t.Parallel()
	db := client(t)
	prefix := fmt.Sprint("cancelled", prefixes.Add(1))
	l := limiter(t, newStore(t, db, redisstore.Config{Prefix: prefix, Poll: -1}), store.Limit{Name: "a", Rate: 1, Period: time.Minute, Burst: 10, MaxDebt: 100})
	if _, err := l.Take(t.Context(), "a", "k", 10); err != nil {
		t.Fatal(err)
	}
	d, err := l.Reserve(t.Context(), "a", "k", 20)
	if err == nil {
		err = l.Cancel(t.Context(), d.Reservation)
	}
	if err != nil {
		t.Fatal(err)
	}
	left := db.PTTL(t.Context(), prefix+":a:{k}").Val() // before the Check, so that no time passes in favour of the test
	if d, err = l.Check(t.Context(), "a", "k", 0); err != nil || d.Remaining != 0 {
		t.Fatalf("%+v, %v", d, err)
	}
	if left < d.ResetAfter || left > 30*time.Minute+2*time.Second {
		t.Errorf("full in %v, and the row expires in %v", d.ResetAfter, left)
	}
}

// TestExpiryLengthenedBeforePublish checks that the expiry of all rows is
// lengthened before a slower version can be read.
func TestExpiryLengthenedBeforePublish(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	_, l := openURL(t, server.URL(), redisstore.Config{Poll: -1}, store.Limit{Name: "x", Rate: 10, Period: time.Minute, Burst: 100})
	const keys = 20
	for i := range keys {
		if _, err := l.Take(t.Context(), "x", fmt.Sprint("k", i), 90); err != nil {
			t.Fatal(err)
		}
	}
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(testTimeout))
	lines := bufio.NewScanner(conn)
	if _, err = conn.Write([]byte("MONITOR\r\n")); err != nil || !lines.Scan() || lines.Text() != "+OK" {
		t.Fatalf("%v, %s", err, lines.Text())
	}
	if _, err := l.Define(t.Context(), store.Limit{Name: "x", Rate: 10, Period: time.Hour, Burst: 100}, store.OwnerCode); err != nil {
		t.Fatal(err)
	}
	lengthened := 0
	for lines.Scan() {
		switch line := strings.ToLower(lines.Text()); {
		case strings.Contains(line, `lua] "pexpireat"`):
			lengthened++
		case strings.Contains(line, `lua] "hset"`):
			if lengthened != keys {
				t.Errorf("%d of %d rows were lengthened before the version was stored", lengthened, keys)
			}
			return
		}
	}
	t.Fatalf("the version was not stored: %v", lines.Err())
}

// TestWatchInASecond checks that a change made elsewhere is known within a
// second, also to a program whose subscription is cut at that moment.
func TestWatchInASecond(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	_, a := openURL(t, server.URL(), redisstore.Config{})
	_, b := openURL(t, server.URL(), redisstore.Config{})
	for burst := int64(3); burst < 7; burst++ {
		late := watchLateness()
		if burst%2 == 0 {
			do(t, server, "client", "kill", "type", "pubsub")
		}
		began := time.Now()
		if _, err := a.Define(t.Context(), drained("w", burst), store.OwnerCode); err != nil {
			t.Fatal(err)
		}
		retryUntil(t, testTimeout, func() error {
			if d := b.Limit("w"); d == nil || d.Burst != burst {
				return errors.New("not known")
			}
			return nil
		})
		if took := time.Since(began); took > time.Second+late.slack() {
			t.Errorf("known after %v", took)
		} else {
			t.Logf("known after %v", took)
		}
	}
}

// TestChangesUnderLoad checks that each grant is charged once while two
// programs keep changing the limit: rows are converted by compare-and-set.
func TestChangesUnderLoad(t *testing.T) {
	t.Parallel()
	const burst = 100000
	server := redistest.Start(t)
	_, a := openURL(t, server.URL(), redisstore.Config{}, drained("c", burst))
	s, b := openURL(t, server.URL(), redisstore.Config{}, drained("c", burst))
	ks := []string{"one", "two", "three"}
	y := newTally(ks...)
	var workers []*load
	for i, l := range []*dipwell.Limiter{a, b, a} {
		workers = append(workers, startLoad(1, func(ctx context.Context, n int64) (dipwell.Decision, error) {
			key := ks[n%3]
			if i == 2 {
				y.batch(s, b, "c")
				return dipwell.Decision{Allowed: true}, nil
			}
			d, err := l.Take(ctx, "c", key, 1)
			y.count(key, d.Allowed, err)
			return d, err
		}))
	}
	var wg sync.WaitGroup
	for i, l := range []*dipwell.Limiter{a, b} {
		wg.Go(func() {
			for n := range rounds(20) {
				if _, err := l.Define(t.Context(), drained("c", burst+int64(1+i+2*n)), store.OwnerCode); err != nil {
					t.Error(err)
				}
				workers[0].awaitGrants(t, 10)
			}
			if _, err := l.Define(t.Context(), drained("c", 2*burst), store.OwnerCode); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, w := range workers {
		w.end(t)
	}
	retryUntil(t, testTimeout, func() error {
		if d := a.Limit("c"); d.Burst != 2*burst {
			return errors.New("not known")
		}
		return nil
	})
	y.checkExact(t, a, "c", 2*burst)
	if sum(y.failed) > 0 {
		t.Errorf("%d failed", sum(y.failed))
	}
}
