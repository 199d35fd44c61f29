package pgstore

import (
	"context"

	"github.com/dipwell/dipwell/store"
)

// An engine is how a database is asked: PostgreSQL by functions and by
// statements for many rows, others by portable statements. The tables tell which
// it is when the limits are read for the first time, so that a lazy store learns
// it late.
type engine interface {
	// apply decides a batch.
	apply(ctx context.Context, b *store.Batch)
	// group decides a group by the limits that were found. first is false when it
	// is asked again because a row was of a later version.
	group(ctx context.Context, g *store.Group, known []*entry, first bool) error
	cancel(ctx context.Context, id store.Reservation) error

	statements(id int32, d *store.Definition) statements
	put(ctx context.Context, l store.Limit, r *store.Rule, owner string, now *int64) error
	drop(ctx context.Context, name, owner string, now *int64) error

	sweep(ctx context.Context, n int) (int, error)
	sweepStep(ctx context.Context, n int) (swept, error)
	retire(ctx context.Context) error

	// hasFunctions reports whether functions in the database decide what its
	// statements do not: by the limits as they are under the lock, and by the
	// database's time zones. Who changes a limit with them notifies.
	hasFunctions() bool
}

// functions is PostgreSQL with the functions of schema/.
type functions struct{ *Store }

// portable is a database of which no more is asked than tables and plain
// statements.
type portable struct {
	*Store
	dialect *dialect
}

var (
	_ engine = functions{}
	_ engine = portable{}
)

func (s *Store) engine() engine {
	if d := s.cat.dialect.Load(); d != nil {
		return portable{s, d}
	}
	return functions{s}
}

// engine is that of a store over the catalog's own connections.
func (c *catalog) engine() engine { return (&Store{db: c.db, cat: c}).engine() }

func (functions) hasFunctions() bool { return true }
func (portable) hasFunctions() bool  { return false }

func (s functions) statements(id int32, d *store.Definition) statements {
	return newStatements(id, d, s.cat.testClock)
}

func (s portable) statements(id int32, d *store.Definition) statements {
	return statements{take: s.dialect.takeSQL(id, d, s.cat.testClock)}
}
