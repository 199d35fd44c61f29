package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/dipwell/dipwell/internal/bounded"
	"github.com/dipwell/dipwell/internal/catalog"
	"github.com/dipwell/dipwell/store"
)

// maxKnown bounds the overrides that a program remembers, in two generations.
const maxKnown = 2048

// knownOverrides remembers overrides that were read, with their compiled definitions, by limit
// and key.
type knownOverrides struct {
	bounded.Map[[2]string, *knownOverride]
}

type knownOverride struct {
	text     string
	override *store.Override
	entry    atomic.Pointer[entry] // entry for the override's definition, if it was used
}

// forever is the end that scripts get for an override that has no end.
const forever = "9e18"

// overriding returns the entry of the override that decides an op, if this program remembers
// one. If the override was replaced or has ended, a script that gets the entry does nothing,
// because the row has another number. An override of an older version of the limit is not
// used, since it and its renewal by another program may have the same number.
func (l *limits) overriding(e *entry, op *store.Op) *entry {
	if !e.def.Overridden || op.Verb >= store.VerbCharge {
		return nil
	}
	known, _ := l.s.overrides.Get([2]string{e.def.Name, op.Key})
	base := e.def.Base()
	if known == nil || known.override.Version != base.Number {
		return nil
	}
	over, d := known.entry.Load(), base.WithOverride(known.override)
	if over == nil || over.def != d || over.parts != e.parts {
		over = l.newEntry(d)
		over.override, over.until = known.override, forever
		if until := known.override.Until; until != 0 {
			over.until = until
		}
		known.entry.Store(over)
	}
	return over
}

// decode is catalog.DecodeOverride for a key of a limit. The result is prepared.
func (d *knownOverrides) decode(limit, key, text string) (*store.Override, error) {
	row := [2]string{limit, key}
	if text == "" {
		d.Remove(row)
		return nil, nil
	}
	if known, _ := d.Get(row); known != nil && known.text == text {
		return known.override, nil
	}
	o, err := catalog.DecodeOverride(key, text)
	if err != nil {
		return nil, err
	}
	o.Prepare()
	d.Put(row, &knownOverride{text: text, override: o})
	return o, nil
}

// This file has the ability Overrides of a store.
type overrides struct{ *Store }

var _ store.Overrider = overrides{}

// SetOverride implements store.Overrider. The first override of a limit also sets a mark
// in the limit, which all programs read.
func (s overrides) SetOverride(ctx context.Context, d *store.Definition, o store.Override) (set store.Override, err error) {
	now, err := s.now(ctx)
	if err == nil {
		err = d.CheckOverride(&o, now)
	}
	if err == nil {
		err = s.limits.setOverridden(ctx, d.Name)
	}
	if err != nil {
		return set, err
	}
	err = s.changeOverride(ctx, d, o.Key, true, func(t *table, present *store.Definition) (err error) {
		set, err = present.SetOverrideIn(t, o.Key, o, t.now)
		return err
	})
	if err == nil {
		err = s.keepFit(ctx, d.Name, &set)
	}
	return set, err
}

// keepFit ends an override that was set while its limit changed to a definition that the
// override does not fit, and restores the one that it replaced.
func (s overrides) keepFit(ctx context.Context, limit string, set *store.Override) error {
	text, err := s.limits.field(ctx, limit)
	if err != nil {
		return err
	}
	d, err := decodeDefinition(limit, text, s.limits.reg.Lookup(limit))
	if err != nil || d == nil || d.Number == set.Version {
		return err
	}
	unfit := d.CheckOverride(set, 0)
	if unfit == nil {
		return nil
	}
	if _, err = s.EndOverride(ctx, d, set.Key, set.Kind()); err == nil && set.Replaced != nil {
		_, err = s.SetOverride(ctx, d, *set.Replaced)
	}
	return errors.Join(unfit, err)
}

