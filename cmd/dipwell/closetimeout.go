package main

import (
	"context"
	"net"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// closeTimeout is how long pgx may wait for the server to close a connection after
// a deadline. Its default is 15 seconds, during which the lane has no connection if,
// for example, a firewall drops the packets.
const closeTimeout = time.Second

// boundClose returns a dialer whose connections close within closeTimeout.
func boundClose(dial pgconn.DialFunc) pgconn.DialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return closeTimeoutConn{c}, nil
	}
}

// closeTimeoutConn is a connection whose deadlines are at most closeTimeout away.
// pgx sets a deadline only to close a connection.
type closeTimeoutConn struct{ net.Conn }

func (c closeTimeoutConn) SetDeadline(t time.Time) error {
	if latest := time.Now().Add(closeTimeout); t.After(latest) {
		t = latest
	}
	return c.Conn.SetDeadline(t)
}
