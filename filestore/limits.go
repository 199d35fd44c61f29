package filestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"sync"

	"modernc.org/sqlite"

	"github.com/dipwell/dipwell/internal/catalog"
	"github.com/dipwell/dipwell/internal/memory"
	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

// limits are the definitions in the file. A definition is written before calls use it,
// because afterwards a row that refers to it may be written at any time. So the file may
// be slightly ahead of the registry of the store in memory.
type limits struct {
	s   *Store
	reg store.Registry
	ids sync.Map // by name: the id as int64
}

var _ store.Definer = (*limits)(nil)

// Registry returns the limits that calls use.
func (p *limits) Registry() *store.Registry { return p.s.mem.Registry() }

func (p *limits) lookupID(name string) (int64, bool) {
	id, ok := p.ids.Load(name)
	if !ok {
		return 0, false
	}
	return id.(int64), true
}

// byID returns the definitions of a registry by their ids in the file.
func (p *limits) byID(reg *store.Registry) map[int64]*store.Definition {
	defs := map[int64]*store.Definition{}
	for _, d := range reg.All() {
		if id, ok := p.lookupID(d.Name); ok {
			defs[id] = d
		}
	}
	return defs
}

// open reads the definitions from the file.
func (p *limits) open(s *Store) error {
	p.s, p.reg.EachOverride = s, s.mem.EachOverride
	if err := p.read(); err != nil {
		return s.disk.readError(err)
	}
	for _, d := range p.reg.All() {
		if err := s.mem.InstallOne(d); err != nil {
			return err
		}
	}
	return nil
}

func (p *limits) read() error {
	var defs []*store.Definition
	err := p.s.disk.each(background, func(rows *sql.Rows) error {
		var id int64
		var name, text string
		if err := rows.Scan(&id, &name, &text); err != nil {
			return err
		}
		d, err := catalog.DecodeDefinition(name, text, nil)
		if err != nil || d == nil {
			return fmt.Errorf("limit %s: %w", name, err)
		}
		defs = append(defs, d)
		p.ids.Store(name, id)
		return nil
	}, "select id, name, definition from limits")
	if err == nil {
		p.reg.Install(defs)
	}
	return err
}

const (
	maxPast    = 64   // if a limit has more past versions, Define converts the rows of older versions and deletes these
	keepPast   = 32   // newest versions that are kept in any case, for rows that a decorator keeps
	renewChunk = 1000 // number of keys that are converted in one transaction
)

func (p *limits) Define(_ context.Context, l store.Limit, owner string) (*store.Definition, error) {
	if p.s.state.Load()&stateClosed != 0 {
		return nil, p.s.unavailable()
	}
	p.s.fitting.Lock() // held until the store in memory has the definition
	defer p.s.fitting.Unlock()
	old := p.reg.Lookup(l.Name)
	d, err := p.reg.Define(p.s.now(), l, owner)
	if err == nil && d != old {
		if len(d.Past) > maxPast {
			if err = p.retire(d); err == nil {
				d = p.reg.Lookup(l.Name)
			}
		}
		if err == nil {
			err = p.write(d)
		}
		if err == nil {
			err = p.s.mem.InstallOne(d)
		} else {
			p.restore(l.Name, old)
		}
		err = p.s.storeError(err)
	}
	if err != nil {
		return nil, err
	}
	return p.Registry().Lookup(l.Name), nil
}

// restore undoes a change of a limit that could not be written. old is the previous
// definition, or nil.
func (p *limits) restore(name string, old *store.Definition) {
	var defs []*store.Definition
	if old != nil {
		defs = append(defs, old)
	}
	p.reg.InstallOne(name, defs)
}

// storeError wraps an error of the file in the class of errors that fits.
func (s *Store) storeError(err error) error {
	if err == nil || errors.Is(err, store.ErrStore) {
		return err
	}
	class := store.ErrStore
	if of, ok := errors.AsType[*sqlite.Error](err); ok && of.Code()&0xff == 13 { // SQLITE_FULL
		class = store.ErrNoSpace
	}
	return fmt.Errorf("%w: file %s: %w", class, s.path, err)
}

