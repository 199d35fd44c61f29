package filestore

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/dipwell/dipwell/internal/memory"
	"github.com/dipwell/dipwell/store"
)

// load brings memory to what the file keeps.
func (s *Store) load(c Config) error {
	var now int64
	if err := s.disk.conn.QueryRowContext(background, "select now from clock").Scan(&now); err != nil {
		return s.disk.wrong(err)
	}
	if now < 0 || now > store.MaxInt {
		return s.disk.wrong(fmt.Errorf("its clock says %d", now))
	}
	mem, err := memory.New(memory.Config{MaxKeys: c.MaxKeys, MaxReservations: c.MaxReservations, Clock: c.Clock, NotBefore: now})
	if err != nil {
		return fmt.Errorf("filestore: %w", err)
	}
	s.mem, s.memQuick = mem, mem.Quick()
	if err = s.plan.open(s); err != nil {
		return err
	}
	defs := s.plan.byID()
	if err = s.loadRows(defs); err != nil {
		return err
	}
	return s.loadReservations(defs)
}

// loadChunk is the number of rows that are handed on together.
const loadChunk = 1024

// loadRows puts all rows that are not full into memory. One goroutine reads and
// one puts: with a million keys that is where the time of a start goes.
func (s *Store) loadRows(defs map[int64]*store.Definition) error {
	chunks, failed := make(chan []rec, 4), make(chan error, 1)
	var wrong error
	go func() {
		for recs := range chunks {
			if wrong == nil {
				wrong = s.putRows(defs, recs)
			}
		}
		failed <- wrong
	}()
	err := s.disk.conn.Raw(func(conn any) error { return readRows(conn, chunks) })
	close(chunks)
	if wrong := <-failed; wrong != nil {
		return wrong
	}
	if err != nil {
		return s.disk.wrong(err)
	}
	return nil
}

// readRows reads past database/sql, which would convert each number by reflection.
func readRows(conn any, chunks chan<- []rec) error {
	stmt, err := conn.(driver.ConnPrepareContext).PrepareContext(background, "select limit_id, key, used, ts, version from buckets")
	if err != nil {
		return err
	}
	defer func() { _ = stmt.Close() }()
	rows, err := stmt.(driver.StmtQueryContext).QueryContext(background, nil)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }() // read to its end, or given up
	values := make([]driver.Value, 5)
	recs := make([]rec, 0, loadChunk)
	for {
		switch err = rows.Next(values); {
		case errors.Is(err, io.EOF):
			chunks <- recs
			return nil
		case err != nil:
			return err
		}
		limit, ok0 := values[0].(int64)
		key, ok1 := values[1].(string)
		used, ok2 := values[2].(int64)
		ts, ok3 := values[3].(int64)
		version, ok4 := values[4].(int64)
		if !ok0 || !ok1 || !ok2 || !ok3 || !ok4 || version < 1 || version > 1<<32-1 {
			return fmt.Errorf("a row of buckets has %v", values)
		}
		recs = append(recs, rec{limit: limit, key: key, row: store.State{Used: used, TS: ts, Version: uint32(version)}})
		if len(recs) == loadChunk {
			chunks <- recs
			recs = make([]rec, 0, loadChunk)
		}
	}
}

func (s *Store) putRows(defs map[int64]*store.Definition, recs []rec) error {
	now := s.now()
	for i := range recs {
		r := &recs[i]
		d := defs[r.limit]
		if d == nil {
			continue // of a limit that was dropped; a sweep will find it
		}
		if err := checkRow(d, r.key, r.row); err != nil {
			return s.disk.wrong(fmt.Errorf("limit %s, key %q: %w", d.Name, r.key, err))
		}
		if d.Full(r.row, now) {
			continue
		}
		if err := s.mem.Put(d, r.key, r.row); errors.Is(err, store.ErrFull) {
			return fmt.Errorf("file %s holds more than %d keys in use: MaxKeys (max_keys) must be larger", s.path, s.mem.Stats().Keys)
		} else if err != nil {
			return s.disk.wrong(err)
		}
	}
	return nil
}

func checkRow(d *store.Definition, key string, row store.State) error {
	switch {
	case row.Used < 0 || row.Used > store.MaxInt || row.TS < 0 || row.TS > store.MaxInt:
		return fmt.Errorf("%d units used at %d cannot be", row.Used, row.TS)
	case row.Version > d.Number:
		return fmt.Errorf("version %d of the limit is not there", row.Version)
	case len(key) > store.MaxKey || !utf8.ValidString(key) || strings.IndexByte(key, 0) >= 0:
		return errors.New("no such key can be")
	}
	return nil
}

func (s *Store) loadReservations(defs map[int64]*store.Definition) error {
	records, held, err := s.readRecords(defs)
	if err != nil {
		return s.disk.wrong(err)
	}
	if err = s.loadRecords(defs, records); errors.Is(err, store.ErrFull) {
		return fmt.Errorf("file %s holds more reservations than MaxReservations", s.path)
	} else if err != nil {
		return s.disk.wrong(err)
	}
	if err = s.readOldReservations(defs, held); err != nil {
		return s.disk.wrong(err)
	}
	now := s.now()
	for _, h := range held {
		if h.Due <= now {
			continue
		}
		if err = s.mem.PutReservation(*h); errors.Is(err, store.ErrFull) {
			return fmt.Errorf("file %s holds more reservations than MaxReservations", s.path)
		} else if err != nil {
			return s.disk.wrong(err)
		}
	}
	return nil
}

// readOldReservations reads those of a program that kept no records. How much of
// what they took is still there is not known: they can be cancelled, and give
// nothing back.
func (s *Store) readOldReservations(defs map[int64]*store.Definition, held map[string]*memory.Pending) error {
	rows, err := s.disk.conn.QueryContext(background, "select r.id, r.due, p.limit_id, p.key from reservations r join reserved p on p.id = r.id")
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }() // read to its end, or given up
	for rows.Next() {
		var text string
		var due, limit int64
		var p memory.PendingPart
		if err = rows.Scan(&text, &due, &limit, &p.Key); err != nil {
			return err
		}
		id, err := store.ParseReservation(text)
		d := defs[limit]
		if err != nil || d == nil {
			continue
		}
		p.Limit = d.Name
		if held[text] == nil {
			held[text] = &memory.Pending{ID: id, Due: due}
		}
		held[text].Parts = append(held[text].Parts, p)
	}
	return rows.Err()
}
