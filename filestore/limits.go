package filestore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/dipwell/dipwell/internal/catalog"
	"github.com/dipwell/dipwell/store"
)

// limits are the definitions as the file has them, which may be a moment ahead
// of those that calls see: a definition is on the disk before it is used, for
// rows that name it may be written at any time after.
type limits struct {
	s   *Store
	cat *catalog.Catalog
	reg store.Registry
	ids sync.Map // name → id, int64
}

var _ catalog.Backend = (*limits)(nil)

func (p *limits) open(s *Store) error {
	p.s = s
	p.cat = catalog.New(p, s.mem.Registry(), catalog.Config{Error: s.failure1})
	return p.cat.Open(background)
}

func (p *limits) id(name string) (int64, bool) {
	id, ok := p.ids.Load(name)
	if !ok {
		return 0, false
	}
	return id.(int64), true
}

// byID returns the definitions by the ids of their limits.
func (p *limits) byID() map[int64]*store.Definition {
	defs := map[int64]*store.Definition{}
	for _, d := range p.reg.All() {
		id, _ := p.id(d.Name)
		defs[id] = d
	}
	return defs
}

// Prepare reads the definitions from the file, which no other process changes.
func (p *limits) Prepare(context.Context) error {
	versions, err := p.readVersions()
	if err == nil {
		err = p.readLimits(versions)
	}
	if err != nil {
		return p.s.disk.wrong(err)
	}
	return nil
}

func (p *limits) readLimits(versions map[int64][]catalog.Version) error {
	rows, err := p.s.disk.conn.QueryContext(background, "select id, name, definition, owner, version from limits")
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }() // read to its end, or given up
	var defs []*store.Definition
	for rows.Next() {
		var id int64
		var number uint32
		var name, text, owner string
		if err = rows.Scan(&id, &name, &text, &owner, &number); err != nil {
			return err
		}
		l, err := catalog.ParseSettings(text)
		if err == nil && l.Name != name {
			err = fmt.Errorf("its settings are those of %s", l.Name)
		}
		var d *store.Definition
		if err == nil {
			d, err = catalog.Definition(l, owner, number, versions[id])
		}
		if err != nil {
			return fmt.Errorf("limit %s: %w", name, err)
		}
		defs = append(defs, d)
		p.ids.Store(name, id)
	}
	p.reg.Install(defs)
	return rows.Err()
}

// readVersions reads the versions, by the ids of their limits.
func (p *limits) readVersions() (map[int64][]catalog.Version, error) {
	rows, err := p.s.disk.conn.QueryContext(background, "select limit_id, "+catalog.List("", catalog.VersionColumns)+" from versions order by limit_id, number")
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }() // read to its end, or given up
	out := map[int64][]catalog.Version{}
	for rows.Next() {
		var limit int64
		var v catalog.Version
		if err = rows.Scan(append([]any{&limit}, v.Fields()...)...); err != nil {
			return nil, err
		}
		out[limit] = append(out[limit], v)
	}
	return out, rows.Err()
}

// Read returns the definitions.
func (p *limits) Read(context.Context) (*catalog.Limits, error) {
	return &catalog.Limits{Defs: p.reg.All()}, nil
}

// Revision stays: nobody else changes the limits.
func (*limits) Revision(context.Context) (int64, error) { return 0, nil }

// Install puts the definitions into memory.
func (p *limits) Install(l *catalog.Limits) error { return p.s.mem.Install(l.Defs) }

// manyPast is the number of versions of a limit after which those that no row
// names any more are looked for.
const manyPast = 512

// Put adds a limit or changes it, on the disk.
func (p *limits) Put(_ context.Context, l store.Limit, owner string) (changed bool, err error) {
	if p.s.state.Load()&stateClosed != 0 {
		return false, p.s.why()
	}
	before, old := p.reg.All(), p.reg.Lookup(l.Name)
	d, err := p.reg.Define(p.s.now(), l, owner)
	if err != nil || d == old {
		return false, err
	}
	if len(d.Past) > manyPast {
		if err = p.retire(d); err == nil {
			d = p.reg.Lookup(l.Name)
		}
	}
	if err == nil {
		err = p.write(d, old)
	}
	if err != nil {
		p.reg.Install(before)
	}
	return true, p.s.failure1(err)
}

// failure1 is an error of one change of the limits.
func (s *Store) failure1(err error) error {
	if err == nil || errors.Is(err, store.ErrStore) {
		return err
	}
	return fmt.Errorf("%w: file %s: %w", store.ErrStore, s.path, err)
}

// write stores a definition, which follows old or nil.
func (p *limits) write(d, old *store.Definition) error {
	text, err := catalog.FormatSettings(&d.Limit)
	if err != nil {
		return err
	}
	disk := p.s.disk
	id, known := p.id(d.Name)
	err = disk.tx(func() error {
		if known {
			err = disk.exec("update limits set definition = ?, owner = ?, version = ? where id = ?", text, d.Owner, int64(d.Number), id)
		} else {
			err = disk.conn.QueryRowContext(background, "insert into limits (name, definition, owner, version) values (?, ?, ?, ?) returning id",
				d.Name, text, d.Owner, int64(d.Number)).Scan(&id)
		}
		if err != nil || known && old.Number == d.Number {
			return err
		}
		v := catalog.NewVersion(catalog.Present(d), &d.Limit)
		return disk.exec("insert into versions (limit_id, "+catalog.List("", catalog.VersionColumns)+") values (?"+
			strings.Repeat(", ?", len(catalog.VersionColumns))+")", append([]any{id}, v.Values()...)...)
	})
	if err == nil {
		p.ids.Store(d.Name, id)
	}
	return err
}

// retire forgets the versions that no row and no reservation names any more.
// All rows are written first: what memory holds is not older than the file then.
func (p *limits) retire(d *store.Definition) error {
	if err := p.s.keep.flush(); err != nil {
		return err
	}
	disk := p.s.disk
	id, _ := p.id(d.Name)
	var oldest int64
	err := disk.tx(func() error {
		row := disk.conn.QueryRowContext(background, `select min(coalesce((select min(version) from buckets where limit_id = ?1), ?2),
			coalesce((select min(version) from records where limit_id = ?1), ?2))`, id, int64(d.Number)-1)
		if err := row.Scan(&oldest); err != nil {
			return err
		}
		return disk.exec("delete from versions where limit_id = ? and number < ?", id, oldest)
	})
	if err == nil {
		p.reg.Retire(d.Name, uint32(oldest))
	}
	return err
}

// Drop ends a limit. Its rows are void at once, and go with the next sweeps.
func (p *limits) Drop(_ context.Context, name, owner string) error {
	if p.s.state.Load()&stateClosed != 0 {
		return p.s.why()
	}
	before := p.reg.All()
	if err := p.reg.Drop(name, owner); err != nil {
		return err
	}
	disk := p.s.disk
	id, _ := p.id(name)
	err := disk.tx(func() error {
		return errors.Join(disk.exec("delete from limits where id = ?", id), disk.exec("delete from versions where limit_id = ?", id),
			disk.exec("update records set id = null where id in (select id from records where limit_id = ?)", id),
			disk.exec("delete from records where limit_id = ?", id), disk.exec("delete from lows where limit_id = ?", id),
			disk.exec("delete from reservations where id in (select id from reserved where limit_id = ?)", id),
			disk.exec("delete from reserved where id not in (select id from reservations)"))
	})
	if err != nil {
		p.reg.Install(before)
		return p.s.failure1(err)
	}
	p.ids.Delete(name)
	return nil
}
