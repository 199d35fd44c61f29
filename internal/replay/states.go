package replay

import "github.com/dipwell/dipwell/store"

// states is the store.Table of the rows of a group's ops. A replay makes no reservations
// and holds, so no row has records, and methods for these are not called.
type states struct {
	store.Table
	ops  []store.Op
	rows []*store.State
}

func (s *states) of(limit string) *store.State {
	i := 0
	for s.ops[i].Def.Name != limit {
		i++
	}
	return s.rows[i]
}

func (s *states) Row(limit, _ string) (store.State, error) { return *s.of(limit), nil }

func (s *states) SetRow(limit, _ string, row store.State) error {
	r := s.of(limit)
	row.Override = r.Override
	*r = row
	return nil
}

func (s *states) SetOverride(limit, _ string, o *store.Override) error {
	s.of(limit).Override = o
	return nil
}

func (s *states) Records(string, string) ([]store.Record, error) { return nil, nil }
