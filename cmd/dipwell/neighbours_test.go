package main

import (
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
)

// TestAdminBesideLockedRow checks that admin calls which wait for a row that a transaction
// in psql has locked end with an error that says so, and that meanwhile the service is
// ready and answers all other admin calls.
func TestAdminBesideLockedRow(t *testing.T) {
	t.Parallel()
	dsn := migratedDatabase(t)
	p := start(t, "--listen", "127.0.0.1:0", "--store", dsn, "--limit", "api=100/1h")
	eventually(t, func() error { return isReady(t, p.url) })
	stranger := connectTo(t, dsn)
	execute(t, stranger, "begin")
	execute(t, stranger, "select dipwell.take('api', 'stuck')")
	const path = "/v1/limits/api/overrides"
	var stuck sync.WaitGroup
	for range 6 {
		stuck.Go(func() {
			if status, body := do(t, http.MethodPut, p.url+path, `{"key":"stuck","rate":7}`); status != http.StatusServiceUnavailable {
				t.Errorf("the override of a locked row: %d %s", status, body)
			}
		})
	}
	ended := make(chan struct{})
	go func() { stuck.Wait(); close(ended) }()
	for i, open := 0, true; open || i == 0; i++ {
		select {
		case <-ended:
			open = false
		default:
		}
		free := fmt.Sprint("free", i)
		if err := isReady(t, p.url); err != nil {
			t.Error(err)
		}
		for _, c := range []struct {
			method, path, body string
			want               int
		}{
			{http.MethodPut, path, `{"key":"` + free + `","rate":7}`, 200},
			{http.MethodGet, path + "?key=" + free, "", 200},
			{http.MethodDelete, path + "?key=" + free, "", 204},
			{http.MethodGet, "/v1/limits/api/keys", "", 200},
			{http.MethodGet, "/v1/limits/api/holds?key=stuck", "", 200},
			{http.MethodPut, "/v1/limits/other", `{"rate":7,"per":"1h"}`, map[bool]int{true: 201, false: 200}[i == 0]},
			{http.MethodGet, "/v1/audit", "", 200},
		} {
			if status, body := do(t, c.method, p.url+c.path, c.body); status != c.want {
				t.Errorf("%s %s: %d %s", c.method, c.path, status, body)
			}
		}
	}
	execute(t, stranger, "rollback")
	eventually(t, func() error {
		if status, _ := do(t, http.MethodPut, p.url+path, `{"key":"stuck","rate":7}`); status != http.StatusOK {
			return errors.New("after the lock")
		}
		return nil
	})
}
