package filestore

import (
	"cmp"
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	_ "modernc.org/sqlite" // registers the driver "sqlite"

	"github.com/dipwell/dipwell/store"
)

// Numbers in SQLite's header that identify a file of this package.
const (
	applicationID = 0x64697077 // "dipw"
	schemaVersion = 1
)

//go:embed schema.sql
var schema string

// disk is an open file: one connection with its prepared statements.
type disk struct {
	path string
	file *dataFile
	db   *sql.DB

	mu     sync.Mutex // held during a transaction, so that there is one at a time
	conn   *sql.Conn
	put    *sql.Stmt
	remove *sql.Stmt
}

var background = context.Background() // context of statements: the outcome of an interrupted one would be unknown

// openDisk locks the file and opens it. If there is no file, it creates one.
func openDisk(path string) (d *disk, err error) {
	if path, err = resolve(path); err != nil {
		return nil, err
	}
	file, err := openLocked(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err = create(path); err == nil {
			file, err = openLocked(path)
		}
	}
	if err != nil {
		return nil, err
	}
	d = &disk{path: path, file: file}
	if err = d.connect(); err != nil {
		_ = d.close() // err says more than a close error would
		return nil, err
	}
	return d, nil
}

// resolve returns the absolute path without symbolic links, because SQLite's log lies
// beside the file. The file may be missing.
func resolve(path string) (string, error) {
	if path == "" || strings.ContainsAny(path, "?\x00") {
		return "", fmt.Errorf("file %q: not a path that can be opened", path)
	}
	abs, err := filepath.Abs(path)
	if err == nil {
		path, err = filepath.EvalSymlinks(abs)
	}
	if errors.Is(err, fs.ErrNotExist) {
		path, err = filepath.EvalSymlinks(filepath.Dir(abs))
		path = filepath.Join(path, filepath.Base(abs))
	}
	if err != nil {
		return "", fmt.Errorf("file %s: %w", abs, err)
	}
	return path, nil
}

// checkLost rejects a path at which there is no file but beside which there is a file's log.
// The file was missing before; another process may have created it since, and then its log.
func checkLost(path string) error {
	_, logErr := os.Lstat(path + "-wal")
	if _, err := os.Lstat(path); logErr == nil && errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("file %s is missing, but its log %s-wal exists: put the file back, or move the log away to start empty", path, path)
	}
	return nil
}

// create creates the file under another name and links it to its own, so that it is complete
// or missing, and a file that another process creates meanwhile stays.
func create(path string) (err error) {
	if err = checkLost(path); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("file %s: cannot be created: %w", path, err)
		}
	}()
	part, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".new") // readable only for the owner, because keys may name people
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(part.Name()) }()
	if err = part.Close(); err != nil {
		return err
	}
	db, err := sql.Open("sqlite", part.Name())
	if err != nil {
		return err
	}
	db.SetMaxOpenConns(1)
	_, err = db.ExecContext(background, fmt.Sprintf("pragma journal_mode = delete; pragma synchronous = full; begin; pragma application_id = %d; pragma user_version = %d; %s; commit; pragma journal_mode = wal",
		applicationID, schemaVersion, schema))
	if err = errors.Join(err, db.Close()); err != nil {
		return err
	}
	if err = os.Link(part.Name(), path); errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err // SQLite syncs the directory when it creates its log there
}

// connect connects to the file, checks its format and prepares the statements. SQLite itself
// finds that a file is no database, or is shorter than its header says.
func (d *disk) connect() (err error) {
	if d.db, err = sql.Open("sqlite", d.path); err != nil {
		return d.readError(err)
	}
	d.db.SetMaxOpenConns(1)
	if d.conn, err = d.db.Conn(background); err != nil {
		return d.readError(err)
	}
	var app, version int64
	err = d.conn.QueryRowContext(background, "select (select application_id from pragma_application_id), (select user_version from pragma_user_version)").Scan(&app, &version)
	switch {
	case err != nil:
		return d.readError(err)
	case app != applicationID:
		return foreign(d.path)
	case version != schemaVersion:
		return fmt.Errorf("file %s has version %d of the format; this program knows %d", d.path, version, schemaVersion)
	}
	// A checkpoint copies the write-ahead log into the file, so that the log stays at
	// about 16 MB.
	err = d.exec(`pragma journal_mode = wal; pragma synchronous = full; pragma cache_size = -65536;
		pragma wal_autocheckpoint = 4000; pragma journal_size_limit = 67108864; pragma busy_timeout = 5000; pragma temp_store = memory`)
	if err == nil {
		d.put, err = d.conn.PrepareContext(background, `insert into buckets (limit_id, key, used, ts, version, lows) values (?, ?, ?, ?, ?, ?)
			on conflict do update set used = excluded.used, ts = excluded.ts, version = excluded.version, lows = excluded.lows`)
	}
	if err == nil {
		d.remove, err = d.conn.PrepareContext(background, "delete from buckets where limit_id = ? and key = ?")
	}
	if err != nil {
		return d.readError(err)
	}
	return nil
}

