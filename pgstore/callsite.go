package pgstore

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dipwell/dipwell/internal/catalog"
	"github.com/dipwell/dipwell/internal/number"
	"github.com/dipwell/dipwell/store"
)

// callSite returns the definition of a limit for a call site. If this program does not
// know it, it is looked up in the database, and added if it is missing. That happens in a
// transaction of its own, because rows may refer to it from then on.
func (s *Store) callSite(ctx context.Context, d *store.Definition, l store.Limit) (*store.Definition, error) {
	e, err := s.limits.entryOf(d)
	if err != nil {
		return nil, err
	}
	return e.def.CallSite(l, func(site store.Plan) (index int, kept store.Plan, err error) {
		index, kept, err = s.limits.s.engine().addCallSite(ctx, e.id, site)
		return index, kept, callSiteError(err, d.Name)
	})
}

func (s functions) addCallSite(ctx context.Context, id int32, site store.Plan) (index int, kept store.Plan, err error) {
	site.Name = siteName
	text := strings.TrimPrefix(store.NewPlans(site).String(), siteName+":")
	var at *int
	keep := func() error {
		return s.db.QueryRow(ctx, "select i, coalesce(settings, '') from dipwell_internal.call_site($1, $2, $3)", id, text, s.testNow()).Scan(&at, &text)
	}
	if err = s.retry(ctx, keep(), keep); err != nil {
		return 0, kept, err
	}
	if at == nil {
		return 0, kept, store.ErrFull
	}
	var l store.Limit
	if err = l.Set("plans", siteName+":"+text); err != nil {
		return 0, kept, err
	}
	return *at, l.Plans.All()[0], nil
}

// siteName is the name of the definition of a call site, which has no name of its own.
const siteName = "site"

func callSiteError(err error, limit string) error {
	var pg *pgconn.PgError
	switch {
	case err == nil || errors.Is(err, store.ErrFull):
		return err
	case errors.Is(err, pgx.ErrNoRows):
		return fmt.Errorf("%w %q", store.ErrUnknownLimit, limit)
	case errors.As(err, &pg):
		if pg.ConstraintName == "limit_name" {
			return fmt.Errorf("%w %q", store.ErrUnknownLimit, limit)
		}
	}
	return storeError(err, true)
}

const (
	// A transaction that changes limits locks the row of the revision before the rows of
	// limits.
	nextRevisionSQL = "update dipwell.revision set n = n + 1 where one = 1"
	callSitesSQL    = "select coalesce(call_sites, ''), coalesce(sites_ended, '') from dipwell.limits where id = $1 for update"
	setCallSitesSQL = "update dipwell.limits set call_sites = $2, sites_ended = $3 where id = $1"
	namedSitesSQL   = `select version from dipwell.buckets where limit_id = $1 and version >= $2
union select version from dipwell.reservations where limit_id = $1 and version >= $2`
)

// addCallSite adds the definition to the limit's row.
func (s portable) addCallSite(ctx context.Context, id int32, site store.Plan) (index int, kept store.Plan, err error) {
	err = s.transact(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, nextRevisionSQL); err != nil {
			return err
		}
		var sites catalog.Sites
		if err := tx.QueryRow(ctx, callSitesSQL, id).Scan(&sites.Text, &sites.Ended); err != nil {
			return err
		}
		was := sites
		index, kept, err = sites.Add(site, keepVersion, func() (int64, map[int]bool, error) { return s.namedSites(ctx, tx, id) })
		if err == nil && sites == was {
			return errNoWrite
		}
		if err == nil {
			_, err = tx.Exec(ctx, setCallSitesSQL, id, sites.Text, sites.Ended)
		}
		return err
	})
	return index, kept, err
}

// namedSites returns the present time, in µs, and the indexes of the call sites'
// definitions that rows and reservations of a limit refer to.
func (s portable) namedSites(ctx context.Context, tx pgx.Tx, id int32) (now int64, named map[int]bool, err error) {
	if now, err = s.txClock(ctx, tx); err != nil {
		return 0, nil, err
	}
	named, err = s.limits.searches.Do(fmt.Sprint(id), now, func() (map[int]bool, error) {
		found, err := tx.Query(ctx, namedSitesSQL, id, number.FirstCallSite<<20)
		if err != nil {
			return nil, err
		}
		versions, err := pgx.CollectRows(found, pgx.RowTo[int32])
		named := map[int]bool{}
		for _, v := range versions {
			named[number.Index(uint32(v))-number.FirstCallSite] = true //nolint:gosec // it is positive
		}
		return named, err
	})
	return now, named, err
}
