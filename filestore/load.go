package filestore

import (
	"database/sql"
	"errors"
	"fmt"
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
	records, pending, err := s.readRecords(defs)
	if err != nil {
		return s.disk.readError(err)
	}
	if err = s.loadRows(defs, records); err != nil {
		return err
	}
	if err = s.loadRecords(defs, records, pending); err != nil {
		return err
	}
	if err = s.loadHolds(); err != nil {
		return err
	}
	// Holds that memory forgets before anybody watches it. If this fails, the next Open
	// does it.
	_ = s.disk.exec("delete from holds where forget <= ?", s.now())
	return nil
}

// loadRows puts all rows that are not full into memory. It ignores the lows of a row that
// has no records.
func (s *Store) loadRows(defs map[int64]*store.Definition, records map[rowKey][]store.Record) error {
	rows, err := s.disk.conn.QueryContext(background, "select limit_id, key, used, ts, version, lows from buckets")
	if err != nil {
		return s.disk.readError(err)
	}
	defer func() { _ = rows.Close() }() // read to its end, or given up
	now := s.now()
	var at rowKey
	var version int64
	var lows sql.NullString
	for rows.Next() {
		var row store.State
		if err = rows.Scan(&at.limit, &at.key, &row.Used, &row.TS, &version, &lows); err != nil {
			return s.disk.readError(err)
		}
		d := defs[at.limit]
		if d == nil {
			continue // its limit was dropped; a sweep deletes it
		}
		if row.Version = uint32(version); version != column(row.Version) {
			err = fmt.Errorf("version %d is out of range", version)
		} else if err = checkRow(d, at.key, row); err == nil && lows.Valid && len(records[at]) > 0 {
			row.Lows, err = parseLows(lows.String)
		}
		if err != nil {
			return s.disk.readError(fmt.Errorf("limit %s, key %q: %w", d.Name, at.key, err))
		}
		if d.Full(row, now) {
			continue
		}
		if err = s.mem.Put(d, at.key, row); errors.Is(err, store.ErrFull) {
			return fmt.Errorf("file %s has more keys in use than MaxKeys (max_keys) or MaxKeyBytes (max_key_bytes) allow; after %d of them: %w", s.path, s.mem.Stats().Keys, err)
		} else if err != nil {
			return s.disk.readError(err)
		}
	}
	if err = rows.Err(); err != nil {
		return s.disk.readError(err)
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
