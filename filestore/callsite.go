package filestore

import (
	"context"
	"database/sql"
	"errors"

	"github.com/dipwell/dipwell/internal/number"
	"github.com/dipwell/dipwell/store"
)

// callSite returns the definition of a limit for a call site. It is written before a row
// can refer to it, and is forgotten when no row in memory or in the file refers to it any
// more.
func (s *Store) callSite(ctx context.Context, d *store.Definition, l store.Limit) (*store.Definition, error) {
	return d.CallSite(l, func(site store.Plan) (index int, kept store.Plan, err error) {
		if err = s.unavailable(); err != nil {
			return 0, site, err
		}
		id, known := s.limits.lookupID(d.Name)
		if !known {
			return 0, site, core.Missing(&s.limits.reg, d.Name)
		}
		named := func() (map[int]bool, error) {
			named, err := s.mem.NamedSites(ctx, d.Name)
			if err == nil {
				err = s.writer.flush()
			}
			if err == nil {
				err = s.disk.addNamedSites(id, named)
			}
			return named, s.storeError(err)
		}
		keep := func(all store.Plans) error {
			s.limits.sited.Store(d.Name, nil)
			return s.storeError(s.disk.tx(func() error {
				return s.disk.exec("insert or replace into call_sites (limit_id, plans) values (?, ?)", id, all.String())
			}))
		}
		s.limits.undoing.Lock()
		index, kept, err = s.limits.reg.AddCallSite(d.Name, site, s.now(), named, keep)
		s.limits.undoing.Unlock()
		if err == nil {
			err = s.limits.cat.Load(ctx)
			s.mem.Rebind(d.Name)
		}
		return index, kept, err
	})
}

// addNamedSites adds the indexes of the call sites' definitions that rows and records of
// a limit refer to.
func (d *disk) addNamedSites(id int64, named map[int]bool) error {
	rows, err := d.conn.QueryContext(background, "select version from buckets where limit_id = ?1 union select version from lows where limit_id = ?1 union select version from records where limit_id = ?1", id)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }() // read to its end, or given up
	for rows.Next() {
		var version int64
		if err = rows.Scan(&version); err != nil {
			return err
		}
		if n := uint32(version); !number.IsOverride(n) && number.Index(n) >= number.FirstCallSite {
			named[number.Index(n)-number.FirstCallSite] = true
		}
	}
	return rows.Err()
}

// callSites returns the definitions that call sites have made of a limit, as plans whose
// names are their indexes.
func (d *disk) callSites(id int64) ([]store.Plan, error) {
	var l store.Limit
	var text string
	err := d.conn.QueryRowContext(background, "select plans from call_sites where limit_id = ?", id).Scan(&text)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err == nil {
		err = l.Set("plans", text)
	}
	return l.Plans.All(), err
}
