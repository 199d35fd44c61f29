package main

import (
	_ "embed"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/bench/internal/cpu"
	"github.com/dipwell/dipwell/filestore"
	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/internal/redistest"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
)

//go:embed copies.sql
var copies string

// openPostgres opens two databases of one server, each with one connection that calls from Go
// and in SQL.
func openPostgres(ks []kind) ([]contender, func()) {
	server := must(pgtest.New("autovacuum=off")) // autovacuum would analyze such large tables during the run
	closers := []func(){func() { _ = server.Signal(syscall.SIGQUIT); server.Wait(); server.Close() }}
	inGo := contender{name: "PostgreSQL from Go", passes: 1, news: 1000}
	inSQL := contender{name: "PostgreSQL in SQL", passes: 1, news: 1000}
	for i, name := range []string{"without", "beside"} {
		first := must(pgx.Connect(ctx, server.DSN("postgres")))
		must(first.Exec(ctx, "create database "+name))
		check(first.Close(ctx))
		pool := must(pgxpool.New(ctx, server.DSN(name)))
		must(pgstore.Migrate(ctx, pool, pgstore.MigrateOptions{}))
		s := must(pgstore.New(ctx, pool, pgstore.Config{}))
		l := must(dipwell.New(s, limit))
		if i == 1 {
			fillPostgres(pool, l, ks)
		}
		must(pool.Exec(ctx, "select count(*) from dipwell.buckets; select count(*) from dipwell.key_overrides; checkpoint"))
		conn := must(pgx.Connect(ctx, server.DSN(name)))
		pid := int(conn.PgConn().PID())
		used := func() time.Duration { return own() + must(cpu.Process(pid)) }
		inGo.sides[i] = side{taker(l.With(s.With(conn))), used}
		inSQL.sides[i] = side{func(key string) (allowed bool, err error) {
			err = conn.QueryRow(ctx, "select allowed from dipwell.take($1, $2)", limitName, key).Scan(&allowed)
			return allowed, err
		}, used}
		closers = append(closers, func() { _ = conn.Close(ctx); _ = s.Close(); pool.Close() })
	}
	return []contender{inGo, inSQL}, func() { closeAll(closers) }
}

// fillPostgres sets the first override of each kind and copies its rows.
func fillPostgres(pool *pgxpool.Pool, l *dipwell.Limiter, ks []kind) {
	for _, k := range ks {
		set(l, k, 1)
		must(pool.Exec(ctx, copies, limitName, k.name, k.n-1))
	}
	verify(l, ks)
}

func openRedis(ks []kind) ([]contender, func()) {
	cs, closed := onRedis("Redis", ks, false)
	keys, keysClosed := onRedis("Redis, none of as many other keys", ks, true)
	return append(cs, keys...), func() { keysClosed(); closed() }
}

// onRedis starts two Redis servers. With foreign, the server without overrides has as many
// keys, with the same values and expiry, under a prefix of the same length that belongs to
// another store.
func onRedis(name string, ks []kind, foreign bool) ([]contender, func()) {
	c := contender{name: name, passes: 1, news: 1000}
	var closers []func()
	for i := range c.sides {
		server := must(redistest.New())
		db := redis.NewClient(&redis.Options{Addr: server.Addr(), ReadTimeout: time.Minute})
		open := func(prefix string) *dipwell.Limiter {
			s := must(redisstore.New(ctx, db, redisstore.Config{Prefix: prefix}))
			closers = append(closers, func() { _ = s.Close() })
			return must(dipwell.New(s, limit))
		}
		closers = append(closers, server.Close, func() { _ = db.Close() })
		l := open("dipwell")
		filled := l
		if i == 0 {
			filled = open("another")
		}
		for _, k := range ks {
			if i == 1 || foreign {
				set(filled, k, 1)
				copyKeys(db, k.name, k.n)
			}
		}
		if i == 1 {
			verify(l, ks)
		}
		c.sides[i] = side{taker(l), func() time.Duration { return must(cpu.Process(server.PID())) }}
	}
	return []contender{c}, func() { closeAll(closers) }
}

// copyKeys copies what a server has for a kind's first key to its other n-1 keys.
func copyKeys(db *redis.Client, kind string, n int) {
	const batch = 10_000
	for _, name := range must(db.Keys(ctx, "*"+kind+":0*").Result()) {
		for from := 1; from < n; from += batch {
			p := db.Pipeline()
			for i := from; i < min(from+batch, n); i++ {
				p.Copy(ctx, name, strings.Replace(name, kind+":0", kind+":"+strconv.Itoa(i), 1), 0, false)
			}
			must(p.Exec(ctx))
		}
	}
}

func openMemory(ks []kind) ([]contender, func()) {
	open := func(n int) (store.Store, func() error) {
		s := must(memstore.New(memstore.Config{MaxKeys: 16 << 20, MaxOverrides: n}))
		return s, s.Close
	}
	cs, closed := within("memory", ks, 200, 100_000, false, open)
	rows, rowsClosed := within("memory, none of as many other keys", ks, 200, 100_000, true, open)
	return append(cs, rows...), func() { rowsClosed(); closed() }
}

func openFile(ks []kind) ([]contender, func()) {
	dir := must(os.MkdirTemp("", "dipwell-bench-overrides"))
	cs, closed := within("file", ks, 200, 20_000, false, func(n int) (store.Store, func() error) {
		path := filepath.Join(must(os.MkdirTemp(dir, "")), "limits.db")
		s := must(filestore.Open(path, filestore.Config{MaxKeys: 8 << 20, MaxOverrides: n}))
		return s, s.Close
	})
	return cs, func() { closed(); check(os.RemoveAll(dir)) }
}

// within opens two stores in this process. With rows, the keys that have overrides in one
// store have rows without overrides in the other.
func within(name string, ks []kind, passes, news int, rows bool, open func(overrides int) (store.Store, func() error)) ([]contender, func()) {
	c := contender{name: name, passes: passes, news: news}
	var closers []func()
	for i := range c.sides {
		s, closed := open(1 << 20)
		closers = append(closers, func() { check(closed()) })
		l := must(dipwell.New(s, limit))
		for _, k := range ks {
			for j := 0; j < k.n && i == 0 && rows; j++ {
				must(l.Take(ctx, limitName, k.name+":"+strconv.Itoa(j), 1))
			}
		}
		if i == 1 {
			for _, k := range ks {
				set(l, k, k.n)
			}
			verify(l, ks)
		}
		c.sides[i] = side{taker(l), own}
	}
	return []contender{c}, func() { closeAll(closers) }
}

// closeAll closes stores and servers, the last opened first.
func closeAll(closers []func()) {
	for i := len(closers) - 1; i >= 0; i-- {
		closers[i]()
	}
}