// foreign returns the error for a file that is not a data file.
func foreign(path string) error {
	return fmt.Errorf("file %s is empty, or belongs to another program; nothing was changed: move it away to start empty", path)
}

// readError wraps an error of opening or loading the file.
func (d *disk) readError(err error) error {
	return fmt.Errorf("file %s cannot be read: %w; nothing was changed", d.path, err)
}

// write writes a group in one transaction.
func (d *disk) write(g *group, idOf func(name string) (int64, bool)) error {
	// The rows are sorted in the order of the file, and stably: of two rows of a key, the one
	// read later is written last.
	slices.SortStableFunc(g.buckets, func(a, b bucket) int { return cmp.Or(cmp.Compare(a.limit, b.limit), cmp.Compare(a.key, b.key)) })
	return d.tx(func() error {
		for i := range g.buckets {
			r := &g.buckets[i]
			var err error
			if r.state.Used == 0 {
				_, err = d.remove.ExecContext(background, r.limit, r.key)
			} else {
				_, err = d.put.ExecContext(background, r.limit, r.key, r.state.Used, r.state.TS, column(r.state.Version), lowsText(r.state.Lows))
			}
			if err == nil && r.gaveBack {
				err = d.writeOverride(r)
			}
			if err != nil {
				return err
			}
		}
		if err := d.writeRecords(g.records); err != nil {
			return err
		}
		for id, h := range g.reservations {
			if err := d.writeReservation(id, &h, idOf); err != nil {
				return err
			}
		}
		for id, h := range g.holds {
			if err := d.writeHold(id, &h); err != nil {
				return err
			}
		}
		return d.exec("update clock set now = max(now, ?)", g.now)
	})
}

// column returns the number of a definition as stored in the file, where an override's
// number is negative.
func column(n uint32) int64 { return int64(int32(n)) }

func (d *disk) writeReservation(of store.Reservation, h *store.Pending, idOf func(name string) (int64, bool)) error {
	id := of.String()
	if len(h.Parts) == 0 {
		return d.exec("update records set id = null where id = ?", id)
	}
	for _, p := range h.Parts {
		limit, ok := idOf(p.Limit)
		if !ok {
			continue // the row's limit was dropped
		}
		if err := d.exec("update records set id = ?, parts = ? where limit_id = ? and key = ? and mark = ? and number = ?", id, len(h.Parts), limit, p.Key, p.Mark, p.Number); err != nil {
			return err
		}
	}
	return nil
}

func (d *disk) exec(query string, args ...any) error {
	_, err := d.conn.ExecContext(background, query, args...)
	return err
}

// list is each with mu held, so that f sees no row that a transaction may still roll back.
func (d *disk) list(ctx context.Context, f func(*sql.Rows) error, query string, args ...any) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.each(ctx, f, query, args...)
}

// each calls f for each row that a query finds.
func (d *disk) each(ctx context.Context, f func(*sql.Rows) error, query string, args ...any) error {
	rows, err := d.conn.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }() // the rows were read to their end, or given up
	for rows.Next() {
		if err = f(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// tx runs f in a transaction that is on the disk when tx returns nil.
func (d *disk) tx(f func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.exec("begin immediate"); err != nil {
		return err
	}
	err := f()
	if err == nil {
		err = d.exec("commit")
	}
	if err != nil {
		_ = d.exec("rollback") // SQLite may have rolled back already
	}
	return err
}

func (d *disk) close() (err error) {
	for _, stmt := range []*sql.Stmt{d.put, d.remove} {
		if stmt != nil {
			err = errors.Join(err, stmt.Close())
		}
	}
	if d.conn != nil {
		err = errors.Join(err, d.conn.Close())
	}
	if d.db != nil {
		err = errors.Join(err, d.db.Close())
	}
	return errors.Join(err, d.file.Close())
}
