package memory

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/dipwell/dipwell/internal/catalog"
	"github.com/dipwell/dipwell/store"
)

// SetOverride sets an override of a key from now on. The error is as in
// store.Overrider, or store.ErrFull if there is no room.
func (s *Store) SetOverride(_ context.Context, d *store.Definition, o store.Override) (set store.Override, err error) {
	s.fitting.RLock()
	defer s.fitting.RUnlock()
	err = s.change(d, o.Key, func(t *txn, d *store.Definition) (err error) {
		set, err = d.SetOverrideIn(t, o.Key, o, t.now)
		return err
	})
	return set, err
}

func (s *Store) EndOverride(_ context.Context, d *store.Definition, key string, kind store.OverrideKind) (ended *store.Override, err error) {
	err = s.change(d, key, func(t *txn, d *store.Definition) (err error) {
		ended, err = d.EndOverrideIn(t, key, kind, t.now)
		return err
	})
	return ended, err
}

// SweepKey converts the row, the records and the override of a key to the present version
// of its limit, and removes what has ended or is full.
func (s *Store) SweepKey(d *store.Definition, key string) error {
	return s.change(d, key, func(t *txn, d *store.Definition) error {
		_, err := store.SweepRow(t, &s.reg, d.Name, key, t.now)
		return err
	})
}

// change calls a function under the lock of a key's shard.
func (s *Store) change(d *store.Definition, key string, change func(t *txn, d *store.Definition) error) error {
	name, key := d.Name, strings.Clone(key)
	for {
		if err := s.tryChange(name, key, change); !errors.Is(err, errNotLocked) {
			return err
		}
	}
}

func (s *Store) tryChange(name, key string, change func(t *txn, d *store.Definition) error) error {
	b := s.limits.currentOf(name)
	if b == nil {
		return fmt.Errorf("%w %q", store.ErrUnknownLimit, name)
	}
	t := s.newTxn(s.now())
	defer t.end()
	t.place(b, name, key, nil)
	err := t.lock()
	if err != nil {
		return err
	}
	defer t.unlock()
	d := s.reg.Lookup(name)
	if d == nil {
		return fmt.Errorf("%w %q", store.ErrUnknownLimit, name)
	}
	if err = change(t, d); err == nil {
		err = t.commit()
	}
	return err
}

// Overrides returns at most n live overrides of a limit: see store.Overrider. A call
// goes through the overrides of all limits of the store.
func (s *Store) Overrides(ctx context.Context, d *store.Definition, prefix, after string, n int) ([]store.Override, error) {
	page := catalog.NewPage(prefix, after, n, func(o *store.Override) string { return o.Key })
	now := s.now()
	for i := range s.shards {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		sh := &s.shards[i]
		sh.mu.Lock()
		for _, k := range sh.extras {
			if o := k.override.At(now); o != nil && k.name == d.Name && page.Wants(o.Key) {
				page.Add(*o)
			}
		}
		sh.mu.Unlock()
	}
	return page.Rows(), nil
}

// EachOverride calls check under the lock of the override's shard: see store.Registry.
func (s *Store) EachOverride(limit string, check func(o *store.Override)) error {
	if s.overrides.Load() > 0 {
		s.eachExtras(func(_ *shard, k *keyExtras) {
			if k.override != nil && k.name == limit {
				check(k.override)
			}
		})
	}
	return nil
}

// Holds returns the live holds of a key in the order in which they expire.
func (s *Store) Holds(_ context.Context, d *store.Definition, key string) ([]store.KeyHold, error) {
	sh, p := s.lockKey(d, key)
	if sh == nil {
		return nil, fmt.Errorf("%w %q", store.ErrUnknownLimit, d.Name)
	}
	defer sh.mu.Unlock()
	k := sh.extras[rowID{p.id, p.tag}]
	if k == nil {
		return nil, nil
	}
	return store.KeyHolds(k.records, s.now()), nil
}
