package filestore

import (
	"context"
	"database/sql"
	"errors"
	"strconv"

	"github.com/dipwell/dipwell/store"
)

const maxSites = 256 // definitions that call sites have made of a limit

// callSite returns the definition that a call site makes of a limit. It is written
// before a row can name it, and stays as long as the limit.
func (s *Store) callSite(_ context.Context, d *store.Definition, l store.Limit) (*store.Definition, error) {
	return d.CallSite(l, func(site store.Plan) (index int, kept store.Plan, err error) {
		if err = s.unavailable(); err == nil {
			index, kept, err = s.limits.addSite(d.Name, site)
		}
		if bad := (*store.LimitError)(nil); !errors.As(err, &bad) {
			err = s.storeError(err)
		}
		return index, kept, err
	})
}

// addSite adds a definition to those of call sites, unless it is one of them.
func (p *limits) addSite(name string, site store.Plan) (index int, kept store.Plan, err error) {
	id, known := p.lookupID(name)
	if !known {
		return 0, site, p.reg.Missing(name)
	}
	disk := p.s.disk
	err = disk.tx(func() error {
		plans, err := disk.callSites(id)
		for index = range plans {
			if site.Name = plans[index].Name; err == nil && plans[index] == site {
				index, err = strconv.Atoi(site.Name)
				return err
			}
		}
		index = len(plans)
		switch site.Name = strconv.Itoa(index); {
		case err != nil:
			return err
		case index == maxSites:
			return store.ErrCallSites(name)
		}
		return disk.exec("insert or replace into call_sites (limit_id, plans) values (?, ?)", id, store.NewPlans(append(plans, site)...).String())
	})
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
