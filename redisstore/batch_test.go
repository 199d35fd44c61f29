package redisstore_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/redistest"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
	"github.com/dipwell/dipwell/storetest"
)

// batching sends each group in a batch with a group before and after it.
type batching struct {
	*redisstore.Store
	bystander *store.Definition
}

func (c *batching) Apply(ctx context.Context, b *store.Batch) error {
	company := func(key string) store.Group {
		return store.Group{Ops: []store.Op{{Def: c.bystander, Key: key, Verb: store.VerbTake, Cost: 1}}}
	}
	all := store.Batch{Groups: []store.Group{company("a")}}
	all.Groups = append(append(all.Groups, b.Groups...), company("b"), company("a"))
	err := c.Store.Apply(ctx, &all)
	copy(b.Groups, all.Groups[1:])
	return err
}

// TestBatches runs the suite with each call in a batch of several; less of each case but
// the races, unless DIPWELL_LONG=1, because TestStore has more.
func TestBatches(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		db     redis.UniversalClient
		oneKey bool
	}{
		"one server": {client(t), false},
		"cluster":    {connect(t, redistest.SharedCluster(t).URL()), true},
	} {
		t.Run(name, func(t *testing.T) {
			storetest.Run(t, func(t testing.TB, now func() int64) store.Store {
				s := newStore(t, c.db, redisstore.Config{Clock: now, Poll: -1})
				d, err := s.Define(context.Background(), store.Limit{Name: "bystander", Rate: 1, Period: 10000 * 24 * time.Hour, Burst: 9}, store.OwnerCode)
				if err != nil {
					t.Fatal(err)
				}
				return &batching{s, d}
			}, storetest.Options{Quick: !c.oneKey || long(), Brief: !long(), OneKey: c.oneKey, Parallel: true})
		})
	}
}

// TestShardsInACluster checks that a key with shards is decided in a cluster, where its
// rows lie in different slots, and that it cannot be in a group, with an error that says why.
func TestShardsInACluster(t *testing.T) {
	t.Parallel()
	db := connect(t, redistest.SharedCluster(t).URL())
	l, err := dipwell.New(newStore(t, db, redisstore.Config{Poll: -1}),
		store.Limit{Name: "sharded", Rate: 1, Period: time.Hour, Burst: 8, Shards: 4, MaxDebt: store.NoDebt, OnStoreError: store.FailOpen},
		store.Limit{Name: "tenant", Rate: 1, Period: time.Hour, Burst: 9})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 9 {
		if d, err := l.Take(t.Context(), "sharded", "k", 1); err != nil || d.Allowed != (i < 8) {
			t.Errorf("take %d: %+v, %v", i, d, err)
		}
	}
	_, err = l.TakeAll(t.Context(), dipwell.Take{Limit: "sharded", Key: "k", Cost: 1}, dipwell.Take{Limit: "tenant", Key: "k", Cost: 1})
	var field *store.FieldError
	if !errors.As(err, &field) || field.Field != "takes" || !strings.Contains(err.Error(), "limit sharded has shards, which lie in different slots of the cluster") {
		t.Errorf("in a group: %v", err)
	}
	if d, err := l.Check(t.Context(), "tenant", "k", 0); err != nil || d.Remaining != 9 {
		t.Errorf("the neighbour after the error: %+v, %v", d, err)
	}
}

