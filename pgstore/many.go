package pgstore

import (
	"context"

	"github.com/dipwell/dipwell"
)

// many decides several groups, one after the other.
func (s *Store) many(ctx context.Context, b *dipwell.Batch) error {
	for i := range b.Groups {
		b.Groups[i].Err = s.group(ctx, &b.Groups[i])
	}
	return nil
}
