package keyhash_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/keyhash"
	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
	"github.com/dipwell/dipwell/storetest"
)

var secret = []byte("0123456789abcdef")

func open(t testing.TB, now func() int64) (*keyhash.Store, *keyhash.Hasher) {
	t.Helper()
	inner, err := memstore.New(memstore.Config{Clock: now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = inner.Close() })
	h, err := keyhash.NewHasher(secret)
	if err != nil {
		t.Fatal(err)
	}
	return keyhash.New(inner, h), h
}

// TestStore runs the suite of all stores. The suite lists keys and computes where
// windows without a start begin, from the keys themselves. So a store below keyhash
// maps hashes back to keys, by a list that a store above it records.
func TestStore(t *testing.T) {
	storetest.Run(t, func(t testing.TB, now func() int64) store.Store {
		inner, err := memstore.New(memstore.Config{Clock: now})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = inner.Close() })
		h, err := keyhash.NewHasher(secret)
		if err != nil {
			t.Fatal(err)
		}
		texts := new(sync.Map)
		list := func(limit, key string) string {
			texts.Store(h.Hash(limit, key), key)
			return key
		}
		back := func(_, key string) string {
			text, ok := texts.Load(key)
			if !ok {
				t.Errorf("the store saw the key %q", key)
				return key
			}
			return text.(string)
		}
		return &mapped{keyhash.New(&mapped{inner, back}, h), list}
	}, storetest.Options{Quick: true, Lacks: []string{"shards"}}) // their rows have other keys: see TestShards
}

// mapped is a decorator that replaces keys.
type mapped struct {
	inner store.Store
	to    func(limit, key string) string
}

func (m *mapped) Abilities() store.Abilities {
	ab := store.AbilitiesOf(m.inner)
	inner := ab.Holds
	ab.Holds = func(ctx context.Context, d *store.Definition, key string) ([]store.KeyHold, error) {
		return inner(ctx, d, m.key(d, key))
	}
	ab.Overrides, ab.Audit = mappedOverrides{ab.Overrides, m}, mappedTrail{ab.Audit, m}
	return ab
}

func (m *mapped) key(d *store.Definition, key string) string {
	if key == "" {
		return ""
	}
	return m.to(d.Name, key)
}

type mappedOverrides struct {
	store.Overrider
	m *mapped
}

func (o mappedOverrides) SetOverride(ctx context.Context, d *store.Definition, v store.Override) (store.Override, error) {
	v.Key = o.m.key(d, v.Key)
	return o.Overrider.SetOverride(ctx, d, v)
}

func (o mappedOverrides) EndOverride(ctx context.Context, d *store.Definition, key string, kind store.OverrideKind) (*store.Override, error) {
	return o.Overrider.EndOverride(ctx, d, o.m.key(d, key), kind)
}

type mappedTrail struct {
	store.Auditor
	m *mapped
}

func (t mappedTrail) Record(ctx context.Context, e store.AuditEntry) error {
	if e.Key != "" {
		e.Key = t.m.to(e.Limit, e.Key)
	}
	return t.Auditor.Record(ctx, e)
}

func (m *mapped) Apply(ctx context.Context, b *store.Batch) error {
	var keys []string
	for i := range b.Groups {
		for j := range b.Groups[i].Ops {
			op := &b.Groups[i].Ops[j]
			keys = append(keys, op.Key)
			op.Key = m.key(op.Def, op.Key)
		}
	}
	err := m.inner.Apply(ctx, b)
	for i := range b.Groups {
		if b.Groups[i].Settles() {
			continue
		}
		for j := range b.Groups[i].Ops {
			b.Groups[i].Ops[j].Key, keys = keys[0], keys[1:]
		}
	}
	return err
}

