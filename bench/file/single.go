package main

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"time"

	"github.com/dipwell/dipwell/store"
	_ "modernc.org/sqlite"
)

// singles is the simplest durable store: it reads, steps and writes a row in
// one transaction, with filestore's driver, pragmas and prepared statements.
type singles struct {
	mu       sync.Mutex
	db       *sql.DB
	conn     *sql.Conn
	get, put *sql.Stmt
}

func newSingles(path string) *singles {
	db, conn := open(path, "create table buckets (name text, key text, used integer, ts integer, version integer, primary key (name, key)) without rowid")
	s := &singles{db: db, conn: conn}
	s.get = must(s.conn.PrepareContext(ctx, "select used, ts, version from buckets where name = ? and key = ?"))
	s.put = must(s.conn.PrepareContext(ctx, "insert into buckets values (?, ?, ?, ?, ?) on conflict do update set used = excluded.used, ts = excluded.ts, version = excluded.version"))
	return s
}

func (s *singles) Apply(_ context.Context, b *store.Batch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range b.Groups {
		b.Groups[i].Err = s.one(&b.Groups[i])
	}
	return nil
}

func (s *singles) one(g *store.Group) error {
	if _, err := s.conn.ExecContext(ctx, "begin immediate"); err != nil {
		return err
	}
	op := &g.Ops[0]
	var row store.State
	err := s.get.QueryRowContext(ctx, op.Def.Name, op.Key).Scan(&row.Used, &row.TS, &row.Version)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	row, write, err := op.Step(time.Now().UnixMicro(), row, false)
	if err == nil && write {
		_, err = s.put.ExecContext(ctx, op.Def.Name, op.Key, row.Used, row.TS, int64(row.Version))
	}
	if g.Allowed = op.Allowed; err != nil {
		return err
	}
	_, err = s.conn.ExecContext(ctx, "commit")
	return err
}

func (s *singles) close() {
	s.get.Close()
	s.put.Close()
	s.conn.Close()
	s.db.Close()
}

// open opens a SQLite database with the settings of filestore.
func open(path, table string) (*sql.DB, *sql.Conn) {
	db := must(sql.Open("sqlite", path))
	db.SetMaxOpenConns(1)
	conn := must(db.Conn(ctx))
	for _, q := range []string{"pragma journal_mode = wal", "pragma synchronous = full", "pragma cache_size = -65536", "pragma wal_autocheckpoint = 4000", table} {
		must(conn.ExecContext(ctx, q))
	}
	return db, conn
}

// upserts is a store that only counts, with one statement in a transaction.
type upserts struct {
	mu   sync.Mutex
	db   *sql.DB
	conn *sql.Conn
	add  *sql.Stmt
}

func newUpserts(path string) *upserts {
	db, conn := open(path, "create table counters (key text primary key, n integer) without rowid")
	return &upserts{db: db, conn: conn, add: must(conn.PrepareContext(ctx, "insert into counters values (?, 1) on conflict do update set n = n + 1"))}
}

func (u *upserts) take(key string) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	_, err := u.add.ExecContext(ctx, key)
	return err
}

func (u *upserts) close() {
	u.add.Close()
	u.conn.Close()
	u.db.Close()
}
