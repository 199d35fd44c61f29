package redisstore

import (
	"context"
	"fmt"

	"github.com/dipwell/dipwell/store"
)

// Len returns the number of keys in the database, including those of other
// programs. Redis knows it without a scan.
func (s *Store) Len(ctx context.Context) (int64, error) {
	n, err := s.db.DBSize(ctx).Result()
	if err != nil {
		return 0, fmt.Errorf("%w: %w", store.ErrStore, err)
	}
	return n, nil
}
