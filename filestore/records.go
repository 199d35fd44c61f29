package filestore

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/dipwell/dipwell/internal/memory"
	"github.com/dipwell/dipwell/store"
)

//go:embed records.sql
var recordsSchema string

// rowKey names a row of the file.
type rowKey struct {
	limit int64 // id
	key   string
}

type recordID struct{ mark, number int64 }

// noteRecords adds what happened to a key's records to what the turn writes.
func (k *keeper) noteRecords(row rowKey, c *memory.Changes, wipe bool) {
	if wipe {
		delete(k.records, row)
	}
	if len(c.Records)+len(c.Ended) == 0 {
		return
	}
	of := k.records[row]
	if of == nil {
		of = map[recordID]*store.Record{}
		k.records[row] = of
	}
	for i := range c.Records {
		r := &c.Records[i]
		of[recordID{r.Mark, r.Number}] = r
	}
	for _, id := range c.Ended {
		of[recordID{id[0], id[1]}] = nil
	}
}

// writeLows stores the lows of a row that was written. Where it has none, those
// that the file has do not count any more, unless the row became what it was.
func (d *disk) writeLows(r *rec) error {
	if r.wipe {
		if err := d.exec("delete from records where limit_id = ? and key = ?", r.limit, r.key); err != nil {
			return err
		}
	}
	l := r.row.Lows
	if l == nil {
		if !r.gave {
			return nil
		}
		return d.exec("delete from lows where limit_id = ? and key = ?", r.limit, r.key)
	}
	entries := make([][2]int64, len(l.Entries))
	for i, e := range l.Entries {
		entries[i] = [2]int64{e.Number, e.Used}
	}
	text, err := json.Marshal(entries)
	if err != nil {
		return err
	}
	return d.exec("insert or replace into lows (limit_id, key, used, ts, version, mark, next, entries) values (?, ?, ?, ?, ?, ?, ?, ?)",
		r.limit, r.key, r.row.Used, r.row.TS, int64(r.row.Version), l.Mark, l.Next, string(text))
}

