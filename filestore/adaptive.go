package filestore

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/dipwell/dipwell/internal/adaptive"
	"github.com/dipwell/dipwell/store"
)

// A pace is what the file has of an adaptive rate, as JSON. The samples of the present
// window are in memory alone.
type pace struct {
	Begun   int64             `json:"begun"`
	Before  adaptive.Sample   `json:"before"`
	Cut     bool              `json:"cut"`
	Reason  string            `json:"reason"`
	Changed int64             `json:"changed"`
	Drifts  int64             `json:"drifts"`
	Changes []adaptive.Change `json:"changes"`
}

// observe moves the rate of an adaptive limit. At the end of a window it writes the rate.
func (s *Store) observe(_ context.Context, d *store.Definition, o store.Observation) error {
	if err := s.unavailable(); err != nil {
		return err
	}
	cur := s.mem.Registry().Lookup(d.Name)
	if cur == nil {
		return s.mem.Registry().Missing(d.Name)
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
	text, err := json.Marshal(pace{s.Begun, s.Before, s.Cut, s.Reason.String(), s.Changed, s.Drifts, s.History.Changes()})
	if err != nil {
		return err
	}
	return p.s.disk.exec("insert or replace into paces (limit_id, number, state) values (?, ?, ?)", id, int64(d.Number), string(text))
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
		var text []byte
		var from pace
		if err = rows.Scan(&number, &text); err == nil {
			err = json.Unmarshal(text, &from)
		}
		if err != nil {
			return err
		}
		of := d.Rule.Pace
		for i := range d.Past {
			if d.Past[i].Number == number {
				of = d.Past[i].Rule.Pace
			}
		}
		if of == nil {
			continue
		}
		if len(from.Changes) == 0 {
			return fmt.Errorf("version %d has no rate", number)
		}
		of.Set(adaptive.State{Begun: from.Begun, Before: from.Before, Cut: from.Cut, Reason: adaptive.ReasonOf(from.Reason), Changed: from.Changed, Drifts: from.Drifts,
			History: adaptive.Restore(of.Config().Floor, from.Changes)})
	}
	return rows.Err()
}
