package filestore

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/dipwell/dipwell/internal/catalog"
	"github.com/dipwell/dipwell/internal/memory"
	"github.com/dipwell/dipwell/internal/texts"
	"github.com/dipwell/dipwell/store"
)

// This file has the ability Overrides of a store.
type overrides struct{ *Store }

var _ store.Overrider = overrides{}

// SetOverride sets the override of a key, as store.Overrider says. When it returns, the
// override is on the disk. If the disk fails meanwhile, the error wraps
// store.ErrOutcomeUnknown: the override decides, and is written once the disk works again.
func (s overrides) SetOverride(ctx context.Context, d *store.Definition, o store.Override) (store.Override, error) {
	s.fitting.RLock()
	defer s.fitting.RUnlock()
	err := s.changeOverride(d, o.Key, func() (err error) {
		o, err = s.mem.SetOverride(ctx, d, o)
		return err
	})
	return o, err
}

// EndOverride ends an override of a key, and returns it. When it returns, the end is on
// the disk.
func (s overrides) EndOverride(ctx context.Context, d *store.Definition, key string, kind store.OverrideKind) (ended *store.Override, err error) {
	err = s.changeOverride(d, key, func() (err error) {
		ended, err = s.mem.EndOverride(ctx, d, key, kind)
		return err
	})
	return ended, err
}

func (s *Store) changeOverride(d *store.Definition, key string, change func() error) error {
	if s.state.Load()&^stateEach != 0 {
		return s.unavailable()
	}
	if err := change(); err != nil {
		return err
	}
	s.dirty.addTo(memory.Touched{Def: d.Base(), Key: key, GaveBack: true})
	if err := s.writer.flush(); err != nil {
		return unknownOutcome(err)
	}
	return nil
}

// Overrides returns live overrides of a limit, as store.Overrider says.
func (s overrides) Overrides(ctx context.Context, d *store.Definition, prefix, after string, n int) ([]store.Override, error) {
	return s.mem.Overrides(ctx, d, prefix, after, n)
}

func (d *disk) writeOverride(r *bucket) error {
	o := r.state.Override
	if o == nil {
		return d.exec("delete from overrides where limit_id = ? and key = ?", r.limit, r.key)
	}
	return d.exec("insert or replace into overrides (limit_id, key, override) values (?, ?, ?)", r.limit, r.key, catalog.EncodeOverride(o))
}

// loadOverrides reads all overrides into memory, including ended ones, because their rows
// have to be converted as of their end.
func (s *Store) loadOverrides(defs map[int64]*store.Definition) error {
	return s.disk.each(background, func(rows *sql.Rows) error {
		var limit int64
		var key, text string
		if err := rows.Scan(&limit, &key, &text); err != nil {
			return err
		}
		d := defs[limit]
		if d == nil {
			return nil // the override's limit was dropped
		}
		o, err := catalog.DecodeOverride(key, text)
		for x := o; err == nil && x != nil; x = x.Under {
			if x.ID == 0 || x.ID >= 1<<31 || x.Version == 0 || x.Version > d.Number {
				err = fmt.Errorf("id %d or version %d is out of range", x.ID, x.Version)
			}
		}
		if err == nil {
			err = s.mem.PutOverride(d, o)
		}
		switch {
		case errors.Is(err, store.ErrFull):
			return tooMany{errors.New("overrides than MaxOverrides")}
		case err != nil:
			return fmt.Errorf("override of limit %s, key %q: %w", d.Name, key, err)
		}
		return nil
	}, "select limit_id, key, override from overrides")
}

func (d *disk) writeHold(id string, h *store.Hold) error {
	if len(h.Parts) == 0 {
		return d.exec("delete from holds where id = ?", id)
	}
	return d.exec("insert or replace into holds (id, forget, hold) values (?, ?, ?)", id, h.Forget, texts.Marshal(h))
}

func (s *Store) loadHolds() error {
	return s.disk.each(background, func(rows *sql.Rows) error {
		var id, text string
		var h store.Hold
		err := rows.Scan(&id, &text)
		if err == nil {
			err = json.Unmarshal([]byte(text), &h)
		}
		if err != nil {
			return fmt.Errorf("hold %q: %w", id, err)
		}
		if s.mem.PutHold(id, h) != nil {
			return tooMany{errors.New("holds than MaxHolds")}
		}
		return nil
	}, "select id, hold from holds order by forget")
}