// writeRecords stores the records that changed and deletes those that ended.
func (d *disk) writeRecords(of map[rowKey]map[recordID]*store.Record) error {
	for row, records := range of {
		for id, r := range records {
			var err error
			if r == nil {
				err = d.exec("delete from records where limit_id = ? and key = ? and mark = ? and number = ?", row.limit, row.key, id.mark, id.number)
			} else {
				err = d.exec(`insert into records (limit_id, key, mark, number, units, slack, version, due, ends, rest) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
					on conflict do update set units = excluded.units, slack = excluded.slack, version = excluded.version, rest = excluded.rest`,
					row.limit, row.key, id.mark, id.number, r.Units, r.Slack, int64(r.Version), r.Due, r.Ends, r.Rest)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// readRecords reads the records of each row, in the order of their numbers, and
// which of them a reservation can be cancelled by.
func (s *Store) readRecords(defs map[int64]*store.Definition) (map[rowKey][]store.Record, map[string]*memory.Pending, error) {
	rows, err := s.disk.conn.QueryContext(background, "select limit_id, key, mark, number, units, slack, version, due, ends, rest, coalesce(id, '') from records order by number")
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = rows.Close() }() // read to its end, or given up
	records, held := map[rowKey][]store.Record{}, map[string]*memory.Pending{}
	for rows.Next() {
		var row rowKey
		var r store.Record
		var text string
		if err = rows.Scan(&row.limit, &row.key, &r.Mark, &r.Number, &r.Units, &r.Slack, &r.Version, &r.Due, &r.Ends, &r.Rest, &text); err != nil {
			return nil, nil, err
		}
		d := defs[row.limit]
		if d == nil {
			continue // of a limit that was dropped; a sweep will find it
		}
		if err = checkRecord(d, &r); err != nil {
			return nil, nil, fmt.Errorf("limit %s, key %q: %w", d.Name, row.key, err)
		}
		records[row] = append(records[row], r)
		id, err := store.ParseReservation(text)
		if err != nil {
			continue // nothing cancels it
		}
		if held[text] == nil {
			held[text] = &memory.Pending{ID: id, Due: r.Ends}
		}
		held[text].Parts = append(held[text].Parts, memory.PendingPart{Limit: d.Name, Key: row.key, Mark: r.Mark, Number: r.Number})
	}
	return records, held, rows.Err()
}

func checkRecord(d *store.Definition, r *store.Record) error {
	for _, n := range []int64{r.Mark, r.Number, r.Units, r.Slack + 1, int64(r.Version)} {
		if n < 0 || n > store.MaxInt {
			return fmt.Errorf("record %d of list %d has a number that cannot be: %d", r.Number, r.Mark, n)
		}
	}
	for _, at := range []int64{r.Due, r.Ends} {
		if at < 0 || at > 2*store.MaxInt { // an instant and a delay, each of at most MaxInt
			return fmt.Errorf("record %d of list %d has an instant that cannot be: %d", r.Number, r.Mark, at)
		}
	}
	if r.Version > d.Number {
		return fmt.Errorf("record %d names version %d of the limit, which is not there", r.Number, r.Version)
	}
	return nil
}

// loadRecords puts lows and records into memory. Lows of a row that has changed
// since, or that has no records, count no more.
func (s *Store) loadRecords(defs map[int64]*store.Definition, records map[rowKey][]store.Record) error {
	rows, err := s.disk.conn.QueryContext(background, `select l.limit_id, l.key, l.used, l.ts, l.version, l.mark, l.next, l.entries
		from lows l join buckets b on b.limit_id = l.limit_id and b.key = l.key and b.used = l.used and b.ts = l.ts and b.version = l.version`)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }() // read to its end, or given up
	now := s.now()
	for rows.Next() {
		var row rowKey
		var state store.State
		var l store.Lows
		var text string
		if err = rows.Scan(&row.limit, &row.key, &state.Used, &state.TS, &state.Version, &l.Mark, &l.Next, &text); err != nil {
			return err
		}
		d := defs[row.limit]
		if d == nil || len(records[row]) == 0 || d.Full(state, now) {
			continue
		}
		if l.Entries, err = entriesOf(text, l.Next); err != nil {
			return fmt.Errorf("limit %s, key %q: %w", d.Name, row.key, err)
		}
		state.Lows = &l
		if err = s.mem.Put(d, row.key, state); err != nil {
			return err
		}
	}
	if err = rows.Err(); err != nil {
		return err
	}
	for row, of := range records {
		if err = s.mem.PutRecords(defs[row.limit], row.key, of); err != nil {
			return err
		}
	}
	return nil
}

// entriesOf reads the entries of a list, which must rise.
func entriesOf(text string, next int64) (out []store.Low, err error) {
	var entries [][2]int64
	if err = json.Unmarshal([]byte(text), &entries); err != nil {
		return nil, err
	}
	last := store.Low{Used: -1}
	for _, e := range entries {
		low := store.Low{Number: e[0], Used: e[1]}
		if low.Number <= last.Number || low.Used <= last.Used || low.Number >= next || low.Used > store.MaxInt {
			return nil, fmt.Errorf("lows that do not rise: %s", text)
		}
		out, last = append(out, low), low
	}
	if len(out) == 0 || len(out) > store.MaxLows {
		return nil, fmt.Errorf("%d lows; from 1 to %d", len(out), store.MaxLows)
	}
	return out, nil
}

// sweepRecords looks at a page of keys that the file has records or lows of, and
// deletes what memory does not have any more. No turn may be under way.
func (d *disk) sweepRecords(s *Store, at *sweeper, page int) (more bool, err error) {
	defs := s.definitions()
	err = d.tx(func() error {
		keys, err := d.recordKeys(at, page)
		if err != nil {
			return err
		}
		for _, row := range keys {
			at.limit, at.key = row.limit, row.key
			if def := defs[row.limit]; def != nil && s.mem.HasRecords(def, row.key) {
				continue
			}
			if err = errors.Join(d.exec("delete from lows where limit_id = ? and key = ?", row.limit, row.key),
				d.exec("delete from records where limit_id = ? and key = ?", row.limit, row.key)); err != nil {
				return err
			}
		}
		if more = len(keys) == page; !more {
			*at = sweeper{}
		}
		return nil
	})
	return more, err
}

func (d *disk) recordKeys(at *sweeper, page int) (keys []rowKey, err error) {
	rows, err := d.conn.QueryContext(background, `select limit_id, key from lows where (limit_id, key) > (?1, ?2)
		union select limit_id, key from records where (limit_id, key) > (?1, ?2) order by 1, 2 limit ?3`, at.limit, at.key, page)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }() // read to its end, or given up
	for rows.Next() {
		var row rowKey
		if err = rows.Scan(&row.limit, &row.key); err != nil {
			return nil, err
		}
		keys = append(keys, row)
	}
	return keys, rows.Err()
}

// definitions are the limits in force by their ids.
func (s *Store) definitions() map[int64]*store.Definition {
	defs := map[int64]*store.Definition{}
	for _, def := range s.mem.Registry().All() {
		if id, ok := s.plan.id(def.Name); ok {
			defs[id] = def
		}
	}
	return defs
}