func TestOnlyHashesAreStored(t *testing.T) {
	s, h := open(t, func() int64 { return 1e15 })
	l, err := dipwell.New(s, store.Limit{Name: "login", Rate: 1, Period: time.Hour, Burst: 3, ListKeys: true},
		store.Limit{Name: "other", Rate: 1, Period: time.Hour, Burst: 3, ListKeys: true}, store.Limit{Name: "all", Rate: 1, Period: time.Hour, Burst: 3, ListKeys: true, Shared: true})
	if err != nil {
		t.Fatal(err)
	}
	d, err := l.TakeAll(t.Context(), dipwell.Take{Limit: "login", Key: "user:7", Cost: 1}, dipwell.Take{Limit: "other", Key: "user:7", Cost: 1},
		dipwell.Take{Limit: "all", Key: dipwell.Shared, Cost: 1})
	if err != nil || !d.Allowed || d.Limits[0].Key != "user:7" || d.Limits[1].Key != "user:7" || d.Limits[2].Key != "" {
		t.Fatalf("%+v %v", d, err)
	}
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte("\x00\x00\x00\x05loginuser:7"))
	want := base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
	rows, err := l.Keys(t.Context(), "login", "", "", 10)
	if err != nil || len(rows) != 1 || rows[0].Key != want {
		t.Errorf("%+v %v, want %s", rows, err, want)
	}
	rows, err = l.Keys(t.Context(), "other", "", "", 10)
	if err != nil || len(rows) != 1 || rows[0].Key == want {
		t.Errorf("%+v %v: two limits have two hashes of a key", rows, err)
	}
	rows, err = l.Keys(t.Context(), "all", "", "", 10)
	if err != nil || len(rows) != 1 || rows[0].Key != "" {
		t.Errorf("%+v %v: a shared bucket has no hash", rows, err)
	}
	if d, err = l.Check(t.Context(), "login", "user:7", 0); err != nil || d.Remaining != 2 || d.Key != "user:7" {
		t.Errorf("%+v %v", d, err)
	}
	if r := h.Redact("login", "user:7"); r != "hash:"+want[:10] {
		t.Error(r)
	}
}

// keeper keeps one override and the keys of which the holds were asked, and settles
// holds of the key that it saw last.
type keeper struct {
	store.Store
	set  store.Override
	seen string
}

func (k *keeper) Apply(_ context.Context, b *store.Batch) error {
	for i := range b.Groups {
		g := &b.Groups[i]
		if g.Settles() {
			g.Ops = []store.Op{{Key: k.seen}}
		} else {
			k.seen = g.Ops[0].Key
		}
	}
	return nil
}

func (k *keeper) Abilities() store.Abilities {
	return store.Abilities{Overrides: k, Holds: func(_ context.Context, _ *store.Definition, key string) ([]store.KeyHold, error) {
		k.seen = key
		return nil, nil
	}}
}

func (k *keeper) SetOverride(_ context.Context, _ *store.Definition, o store.Override) (store.Override, error) {
	o.ID, k.set = 7, o
	return o, nil
}

func (k *keeper) EndOverride(_ context.Context, _ *store.Definition, key string, _ store.OverrideKind) (*store.Override, error) {
	if key != k.set.Key {
		return nil, nil
	}
	ended := k.set
	return &ended, nil
}

func (k *keeper) Overrides(context.Context, *store.Definition, string, string, int) ([]store.Override, error) {
	return []store.Override{k.set}, nil
}

