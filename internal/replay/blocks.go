package replay

import "github.com/dipwell/dipwell/store"

// This file decides requests of limits that block a key once it ran out: see
// store.Limit.Block.

// states is the store.Table of the rows of a group's ops. A replay makes no reservations
// and holds, so that no row has records, and other methods are not called.
type states struct {
	store.Table
	ops  []store.Op
	rows []store.State
}

func (s *states) of(limit string) *store.State {
	i := 0
	for s.ops[i].Def.Name != limit {
		i++
	}
	return &s.rows[i]
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

// A block is the override that blocks a key. Like row, it has no pointers.
type block struct {
	until       int64
	id, version uint32
}

// blockedKey is a key of a limit of a keySet.
type blockedKey struct {
	key string
	at  int // index of the limit
}

// state returns the row of a key at a limit, with its block.
func (s *keySet) state(id int32, at int) store.State {
	rows, _ := s.table.of(id)
	state, key := rows[at].state(), s.table.keys[id]
	if b, ok := s.blocks[blockedKey{key, at}]; ok {
		state.Override = &store.Override{Key: key, Until: b.until, ID: b.id, Version: b.version}
	}
	return state
}

// keep sets what state returns.
func (s *keySet) keep(id int32, at int, state store.State) {
	rows, _ := s.table.of(id)
	rows[at] = rowOf(state)
	k, o := blockedKey{s.table.keys[id], at}, state.Override
	if o == nil {
		delete(s.blocks, k)
		return
	}
	s.blocks[k] = block{o.Until, o.ID, o.Version}
}

// endBlocks forgets blocks that have ended, as a sweep of a store does, so that keys whose
// buckets have become full can be forgotten.
func (s *keySet) endBlocks(limits *store.Registry, now int64) error {
	for k, b := range s.blocks {
		if b.until > now {
			continue
		}
		id, d := s.table.ids[k.key], s.defs[k.at]
		t := states{ops: []store.Op{{Def: d}}, rows: []store.State{s.state(id, k.at)}}
		if _, err := store.SweepRow(&t, limits, d.Name, k.key, now); err != nil {
			return err
		}
		s.keep(id, k.at, t.rows[0])
	}
	return nil
}

// decideBlocking decides a group of which a limit begins blocks.
func (e *engine) decideBlocking(t int64, g *store.Group, limits []judged) error {
	n := len(g.Ops)
	for i := range n {
		s := limits[i].set
		e.rows[i] = s.state(s.id, limits[i].at)
	}
	if err := g.DecideIn(&states{ops: g.Ops, rows: e.rows[:n]}, e.registry, t); err != nil {
		return err
	}
	for i := range n {
		s := limits[i].set
		s.keep(s.id, limits[i].at, e.rows[i])
	}
	return nil
}
