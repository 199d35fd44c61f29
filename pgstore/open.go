package pgstore

import (
	"context"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// connectTimeout bounds what Open lets a connection cost, where the URL does not
// say.
const connectTimeout = 5 * time.Second

// Open makes a pool from a URL and opens a store over it whether the server
// answers or not, as Config.Lazy says; the store owns the pool. Schemes are
// postgres, postgresql, yugabyte and cockroach; the rest of the URL is what
// PostgreSQL's own clients take, several hosts and target_session_attrs included.
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

// ConnString turns the URL of an engine that speaks PostgreSQL's protocol into
// one that pgx reads. Others stay as they are.
func ConnString(url string) string {
	for _, scheme := range []string{"yugabyte://", "cockroach://"} {
		if rest, ok := strings.CutPrefix(url, scheme); ok {
			return "postgres://" + rest
		}
	}
	return url
}
