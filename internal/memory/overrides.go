package memory

import (
	"context"
	"fmt"
	"strings"

	"github.com/dipwell/dipwell/store"
)

// SetOverride sets the override of a key from now on. The error is as in
// store.Overrider, or store.ErrFull if there is no room.
func (s *Store) SetOverride(_ context.Context, d *store.Definition, o store.Override) (store.Override, error) {
	var set *store.Override
	err := s.change(d, o.Key, func(t *txn, d *store.Definition) (err error) {
		set, err = d.SetOverrideIn(t, o.Key, &o, t.now)
		return err
	})
	if err != nil {
		return o, err
	}
	return *set, nil
}

// EndOverride ends the override of a key, and reports whether it had one.
func (s *Store) EndOverride(_ context.Context, d *store.Definition, key string) (ended bool, err error) {
	err = s.change(d, key, func(t *txn, d *store.Definition) error {
		row, err := t.Row(d.Name, key)
		if ended = row.Override != nil && (row.Override.Until == 0 || t.now < row.Override.Until); err == nil && row.Override != nil {
			_, err = d.SetOverrideIn(t, key, nil, t.now)
		}
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

// change changes what the store has of a key under the lock of its shard.
func (s *Store) change(d *store.Definition, key string, change func(t *txn, d *store.Definition) error) error {
	name, key := d.Name, strings.Clone(key)
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
	if d = s.reg.Lookup(name); d == nil {
		return fmt.Errorf("%w %q", store.ErrUnknownLimit, name)
	}
	if err = change(t, d); err == nil {
		err = t.commit()
	}
	return err
}

// Overrides returns at most n live overrides of a limit: see store.Overrider. A call
// reads the overrides of all limits.
func (s *Store) Overrides(ctx context.Context, d *store.Definition, prefix, after string, n int) ([]store.Override, error) {
	page := newPage(n, func(o *store.Override) string { return o.Key })
	now := s.now()
	for i := range s.shards {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		sh := &s.shards[i]
		sh.mu.Lock()
		for _, k := range sh.extras {
			o := k.override
			if o == nil || k.name != d.Name || o.Until != 0 && o.Until <= now || !follows(o.Key, prefix, after) || !page.wants(o.Key) {
				continue
			}
			page.add(*o)
		}
		sh.mu.Unlock()
	}
	return page.sorted(), nil
}

// Holds returns the live holds of a key, the one that expires first first.
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
	row := store.State{Version: p.def.Number, Override: k.override}
	if i, found := sh.find(p.id, p.tag); found {
		row = store.State{}
		sh.state(&row, i, &p)
	}
	return p.def.Base().KeyHolds(row, k.records, s.now()), nil
}
