package keyhash_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/keyhash"
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
		list := func(op *store.Op) string {
			texts.Store(h.Hash(op.Def.Name, op.Key), op.Key)
			return op.Key
		}
		back := func(op *store.Op) string {
			text, ok := texts.Load(op.Key)
			if !ok {
				t.Errorf("the store saw the key %q", op.Key)
				return op.Key
			}
			return text.(string)
		}
		return &mapped{keyhash.New(&mapped{inner, back}, h), list}
	}, storetest.Quick)
}

// mapped is a decorator that replaces keys.
type mapped struct {
	inner store.Store
	to    func(*store.Op) string
}

func (m *mapped) Abilities() store.Abilities { return store.AbilitiesOf(m.inner) }

func (m *mapped) Apply(ctx context.Context, b *store.Batch) error {
	var keys []string
	for i := range b.Groups {
		for j := range b.Groups[i].Ops {
			op := &b.Groups[i].Ops[j]
			if keys = append(keys, op.Key); op.Key != "" {
				op.Key = m.to(op)
			}
		}
	}
	err := m.inner.Apply(ctx, b)
	for i := range b.Groups {
		for j := range b.Groups[i].Ops {
			b.Groups[i].Ops[j].Key, keys = keys[0], keys[1:]
		}
	}
	return err
}

func TestOnlyHashesAreStored(t *testing.T) {
	s, h := open(t, func() int64 { return 1e15 })
	l, err := dipwell.New(s, store.Limit{Name: "login", Rate: 1, Period: time.Hour, Burst: 3, ListKeys: true},
		store.Limit{Name: "other", Rate: 1, Period: time.Hour, Burst: 3, ListKeys: true})
	if err != nil {
		t.Fatal(err)
	}
	d, err := l.TakeAll(t.Context(), dipwell.Take{Limit: "login", Key: "user:7", Cost: 1}, dipwell.Take{Limit: "other", Key: "user:7", Cost: 1},
		dipwell.Take{Limit: "other", Key: dipwell.Shared, Cost: 1})
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
	if err != nil || len(rows) != 2 || rows[0].Key != "" || rows[1].Key == want {
		t.Errorf("%+v %v: a shared bucket has no hash, and two limits have two", rows, err)
	}
	if d, err = l.Check(t.Context(), "login", "user:7", 0); err != nil || d.Remaining != 2 || d.Key != "user:7" {
		t.Errorf("%+v %v", d, err)
	}
	if r := h.Redact("login", "user:7"); r != "hash:"+want[:10] {
		t.Error(r)
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
