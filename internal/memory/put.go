package memory

import "github.com/dipwell/dipwell/store"

// Put sets a key's row to one that another store returned under d, unless the
// store holds a later row, or one of the same instant with as much or more used.
// The records of a row that Put replaces give nothing back. Put returns
// dipwell.ErrFull if the key is new and the store is full.
func (s *Store) Put(d *store.Definition, key string, row store.State) error {
	for {
		op := store.Op{Def: d, Key: key}
		var p place
		err := s.place(&p, &op)
		if err != nil {
			return err
		}
		row, known := op.Def.Carry(row, key, s.now())
		if !known {
			return store.ErrStaleDefinition
		}
		if superseded, err := s.put(&p, &op, row); !superseded {
			return err
		}
	}
}

// put stores a row of the binding's version. It returns true if the binding was
// superseded; the caller then retries with the newer one.
func (s *Store) put(p *place, op *store.Op, row store.State) (superseded bool, err error) {
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
	i, found := sh.find(p.id, p.tag)
	switch {
	case found:
		if present, ok := op.Def.Carry(sh.state(sh.at(i), p), op.Key, now); ok && older(row, present) {
			return false, nil
		}
		sh.rewrite(i, p, op.Key, row)
	case row.Used != 0:
		if !sh.ready(1, op) || !s.room(sh, i, 1, now) {
			return false, s.fullError()
		}
		i, _ = sh.find(p.id, p.tag) // making room moves rows
		sh.add(i, p, op, row, now, true)
		sh.maintain(now)
	}
	return false, nil
}

func older(a, b store.State) bool {
	return a.TS < b.TS || a.TS == b.TS && a.Used < b.Used
}
