package filestore

import (
	"context"
	"fmt"

	"github.com/dipwell/dipwell/internal/adaptive"
	"github.com/dipwell/dipwell/store"
)

// observe moves the rate of an adaptive limit. At the end of a window it writes the rate
// to the file; the samples of the present window are only in memory.
func (s *Store) observe(_ context.Context, d *store.Definition, o store.Observation) error {
	if err := s.unavailable(); err != nil {
		return err
	}
	cur := s.mem.Registry().Lookup(d.Name)
	if cur == nil {
		return core.Missing(s.mem.Registry(), d.Name)
	}
	if cur.Rule.Pace == nil {
		return nil
	}
	begun := cur.Rule.Pace.State().Begun
	cur.Rule.Pace.Add(s.now(), adaptive.Sample(o))
	if cur.Rule.Pace.State().Begun == begun {
		return nil
	}
	return s.storeError(s.disk.tx(func() error { return s.limits.writePace(cur) }))
}

// writePace writes the present rate of a limit, in a transaction.
func (p *limits) writePace(d *store.Definition) error {
	id, known := p.lookupID(d.Name)
	if d.Rule.Pace == nil || !known {
		return nil
	}
	s := d.Rule.Pace.State()
	return p.s.disk.exec("insert or replace into paces (limit_id, number, state) values (?, ?, ?)", id, int64(d.Number), s.Text())
}

// readPaces sets the rates of the versions of a limit to those in the file.
func (p *limits) readPaces(id int64, d *store.Definition) error {
	rows, err := p.s.disk.conn.QueryContext(background, "select number, state from paces where limit_id = ?", id)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }() // read to its end, or given up
	for rows.Next() {
		var number uint32
		var text string
		if err = rows.Scan(&number, &text); err != nil {
			return err
		}
		var of *adaptive.Pace // nil if the version was deleted
		if number == d.Number {
			of = d.Rule.Pace
		}
		for i := range d.Past {
			if d.Past[i].Number == number {
				of = d.Past[i].Rule.Pace
			}
		}
		if of == nil {
			continue
		}
		state, err := adaptive.Parse(of.Config().Floor, text)
		if err != nil {
			return fmt.Errorf("version %d: its rate: %w", number, err)
		}
		of.Set(state)
	}
	return rows.Err()
}