// TestSeveralKeysInACluster checks that calls of several keys in a cluster are
// atomic if they share a slot; otherwise they are rejected with an error that
// says what to do, and nothing is granted.
func TestSeveralKeysInACluster(t *testing.T) {
	t.Parallel()
	db := connect(t, redistest.SharedCluster(t).URL())
	l, err := dipwell.New(newStore(t, db, redisstore.Config{Poll: -1}),
		store.Limit{Name: "user", Rate: 1, Period: time.Hour, Burst: 3, OnStoreError: store.FailOpen},
		store.Limit{Name: "tenant", Rate: 1, Period: time.Hour, Burst: 2, OnStoreError: store.FailOpen})
	if err != nil {
		t.Fatal(err)
	}
	all := func(user, tenant string) (dipwell.Decision, error) {
		return l.TakeAll(t.Context(), dipwell.Take{Limit: "user", Key: user, Cost: 1}, dipwell.Take{Limit: "tenant", Key: tenant, Cost: 1})
	}
	var field *store.FieldError
	if d, err := all("u7", "acme"); !errors.As(err, &field) || field.Field != "takes" || d.Allowed || errors.Is(err, store.ErrStore) {
		t.Errorf("in two slots: %+v, %v", d, err)
	}
	for i, want := range []bool{true, true, false} {
		if d, err := all("{acme}u7", "{acme}"); err != nil || d.Allowed != want {
			t.Errorf("call %d with one tag: %+v, %v", i, d, err)
		}
	}
	if d, err := l.Check(t.Context(), "user", "{acme}u7", 0); err != nil || d.Remaining != 1 {
		t.Errorf("a refusal charged its neighbour: %+v, %v", d, err)
	}
	if d, err := all("same", "same"); err != nil || !d.Allowed {
		t.Errorf("one key: %+v, %v", d, err)
	}
}

// TestSeveralSlotsByEveryRoad checks that a call of keys in two slots is rejected with an
// error of the field takes, and not answered by OnStoreError, whatever decides it.
func TestSeveralSlotsByEveryRoad(t *testing.T) {
	t.Parallel()
	db := connect(t, redistest.SharedCluster(t).URL())
	limits := []store.Limit{{Name: "plain"}, {Name: "blocks", Block: time.Minute}, {Name: "shadow", Mode: store.Shadow},
		{Name: "week", Algorithm: store.FixedWindow, Period: 7 * 24 * time.Hour}, {Name: "plans", Plans: store.NewPlans(store.Plan{Name: "staff", Mode: store.Unlimited})}, {Name: "leaky", Algorithm: store.LeakyBucket, MaxDebt: 5}}
	for i := range limits {
		l := &limits[i]
		l.Rate, l.OnStoreError = 1, store.FailOpen
		if l.Period == 0 {
			l.Period = time.Hour
		}
		if l.Algorithm == store.TokenBucket {
			l.Burst = 3
		}
	}
	s := newStore(t, db, redisstore.Config{Poll: -1})
	d, err := dipwell.New(s, limits...)
	if err != nil {
		t.Fatal(err)
	}
	m, err := dipwell.New(&batching{s, d.Limits()[slices.IndexFunc(d.Limits(), func(x *store.Definition) bool { return x.Name == "plain" })]})
	if err != nil {
		t.Fatal(err)
	}
	check := func(name string, d dipwell.Decision, err error) {
		t.Helper()
		var field *store.FieldError
		if !errors.As(err, &field) || field.Field != "takes" || d.Allowed {
			t.Errorf("%s: %+v, %v", name, d, err)
		}
	}
	for i := range limits {
		name := limits[i].Name
		takes := []dipwell.Take{{Limit: name, Key: "u7", Cost: 1}, {Limit: "plain", Key: "acme", Cost: 1}}
		floor := slices.Clone(takes)
		floor[0].Floor = 1
		for what, l := range map[string]*dipwell.Limiter{name: d, name + " in a batch": m} {
			for _, verb := range []store.Verb{store.VerbTake, store.VerbCheck, store.VerbReserve} {
				var d dipwell.Decision
				err := l.DoAll(t.Context(), &d, verb, takes)
				check(what+" "+verb.String(), d, err)
			}
			if name != "leaky" { // it has neither holds nor a floor
				d, err := l.TakeAll(t.Context(), floor...)
				check(what+" with a floor", d, err)
				d, err = l.Hold(t.Context(), time.Minute, "", takes...)
				check(what+" hold", d, err)
			}
		}
	}
}
