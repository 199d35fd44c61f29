package pgstore

import (
	"context"

	"github.com/dipwell/dipwell/store"
)

// An engine talks to one kind of database: PostgreSQL by functions and multi-row
// statements, others by portable statements. Which kind it is becomes known only
// when the limits are read for the first time, so a lazy store finds out late.
type engine interface {
	// group decides a group with the given limits. first is false when the
	// group is decided again because a row had a newer version.
	group(ctx context.Context, g *store.Group, known []*entry, first bool) error
	cancel(ctx context.Context, id store.Reservation) error
	// settle settles or extends a hold.
	settle(ctx context.Context, g *store.Group) error
	keyHolds(ctx context.Context, d *store.Definition, key string) ([]store.KeyHold, error)
	SetOverride(ctx context.Context, d *store.Definition, o store.Override) (store.Override, error)
	EndOverride(ctx context.Context, d *store.Definition, key string, kind store.OverrideKind) (*store.Override, error)
	record(ctx context.Context, e store.AuditEntry) error

	statements(id int32, d *store.Definition) statements
	put(ctx context.Context, l store.Limit, by string) (change int64, err error)
	drop(ctx context.Context, name, by string) error

	sweep(ctx context.Context, n int) (int, error)
	sweepStep(ctx context.Context, n int) (swept, error)
	retire(ctx context.Context) (more bool, err error)

	// hasFunctions reports whether the database has functions, which decide
	// what statements cannot, under the lock, with the current limits and the
	// database's time zones. Functions that change a limit also notify.
	hasFunctions() bool
}

// functions is PostgreSQL with the functions of schema/.
type functions struct{ *Store }

// portable is a database that has only tables and is used by plain statements.
type portable struct {
	*Store
	dialect *dialect
	locks   bool // db is a transaction, in which a portableTable locks what it reads
}

var (
	_ engine = functions{}
	_ engine = portable{}
)

func (s *Store) engine() engine {
	if d := s.limits.dialect.Load(); d != nil {
		return portable{Store: s, dialect: d}
	}
	return functions{s}
}

func (functions) hasFunctions() bool { return true }
func (portable) hasFunctions() bool  { return false }

func (s functions) statements(id int32, d *store.Definition) statements {
	return newStatements(id, d, s.clock != nil)
}

func (s portable) statements(id int32, d *store.Definition) statements {
	return statements{take: rowUpdate{sql: s.dialect.takeSQL(id, d, s.clock != nil)}}
}
