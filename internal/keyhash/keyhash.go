// Package keyhash stores keys as their HMAC-SHA-256 under a secret. It is a
// decorator: it wraps a store and is one.
//
// A reader of the store, its backups or its replication then sees no addresses or names,
// and without the secret cannot find them by trying all possible keys.
//
// It has these consequences. SQL functions, and services without the same secret,
// use other buckets. Lists of keys, overrides, audit entries and the top keys of an hour show
// hashes, and are asked for by a prefix of a hash. The answer to a settled or extended hold has
// the hash, because the store knows no other key.
// Windows without a start are spread by the hash. A new secret starts with full
// buckets. Decisions have the caller's key, not the hash.
package keyhash

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash"
	"slices"
	"sync"

	"github.com/dipwell/dipwell/internal/bounded"
	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

// MinSecret is the minimum length of a secret in bytes.
const MinSecret = 16

// prefixLen is the length of a hash in logs: 60 bits tell keys apart.
const prefixLen = 10

// A Hasher turns keys into hashes. It is safe for concurrent use.
type Hasher struct{ macs sync.Pool }

// mac is a hash function with its buffers, pooled.
type mac struct {
	hash.Hash
	in  []byte
	sum [sha256.Size]byte
}

// NewHasher returns a Hasher with a secret of at least MinSecret bytes.
func NewHasher(secret []byte) (*Hasher, error) {
	if len(secret) < MinSecret {
		return nil, fmt.Errorf("key secret: has %d bytes; at least %d", len(secret), MinSecret)
	}
	secret = append([]byte(nil), secret...)
	h := &Hasher{}
	h.macs.New = func() any { return &mac{Hash: hmac.New(sha256.New, secret)} }
	return h, nil
}

// RandomHasher returns a Hasher with a random secret, for the logs of one process.
func RandomHasher() *Hasher {
	secret := make([]byte, sha256.Size)
	_, _ = rand.Read(secret) // never fails
	h, _ := NewHasher(secret)
	return h
}

// Hash returns the key as it is stored: 43 URL-safe characters. The same key has
// another hash in another limit, so that a store does not show that they are equal.
func (h *Hasher) Hash(limit, key string) string {
	m := h.macs.Get().(*mac)
	m.in = binary.BigEndian.AppendUint32(m.in[:0], uint32(len(limit)))
	m.in = append(append(m.in, limit...), key...)
	m.Reset()
	m.Write(m.in)
	out := base64.RawURLEncoding.EncodeToString(m.Sum(m.sum[:0]))
	h.macs.Put(m)
	return out
}

// Func returns the Hash of a Hasher with this secret, or nil if a store has no secret.
func Func(secret []byte) func(limit, key string) string {
	h, err := NewHasher(secret)
	if err != nil {
		return nil
	}
	return h.Hash
}

// Redact returns the beginning of a key's hash, for logs and traces.
func (h *Hasher) Redact(limit, key string) string { return "hash:" + h.Hash(limit, key)[:prefixLen] }

// Store hashes the keys of each batch. Shared buckets have no key.
type Store struct {
	inner  store.Store
	hasher *Hasher
}

var _ store.Store = (*Store)(nil)

// New returns a store that hashes keys for inner.
func New(inner store.Store, h *Hasher) *Store { return &Store{inner, h} }

// Abilities returns those of the inner store, except Quick and Lanes. The keys that
// it lists are hashes.
func (s *Store) Abilities() store.Abilities {
	ab := store.AbilitiesOf(s.inner)
	ab.Store, ab.Quick, ab.Lanes = s, nil, nil
	if ab.Overrides != nil {
		ab.Overrides = overrides{ab.Overrides, s}
	}
	if ab.Audit != nil {
		ab.Audit = trail{ab.Audit, s}
	}
	if ab.TopKeys != nil {
		ab.TopKeys = topKeys{ab.TopKeys, s}
	}
	if ab.Minutes != nil {
		ab.Minutes = topKeys{ab.Minutes, s}
	}
	if ab.Usage != nil {
		ab.Usage = usage{ab.Usage, s}
	}
	if inner := ab.Holds; inner != nil {
		ab.Holds = func(ctx context.Context, d *store.Definition, key string) ([]store.KeyHold, error) {
			return inner(ctx, d, s.hash(d, key))
		}
	}
	return ab
}

