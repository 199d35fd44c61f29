package main

import (
	"context"
	"net"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// closeTimeout bounds the end of a connection that was cut at a deadline. pgx waits
// 15 seconds for the server to close it, and a lane cannot open another one
// before that: a firewall that forgot the connection would stop the lane for so long.
const closeTimeout = time.Second

// partings makes a dialer whose connections end within closeTimeout.
func boundClose(dial pgconn.DialFunc) pgconn.DialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return closeTimeoutConn{c}, nil
	}
}

// parting is a connection whose deadlines are at most closeTimeout away. pgx sets one
// only when it ends a connection.
type closeTimeoutConn struct{ net.Conn }

func (c closeTimeoutConn) SetDeadline(t time.Time) error {
	if latest := time.Now().Add(closeTimeout); t.After(latest) {
		t = latest
	}
	return c.Conn.SetDeadline(t)
}
