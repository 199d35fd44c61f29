package filestore

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/dipwell/dipwell/store"
)

// maxPage bounds the keys of one call of Keys.
const maxPage = 10_000

// Keys pages through the live keys of any limit, in byte order. What changed is
// written first, so that it sees what was decided before it.
func (s *Store) keys(ctx context.Context, d *store.Definition, prefix, after string, n int) (out []store.KeyState, err error) {
	if state := s.state.Load(); state&stateClosed != 0 {
		return nil, s.why()
	}
	if n = min(n, maxPage); n <= 0 {
		return nil, nil
	}
	if err := s.keep.flush(); err != nil {
		return nil, err
	}
	id, ok := s.plan.id(d.Name)
	if !ok {
		return nil, fmt.Errorf("%w %q", store.ErrUnknownLimit, d.Name)
	}
	from, more := max(after, prefix), after != "" && after >= prefix
	for len(out) < n && ctx.Err() == nil {
		rows, err := s.disk.page(id, from, more, n)
		if err != nil {
			return nil, s.failure1(err)
		}
		for _, r := range rows {
			if !strings.HasPrefix(r.key, prefix) {
				return out, nil
			}
			if len(out) < n && s.live(d, r.key, r.row) {
				out = append(out, store.KeyState{Key: r.key, State: r.row})
			}
		}
		if len(rows) < n {
			break
		}
		from, more = rows[n-1].key, true
	}
	return out, ctx.Err()
}

// live reports whether a row is more than a full bucket.
func (s *Store) live(d *store.Definition, key string, row store.State) bool {
	op := store.Op{Def: d, Key: key, Verb: store.VerbCheck}
	_, _, err := op.Step(s.now(), row, true)
	return err != nil || op.Reset > 0
}

// page reads rows of a limit from a key on, or after it.
func (d *disk) page(id int64, from string, after bool, n int) (out []rec, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	query := "select key, used, ts, version from buckets where limit_id = ? and key >= ? order by key limit ?"
	if after {
		query = "select key, used, ts, version from buckets where limit_id = ? and key > ? order by key limit ?"
	}
	rows, err := d.conn.QueryContext(background, query, id, from, n)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }() // read to its end, or given up
	for rows.Next() {
		r := rec{limit: id}
		if err = rows.Scan(&r.key, &r.row.Used, &r.row.TS, &r.row.Version); err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, rows.Err()
}

// The keeper sweeps the file by and by: a page after each turn, and each
// sweepEvery when nothing happens. A page takes a millisecond or two.
const (
	sweepEvery = time.Second
	sweepPage  = 512                    // rows looked at
	sweepRest  = 100 * time.Millisecond // between two pages at the least
)

// sweeper is where sweeping goes on.
type sweeper struct {
	limit int64
	key   string
	last  time.Time
}

// sweepSome looks at the next page of rows.
func (k *keeper) sweepSome() {
	if time.Since(k.sweeping.last) < sweepRest {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.sweeping.last = time.Now()
	_, _, err := k.store.disk.sweep(k.store, &k.sweeping, sweepPage, sweepPage)
	if err == nil {
		_, err = k.store.disk.sweepRecords(k.store, &k.sweepingRecords, sweepPage)
	}
	if err != nil {
		k.store.report(k.store.failure1(err))
	}
}

// sweep deletes full rows, at most n, from memory and from the file, and says
// how many the file had. It looks at every row at most once.
func (s *Store) sweep(ctx context.Context, n int) (swept int, err error) {
	if state := s.state.Load(); state&stateClosed != 0 {
		return 0, s.why()
	}
	if _, err = s.mem.Sweep(ctx, n); err != nil || n <= 0 {
		return 0, err
	}
	k := &s.keep
	k.mu.Lock()
	defer k.mu.Unlock()
	for at, more := (sweeper{}), true; more; {
		if more, err = s.disk.sweepRecords(s, &at, sweepPage); err != nil {
			return 0, s.failure1(err)
		}
	}
	for at := (sweeper{}); ; {
		did, more, err := s.disk.sweep(s, &at, sweepPage, n-swept)
		if swept += did; err != nil {
			return swept, s.failure1(err)
		}
		if !more || swept >= n || ctx.Err() != nil {
			return swept, ctx.Err()
		}
	}
}

// sweep looks at a page of rows and deletes at most n that are full, or whose
// limit is gone. A row that has changed in memory meanwhile is written again
// with the next turn.
func (d *disk) sweep(s *Store, at *sweeper, page, n int) (swept int, more bool, err error) {
	defs := s.definitions()
	now := s.now()
	var full []rec
	err = d.tx(func() error {
		rows, err := d.conn.QueryContext(background, "select limit_id, key, used, ts, version from buckets where (limit_id, key) > (?, ?) order by limit_id, key limit ?",
			at.limit, at.key, page)
		if err != nil {
			return err
		}
		defer func() { _ = rows.Close() }() // read to its end, or given up
		seen := 0
		for ; rows.Next(); seen++ {
			var r rec
			if err = rows.Scan(&r.limit, &r.key, &r.row.Used, &r.row.TS, &r.row.Version); err != nil {
				return err
			}
			at.limit, at.key = r.limit, r.key
			if def := defs[r.limit]; (def == nil || def.Full(r.row, now)) && len(full) < n {
				full = append(full, r)
			}
		}
		if err = rows.Close(); err != nil {
			return err
		}
		if more = seen == page; !more {
			*at = sweeper{last: at.last}
		}
		for i := range full {
			if _, err = d.remove.ExecContext(background, full[i].limit, full[i].key); err != nil {
				return err
			}
		}
		return rows.Err()
	})
	return len(full), more, err
}
