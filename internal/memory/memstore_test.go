package memory

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

var ctx = context.Background()

// fake is a clock that a test sets.
type fake struct{ us int64 }

func (f *fake) now() int64 { return f.us }

func (f *fake) add(d time.Duration) { f.us += d.Microseconds() }

func open(t testing.TB, c Config) *Store {
	t.Helper()
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func limiter(t testing.TB, s store.Store, limits ...store.Limit) *dipwell.Limiter {
	t.Helper()
	l, err := dipwell.New(s, limits...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func take(t testing.TB, l *dipwell.Limiter, limit, key string, n int64) dipwell.Decision {
	t.Helper()
	d, err := l.Take(ctx, limit, key, n)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestAgreesWithMap takes random costs from 200,000 keys, while time passes and
// the table grows many times, and compares each answer with that of a map.
func TestAgreesWithMap(t *testing.T) {
	clock := &fake{1e15}
	s := open(t, Config{Clock: clock.now})
	slow := store.Limit{Name: "slow", Rate: 1, Period: time.Hour, Burst: 20}
	fast := store.Limit{Name: "fast", Rate: 50, Period: time.Second, Burst: 20}
	limiter(t, s, slow, fast)
	model := map[string]store.State{}
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 700_000 {
		clock.us += rnd.Int64N(20)
		name := []string{"slow", "fast"}[rnd.IntN(2)]
		key := fmt.Sprint(rnd.IntN(200_000))
		verb := []store.Verb{store.VerbTake, store.VerbTake, store.VerbTake, store.VerbRefund}[rnd.IntN(4)]
		got := ask(t, s, name, key, verb, 1+rnd.Int64N(8))
		want := got
		var err error
		var write bool
		var row store.State
		if row, write, err = want.Step(clock.us, model[name+key], false); err != nil {
			t.Fatal(err)
		}
		if write {
			model[name+key] = row
		}
		if got.Answer != want.Answer {
			t.Fatalf("%s %s: %+v, want %+v", name, key, got.Answer, want.Answer)
		}
	}
}

func ask(t testing.TB, s *Store, name, key string, verb store.Verb, cost int64) store.Op {
	t.Helper()
	var b store.Batch
	g, op := b.Single()
	op.Def, op.Key, op.Verb, op.Cost = s.Registry().Lookup(name), key, verb, cost
	if err := s.Apply(ctx, &b); err != nil || g.Err != nil {
		t.Fatal(err, g.Err)
	}
	return *op
}

func TestNoAllocations(t *testing.T) {
	s := open(t, Config{})
	l := limiter(t, s, store.Limit{Name: "api", Rate: 1, Period: time.Hour, Burst: 1 << 20})
	keys := make([]string, 1000)
	for i := range keys {
		keys[i] = fmt.Sprint("user:", i)
	}
	i := 0
	if n := testing.AllocsPerRun(5000, func() { take(t, l, "api", keys[i%1000], 1); i++ }); n != 0 {
		t.Errorf("%v allocations a Take", n)
	}
}

func TestClosed(t *testing.T) {
	s, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	l := limiter(t, s, store.Limit{Name: "api", Rate: 1, Period: time.Hour, Burst: 5})
	take(t, l, "api", "k", 1)
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.Take(ctx, "api", "k", 1); !errors.Is(err, ErrClosed) || !errors.Is(err, store.ErrStore) {
		t.Errorf("after Close: %v", err)
	}
}

func TestDefaultShards(t *testing.T) {
	for _, c := range []struct{ keys, processors, want int }{
		{DefaultMaxKeys, 1, 64}, {DefaultMaxKeys, 16, 64}, {DefaultMaxKeys, 17, 128}, {DefaultMaxKeys, 64, 256},
		{DefaultMaxKeys, 500, 256}, {1, 64, 1}, {1000, 2, 2}, {32768, 2, 64}, {32767, 2, 64}, {16384, 2, 64}, {16383, 2, 32},
	} {
		if n := defaultShards(c.keys, c.processors); n != c.want {
			t.Errorf("%d keys, %d processors: %d shards, want %d", c.keys, c.processors, n, c.want)
		}
	}
}
