package pgstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell/internal/owner"
	"github.com/dipwell/dipwell/store"
)

// Bounds of what Open lets a connection cost, where the URL does not say.
const (
	connectTimeout = 5 * time.Second
	openTimeout    = 2 * time.Second // the longest that a lazy New waits for a server that hangs
	maxPending     = 10000           // limits kept for a server that is away
)

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

// errUnread is what calls get before the limits could be read.
var errUnread = fmt.Errorf("%w: the database could not be reached yet", store.ErrStore)

// open reads the limits. A lazy store opens without, unless the server answers
// and the schema does not fit or the role may not use it.
func (c *catalog) open(ctx context.Context, config Config) error {
	if !config.Lazy {
		return c.load(ctx)
	}
	if _, ok := c.db.(*pgxpool.Pool); !ok {
		return errors.New("a lazy store needs a *pgxpool.Pool")
	}
	c.reg.SetLoadError(errUnread)
	bound, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	err := c.load(bound)
	var schema *SchemaError
	if errors.As(err, &schema) || ctx.Err() != nil || noAccess(err) && !config.WaitForAccess {
		return err
	}
	if err != nil {
		c.report(err)
	}
	return nil
}

// prepare does what must come before the limits are read: it looks at the
// schema once, and tells the server what was defined while it was away.
func (c *catalog) prepare(ctx context.Context) error {
	if !c.isRead.Load() {
		if err := checkSchema(ctx, c.db); err != nil {
			return err
		}
		dialect, err := detect(ctx, c.db)
		if err != nil {
			return err
		}
		c.dialect.Store(dialect)
	}
	for len(c.pending) > 0 {
		p := c.pending[0]
		if err := c.put(ctx, p.limit, p.owner, nil); unavailable(err) {
			return err
		} else if err != nil {
			c.report(err)
		}
		c.pending = c.pending[1:]
	}
	c.pending = nil
	return nil
}

// refresh reads the limits when they have moved, or there is something to tell.
func (c *catalog) refresh(ctx context.Context) error {
	if c.isRead.Load() {
		asked := time.Since(c.started)
		var revision int64
		if err := c.db.QueryRow(ctx, "select n from dipwell.revision").Scan(&revision); err != nil {
			return err
		}
		if err := c.mu.Enter(ctx); err != nil {
			return err
		}
		defer c.mu.Leave()
		if revision == c.revision.Load() && len(c.pending) == 0 {
			c.heard.Store(int64(asked))
			return nil
		}
		return c.loadLocked(ctx)
	}
	return c.load(ctx)
}

// A pendingLimit waits to be told to the server.
type pendingLimit struct {
	limit store.Limit
	owner string
}

// pend keeps a limit that the server could not be told, for a lazy store. Until
// it is told it is known here only, so that calls get its failure mode.
func (c *catalog) pend(l store.Limit, by string, why error) (*store.Definition, error) {
	if !c.lazy || !unavailable(why) || by == owner.API || len(c.pending) >= maxPending {
		return nil, why
	}
	d, err := c.reg.Define(time.Now().UnixMicro(), l, by)
	if err != nil {
		return nil, err
	}
	c.pending = slices.DeleteFunc(c.pending, func(p pendingLimit) bool { return p.limit.Name == l.Name })
	c.pending = append(c.pending, pendingLimit{l, by})
	return d, nil
}
