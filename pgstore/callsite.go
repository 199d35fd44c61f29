package pgstore

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dipwell/dipwell/store"
)

// callSite returns the definition that a call site makes of a limit. One that is not
// known here is looked up in dipwell.call_sites, or made there, in a transaction of its
// own: rows may name it from then on.
func (s *Store) callSite(ctx context.Context, d *store.Definition, l store.Limit) (*store.Definition, error) {
	if !s.engine().hasFunctions() {
		return nil, fmt.Errorf("definitions of call sites: %w", store.ErrNotSupported)
	}
	e, err := s.limits.entryOf(d)
	if err != nil {
		return nil, err
	}
	return e.def.CallSite(l, func(site store.Plan) (index int, kept store.Plan, err error) {
		site.Name = siteName
		text := strings.TrimPrefix(store.NewPlans(site).String(), siteName+":")
		keep := func() error {
			return s.limits.s.db.QueryRow(ctx, "select i, settings from dipwell_internal.call_site($1, $2, $3)", e.id, text, s.testNow()).Scan(&index, &text)
		}
		if err = s.limits.s.retry(ctx, keep(), keep); err != nil {
			return 0, kept, callSiteError(err, d.Name)
		}
		plans, err := readPlans(siteName + ":" + text)
		if err != nil {
			return 0, kept, err
		}
		return index, plans.All()[0], nil
	})
}

// siteName is a name for a plan that has none.
const siteName = "site"

func callSiteError(err error, limit string) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		switch pg.ConstraintName {
		case "call_sites":
			return store.ErrFull
		case "limit_name":
			return fmt.Errorf("%w %q", store.ErrUnknownLimit, limit)
		}
	}
	return storeError(err, true)
}

// readPlans reads plans as the database has them.
func readPlans(text string) (store.Plans, error) {
	var l store.Limit
	err := l.Set("plans", text)
	return l.Plans, err
}
