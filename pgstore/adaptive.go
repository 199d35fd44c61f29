package pgstore

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dipwell/dipwell/internal/adaptive"
	"github.com/dipwell/dipwell/store"
)

// The database function decides calls of adaptive limits: it reads the rate together with
// the limit. The rates that this program reads are only for answers and metrics.

const (
	// The rates of older versions no longer change. They are read with the limits.
	readPacesSQL = `select l.name, v.number, v.levels, coalesce(p.reason, ''), coalesce(p.changed, 0), coalesce(p.drifts, 0), coalesce(p.begun, 0)
from dipwell.limits l join dipwell.versions v on v.limit_id = l.id left join dipwell.paces p on p.limit_id = l.id and v.number = l.version
where v.levels is not null and (v.number = l.version or $1::boolean)`
	addSamplesSQL = "select $1::text, s.version, s.levels, s.reason, s.changed, s.drifts, s.begun from dipwell_internal.add_samples($1::text, $2::bigint, $3::bigint, $4::bigint, $5::bigint, $6::bigint) s"
)

// observe adds an observation of the calls behind an adaptive limit.
func (s *Store) observe(ctx context.Context, d *store.Definition, o store.Observation) error {
	if p, ok := s.engine().(portable); ok {
		return p.observe(ctx, d, o)
	}
	rows, err := s.db.Query(ctx, addSamplesSQL, d.Name, o.Count, o.Slow, o.Failed, o.Taken, s.testNow())
	if err == nil {
		err = setPaces(rows, s.limits.reg.Lookup)
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "42704" {
		return fmt.Errorf("%w %q", store.ErrUnknownLimit, d.Name)
	}
	return storeError(err, true)
}

// readPaces reads the present rates of the adaptive limits in defs, if there are any. If
// past is set, it also reads the rates of their older versions.
func readPaces(ctx context.Context, db querier, defs []*store.Definition, past bool) error {
	byName := map[string]*store.Definition{}
	for _, d := range defs {
		if d.Rule.Pace != nil || past && slices.ContainsFunc(d.Past, func(v store.Version) bool { return v.Rule.Pace != nil }) {
			byName[d.Name] = d
		}
	}
	if len(byName) == 0 {
		return nil
	}
	rows, err := db.Query(ctx, readPacesSQL, past)
	if err != nil {
		return err
	}
	return setPaces(rows, func(name string) *store.Definition { return byName[name] })
}

// setPaces sets the rates of definitions to those in rows.
func setPaces(rows pgx.Rows, of func(name string) *store.Definition) error {
	var name, reason string
	var number uint32
	var levels []int64
	var p adaptive.State
	_, err := pgx.ForEachRow(rows, []any{&name, &number, &levels, &reason, &p.Changed, &p.Drifts, &p.Begun}, func() error {
		pace := paceOf(of(name), number)
		if pace == nil || len(levels) < 4 {
			return nil // the limit was changed meanwhile
		}
		changes := make([]adaptive.Change, 0, len(levels)/3)
		for i := 1; i+2 < len(levels); i += 3 {
			changes = append(changes, adaptive.Change{At: levels[i], Level: levels[i+1], Ticks: levels[i+2]})
		}
		p.Reason, p.History = adaptive.ReasonOf(reason), adaptive.Restore(levels[0], changes)
		pace.Set(p)
		return nil
	})
	return err
}

// paceOf returns the rate of a version of a limit, or nil.
func paceOf(d *store.Definition, number uint32) *adaptive.Pace {
	switch {
	case d == nil:
		return nil
	case d.Number == number:
		return d.Rule.Pace
	}
	for i := range d.Past {
		if d.Past[i].Number == number {
			return d.Past[i].Rule.Pace
		}
	}
	return nil
}
