package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// TestChangeRace checks that the tokens granted are those missing if 12 clients
// of a service take, charge and reserve one key while SQL changes its limit 300
// times.
func TestChangeRace(t *testing.T) {
	const clients, calls, changes, burst = 12, 250, 300, 5000
	dsn := migratedDatabase(t)
	conn := connectTo(t, dsn)
	define := func(per string) {
		t.Helper()
		if _, err := conn.Exec(context.Background(), fmt.Sprintf("select dipwell.define('x', 1, interval '1 %s', burst => %d)", per, burst)); err != nil {
			t.Error(err)
		}
	}
	define("day")
	p := start(t, "--listen", "127.0.0.1:0", "--store", dsn)
	turn := make(chan struct{})
	var granted atomic.Int64
	var done sync.WaitGroup
	for c := range clients {
		done.Go(func() {
			for i := range calls {
				if (c+i)%10 == 0 {
					turn <- struct{}{}
				}
				verb := []string{"take", "charge", "reserve"}[(c+i)%3]
				code, body := post(t, p.url+"/v1/"+verb, "limit=x&key=k")
				var d struct{ Granted int64 }
				if err := json.Unmarshal([]byte(body), &d); err != nil || code != 200 {
					t.Error(verb, code, body, err)
				}
				granted.Add(d.Granted)
			}
		})
	}
	for i := range changes {
		<-turn
		define([]string{"hour", "day"}[i%2])
	}
	done.Wait()
	var left int64
	if err := conn.QueryRow(t.Context(), "select remaining from dipwell.check('x', 'k', 0)").Scan(&left); err != nil || granted.Load()+left != burst {
		t.Errorf("%d granted, %d left: %+d minted; %v", granted.Load(), left, granted.Load()+left-burst, err)
	}
	t.Logf("%d granted beside %d changes, %d left", granted.Load(), changes, left)
}

// TestServiceRole checks that a service works with a login that has only
// dipwell_service if its limits are defined already, and otherwise names the
// role that it lacks.
func TestServiceRole(t *testing.T) {
	dsn := migratedDatabase(t)
	conn := connectTo(t, dsn)
	if _, err := conn.Exec(t.Context(), `drop role if exists limiter; create role limiter login in role dipwell_service;
		select dipwell.define('login', 5, interval '1 hour')`); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = conn.Exec(context.Background(), "drop role limiter") })
	limiter := strings.Replace(dsn, "postgres@", "limiter@", 1)
	p := start(t, "--listen", "127.0.0.1:0", "--store", limiter)
	eventually(t, func() error { // a busy machine may take longer than the timeout of a call
		if code, body := post(t, p.url+"/v1/take", "limit=login&key=u"); code != 200 {
			return fmt.Errorf("%d %s", code, body)
		}
		return nil
	})
	eventually(t, func() error {
		if code, body := do(t, "PUT", p.url+"/v1/limits/mine", `{"rate":1,"per":"1h"}`); code != 403 || !strings.Contains(body, "does not let this program define limits") {
			return fmt.Errorf("%d %s", code, body)
		}
		return nil
	})
	if code, _, stderr := program(t, "serve", "--listen", "127.0.0.1:0", "--store", limiter, "--limit", "mine=1/1h"); code != 2 || !strings.Contains(stderr, "dipwell_admin") {
		t.Errorf("with a limit of its own: %d %s", code, stderr)
	}
}
