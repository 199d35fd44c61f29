package memory

import (
	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

// Put sets a key's row to one that another store returned under d, unless the
// store holds a later row, or one of the same instant with as much or more used.
// The records of a row that Put replaces give nothing back. Put returns
// store.ErrFull if the key is new and the store is full.
func (s *Store) Put(d *store.Definition, key string, row store.State) error {
	for {
		var p place
		err := s.place(&p, d, key)
		if err != nil {
			return err
		}
		if superseded, err := s.put(&p, key, row); !superseded {
			return err
		}
	}
}

// put returns true if the binding was superseded; the caller then retries with the newer one.
func (s *Store) put(p *place, key string, row store.State) (superseded bool, err error) {
	sh := &s.shards[p.shard]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.closed {
		return false, ErrClosed
	}
	if p.dead.Load() {
		return true, nil
	}
	now := s.now()
	if row.Override = sh.overrideOf(p); row.Override == nil && terms.IsOverride(row.Version) {
		return false, nil // the row is under an override of another store
	}
	carried, known := p.def.Own(row, now).Carry(row, key, now)
	if !known {
		return false, store.ErrStaleDefinition
	}
	if row.Lows == nil && (!terms.IsOverride(row.Version) || terms.OverrideOf(row.Version) != row.Override.ID) {
		row = carried // a row under its override stays at that version, and one with records is converted with them, later
	}
	i, found := sh.find(p.id, p.tag)
	switch {
	case found:
		var present store.State
		sh.state(&present, i, p)
		present.Override = row.Override
		if present, ok := p.def.Own(present, now).Carry(present, key, now); ok && older(carried, present) {
			return false, nil
		}
		sh.setLows(p, key, row.Lows)
		sh.rewrite(i, p, key, &row)
	case row.Used != 0:
		n := room{1, textOf(p.def, key)}
		if !sh.ready(1, p.def, key) || !s.room(sh, i, n, now) {
			return false, s.noRoom(n)
		}
		i, _ = sh.find(p.id, p.tag) // calling room may have moved rows
		sh.setLows(p, key, row.Lows)
		sh.add(i, p, key, 0, &row, now, true)
		sh.maintain(now)
	}
	return false, nil
}

func older(a, b store.State) bool {
	return a.TS < b.TS || a.TS == b.TS && a.Used < b.Used
}
