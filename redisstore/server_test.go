package redisstore_test

import (
	"errors"
	"fmt"
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

func limiter(t testing.TB, s store.Store, limits ...store.Limit) *dipwell.Limiter {
	t.Helper()
	l, err := dipwell.New(s, limits...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// retryUntil calls f until it returns nil, and fails after d.
func retryUntil(t testing.TB, d time.Duration, f func() error) {
	t.Helper()
	deadline := time.After(d)
	for {
		err := f()
		if err == nil {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("after %v: %v", d, err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// TestExpiryAndWrites checks that a bucket expires when it is full, rounded up,
// and that refusals and checks write nothing.
func TestExpiryAndWrites(t *testing.T) {
	t.Parallel()
	db := client(t)
	prefix := fmt.Sprint("expiry", prefixes.Add(1))
	l := limiter(t, newStore(t, db, redisstore.Config{Prefix: prefix, Poll: -1}),
		store.Limit{Name: "login", Rate: 1, Period: time.Minute, Burst: 5})
	row := prefix + ":login:{user:7}"
	for i := range 7 {
		from := db.Time(t.Context()).Val()
		d, err := l.Take(t.Context(), "login", "user:7", 1)
		if err != nil || d.Allowed != (i < 5) {
			t.Fatalf("call %d: %+v, %v", i, d, err)
		}
		to := db.Time(t.Context()).Val()
		at := time.UnixMilli(db.PExpireTime(t.Context(), row).Val().Milliseconds())
		if at.Before(from.Add(d.ResetAfter)) || at.After(to.Add(d.ResetAfter+2*time.Millisecond)) {
			t.Errorf("call %d, between %v and %v: the row expires at %v, and is full in %v", i, from, to, at, d.ResetAfter)
		}
	}
	before := db.Get(t.Context(), row).Val()
	if _, err := l.Check(t.Context(), "login", "user:7", 1); err != nil {
		t.Fatal(err)
	}
	if d, err := l.Take(t.Context(), "login", "user:7", 1); err != nil || d.Allowed || db.Get(t.Context(), row).Val() != before {
		t.Errorf("a refusal wrote %q over %q: %v", db.Get(t.Context(), row).Val(), before, err)
	}
	if _, err := l.Check(t.Context(), "login", "fresh", 1); err != nil || db.Exists(t.Context(), prefix+":login:{fresh}").Val() != 0 {
		t.Errorf("a check made a row: %v", err)
	}
}

// TestForeignRows checks that for rows that dipwell did not write no call is
// granted without a charge.
func TestForeignRows(t *testing.T) {
	t.Parallel()
	db := client(t)
	prefix := fmt.Sprint("foreign", prefixes.Add(1))
	l := limiter(t, newStore(t, db, redisstore.Config{Prefix: prefix, Poll: -1}), store.Limit{Name: "b", Rate: 1, Period: time.Hour, Burst: 5})
	later := time.Now().Add(time.Minute).UnixMicro()
	for i, row := range []string{"", "x", "1 2", "1 2 3 4", "-1 2 1", "x y 1", "1.5 2 1", " 0 0 1", "0 0 1 ", "9007199254740992 %d 1",
		"9223372036854775807 %d 1", "9223372036854775808 %d 1", "99999999999999999999999 %d 1", "0 9223372036854775807 1", "0 99999999999999999999999 1"} {
		row = strings.ReplaceAll(row, "%d", strconv.FormatInt(later, 10))
		name := fmt.Sprint(prefix, ":b:{", i, "}")
		if err := db.Set(t.Context(), name, row, 0).Err(); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			before := db.Get(t.Context(), name).Val()
			d, _ := l.Take(t.Context(), "b", fmt.Sprint(i), 1)
			if d.Allowed && db.Get(t.Context(), name).Val() == before {
				t.Errorf("%q: admitted and not charged", row)
			}
		}
	}
}

// TestSlowerVersionLengthensExpiry checks that rows live as long as a slower
// version needs them, also those of a program that did not know of it.
func TestSlowerVersionLengthensExpiry(t *testing.T) {
	t.Parallel()
	db := client(t)
	prefix := fmt.Sprint("slower", prefixes.Add(1))
	s := newStore(t, db, redisstore.Config{Prefix: prefix})
	deaf := newStore(t, db, redisstore.Config{Prefix: prefix, Poll: -1})
	fast := store.Limit{Name: "x", Rate: 10, Period: time.Minute, Burst: 10} // full before a slow machine comes to it, a row would be gone
	l, other := limiter(t, s, fast), limiter(t, deaf, fast)
	if d, err := l.Take(t.Context(), "x", "early", 10); err != nil || !d.Allowed {
		t.Fatalf("%+v, %v", d, err)
	}
	slow := fast
	slow.Period = time.Hour
	if _, err := l.Define(t.Context(), slow, store.OwnerCode); err != nil {
		t.Fatal(err)
	}
	if left := db.PTTL(t.Context(), prefix+":x:{early}").Val(); left < 50*time.Minute {
		t.Errorf("published, and the row expires in %v", left)
	}
	if d, err := other.Take(t.Context(), "x", "late", 10); err != nil || !d.Allowed {
		t.Fatalf("%+v, %v", d, err)
	}
	retryUntil(t, testTimeout, func() error {
		if left := db.PTTL(t.Context(), prefix+":x:{late}").Val(); left < 50*time.Minute {
			return errors.New("a row written late expires in " + left.String())
		}
		return nil
	})
}

// TestCloseAfterSlowerVersion checks that Close waits until all programs know of a change to
// a slower version, and lengthens the expiry of rows that they have written meanwhile.
func TestCloseAfterSlowerVersion(t *testing.T) {
	t.Parallel()
	db := client(t)
	prefix := fmt.Sprint("slower", prefixes.Add(1))
	s := newStore(t, db, redisstore.Config{Prefix: prefix})
	deaf := newStore(t, db, redisstore.Config{Prefix: prefix, Poll: -1})
	fast := store.Limit{Name: "x", Rate: 10, Period: time.Minute, Burst: 10}
	l, other := limiter(t, s, fast), limiter(t, deaf, fast)
	slow := fast
	slow.Period = time.Hour
	start := time.Now()
	if _, err := l.Define(t.Context(), slow, store.OwnerCode); err != nil {
		t.Fatal(err)
	}
	if d, err := other.Take(t.Context(), "x", "late", 10); err != nil || !d.Allowed {
		t.Fatalf("%+v, %v", d, err)
	}
	inTime := time.Since(start) < redisstore.Propagation // always, except on a busy machine
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < redisstore.Propagation {
		t.Errorf("closed %v after the change, before others know of it", took)
	}
	if left := db.PTTL(t.Context(), prefix+":x:{late}").Val(); inTime && left < 50*time.Minute {
		t.Errorf("closed, and the row expires in %v", left)
	}
}

// TestWatch checks that a change made elsewhere is known within a second, with
// and without notifications.
func TestWatch(t *testing.T) {
	t.Parallel()
	db := client(t)
	a := limiter(t, newStore(t, db, redisstore.Config{Prefix: "watched"}))
	b := limiter(t, newStore(t, db, redisstore.Config{Prefix: "watched"}))
	for _, burst := range []int64{3, 7} {
		if _, err := a.Define(t.Context(), store.Limit{Name: "w", Rate: 1, Period: time.Minute, Burst: burst}, store.OwnerCode); err != nil {
			t.Fatal(err)
		}
		retryUntil(t, testTimeout, func() error {
			if d := b.Limit("w"); d == nil || d.Burst != burst {
				return errors.New("not known")
			}
			return nil
		})
	}
	if err := a.Drop(t.Context(), "w", store.OwnerCode); err != nil {
		t.Fatal(err)
	}
	retryUntil(t, testTimeout, func() error {
		if b.Limit("w") != nil {
			return errors.New("still there")
		}
		return nil
	})
}

// TestScriptFlush checks that scripts that the server has lost are sent again,
// alone and in a batch.
func TestScriptFlush(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := newStore(t, connect(t, server.URL()), redisstore.Config{})
	l := limiter(t, s, store.Limit{Name: "f", Rate: 1, Period: time.Hour, Burst: 100})
	for range 3 {
		if err := server.FlushScripts(); err != nil {
			t.Fatal(err)
		}
		if d, err := l.Take(t.Context(), "f", "k", 1); err != nil || !d.Allowed {
			t.Fatalf("%+v, %v", d, err)
		}
		if err := server.FlushScripts(); err != nil {
			t.Fatal(err)
		}
		b := store.Batch{}
		for _, key := range []string{"a", "b", "a"} {
			b.Groups = append(b.Groups, store.Group{Ops: []store.Op{{Def: l.Limit("f"), Key: key, Verb: store.VerbTake, Cost: 1}}},
				store.Group{Ops: []store.Op{{Def: l.Limit("f"), Key: key, Verb: store.VerbCharge, Cost: 1}}})
		}
		if err := s.Apply(t.Context(), &b); err != nil {
			t.Fatal(err)
		}
		for i := range b.Groups {
			if g := &b.Groups[i]; g.Err != nil || !g.Allowed {
				t.Fatalf("group %d: %+v", i, g)
			}
		}
	}
	if d, err := l.Check(t.Context(), "f", "a", 0); err != nil || d.Remaining != 88 {
		t.Errorf("12 were charged to a: %+v, %v", d, err)
	}
}

// TestServerAway checks that a server that starts late, or restarts empty, gets
// the limits.
func TestServerAway(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	server.Stop()
	var mu sync.Mutex
	var heard []string
	s, err := redisstore.Open(t.Context(), patient(server.URL()+"?dial_timeout=300ms"), redisstore.Config{Lazy: true, OnError: func(err error) {
		mu.Lock()
		defer mu.Unlock()
		heard = append(heard, err.Error())
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l := limiter(t, s, store.Limit{Name: "late", Rate: 1, Period: time.Hour, Burst: 5})
	if _, err = l.Take(t.Context(), "late", "k", 1); !errors.Is(err, store.ErrStore) || errors.Is(err, store.ErrOutcomeUnknown) {
		t.Fatalf("before the server is there: %v", err)
	}
	if store.AbilitiesOf(s).Ready(t.Context()) == nil {
		t.Error("ready before the server is there")
	}
	take := func() error {
		d, err := l.Take(t.Context(), "late", "k", 1)
		if err == nil && d.Remaining != 4 {
			t.Fatalf("the first take leaves %d", d.Remaining)
		}
		return errors.Join(err, store.AbilitiesOf(s).Ready(t.Context()))
	}
	if err = server.Start(); err != nil {
		t.Fatal(err)
	}
	retryUntil(t, testTimeout, take)
	server.Kill()
	if _, err = l.Take(t.Context(), "late", "k", 1); !errors.Is(err, store.ErrStore) {
		t.Fatalf("a killed server: %v", err)
	}
	if err = server.Start(); err != nil {
		t.Fatal(err)
	}
	retryUntil(t, testTimeout, take)
	retryUntil(t, testTimeout, func() error {
		other, err := redisstore.Open(t.Context(), patient(server.URL()), redisstore.Config{Poll: -1})
		if err != nil {
			return err
		}
		defer other.Close()
		if other.Registry().Lookup("late") == nil {
			return errors.New("an empty server was not told the limits")
		}
		return nil
	})
	mu.Lock()
	defer mu.Unlock()
	if len(heard) == 0 {
		t.Error("nothing was reported")
	}
}

// TestErrors checks that an error reply has charged nothing, and that a call
// without a reply may have charged.
func TestErrors(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	_, l := openURL(t, server.URL(), redisstore.Config{Poll: -1}, store.Limit{Name: "e", Rate: 1, Period: time.Hour, Burst: 5})
	take := func() error { _, err := l.Take(t.Context(), "e", "k", 1); return err }
	if err := take(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name     string
		set, end []any
		says     string
	}{
		{"full", []any{"config", "set", "maxmemory", "1"}, []any{"config", "set", "maxmemory", "0"}, "maxmemory"},
		{"replica", []any{"replicaof", "127.0.0.1", "1"}, []any{"replicaof", "no", "one"}, "replica"},
	} {
		do(t, server, c.set...)
		if err := take(); !errors.Is(err, store.ErrStore) || errors.Is(err, store.ErrOutcomeUnknown) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.name, err)
		}
		do(t, server, c.end...)
	}
	_, hasty := openURL(t, server.URL()+"?timeout=300ms", redisstore.Config{Poll: -1, Lazy: true})
	retryUntil(t, testTimeout, func() error { _, err := hasty.Check(t.Context(), "e", "k", 1); return err }) // 300 ms may not be enough on a busy machine
	if err := server.Hang(); err != nil {
		t.Fatal(err)
	}
	if _, err := hasty.Take(t.Context(), "e", "k", 1); !errors.Is(err, store.ErrOutcomeUnknown) {
		t.Errorf("hung: %v", err)
	}
	if _, err := hasty.Check(t.Context(), "e", "k", 1); !errors.Is(err, store.ErrStore) || errors.Is(err, store.ErrOutcomeUnknown) {
		t.Errorf("a check of one that hangs: %v", err)
	}
	if err := server.Continue(); err != nil {
		t.Fatal(err)
	}
	retryUntil(t, testTimeout, func() error { _, err := hasty.Take(t.Context(), "e", "k", 1); return err })
}

// TestEviction checks that a server that may evict buckets is rejected unless
// AllowEviction is set.
func TestEviction(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"allkeys-lru", "volatile-ttl"} {
		server := redistest.Start(t, "--maxmemory-policy", policy)
		for _, lazy := range []bool{false, true} {
			if s, err := redisstore.Open(t.Context(), patient(server.URL()), redisstore.Config{Lazy: lazy}); err == nil || !strings.Contains(err.Error(), "maxmemory-policy is "+policy) || errors.Is(err, store.ErrOutcomeUnknown) {
				t.Errorf("%s: %v, %v", policy, s, err)
			}
		}
		warned := make(chan error, 9)
		s, err := redisstore.Open(t.Context(), patient(server.URL()+"?eviction=allow"), redisstore.Config{OnError: func(err error) { warned <- err }})
		if err != nil {
			t.Fatal(err)
		}
		if err := <-warned; !strings.Contains(err.Error(), policy) {
			t.Errorf("%s: warned of %v", policy, err)
		}
		_ = s.Close()
	}
	server := redistest.Start(t, "--rename-command", "CONFIG", "")
	warned := make(chan error, 9)
	s, err := redisstore.Open(t.Context(), patient(server.URL()), redisstore.Config{OnError: func(err error) { warned <- err }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := <-warned; !strings.Contains(err.Error(), "noeviction") {
		t.Errorf("CONFIG is refused: warned of %v", err)
	}
}

// TestSentinel checks that behind Sentinels the store follows a promoted
// replica.
func TestSentinel(t *testing.T) {
	t.Parallel()
	trio := redistest.StartSentinel(t)
	s, err := redisstore.Open(t.Context(), patient(trio.URL()), redisstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l := limiter(t, s, store.Limit{Name: "s", Rate: 1, Period: time.Hour, Burst: 9})
	if d, err := l.Take(t.Context(), "s", "k", 1); err != nil || d.Remaining != 8 {
		t.Fatalf("%+v, %v", d, err)
	}
	if n, err := trio.Nodes[0].Do("wait", 1, 5000); err != nil || n != int64(1) {
		t.Logf("wait: %v, %v", n, err) // on another connection; the replica gets it soon anyway
	}
	replica := trio.Nodes[1].Client()
	defer replica.Close()
	retryUntil(t, testTimeout, func() error { return replica.Get(t.Context(), "dipwell:s:{k}").Err() })
	if err := trio.Watch(); err != nil {
		t.Fatal(err)
	}
	trio.Nodes[0].Kill()
	retryUntil(t, testTimeout, func() error {
		d, err := l.Take(t.Context(), "s", "k", 1)
		if err == nil && d.Remaining >= 8 {
			t.Fatalf("the replica forgot: %+v", d)
		}
		return err
	})
}

// TestParse checks the options in a URL.
func TestParse(t *testing.T) {
	for url, says := range map[string]string{
		"redis://h?color=red":         "color",
		"redis://h?prefix=a{b":        "prefix",
		"redis://h?prefix=a&prefix=b": "twice",
		"redis://h?hash_tag=x":        "hash_tag",
		"redis://h?eviction=perhaps":  "eviction",
		"redis://h?pool_size=0":       "pool_size",
		"redis://h?timeout=-1s":       "timeout",
		"redis://h/x":                 "database",
		"redis://h1,h2":               "redis+cluster",
		"redis+cluster://h1,h2/3":     "database",
		"redis+sentinel://h1,h2":      "master",
		"redis+cluster://":            "host",
		"redis+tcp://h":               "scheme",
		"postgres://h":                "scheme",
		"redis://user:50%@h":          "%25",
	} {
		if _, _, err := redisstore.Client(url, redisstore.Config{}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", url, err)
		}
	}
	db, c, err := redisstore.Client("rediss://ann:p%40ss@h/2?prefix=p&hash_tag=all&eviction=allow&pool_size=7&timeout=2s", redisstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	o := db.(*redis.Client).Options()
	if o.Addr != "h:6379" || o.Username != "ann" || o.Password != "p@ss" || o.DB != 2 || o.TLSConfig == nil || o.PoolSize != 7 || o.ReadTimeout != 2*time.Second ||
		c.Prefix != "p" || c.HashTag != "all" || !c.AllowEviction {
		t.Errorf("%+v, %+v", o, c)
	}
}

// TestParseKeepsPasswords checks that the error for a URL with an unescaped
// password has nothing of the password.
func TestParseKeepsPasswords(t *testing.T) {
	for _, url := range []string{
		"redis://:se/cret@localhost", "redis://u:se/cret@localhost/3", "redis://:se?cret@localhost", "redis://:se?cret=x@localhost/1",
		"redis://:se?x=y&cret@localhost", "redis://:se/x?cret@localhost", "redis://:se%cret@localhost", "redis://:se?cret%zz@localhost",
		"redis://:se;/cret@localhost", "redis://:se?x;cret@localhost", "redis+sentinel://:se/cret@h/master", "redis://:se#cret@localhost/x",
	} {
		db, _, err := redisstore.Client(url, redisstore.Config{})
		if err == nil {
			db.Close()
		}
		if err != nil && strings.Contains(err.Error(), "cret") || err == nil && !strings.Contains(url, "#") {
			t.Errorf("%s: %v", url, err)
		}
	}
}

// TestSlot compares slot with the server's CLUSTER KEYSLOT.
func TestSlot(t *testing.T) {
	t.Parallel()
	cluster := redistest.SharedCluster(t)
	for _, key := range []string{"", "a", "123456789", "dipwell:login:{user:7}", "dipwell:x:{shared}.", "{}a", "a{b}c{d}", "{{a}}", "a}b{c", "ключ{鍵}"} {
		want, err := cluster.SlotOf(key)
		if err != nil {
			t.Fatal(err)
		}
		if got := redisstore.Slot(key); int(got) != want {
			t.Errorf("%q lies in slot %d, not %d", key, want, got)
		}
	}
}
