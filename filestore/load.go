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

// tooMany is the error for a file that has more entries than a bound in Config allows.
type tooMany struct{ error }

func (e tooMany) Unwrap() error { return e.error }

// load reads the file into memory.
func (s *Store) load(c Config) error {
	var now int64
	err := s.disk.conn.QueryRowContext(background, "select now from clock").Scan(&now)
	if err == nil && (now < 0 || now > store.MaxInt) {
		err = fmt.Errorf("the clock has %d", now)
	}
	if err != nil {
		return s.disk.readError(err)
	}
	mem, err := memory.New(memory.Config{MaxKeys: c.MaxKeys, MaxKeyBytes: c.MaxKeyBytes, MaxReservations: c.MaxReservations, MaxHolds: c.MaxHolds, MaxOverrides: c.MaxOverrides, Clock: c.Clock, NotBefore: now})
	if err != nil {
		return fmt.Errorf("filestore: %w", err)
	}
	s.mem, s.memQuick = mem, mem.Quick()
	if err = s.limits.open(s); err != nil {
		return err
	}
	switch err = s.loadAll(s.limits.byID(&s.limits.reg)); {
	case errors.As(err, new(tooMany)):
		return fmt.Errorf("file %s has more %w", s.path, err)
	case err != nil:
		return s.disk.readError(err)
	}
	// These holds were forgotten by the memory before anybody watched it. If
	// deleting them fails, the next Open does it.
	_ = s.disk.exec("delete from holds where forget <= ?", s.now())
	return nil
}

func (s *Store) loadAll(defs map[int64]*store.Definition) error {
	if err := s.loadOverrides(defs); err != nil {
		return err
	}
	records, pending, err := s.readRecords(defs)
	if err == nil {
		err = s.loadRows(defs, records)
	}
	if err == nil {
		err = s.loadRecords(defs, records, pending)
	}
	if err == nil {
		err = s.loadHolds()
	}
	return err
}

// loadRows puts all rows that are not full into memory. loadRows ignores the lows of a
// row that has no records.
func (s *Store) loadRows(defs map[int64]*store.Definition, records map[rowKey][]store.Record) error {
	now := s.now()
	return s.disk.each(background, func(rows *sql.Rows) error {
		var at rowKey
		var version int64
		var lows sql.NullString
		var row store.State
		if err := rows.Scan(&at.limit, &at.key, &row.Used, &row.TS, &version, &lows); err != nil {
			return err
		}
		d := defs[at.limit]
		if d == nil {
			return nil // the row's limit was dropped; a sweep deletes it
		}
		var err error
		if row.Version = uint32(version); version != column(row.Version) {
			err = fmt.Errorf("version %d is out of range", version)
		} else if err = checkRow(d, at.key, row); err == nil && lows.Valid && len(records[at]) > 0 {
			row.Lows, err = parseLows(lows.String)
		}
		if err != nil {
			return fmt.Errorf("limit %s, key %q: %w", d.Name, at.key, err)
		}
		if d.Full(row, now) {
			return nil
		}
		if err = s.mem.Put(d, at.key, row); errors.Is(err, store.ErrFull) {
			return tooMany{fmt.Errorf("keys in use than MaxKeys (max_keys) or MaxKeyBytes (max_key_bytes) allow; after %d of them: %w", s.mem.Stats().Keys, err)}
		}
		return err
	}, "select limit_id, key, used, ts, version, lows from buckets")
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
