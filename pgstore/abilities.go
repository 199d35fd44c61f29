package pgstore

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell/internal/catalog"
	"github.com/dipwell/dipwell/store"
)

// Abilities returns what the store can do besides Apply. Only a store over a
// *pgxpool.Pool has lanes and metrics.
func (s *Store) Abilities() store.Abilities {
	ab := store.Abilities{Store: s, Limits: s.cat, Keys: s.keys, Sweep: s.sweep, Now: s.now, Ready: s.ready, Overrides: overrides{s}, Audit: trail{s, &catalog.Changes}, TopKeys: trail{s, &catalog.TopHours}, Minutes: trail{s, &catalog.Minutes}, Usage: usage{s}, Holds: s.keyHolds}
	if _, ok := s.db.(*pgxpool.Pool); ok {
		ab.Lanes, ab.Metrics = s.openLanes, s.metrics
	}
	return ab
}

// The overrides of a store go through its engine. A lazy store does not know its
// engine until its server has answered.
type overrides struct{ *Store }

var _ store.Overrider = overrides{}

func (s overrides) SetOverride(ctx context.Context, d *store.Definition, o store.Override) (store.Override, error) {
	return s.engine().SetOverride(ctx, d, o)
}

func (s overrides) EndOverride(ctx context.Context, d *store.Definition, key string, kind store.OverrideKind) (*store.Override, error) {
	return s.engine().EndOverride(ctx, d, key, kind)
}

// Overrides returns, for each key, the override that decides now.
func (s overrides) Overrides(ctx context.Context, d *store.Definition, prefix, after string, n int) ([]store.Override, error) {
	e, err := s.entry(ctx, d)
	if err != nil {
		return nil, err
	}
	now, err := s.now(ctx)
	if err != nil {
		return nil, err
	}
	sql, read := portableOverridesSQL, catalog.DecodeOverride
	if s.engine().hasFunctions() {
		sql, read = overridesSQL, parseOverride
	}
	after, shared := pageAfter(after)
	return list(ctx, s.db, func(row pgx.CollectableRow) (store.Override, error) {
		o, err := scanOverride(row, read)
		return orZero(o.At(now)), err
	}, sql, e.id, prefix, after, n, shared, now)
}

// These statements list overrides of a limit that have not ended.
const (
	overridesSQL         = "select o.key, to_jsonb(o) - 'rule' from dipwell.key_overrides o" + whereLive
	portableOverridesSQL = "select o.key, o.override from dipwell.overrides o" + whereLive

	whereLive = ` where o.limit_id = $1 and o.key >= $2 and ($3 = '' and not $5::boolean or o.key > $3) and left(o.key, char_length($2)) = $2
		and (o.until is null or o.until > $6 or o.under is not null) order by o.key limit $4`
)

func (s *Store) keyHolds(ctx context.Context, d *store.Definition, key string) ([]store.KeyHold, error) {
	return s.engine().keyHolds(ctx, d, key)
}

// ready returns an error unless the limits were read and the database can be written to.
func (s *Store) ready(ctx context.Context) error {
	var readOnly bool
	var lacks []string
	sql := "select pg_is_in_recovery() or current_setting('transaction_read_only')::boolean, "
	if s.engine().hasFunctions() {
		sql += "dipwell_internal.lacks()"
	} else {
		sql += "null::text[]"
	}
	db := s.sideDB(asideProbe)
	err := db.QueryRow(ctx, sql).Scan(&readOnly, &lacks)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", store.ErrStore, err)
	case readOnly:
		return fmt.Errorf("%w: it is read-only, a standby perhaps (target_session_attrs=read-write finds the primary)", store.ErrStore)
	case len(lacks) > 0:
		return fmt.Errorf("%w: the login lacks rights (grant dipwell_service to it): %s", store.ErrStore, strings.Join(lacks, ", "))
	}
	return s.cat.LoadError() // checked last, because an error above says more
}

func (s *Store) metrics() []store.Metric {
	m := []store.Metric{
		{Name: "dipwell_keys", Help: "Keys that the store holds, as it estimates; those of others in the same table or database too.", Value: s.rows.Get(s.estimateRows)},
		{Name: "dipwell_store_connections", Help: "Open connections to the store.", Value: float64(s.connections())},
	}
	if s.janitor == nil {
		return m
	}
	j, lag := s.janitor, 0.0
	if at := j.covered.Load(); at != 0 {
		lag = time.Since(time.UnixMicro(at)).Seconds()
	}
	return append(m,
		store.Metric{Name: "dipwell_store_sweep_rows_total", Help: "Full rows that this service deleted.", Counter: true, Value: float64(j.rows.Load())},
		store.Metric{Name: "dipwell_store_sweep_seconds_total", Help: "Time that this service's sweeps took in the store.", Counter: true, Value: time.Duration(j.spent.Load()).Seconds()},
		store.Metric{Name: "dipwell_store_sweep_passes_total", Help: "Passes over the table that this service's sweeps ended.", Counter: true, Value: float64(j.passes.Load())},
		store.Metric{Name: "dipwell_store_sweep_lag_seconds", Help: "Since the last whole pass over the table began, whoever made it: rows that were full before are deleted. 0 before the first.", Value: lag},
	)
}

// estimateRows returns the number of rows as of the last ANALYZE.
func (s *Store) estimateRows(ctx context.Context) (n int64, err error) {
	err = s.db.QueryRow(ctx, "select reltuples::bigint from pg_class where oid = to_regclass('dipwell.buckets')").Scan(&n)
	return n, err
}
