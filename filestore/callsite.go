package filestore

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strconv"

	"github.com/dipwell/dipwell/internal/number"
	"github.com/dipwell/dipwell/store"
)

// callSite returns the definition that a call site makes of a limit. It is written
// before a row can name it, and stays as long as the limit.
func (s *Store) callSite(_ context.Context, d *store.Definition, l store.Limit) (*store.Definition, error) {
	return d.CallSite(l, func(site store.Plan) (index int, kept store.Plan, err error) {
		if err = s.unavailable(); err != nil {
			return 0, site, err
		}
		return s.limits.addSite(d.Name, site)
	})
}

// addSite adds a definition to those of call sites, unless it is one of them.
func (p *limits) addSite(name string, site store.Plan) (index int, kept store.Plan, err error) {
	id, known := p.lookupID(name)
	if !known {
		return 0, site, p.reg.Missing(name)
	}
	disk, isFull := p.s.disk, false
	err = disk.tx(func() error {
		plans, err := disk.callSites(id)
		if err != nil {
			return err
		}
		known := slices.IndexFunc(plans, func(p store.Plan) bool {
			site.Name = p.Name
			return p == site
		})
		if known >= 0 {
			index, err = strconv.Atoi(plans[known].Name)
			return err
		}
		index = len(plans)
		if isFull = index == number.MaxCallSites; isFull {
			return nil
		}
		site.Name = strconv.Itoa(index)
		return disk.exec("insert or replace into call_sites (limit_id, plans) values (?, ?)", id, store.NewPlans(append(plans, site)...).String())
	})
	switch {
	case err != nil:
		err = p.s.storeError(err)
	case isFull:
		err = store.ErrFull
	}
	return index, site, err
}

// callSites returns the definitions that call sites have made of a limit: plans whose
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