// write writes a definition.
func (p *limits) write(d *store.Definition) error {
	text, disk := catalog.Stored(d).String(), p.s.disk
	id, known := p.lookupID(d.Name)
	err := disk.tx(func() error {
		if known {
			return disk.exec("update limits set definition = ? where id = ?", text, id)
		}
		return disk.conn.QueryRowContext(background, "insert into limits (name, definition) values (?, ?) returning id", d.Name, text).Scan(&id)
	})
	if err == nil {
		p.ids.Store(d.Name, id)
	}
	return err
}

// retire converts all rows to the version before d, which is still the present one in
// memory, and forgets the versions that nothing refers to then.
func (p *limits) retire(d *store.Definition) error {
	if err := p.renew(d); err != nil {
		return err
	}
	disk := p.s.disk
	id, _ := p.lookupID(d.Name)
	var oldest int64
	err := disk.tx(func() error {
		return disk.conn.QueryRowContext(background, `select coalesce(min(version), ?2) from (
			select version & ?3 as version from buckets where limit_id = ?1 and version > 0
			union all select override ->> 'version' from overrides where limit_id = ?1 union all select ?2)`, id, int64(d.Number)-keepPast, terms.MaxVersion).Scan(&oldest)
	})
	if err == nil {
		p.reg.Retire(d.Name, uint32(oldest))
	}
	return err
}

// renew converts the rows and overrides of versions older than the one before d.
// All rows in memory are also in the file, once the dirty keys are written.
func (p *limits) renew(d *store.Definition) error {
	s, present := p.s, p.s.mem.Registry().Lookup(d.Name)
	id, _ := p.lookupID(d.Name)
	for more, last := true, (*string)(nil); more; {
		if err := s.writer.flush(); err != nil {
			return err
		}
		keys, err := s.disk.olderKeys(id, present.Number, last)
		if err != nil {
			return err
		}
		for _, key := range keys {
			if err = s.mem.SweepKey(present, key); err != nil {
				return err
			}
			s.dirty.addTo(memory.Touched{Def: present, Key: key, GaveBack: true})
			last = &key
		}
		more = len(keys) == renewChunk
	}
	return s.writer.flush()
}

// olderKeys returns the first keys, after a given key, that have a row or override of an older
// version.
func (d *disk) olderKeys(id int64, present uint32, after *string) (keys []string, err error) {
	err = d.list(background, func(rows *sql.Rows) error {
		var key string
		err := rows.Scan(&key)
		keys = append(keys, key)
		return err
	}, `select key from (
		select key from buckets where limit_id = ?1 and version > 0 and version & ?4 < ?2
		union select key from overrides where limit_id = ?1 and override ->> 'version' < ?2) where ?3 is null or key > ?3 order by key limit ?5`,
		id, int64(present), after, terms.MaxVersion, renewChunk)
	return keys, err
}

// Drop implements store.Definer. From now on the rows of the limit are ignored; sweeps delete
// them.
func (p *limits) Drop(_ context.Context, name, owner string) error {
	if p.s.state.Load()&stateClosed != 0 {
		return p.s.unavailable()
	}
	p.s.fitting.Lock()
	defer p.s.fitting.Unlock()
	old := p.reg.Lookup(name)
	if err := p.reg.Drop(name, owner); err != nil {
		return err
	}
	disk := p.s.disk
	id, _ := p.lookupID(name)
	w := &p.s.writer
	w.mu.Lock() // no cycle may still write what it has read of the limit
	defer w.mu.Unlock()
	err := disk.tx(func() error {
		return errors.Join(disk.exec("delete from limits where id = ?", id),
			disk.exec("update records set id = null where id in (select id from records where limit_id = ?)", id),
			disk.exec("delete from records where limit_id = ?", id), disk.exec("delete from overrides where limit_id = ?", id),
			disk.exec("delete from usage where limit_id = ?", id))
	})
	if err != nil {
		p.restore(name, old)
		return p.s.storeError(err)
	}
	p.ids.Delete(name)
	maps.DeleteFunc(w.records, func(row rowKey, _ map[store.RecordID]*store.Record) bool { return row.limit == id })
	p.s.mem.Remove(name)
	return nil
}
