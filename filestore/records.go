package filestore

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/dipwell/dipwell/internal/memory"
	"github.com/dipwell/dipwell/internal/texts"
	"github.com/dipwell/dipwell/store"
)

// rowKey identifies a row of the file.
type rowKey struct {
	limit int64 // id
	key   string
}

// collectRecords adds the changes of a key's records to the group.
func (w *writer) collectRecords(row rowKey, c *memory.Changes) {
	if len(c.Records)+len(c.Ended) == 0 {
		return
	}
	changed := w.records[row]
	if changed == nil {
		changed = map[store.RecordID]*store.Record{}
		w.records[row] = changed
	}
	for i := range c.Records {
		r := &c.Records[i]
		changed[r.ID()] = r
	}
	for _, id := range c.Ended {
		changed[id] = nil
	}
}

// lowsText returns the lows of a row as its column has them: JSON, or NULL.
func lowsText(l *store.Lows) any {
	if l == nil {
		return nil
	}
	return texts.Marshal(l)
}

// writeRecords writes the records that changed and deletes those that ended.
func (d *disk) writeRecords(of map[rowKey]map[store.RecordID]*store.Record) error {
	for row, records := range of {
		for id, r := range records {
			var err error
			if r == nil {
				err = d.exec("delete from records where limit_id = ? and key = ? and mark = ? and number = ?", row.limit, row.key, id.Mark, id.Number)
			} else {
				err = d.exec(`insert into records (limit_id, key, mark, number, units, slack, unit, due, ends, rest, hold, expires) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
					on conflict do update set units = excluded.units, slack = excluded.slack, unit = excluded.unit, ends = excluded.ends, rest = excluded.rest, expires = excluded.expires`,
					row.limit, row.key, id.Mark, id.Number, r.Units, r.Slack, r.Unit, r.Due, r.Ends, r.Rest, r.Hold, r.Expires)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// readRecords returns the records of each row in order of number, and the
// reservations that can cancel them, by id.
func (s *Store) readRecords(defs map[int64]*store.Definition) (map[rowKey][]store.Record, map[string]*store.Pending, error) {
	records, pending, parts := map[rowKey][]store.Record{}, map[string]*store.Pending{}, map[string]int{}
	err := s.disk.each(background, func(rows *sql.Rows) error {
		var row rowKey
		var r store.Record
		var of int
		var text string
		if err := rows.Scan(&row.limit, &row.key, &r.Mark, &r.Number, &r.Units, &r.Slack, &r.Unit, &r.Due, &r.Ends, &r.Rest, &r.Hold, &r.Expires, &text, &of); err != nil {
			return err
		}
		d := defs[row.limit]
		if d == nil {
			return nil // the row's limit was dropped
		}
		if err := checkRecord(&r); err != nil {
			return fmt.Errorf("limit %s, key %q: %w", d.Name, row.key, err)
		}
		records[row] = append(records[row], r)
		if text == "" {
			return nil // no reservation can cancel the record
		}
		if pending[text] == nil {
			pending[text], parts[text] = &store.Pending{Due: r.Ends}, of
		}
		pending[text].Parts = append(pending[text].Parts, store.Part{Limit: d.Name, Key: row.key, Mark: r.Mark, Number: r.Number})
		return nil
	}, "select limit_id, key, mark, number, units, slack, unit, due, ends, rest, hold, expires, coalesce(id, ''), parts from records order by number")
	for id, h := range pending {
		if parts[id] > len(h.Parts) { // one of the reservation's keys was reset
			delete(pending, id)
		}
	}
	return records, pending, err
}

func checkRecord(r *store.Record) error {
	for _, n := range []int64{r.Mark, r.Number, r.Units, r.Unit - 1, r.Slack + 1} {
		if n < 0 || n > store.MaxInt {
			return fmt.Errorf("record %d of list %d has a number out of range: %d", r.Number, r.Mark, n)
		}
	}
	for _, at := range []int64{r.Due, r.Ends, r.Expires} {
		if at < 0 || at > 2*store.MaxInt { // the sum of a time and a delay, each of which is at most MaxInt
			return fmt.Errorf("record %d of list %d has an instant out of range: %d", r.Number, r.Mark, at)
		}
	}
	return nil
}

// loadRecords puts records and reservations into memory.
func (s *Store) loadRecords(defs map[int64]*store.Definition, records map[rowKey][]store.Record, pending map[string]*store.Pending) (err error) {
	for row, of := range records {
		if err = s.mem.PutRecords(defs[row.limit], row.key, of); err != nil {
			return tooMany{errors.New("reservations than MaxReservations")}
		}
	}
	now := s.now()
	for text, h := range pending {
		var id store.Reservation
		if id.UnmarshalText([]byte(text)) != nil || h.Due <= now {
			continue
		}
		if err = s.mem.PutReservation(id, *h); err != nil {
			return tooMany{errors.New("reservations than MaxReservations")}
		}
	}
	return nil
}

// parseLows reads what lowsText has written. The lows must be increasing.
func parseLows(text string) (*store.Lows, error) {
	var l store.Lows
	if err := json.Unmarshal([]byte(text), &l); err != nil {
		return nil, err
	}
	last := store.Low{Used: -1}
	for _, low := range l.Entries {
		if low.Number <= last.Number || low.Used <= last.Used || low.Number >= l.Next || low.Used > store.MaxInt {
			return nil, fmt.Errorf("lows are not increasing: %s", text)
		}
		last = low
	}
	if n := len(l.Entries); n == 0 || n > store.MaxLows {
		return nil, fmt.Errorf("%d lows; want 1 to %d", n, store.MaxLows)
	}
	return &l, nil
}
