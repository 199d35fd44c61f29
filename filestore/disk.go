package filestore

import (
	"bytes"
	"context"
	"database/sql"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	_ "modernc.org/sqlite" // the driver "sqlite"

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

	mu     sync.Mutex // one transaction at a time
	conn   *sql.Conn
	put    *sql.Stmt
	remove *sql.Stmt
}

var background = context.Background() // for statements: the outcome of an interrupted one would be unknown

// openDisk locks the file, checks its format and opens it. If there is no file, it
// creates one.
func openDisk(path string) (d *disk, err error) {
	if path, err = resolve(path); err != nil {
		return nil, err
	}
	d = &disk{path: path}
	defer func() {
		if err != nil {
			_ = d.close() // err says more
			d = nil
		}
	}()
	if d.file, err = openLocked(path); errors.Is(err, fs.ErrNotExist) {
		if err = create(path); err == nil {
			d.file, err = openLocked(path)
		}
	}
	if err == nil {
		_, err = checkHeader(d.file.File, path)
	}
	if err == nil {
		err = d.connect()
	}
	return d, err
}

// resolve returns the absolute path without symbolic links, because SQLite's log lies
// beside the file. A link to a file that does not exist stays: the file is made where it points.
func resolve(path string) (string, error) {
	if path == "" || strings.ContainsAny(path, "?\x00") {
		return "", fmt.Errorf("file %q: not a path that can be opened", path)
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("file %s: %w", path, err)
	}
	for range maxLinks {
		dir, err := filepath.EvalSymlinks(filepath.Dir(abs))
		if err != nil {
			return "", fmt.Errorf("file %s: its directory: %w", path, err)
		}
		abs = filepath.Join(dir, filepath.Base(abs))
		info, err := os.Lstat(abs)
		if errors.Is(err, fs.ErrNotExist) || err == nil && info.Mode()&fs.ModeSymlink == 0 {
			return abs, nil
		}
		link, err := os.Readlink(abs)
		if err != nil {
			return "", fmt.Errorf("file %s: %w", path, err)
		}
		if !filepath.IsAbs(link) {
			link = filepath.Join(dir, link)
		}
		abs = link
	}
	return "", fmt.Errorf("file %s: too many symbolic links", path)
}

// maxLinks bounds the links to links; Linux allows 40.
const maxLinks = 40

// checkHeader returns a file's header. It rejects files that SQLite would treat as an empty
// database, or would find damaged only later.
func checkHeader(f *os.File, path string) (header []byte, err error) {
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	header = make([]byte, 100)
	_, err = f.ReadAt(header, 0)
	short := errors.Is(err, io.EOF)
	switch {
	case st.Size() == 0:
		return nil, fmt.Errorf("file %s is empty: it was truncated, or belongs to another program; move it away to start empty", path)
	case err != nil && !short:
		return nil, fmt.Errorf("file %s: %w", path, err)
	case !bytes.HasPrefix(header, []byte("SQLite format 3\x00")):
		return nil, fmt.Errorf("file %s is not an SQLite database: it is damaged, or belongs to another program; nothing was changed", path)
	case short:
		return nil, fmt.Errorf("file %s is cut off after %d bytes; nothing was changed", path, st.Size())
	}
	return header, checkSize(path, st.Size(), header)
}

// checkSize compares the file's size with the one in its header. If there is a
// write-ahead log, the last pages may be only in the log.
func checkSize(path string, size int64, header []byte) error {
	if log, err := os.Stat(path + "-wal"); err == nil && log.Size() > 0 {
		return nil
	}
	page, pages := int64(binary.BigEndian.Uint16(header[16:])), int64(binary.BigEndian.Uint32(header[28:]))
	if page == 1 {
		page = 1 << 16
	}
	counts := bytes.Equal(header[24:28], header[92:96]) // otherwise an old version of SQLite wrote it, and pages is not valid
	if size%max(page, 512) != 0 || counts && size < page*pages {
		return fmt.Errorf("file %s is cut off: it has %d bytes of %d; nothing was changed", path, size, page*pages)
	}
	return nil
}

// checkLost rejects a path without a file beside which there is a file's log. The file was
// missing before; another process may have created it since, and then its log.
func checkLost(path string) error {
	_, logErr := os.Lstat(path + "-wal")
	if _, err := os.Lstat(path); logErr == nil && errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("file %s is missing, but its log %s-wal exists: put the file back, or move the log away to start empty", path, path)
	}
	return nil
}

// create creates the file under another name and links it to its own, so that it is complete
// or not there, and a file that another process creates meanwhile stays.
func create(path string) (err error) {
	if err = checkLost(path); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("file %s: cannot be created: %w", path, err)
		}
	}()
	part, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".new") // only for the owner, because keys may name people
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
	if err = os.Link(part.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if err = f.Sync(); errors.Is(err, errors.ErrUnsupported) || errors.Is(err, os.ErrInvalid) {
		return nil
	}
	return err
}

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
		return fmt.Errorf("file %s is an SQLite database of another program; nothing was changed", d.path)
	case version != schemaVersion:
		return fmt.Errorf("file %s has version %d of the format; this program knows %d", d.path, version, schemaVersion)
	}
	// A checkpoint copies the write-ahead log into the file, so that the log stays at
	// about 16 MB.
	for _, q := range []string{"pragma journal_mode = wal", "pragma synchronous = full", "pragma cache_size = -65536",
		"pragma wal_autocheckpoint = 4000", "pragma journal_size_limit = 67108864", "pragma busy_timeout = 5000", "pragma temp_store = memory"} {
		if _, err = d.conn.ExecContext(background, q); err != nil {
			return d.readError(err)
		}
	}
	if d.put, err = d.conn.PrepareContext(background, `insert into buckets (limit_id, key, used, ts, version, lows) values (?, ?, ?, ?, ?, ?)
		on conflict do update set used = excluded.used, ts = excluded.ts, version = excluded.version, lows = excluded.lows`); err != nil {
		return d.readError(err)
	}
	if d.remove, err = d.conn.PrepareContext(background, "delete from buckets where limit_id = ? and key = ?"); err != nil {
		return d.readError(err)
	}
	return nil
}

// readError wraps an error of opening or loading the file.
func (d *disk) readError(err error) error {
	return fmt.Errorf("file %s cannot be read: %w; nothing was changed", d.path, err)
}

// write writes a group in one transaction.
func (d *disk) write(g *group, idOf func(name string) (int64, bool)) error {
	sortBuckets(g.buckets)
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
			continue // its limit was dropped
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

// each calls f for each row that a query finds.
func (d *disk) each(ctx context.Context, f func(*sql.Rows) error, query string, args ...any) error {
	rows, err := d.conn.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }() // read to its end, or given up
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
	for _, c := range []io.Closer{closerOf(d.put), closerOf(d.remove), closerOf(d.conn), closerOf(d.db), closerOf(d.file)} {
		if c != nil {
			err = errors.Join(err, c.Close())
		}
	}
	return err
}

// closerOf returns p as an io.Closer, and nil for a nil pointer.
func closerOf[T any, P interface {
	*T
	io.Closer
}](p P) io.Closer {
	if p == nil {
		return nil
	}
	return p
}
