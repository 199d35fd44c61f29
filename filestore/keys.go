package filestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/dipwell/dipwell/internal/catalog"
	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

// keys returns up to n keys of a limit that are not full and follow after, in byte
// order. It first writes the dirty keys to the file, from which it reads.
func (s *Store) keys(ctx context.Context, d *store.Definition, prefix, after string, n int) (out []store.KeyState, err error) {
	if state := s.state.Load(); state&stateClosed != 0 {
		return nil, s.unavailable()
	}
	if n = min(n, catalog.MaxPage); n <= 0 {
		return nil, nil
	}
	if err := s.writer.flush(); err != nil {
		return nil, err
	}
	id, ok := s.limits.lookupID(d.Name)
	if !ok {
		return nil, fmt.Errorf("%w %q", store.ErrUnknownLimit, d.Name)
	}
	from := prefix
	if after >= prefix && after != "" {
		from = after + next
	}
	for len(out) < n && ctx.Err() == nil {
		rows, err := s.disk.page(id, from, n)
		if err != nil {
			return nil, s.storeError(err)
		}
		for _, r := range rows {
			if !strings.HasPrefix(r.key, prefix) {
				return out, nil
			}
			r.state.Override = s.mem.Override(d, r.key)
			if row := (store.KeyState{Key: r.key, State: r.state}); len(out) < n && catalog.Live(d, &row, s.now()) {
				out = append(out, row)
			}
		}
		if len(rows) < n {
			break
		}
		from = rows[n-1].key + next
	}
	return out, ctx.Err()
}

// The key next after a key is the first text that follows it in byte order: no key has a NUL.
const next = "\x00"

// page reads up to n rows of a limit, in order of key, beginning at the key from.
func (d *disk) page(id int64, from string, n int) (out []bucket, err error) {
	err = d.list(background, func(rows *sql.Rows) error {
		r, err := scanBucket(rows)
		out = append(out, r)
		return err
	}, "select limit_id, key, used, ts, version from buckets where limit_id = ? and key >= ? order by key limit ?", id, from, n)
	return out, err
}

// scanBucket reads limit_id, key, used, ts and version, and the columns after them into more.
func scanBucket(rows *sql.Rows, more ...any) (r bucket, err error) {
	var version int64
	err = rows.Scan(append([]any{&r.limit, &r.key, &r.state.Used, &r.state.TS, &version}, more...)...)
	r.state.Version = uint32(version)
	return r, err
}

// The writer sweeps the file in pages: one after each cycle, and one every sweepEvery
// while there are no calls. A page takes one or two milliseconds.
const (
	sweepEvery = time.Second
	sweepPage  = 512                    // rows
	sweepPause = 100 * time.Millisecond // minimum time between two pages
)

// sweepPos is the row at which a sweep continues.
type sweepPos struct {
	limit int64
	key   string
	last  time.Time
}

// sweepSome sweeps the next page of rows.
func (w *writer) sweepSome() {
	if time.Since(w.sweepPos.last) < sweepPause {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sweepPos.last = time.Now()
	if _, _, err := w.store.disk.sweep(w.store, &w.sweepPos, sweepPage, sweepPage); err != nil {
		w.store.report(w.store.storeError(err))
	}
}

// sweep deletes up to n full rows from memory and up to n from the file. sweep
// returns the number deleted from the file, and reads each row at most once.
func (s *Store) sweep(ctx context.Context, n int) (swept int, err error) {
	if state := s.state.Load(); state&stateClosed != 0 {
		return 0, s.unavailable()
	}
	if _, err = s.mem.Sweep(ctx, n); err != nil || n <= 0 {
		return 0, err
	}
	w := &s.writer
	w.mu.Lock()
	defer w.mu.Unlock()
	for at := (sweepPos{}); ; {
		did, more, err := s.disk.sweep(s, &at, sweepPage, n-swept)
		if swept += did; err != nil {
			return swept, s.storeError(err)
		}
		if !more || swept >= n || ctx.Err() != nil {
			return swept, ctx.Err()
		}
	}
}

// sweep reads a page of rows and deletes up to n of them that are full or whose
// limit was dropped. A row that was charged in memory meanwhile is written again by the
// next cycle. After the last page sweep deletes entries of the logs that are too old.
func (d *disk) sweep(s *Store, at *sweepPos, page, n int) (swept int, more bool, err error) {
	defs := s.limits.byID(s.mem.Registry())
	now := s.now()
	var full []rowKey
	err = d.tx(func() error {
		seen := 0
		err := d.each(background, func(rows *sql.Rows) error {
			seen++
			var held bool // the row has lows, which are converted with its records
			r, err := scanBucket(rows, &held)
			if err != nil {
				return err
			}
			at.limit, at.key = r.limit, r.key
			def := defs[r.limit]
			leave := def != nil && (terms.IsOverride(r.state.Version) || held && r.state.Version != def.Number) // when an override ends, its rows are written
			if len(full) < n && !leave && (def == nil || def.Full(r.state, now)) {
				full = append(full, rowKey{r.limit, r.key})
			}
			return nil
		}, "select limit_id, key, used, ts, version, lows is not null from buckets where (limit_id, key) > (?, ?) order by limit_id, key limit ?", at.limit, at.key, page)
		if err != nil {
			return err
		}
		for _, row := range full {
			if _, err = d.remove.ExecContext(background, row.limit, row.key); err != nil {
				return err
			}
		}
		if more = seen == page; !more {
			*at = sweepPos{last: at.last}
			err = errors.Join(d.exec("delete from top_hours where id < ?", catalog.TopHours.Oldest(now)), d.exec("delete from usage where hour < ?", now-catalog.UsageAge))
		}
		return err
	})
	return len(full), more, err
}