func (s overrides) EndOverride(ctx context.Context, d *store.Definition, key string, kind store.OverrideKind) (ended *store.Override, err error) {
	err = s.changeOverride(ctx, d, key, false, func(t *table, present *store.Definition) (err error) {
		if t.rows[0].state.Override != nil {
			ended, err = present.EndOverrideIn(t, key, kind, t.now)
		}
		return err
	})
	return ended, err
}

// changeOverride changes the overrides of a key under the present definition of its limit.
// grows is true if an override is set.
func (s *Store) changeOverride(ctx context.Context, d *store.Definition, key string, grows bool, change func(t *table, present *store.Definition) error) error {
	t := s.newTable()
	t.want(d.Name, key)
	return t.update(ctx, func() error {
		present := s.limits.reg.Lookup(d.Name)
		if present == nil {
			return s.limits.reg.Missing(d.Name)
		}
		return change(t, present)
	}, grows)
}

// Overrides implements store.Overrider. Each call scans the names of all keys, as keys
// does.
func (s overrides) Overrides(ctx context.Context, d *store.Definition, prefix, after string, n int) ([]store.Override, error) {
	now, err := s.now(ctx)
	if err != nil {
		return nil, err
	}
	page := catalog.NewPage(prefix, after, n, func(o *store.Override) string { return o.Key })
	err = s.eachOverride(ctx, d.Name, prefix, func(o *store.Override) {
		if o = o.At(now); o != nil && page.Wants(o.Key) {
			page.Add(*o)
		}
	})
	return page.Rows(), storeError(err, false)
}

// eachOverride calls do for each override of a limit whose key has a prefix, perhaps twice.
// eachOverride scans the names of all keys.
func (s *Store) eachOverride(ctx context.Context, limit, prefix string, do func(o *store.Override)) error {
	begin := s.names.start(s.names.overrides, limit)
	return s.scanNames(ctx, s.names.pattern(begin, limit, prefix), func(names []string) error {
		texts, err := s.getAll(ctx, names)
		for i, name := range names {
			rest, ok := strings.CutPrefix(name, begin)
			key, ok2 := s.names.keyOf(limit, rest)
			if !ok || !ok2 || err != nil || !strings.HasPrefix(key, prefix) {
				continue
			}
			o, err := catalog.DecodeOverride(key, texts[i])
			if err != nil {
				return fmt.Errorf("%w: the key %s: %w", store.ErrStore, name, err)
			}
			do(o)
		}
		return err
	})
}

// forget deletes the overrides of a dropped limit, and ends its parts of holds and
// reservations. last is the limit's last version.
func (s *Store) forget(ctx context.Context, limit string, last uint32) error {
	begin := s.names.start(s.names.records, limit)
	err := s.scanNames(ctx, s.names.pattern(begin, limit, ""), func(names []string) error {
		for _, name := range names {
			if key, ok := s.names.keyOf(limit, strings.TrimPrefix(name, begin)); ok {
				if err := s.sweepKey(ctx, new(store.Registry), limit, key, true); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return storeError(err, false)
	}
	return s.forgetOverrides(ctx, limit, last)
}

// forgetOverrides deletes the usage of a dropped limit, and its overrides with their rows, but
// not those of versions later than last. It is called when the limit is dropped, and again when
// its name is defined anew: the deletion after the drop may have failed, or a program that did
// not know of the drop may have set an override. The keys need not be known, which in a cluster
// would require the parents of the dropped limit: the names of a row, its override and its
// records differ only in their beginning.
func (s *Store) forgetOverrides(ctx context.Context, limit string, last uint32) error {
	if err := s.forgetUsage(ctx, limit); err != nil {
		return err
	}
	n := &s.names
	begin := n.start(n.overrides, limit)
	return s.scanNames(ctx, n.pattern(begin, limit, ""), func(names []string) error {
		calls := make([]call, len(names))
		for i, name := range names {
			end := strings.TrimPrefix(name, begin)
			args := []any{nil, nil, 3, name, n.start(n.base, limit) + end, n.start(n.records, limit) + end, last}
			calls[i] = s.call(ctx, s.scripts.forget, false, args)
		}
		return cmp.Or(s.runMany(ctx, calls)...)
	})
}