func TestOverridesAndHolds(t *testing.T) {
	h, err := keyhash.NewHasher(secret)
	if err != nil {
		t.Fatal(err)
	}
	inner := &keeper{}
	s := keyhash.New(inner, h)
	ab, d := store.AbilitiesOf(s), limittest.Definition(store.Limit{Name: "a", Rate: 1, Period: time.Hour})
	want := h.Hash("a", "user:7")
	o, err := ab.Overrides.SetOverride(t.Context(), d, store.Override{Key: "user:7", Rate: 5})
	if err != nil || o.Key != "user:7" || o.ID != 7 || inner.set.Key != want {
		t.Errorf("%+v %v; stored %+v", o, err, inner.set)
	}
	if all, err := ab.Overrides.Overrides(t.Context(), d, "", "", 9); err != nil || len(all) != 1 || all[0].Key != want {
		t.Errorf("%+v %v", all, err)
	}
	if ended, err := ab.Overrides.EndOverride(t.Context(), d, "user:7", store.AnyOverride); err != nil || ended == nil || ended.Key != "user:7" {
		t.Error(ended, err)
	}
	if o, err = ab.Overrides.SetOverride(t.Context(), d, store.Override{Rate: 5}); err != nil || o.Key != "" || inner.set.Key != "" {
		t.Errorf("the shared bucket: %+v %v", inner.set, err)
	}
	var field *store.FieldError
	if _, err = ab.Overrides.SetOverride(t.Context(), d, store.Override{Key: strings.Repeat("k", 513), Rate: 5}); !errors.As(err, &field) || field.Field != "key" {
		t.Errorf("a long key: %v", err)
	}
	if _, err = ab.Holds(t.Context(), d, "user:7"); err != nil || inner.seen != want {
		t.Errorf("holds of %s: %v", inner.seen, err)
	}
	b := store.Batch{Groups: []store.Group{
		{Hold: &store.HoldCall{ID: "h"}, Ops: []store.Op{{Def: d, Key: "user:7"}}},
		{Hold: &store.HoldCall{ID: "h", Verb: store.SettleHold}},
		{Ops: []store.Op{{Def: d, Key: "user:8"}}},
	}}
	if err = s.Apply(t.Context(), &b); err != nil || b.Groups[0].Ops[0].Key != "user:7" || b.Groups[1].Ops[0].Key != want || b.Groups[2].Ops[0].Key != "user:8" {
		t.Errorf("%+v %v", b.Groups, err)
	}
}

func TestSecrets(t *testing.T) {
	if _, err := keyhash.NewHasher([]byte("short")); err == nil || !strings.Contains(err.Error(), "has 5 bytes; at least 16") {
		t.Error(err)
	}
	if a, b := keyhash.RandomHasher().Redact("a", "k"), keyhash.RandomHasher().Redact("a", "k"); a == b || strings.Contains(a, "k:") {
		t.Error(a, b)
	}
}

func BenchmarkHash(b *testing.B) {
	h := keyhash.RandomHasher()
	b.ReportAllocs()
	for b.Loop() {
		h.Hash("login", "user:123456")
	}
}

// The rows of a key with shards have its hash and their numbers, so that lists have it once.
func TestShards(t *testing.T) {
	inner, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = inner.Close() }()
	h, err := keyhash.NewHasher(secret)
	if err != nil {
		t.Fatal(err)
	}
	l, err := dipwell.New(keyhash.New(inner, h), dipwell.Limit{Name: "s", Rate: 1, Period: time.Hour, Burst: 8, Shards: 4, ListKeys: true})
	if err != nil {
		t.Fatal(err)
	}
	for range 8 {
		if d, err := l.Take(t.Context(), "s", "k", 1); err != nil || !d.Allowed || d.Key != "k" {
			t.Fatalf("%+v, %v", d, err)
		}
	}
	if _, err = l.SetOverride(t.Context(), "s", dipwell.Override{Key: "k", Burst: 16}); err != nil {
		t.Fatal(err)
	}
	keys, err := l.Keys(t.Context(), "s", "", "", 9)
	if err != nil || len(keys) != 1 || keys[0].Key != h.Hash("s", "k") || len(keys[0].Others) != 3 {
		t.Errorf("the keys are %+v, %v", keys, err)
	}
	list, err := l.Overrides(t.Context(), "s", "", "", 9)
	if err != nil || len(list) != 1 || list[0].Key != h.Hash("s", "k") {
		t.Errorf("the overrides are %+v, %v", list, err)
	}
}
