package filestore

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/dipwell/dipwell/internal/memory"
	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

// load reads the file into memory.
func (s *Store) load(c Config) error {
	var now int64
	if err := s.disk.conn.QueryRowContext(background, "select now from clock").Scan(&now); err != nil {
		return s.disk.readError(err)
	}
	if now < 0 || now > store.MaxInt {
		return s.disk.readError(fmt.Errorf("the clock has %d", now))
	}
	mem, err := memory.New(memory.Config{MaxKeys: c.MaxKeys, MaxKeyBytes: c.MaxKeyBytes, MaxReservations: c.MaxReservations, MaxHolds: c.MaxHolds, MaxOverrides: c.MaxOverrides, Clock: c.Clock, NotBefore: now})
	if err != nil {
		return fmt.Errorf("filestore: %w", err)
	}
	s.mem, s.memQuick = mem, mem.Quick()
	if err = s.limits.open(s); err != nil {
		return err
	}
	defs := s.limits.byID(&s.limits.reg)
	if err = s.loadOverrides(defs); err != nil {
		return err
	}
	if err = s.loadRows(defs); err != nil {
		return err
	}
	if err = s.loadReservations(defs); err != nil {
		return err
	}
	if err = s.loadHolds(); err != nil {
		return err
	}
	s.deleteEnded()
	return nil
}

// deleteEnded deletes what has ended and what no cycle deletes: holds that memory forgets
// before anybody watches it, and reservations of older programs. If this fails, the next
// Open does it.
func (s *Store) deleteEnded() {
	now := s.now()
	_ = s.disk.exec("delete from holds where forget <= ?", now)
	if s.disk.exec("delete from reservations where due <= ?", now) == nil {
		_ = s.disk.exec("delete from reserved where id not in (select id from reservations)")
	}
}

// loadChunk is the number of rows in a message from the reader.
const loadChunk = 1024

// loadRows puts all rows that are not full into memory. One goroutine reads and another one
// puts, because putting takes most of the time of a start with a million keys.
func (s *Store) loadRows(defs map[int64]*store.Definition) error {
	chunks, failed := make(chan []bucket, 4), make(chan error, 1)
	var putErr error
	go func() {
		for buckets := range chunks {
			if putErr == nil {
				putErr = s.putRows(defs, buckets)
			}
		}
		failed <- putErr
	}()
	err := s.disk.conn.Raw(func(conn any) error { return readRows(conn, chunks) })
	close(chunks)
	if putErr := <-failed; putErr != nil {
		return putErr
	}
	if err != nil {
		return s.disk.readError(err)
	}
	return nil
}

// readRows uses the driver directly, because database/sql converts each number by
// reflection.
func readRows(conn any, chunks chan<- []bucket) error {
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
	buckets := make([]bucket, 0, loadChunk)
	for {
		switch err = rows.Next(values); {
		case errors.Is(err, io.EOF):
			chunks <- buckets
			return nil
		case err != nil:
			return err
		}
		limit, ok0 := values[0].(int64)
		key, ok1 := values[1].(string)
		used, ok2 := values[2].(int64)
		ts, ok3 := values[3].(int64)
		version, ok4 := values[4].(int64)
		if !ok0 || !ok1 || !ok2 || !ok3 || !ok4 || version == 0 || version != int64(int32(version)) {
			return fmt.Errorf("a row of buckets has invalid values %v", values)
		}
		buckets = append(buckets, bucket{limit: limit, key: key, state: store.State{Used: used, TS: ts, Version: uint32(version)}})
		if len(buckets) == loadChunk {
			chunks <- buckets
			buckets = make([]bucket, 0, loadChunk)
		}
	}
}

func (s *Store) putRows(defs map[int64]*store.Definition, buckets []bucket) error {
	now := s.now()
	for i := range buckets {
		r := &buckets[i]
		d := defs[r.limit]
		if d == nil {
			continue // its limit was dropped; a sweep deletes it
		}
		if err := checkRow(d, r.key, r.state); err != nil {
			return s.disk.readError(fmt.Errorf("limit %s, key %q: %w", d.Name, r.key, err))
		}
		if d.Full(r.state, now) {
			continue
		}
		if err := s.mem.Put(d, r.key, r.state); errors.Is(err, store.ErrFull) {
			return fmt.Errorf("file %s has more keys in use than MaxKeys (max_keys) or MaxKeyBytes (max_key_bytes) allow; after %d of them: %w", s.path, s.mem.Stats().Keys, err)
		} else if err != nil {
			return s.disk.readError(err)
		}
	}
	return nil
}

func checkRow(d *store.Definition, key string, row store.State) error {
	switch {
	case row.Used < 0 || row.Used > store.MaxInt || row.TS < 0 || row.TS > store.MaxInt:
		return fmt.Errorf("used %d and ts %d are out of range", row.Used, row.TS)
	case !exists(d, row.Version):
		return fmt.Errorf("version %d of the limit does not exist", column(row.Version))
	case len(key) > store.MaxKey+terms.ShardSuffix || !utf8.ValidString(key) || strings.IndexByte(key, 0) >= 0:
		return errors.New("invalid key")
	}
	return nil
}

// exists reports whether a row may refer to the definition with number n.
func exists(d *store.Definition, n uint32) bool {
	return terms.IsOverride(n) || n != 0 && terms.VersionOf(n) <= d.Number
}

func (s *Store) loadReservations(defs map[int64]*store.Definition) error {
	records, pending, err := s.readRecords(defs)
	if err != nil {
		return s.disk.readError(err)
	}
	if err = s.readOldReservations(defs, pending, records); err != nil {
		return s.disk.readError(err)
	}
	if err = s.loadRecords(defs, records); errors.Is(err, store.ErrFull) {
		return fmt.Errorf("file %s has more reservations than MaxReservations", s.path)
	} else if err != nil {
		return s.disk.readError(err)
	}
	now := s.now()
	for text, h := range pending {
		var id store.Reservation
		err := id.UnmarshalText([]byte(text))
		if err != nil || h.Due <= now {
			continue
		}
		if err = s.mem.PutReservation(id, *h); errors.Is(err, store.ErrFull) {
			return fmt.Errorf("file %s has more reservations than MaxReservations", s.path)
		} else if err != nil {
			return s.disk.readError(err)
		}
	}
	return nil
}

// readOldReservations reads the reservations of a program version without records.
// They can be cancelled but give nothing back, because it is not known how much of
// what they took is still used.
func (s *Store) readOldReservations(defs map[int64]*store.Definition, pending map[string]*store.Pending, records map[rowKey][]store.Record) error {
	rows, err := s.disk.conn.QueryContext(background, "select r.id, r.due, p.limit_id, p.key from reservations r join reserved p on p.id = r.id")
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }() // read to its end, or given up
	for rows.Next() {
		var text string
		var due, limit int64
		var p store.Part
		if err = rows.Scan(&text, &due, &limit, &p.Key); err != nil {
			return err
		}
		d := defs[limit]
		if d == nil {
			continue
		}
		row := rowKey{limit, p.Key}
		p.Limit, p.Number = d.Name, -1-int64(len(records[row]))
		records[row] = slices.Insert(records[row], 0, store.Record{Number: p.Number, Slack: -1, Version: d.Number, Due: due, Ends: due})
		if pending[text] == nil {
			pending[text] = &store.Pending{Due: due}
		}
		pending[text].Parts = append(pending[text].Parts, p)
	}
	return rows.Err()
}
