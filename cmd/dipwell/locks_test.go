package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
)

// TestLockedRows checks that rows locked by another program's transaction only
// affect callers of the same keys. These get an error within their timeout, and
// answers soon after the lock is released.
func TestLockedRows(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, setting string
		keys, callers int
		kill          bool // the backends of the lanes, while the lock is held
	}{
		{name: "one caller of one key", keys: 1, callers: 1},
		{name: "20 callers of one key", keys: 1, callers: 20},
		{name: "20 callers of four keys", keys: 4, callers: 20},
		{name: "with a statement timeout", setting: "statement_timeout = '500ms'", keys: 2, callers: 8},
		{name: "with killed backends", keys: 2, callers: 8, kill: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			dsn := migratedDatabase(t)
			stranger := connectTo(t, dsn)
			if tc.setting != "" {
				execute(t, stranger, fmt.Sprintf("do $$ begin execute format('alter database %%I set %s', current_database()); end $$", strings.ReplaceAll(tc.setting, "'", "''")))
			}
			p := start(t, "--listen", "127.0.0.1:0", "--store", dsn, "--log-refusals", "0", "--deny-max-age", "0",
				"--limit", "big=1000000/1s,timeout=700ms", "--limit", "all=1000000/1s,timeout=15s")
			eventually(t, func() error { return isReady(t, p.url) })
			execute(t, stranger, "begin")
			for i := range tc.keys {
				execute(t, stranger, fmt.Sprintf("select dipwell.take('big', 'stuck%d')", i))
			}
			var answered, stuck atomic.Int64
			stop := make(chan struct{})
			var callers sync.WaitGroup
			ask := func(form string, heard func(status int, body string)) {
				callers.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
							heard(post(t, p.url+"/v1/take", form))
						}
					}
				})
			}
			for i := range tc.callers {
				ask(fmt.Sprintf("limit=big&key=stuck%d", i%tc.keys), func(status int, body string) {
					if status != 503 {
						t.Errorf("a locked key: %d %s", status, body)
					}
					stuck.Add(1)
				})
			}
			for i := range 16 {
				ask(fmt.Sprintf("limit=all&key=free%d", i), func(status int, body string) {
					if status != 200 && !tc.kill {
						t.Errorf("another key: %d %s", status, body)
					}
					if status == 200 {
						answered.Add(1)
					}
				})
			}
			for range 4 {
				before := answered.Load()
				if tc.kill {
					other := connectTo(t, dsn)
					execute(t, other, "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and application_name = 'dipwell' and query like '%dipwell.buckets%'")
				}
				eventually(t, func() error {
					if n := answered.Load() - before; n < 200 {
						return fmt.Errorf("%d answered", n)
					}
					return nil
				})
			}
			eventually(t, func() error {
				if stuck.Load() < int64(2*tc.callers) {
					return errors.New("callers of locked keys are not answered")
				}
				_, metrics := do(t, "GET", p.url+"/metrics", "")
				if n := metric(t, metrics, "dipwell_store_quarantined_keys"); n < tc.keys {
					return fmt.Errorf("%d keys in quarantine", n)
				}
				return nil
			})
			close(stop)
			callers.Wait()
			execute(t, stranger, "rollback")
			for i := range tc.keys {
				eventually(t, func() error {
					if status, body := post(t, p.url+"/v1/take", fmt.Sprintf("limit=big&key=stuck%d", i)); status != 200 {
						return fmt.Errorf("after the lock: %d %s", status, body)
					}
					return nil
				})
			}
			eventually(t, func() error { // they go back to their lanes
				for i := range tc.keys {
					post(t, p.url+"/v1/take", fmt.Sprintf("limit=big&key=stuck%d", i))
				}
				_, metrics := do(t, "GET", p.url+"/metrics", "")
				if n := metric(t, metrics, "dipwell_store_quarantined_keys"); n != 0 {
					return fmt.Errorf("%d keys in quarantine", n)
				}
				return nil
			})
			t.Logf("%d of other keys were answered, %d of the locked ones", answered.Load(), stuck.Load())
		})
	}
}

func execute(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(context.Background(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
}

// TestPoolerThatRefusesLockTimeout checks that a service works behind a pooler
// that rejects lock_timeout, as PgBouncer does unless it is set to ignore it,
// and logs that once.
func TestPoolerThatRefusesLockTimeout(t *testing.T) {
	t.Parallel()
	dsn := migratedDatabase(t)
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	addr := refusingPooler(t, net.JoinHostPort(config.Host, fmt.Sprint(config.Port)))
	p := start(t, "--listen", "127.0.0.1:0", "--limit", "api=1000/1s",
		"--store", fmt.Sprintf("postgres://%s@%s/%s?sslmode=disable", config.User, addr, config.Database))
	eventually(t, func() error {
		for i := range 8 {
			if status, body := post(t, p.url+"/v1/take", fmt.Sprint("limit=api&key=k", i)); status != 200 || !strings.Contains(body, `"source":"store"`) {
				return fmt.Errorf("%d %s", status, body)
			}
		}
		return nil
	})
	p.stderr.wait(t, "unsupported startup parameter: lock_timeout.*PgBouncer in docs/reference/postgres.md")
}

// refusingPooler forwards connections to a server, except those whose startup
// message has lock_timeout.
func refusingPooler(t *testing.T, server string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go pass(c, server)
		}
	}()
	return l.Addr().String()
}

func pass(c net.Conn, server string) {
	defer c.Close()
	hello := make([]byte, 4096)
	n, err := c.Read(hello)
	if err != nil {
		return
	}
	if bytes.Contains(hello[:n], []byte("lock_timeout")) {
		refusal, _ := (&pgproto3.ErrorResponse{Severity: "FATAL", Code: "08P01", Message: "unsupported startup parameter: lock_timeout"}).Encode(nil)
		_, _ = c.Write(refusal)
		return
	}
	s, err := net.Dial("tcp", server)
	if err != nil {
		return
	}
	defer s.Close()
	if _, err = s.Write(hello[:n]); err != nil {
		return
	}
	go func() { _, _ = io.Copy(s, c); _ = s.Close() }()
	_, _ = io.Copy(c, s)
}
