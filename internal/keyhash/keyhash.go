// Package keyhash keeps keys out of a store: what is stored is their
// HMAC-SHA-256 under a secret, a store in, a store out.
//
// Whoever reads the store, its backups or its replication then sees neither
// addresses nor names, and cannot find them by trying all, without the secret.
// What this costs: SQL functions and services without the same secret use other
// buckets; pages of keys show hashes, so that a prefix is a hash's; windows
// without a start, which are spread by key, are spread by its hash; a new
// secret, like a first one, begins with full buckets. Decisions carry the
// caller's own text.
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
	"sync"

	"github.com/dipwell/dipwell/store"
)

// MinSecret is the fewest bytes of a secret.
const MinSecret = 16

// prefixLen is how much of a hash a log needs to tell keys apart: 60 bits.
const prefixLen = 10

// A Hasher turns keys into hashes. It is safe for concurrent use.
type Hasher struct{ macs sync.Pool }

// mac is what one hash needs, pooled.
type mac struct {
	hash.Hash
	in  []byte
	sum [sha256.Size]byte
}

// NewHasher returns a hasher under a secret of at least MinSecret bytes.
func NewHasher(secret []byte) (*Hasher, error) {
	if len(secret) < MinSecret {
		return nil, fmt.Errorf("key secret: has %d bytes; at least %d", len(secret), MinSecret)
	}
	secret = append([]byte(nil), secret...)
	h := &Hasher{}
	h.macs.New = func() any { return &mac{Hash: hmac.New(sha256.New, secret)} }
	return h, nil
}

// RandomHasher is for logs of one process: nobody can find the keys of its
// hashes, and the next process has others.
func RandomHasher() *Hasher {
	secret := make([]byte, sha256.Size)
	_, _ = rand.Read(secret) // never fails
	h, _ := NewHasher(secret)
	return h
}

// Hash is the key as it is stored: 43 characters, URL-safe. The same key of
// two limits has two hashes, so that a store does not tell whose they both are.
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

// Redact is the beginning of a key's hash, for logs and traces.
func (h *Hasher) Redact(limit, key string) string { return "hash:" + h.Hash(limit, key)[:prefixLen] }

// Store hashes the keys of what it passes on. Shared buckets have no key.
type Store struct {
	inner  store.Store
	hasher *Hasher
}

var _ store.Store = (*Store)(nil)

// New returns a store over inner that hashes keys.
func New(inner store.Store, h *Hasher) *Store { return &Store{inner, h} }

// Unwrap returns the inner store.
func (s *Store) Unwrap() store.Store { return s.inner }

// Abilities are those of the inner store: the keys that it lists are hashes.
func (s *Store) Abilities() store.Abilities {
	ab := store.AbilitiesOf(s.inner)
	ab.Store, ab.Quick, ab.Lanes = s, nil, nil
	return ab
}

// Apply decides on hashes, and gives each op its own key back.
func (s *Store) Apply(ctx context.Context, b *store.Batch) error {
	var few [store.MaxTakes]string
	keys := few[:0]
	for i := range b.Groups {
		ops := b.Groups[i].Ops
		for j := range ops {
			op := &ops[j]
			if keys = append(keys, op.Key); op.Key != "" {
				op.Key, op.Phase = s.hasher.Hash(op.Def.Name, op.Key), 0
			}
		}
	}
	err := s.inner.Apply(ctx, b)
	for i := range b.Groups {
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
