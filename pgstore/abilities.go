package pgstore

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell/store"
)

// Abilities returns what the store can do besides Apply. Only a store over a
// *pgxpool.Pool has metrics.
func (s *Store) Abilities() store.Abilities {
	ab := store.Abilities{Store: s, Limits: s.cat, Keys: s.Keys, Sweep: s.Sweep, Now: s.Now, Ready: s.ready}
	if _, ok := s.db.(*pgxpool.Pool); ok {
		ab.Metrics = s.metrics
	}
	return ab
}

// ready returns an error unless the database can be written to.
func (s *Store) ready(ctx context.Context) error {
	var readOnly bool
	err := s.db.QueryRow(ctx, "select pg_is_in_recovery() or current_setting('transaction_read_only')::boolean").Scan(&readOnly)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", store.ErrStore, err)
	case readOnly:
		return fmt.Errorf("%w: it is read-only, a standby perhaps (target_session_attrs=read-write finds the primary)", store.ErrStore)
	}
	return nil
}

func (s *Store) metrics() []store.Metric {
	return []store.Metric{
		{Name: "dipwell_keys", Help: "Keys that the store holds, as it estimates; those of others in the same table or database too.", Value: s.rows.Get(s.estimateRows)},
	}
}

// estimateRows is the number of rows at the last analyze.
func (s *Store) estimateRows(ctx context.Context) (n int64, err error) {
	err = s.db.QueryRow(ctx, "select reltuples::bigint from pg_class where oid = to_regclass('dipwell.buckets')").Scan(&n)
	return n, err
}
