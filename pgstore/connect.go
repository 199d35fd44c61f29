package pgstore

import (
	"context"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// connectTimeout is the default for connect_timeout in a URL.
	connectTimeout = 5 * time.Second

	// closeTimeout is how long pgx may wait for the server to close a connection
	// after a deadline. The default of pgx is 15 seconds, during which a lane
	// has no connection if, for example, a firewall drops the packets.
	closeTimeout = time.Second
)

// Open creates a pool from a URL, as ParseURL reads it, and opens a store on it. Close
// closes the store and the pool. If the server may be down when the program starts, set
// Config.Lazy: then an error means that the URL is invalid, or that the server answered
// and has another schema version (*SchemaError).
func Open(ctx context.Context, url string, c Config) (*Store, error) {
	config, err := ParseURL(url)
	if err != nil {
		return nil, err
	}
	if c.MaxConns > 0 {
		config.MaxConns = c.MaxConns
	}
	boundClose(config)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	var side []*pgxpool.Pool // nil if nothing works in the background
	for i := 0; c.Poll >= 0 && i < asides; i++ {
		side = append(side, poolOfOne(config))
	}
	s, err := newStore(ctx, pool, c, side)
	if err != nil {
		for _, p := range append(side, pool) {
			p.Close()
		}
		return nil, err
	}
	s.owned = pool
	return s, nil
}

// A store that Open has opened and that works in the background has extra connections,
// one for each kind of statement that must not wait for the others: calls, changes and
// lists may hold the connections of the pool for long.
const (
	asideLimits = iota // for reading the limits: calls whose limit has changed wait for it
	asideProbe         // Abilities.Ready
	asideSweep
	asides
)

// poolOfOne makes a pool of one connection, which is opened when it is first used.
func poolOfOne(config *pgxpool.Config) *pgxpool.Pool {
	config = config.Copy()
	config.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil { // cannot happen: the store's pool was made from this configuration
		panic(err)
	}
	return pool
}

// sideDB returns one of the extra connections, or what the store has for all statements.
func (s *Store) sideDB(which int) DB {
	if s.aside == nil {
		return s.db
	}
	return s.aside[which]
}

// ParseURL reads the URL of a database, or its settings as key=value. The scheme is
// postgres, postgresql, yugabyte or cockroach. The rest of the URL is as for
// PostgreSQL's own clients, including several hosts, target_session_attrs and pgxpool's
// pool_max_conns; connect_timeout defaults to 5 seconds and application_name to dipwell.
// No connection is opened before it is needed. The error does not contain the password.
func ParseURL(url string) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(connString(url))
	if err != nil {
		return nil, err
	}
	config.MinConns, config.MinIdleConns = 0, 0
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = connectTimeout
	}
	if config.ConnConfig.RuntimeParams["application_name"] == "" {
		config.ConnConfig.RuntimeParams["application_name"] = "dipwell"
	}
	return config, nil
}

// connString returns a URL for pgx: the schemes yugabyte and cockroach are
// replaced by postgres, others are kept.
func connString(url string) string {
	for _, scheme := range []string{"yugabyte://", "cockroach://"} {
		if rest, ok := strings.CutPrefix(url, scheme); ok {
			return "postgres://" + rest
		}
	}
	return url
}

// boundClose makes new connections of a pool close within closeTimeout.
func boundClose(config *pgxpool.Config) {
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
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
