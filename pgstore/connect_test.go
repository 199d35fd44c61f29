package pgstore

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// After a deadline, a connection to a silent server delays its lane by
// closeTimeout, not by pgx's 15 seconds.
func TestCloseTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config, err := ParseURL("postgres://u@h/d?sslmode=disable")
		if err != nil {
			t.Fatal(err)
		}
		config.ConnConfig.LookupFunc = func(context.Context, string) ([]string, error) { return []string{"192.0.2.1"}, nil }
		config.ConnConfig.DialFunc = func(context.Context, string, string) (net.Conn, error) {
			here, there := net.Pipe()
			go serveAndFallSilent(there)
			return here, nil
		}
		config.MaxConns = 1
		boundClose(config)
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err = pool.Exec(ctx, "select 1", pgx.QueryExecModeSimpleProtocol); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		from := time.Now()
		c, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(from); took > closeTimeout {
			t.Errorf("the next connection came after %v; at most %v", took, closeTimeout)
		}
		c.Release()
		pool.Close()
	})
}

// serveAndFallSilent logs a client in, and then reads without answering. It closes
// the connection of a cancel request at once.
func serveAndFallSilent(c net.Conn) {
	defer c.Close()
	head := make([]byte, 8)
	if _, err := io.ReadFull(c, head); err != nil {
		return
	}
	body := make([]byte, int(head[2])<<8+int(head[3])-8)
	if _, err := io.ReadFull(c, body); err != nil || head[4] != 0 { // a cancel request has 1234 there
		return
	}
	io.WriteString(c, "R\x00\x00\x00\x08\x00\x00\x00\x00"+"K\x00\x00\x00\x0c\x00\x00\x00\x01\x00\x00\x00\x02"+"Z\x00\x00\x00\x05I")
	io.Copy(io.Discard, c)
}

func TestParseURL(t *testing.T) {
	config, err := ParseURL("postgres://u@h/d")
	if err != nil || config.ConnConfig.ConnectTimeout != connectTimeout || config.ConnConfig.RuntimeParams["application_name"] != "dipwell" {
		t.Error(config, err)
	}
	config, err = ParseURL("postgres://u@h/d?connect_timeout=1&application_name=mine&pool_min_conns=3&pool_min_idle_conns=3")
	if err != nil || config.ConnConfig.ConnectTimeout != time.Second || config.ConnConfig.RuntimeParams["application_name"] != "mine" || config.MinConns != 0 || config.MinIdleConns != 0 {
		t.Error(config, err)
	}
	if _, err = ParseURL("postgres://u:hunter2@h:x/d"); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Error(err)
	}
}