// hash returns the key that the inner store has. The rows of a key with shards keep their
// numbers.
func (s *Store) hash(d *store.Definition, key string) string {
	of, _ := terms.KeyOfRow(d.Shards, key)
	return s.hashed(d.Name, of) + key[len(of):]
}

// hashed returns the hash of a key, or "" for that of a shared bucket.
func (s *Store) hashed(limit, key string) string {
	if key == "" {
		return ""
	}
	return s.hasher.Hash(limit, key)
}

// The overrides of the inner store, set and ended by the caller's key. Lists contain hashes.
type overrides struct {
	store.Overrider
	s *Store
}

func (o overrides) SetOverride(ctx context.Context, d *store.Definition, v store.Override) (store.Override, error) {
	if err := d.CheckOverride(&v, 0); err != nil { // on the key itself, because a long key has a short hash
		return store.Override{}, err
	}
	key := v.Key
	v.Key = o.s.hash(d, key)
	set, err := o.Overrider.SetOverride(ctx, d, v)
	if err == nil {
		set = *set.WithKey(key)
	}
	return set, err
}

func (o overrides) EndOverride(ctx context.Context, d *store.Definition, key string, kind store.OverrideKind) (*store.Override, error) {
	ended, err := o.Overrider.EndOverride(ctx, d, o.s.hash(d, key), kind)
	return ended.WithKey(key), err
}

// A trail is the audit of the inner store, with hashes in place of keys.
type trail struct {
	store.Auditor
	s *Store
}

func (t trail) Record(ctx context.Context, e store.AuditEntry) error {
	e.Key = t.s.hashed(e.Limit, e.Key)
	return t.Auditor.Record(ctx, e)
}

// topKeys is the list of top keys of the inner store, or its minutes, with hashes in place of
// keys.
type topKeys struct {
	store.Auditor
	s *Store
}

func (t topKeys) Record(ctx context.Context, e store.AuditEntry) (err error) {
	if e.What, err = bounded.MapKeys(e.What, t.s.hasher.Hash); err != nil {
		return err
	}
	return t.Auditor.Record(ctx, e)
}

// usage is the usage of the inner store, with hashes in place of keys.
type usage struct {
	store.UsageKeeper
	s *Store
}

func (u usage) AddUsage(ctx context.Context, lines []store.UsageLine) error {
	lines = slices.Clone(lines)
	for i := range lines {
		lines[i].Key = u.s.hashed(lines[i].Limit, lines[i].Key)
	}
	return u.UsageKeeper.AddUsage(ctx, lines)
}

func (u usage) Usage(ctx context.Context, d *store.Definition, key string, from, to int64) ([]store.UsageLine, error) {
	lines, err := u.UsageKeeper.Usage(ctx, d, u.s.hashed(d.Name, key), from, to)
	for i := range lines {
		lines[i].Key = key
	}
	return lines, err
}

// Apply sends the batch with hashed keys, and then restores the keys. The ops of a
// hold that is settled keep the hashed keys.
func (s *Store) Apply(ctx context.Context, b *store.Batch) error {
	var array [store.MaxTakes]string
	keys := array[:0]
	for i := range b.Groups {
		if b.Groups[i].Settles() {
			continue
		}
		ops := b.Groups[i].Ops
		for j := range ops {
			op := &ops[j]
			if keys = append(keys, op.Key); op.Key != "" {
				op.Key, op.Phase = s.hash(op.Def, op.Key), 0
			}
		}
	}
	err := s.inner.Apply(ctx, b)
	for i := range b.Groups {
		if b.Groups[i].Settles() {
			continue
		}
		ops := b.Groups[i].Ops
		for j := range ops {
			if ops[j].Key != keys[0] {
				ops[j].Key, ops[j].Phase = keys[0], 0
			}
			keys = keys[1:]
		}
	}
	return err
}
