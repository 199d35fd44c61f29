package pgstore

import (
	"context"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// connectTimeout is the default for connect_timeout in the URL of Open.
const connectTimeout = 5 * time.Second

// Open creates a pool from a URL and opens a store on it, with Config.Lazy set,
// so that the server need not answer yet. Close closes the pool. The scheme is
// postgres, postgresql, yugabyte or cockroach. The rest of the URL is that of
// PostgreSQL's own clients, including several hosts, target_session_attrs and
// pgxpool's pool_max_conns; connect_timeout defaults to 5 seconds. An error
// means that the URL is invalid, or that the server answered and has another
// schema version (*SchemaError).
func Open(ctx context.Context, url string, c Config) (*Store, error) {
	config, err := pgxpool.ParseConfig(ConnString(url))
	if err != nil {
		return nil, err
	}
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = connectTimeout
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	c.Lazy = true
	s, err := New(ctx, pool, c)
	if err != nil {
		pool.Close()
		return nil, err
	}
	s.owned = pool
	return s, nil
}

// ConnString returns a URL for pgx: the schemes yugabyte and cockroach are
// replaced by postgres, others are left alone.
func ConnString(url string) string {
	for _, scheme := range []string{"yugabyte://", "cockroach://"} {
		if rest, ok := strings.CutPrefix(url, scheme); ok {
			return "postgres://" + rest
		}
	}
	return url
}
