package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// A service that starts while a transaction in psql has changed limits and overrides, and
// stays open, listens, decides by the limits in the store, and stores its own changes later;
// also if a statement_timeout ends them.
func TestStartBesideOpenTransaction(t *testing.T) {
	for name, setting := range map[string]string{"without timeouts": "", "statement_timeout": "&statement_timeout=90ms"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := migratedDatabase(t)
			file := filepath.Join(t.TempDir(), "dipwell.yaml")
			write := func(rate int, more string) {
				must(t, os.WriteFile(file, fmt.Appendf(nil, "limits:\n  - {name: api, rate: %d, per: 1h}\n  - {name: other, rate: %d, per: 1h}\n%s", rate, rate, more), 0o600))
			}
			capacity := func(p *process, limit string, want int) error {
				status, body := post(t, p.url+"/v1/check", "limit="+limit+"&key=m&cost=1")
				if status != http.StatusOK || !strings.Contains(body, fmt.Sprintf(`"capacity":%d,`, want)) {
					return fmt.Errorf("%s: a capacity of %d is wanted: %d %s", limit, want, status, body)
				}
				return nil
			}
			write(5, "")
			first := start(t, "--listen", "127.0.0.1:0", "--store", dsn, "--config", file)
			eventually(t, func() error { return capacity(first, "other", 5) })
			must(t, first.stop())

			conn := connectTo(t, dsn)
			exec := func(sql string) {
				t.Helper()
				if _, err := conn.Exec(t.Context(), sql); err != nil {
					t.Fatal(err)
				}
			}
			exec("begin; select dipwell.override('api', 'k', burst => 9), dipwell_internal.lock_limit('new')")
			write(7, "  - {name: new, rate: 7, per: 1h, shared: true}\n  - {name: child, rate: 7, per: 1h, parent: new}\n")
			p := start(t, "--listen", "127.0.0.1:0", "--store", dsn+setting, "--config", file)
			eventually(t, func() error { return isReady(t, p.url) })
			eventually(t, func() error { return capacity(p, "other", 7) })
			if setting == "" {
				p.stderr.wait(t, "limit api is not stored yet, and will be tried again: limit api is locked by another transaction")
			}
			if err := capacity(p, "api", 5); err != nil {
				t.Error(err)
			}
			if status, body := post(t, p.url+"/v1/take", "limit=new"); status != http.StatusServiceUnavailable {
				t.Errorf("a limit that is not stored yet: %d %s", status, body)
			}
			exec("rollback")
			eventually(t, func() error { return capacity(p, "api", 7) })
			eventually(t, func() error {
				if status, body := post(t, p.url+"/v1/take", "limit=child&key=k"); status != http.StatusOK {
					return fmt.Errorf("a new limit with a parent: %d %s", status, body)
				}
				return nil
			})
		})
	}
}

// A service that starts while the limits cannot be read listens, and answers 503 until they
// can.
func TestStartWithoutLimits(t *testing.T) {
	dsn := migratedDatabase(t)
	conn := connectTo(t, dsn)
	for _, sql := range []string{"select dipwell.define('theirs', 5, interval '1 hour')", "begin; lock table dipwell.limits"} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	p := start(t, "--listen", "127.0.0.1:0", "--store", dsn, "--limit", "ours=7/1h")
	for _, limit := range []string{"ours", "theirs"} {
		if status, body := post(t, p.url+"/v1/take", "limit="+limit+"&key=k"); status != http.StatusServiceUnavailable {
			t.Errorf("%s: %d %s", limit, status, body)
		}
	}
	if status, body := do(t, http.MethodGet, p.url+"/readyz", ""); status != http.StatusServiceUnavailable {
		t.Errorf("/readyz: %d %s", status, body)
	}
	if _, err := conn.Exec(t.Context(), "commit"); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error { return isReady(t, p.url) })
	for _, limit := range []string{"ours", "theirs"} {
		eventually(t, func() error {
			status, body := post(t, p.url+"/v1/take", "limit="+limit+"&key=k")
			if status != http.StatusOK && status != http.StatusServiceUnavailable {
				t.Errorf("%s: %d %s", limit, status, body)
			}
			return map[bool]error{false: fmt.Errorf("%d %s", status, body)}[status == http.StatusOK]
		})
	}
}

// /readyz is 503 while takes fail because row security is on for dipwell's
// tables, or because rights were taken from the service's login.
func TestReadyzWithoutRights(t *testing.T) {
	dsn := migratedDatabase(t)
	conn := connectTo(t, dsn)
	exec := func(sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
	}
	exec("drop role if exists unready; create role unready login in role dipwell_service; select dipwell.define('api', 5, interval '1 hour')")
	t.Cleanup(func() { _, _ = conn.Exec(context.Background(), "drop role unready") })
	p := start(t, "--listen", "127.0.0.1:0", "--store", strings.Replace(dsn, "postgres@", "unready@", 1))
	for take, give := range map[string]string{
		"alter table dipwell.buckets enable row level security": "alter table dipwell.buckets disable row level security",
		"revoke insert on dipwell.buckets from dipwell_service": "grant insert on dipwell.buckets to dipwell_service",
	} {
		eventually(t, func() error { return isReady(t, p.url) })
		exec(take)
		if status, body := do(t, http.MethodGet, p.url+"/readyz", ""); status != http.StatusServiceUnavailable {
			t.Errorf("%s: %d %s", take, status, body)
		}
		exec(give)
	}
	eventually(t, func() error { return isReady(t, p.url) })
	must(t, p.stop()) // before its role is dropped
}
