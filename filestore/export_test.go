package filestore

import (
	"context"

	"github.com/dipwell/dipwell/store"
)

// Registry, Define and Drop are those of the store's limits, for tests.
func (s *Store) Registry() *store.Registry { return s.limits.Registry() }

func (s *Store) Define(ctx context.Context, l store.Limit, owner string) (*store.Definition, error) {
	return s.limits.Define(ctx, l, owner)
}

func (s *Store) Drop(ctx context.Context, name, owner string) error {
	return s.limits.Drop(ctx, name, owner)
}
