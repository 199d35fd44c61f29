package main

import (
	"context"
	"net"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// goodbye bounds the end of a connection that was cut at a deadline. pgx waits
// 15 seconds for the server to close it, and a lane cannot open another one
// before that: a firewall that forgot the connection would stop the lane for so long.
const goodbye = time.Second

// partings makes a dialer whose connections end within goodbye.
func partings(dial pgconn.DialFunc) pgconn.DialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return parting{c}, nil
	}
}

// parting is a connection whose deadlines are at most goodbye away. pgx sets one
// only when it ends a connection.
type parting struct{ net.Conn }

func (c parting) SetDeadline(t time.Time) error {
	if latest := time.Now().Add(goodbye); t.After(latest) {
		t = latest
	}
	return c.Conn.SetDeadline(t)
}
