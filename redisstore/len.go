package redisstore

import (
	"context"
	"fmt"

	"github.com/dipwell/dipwell/store"
)

// Len is how many keys Redis holds, those of others in the same database too:
// it knows that without looking at them.
func (s *Store) Len(ctx context.Context) (int64, error) {
	n, err := s.db.DBSize(ctx).Result()
	if err != nil {
		return 0, fmt.Errorf("%w: %w", store.ErrStore, err)
	}
	return n, nil
}
