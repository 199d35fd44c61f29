package main

import (
	"context"
	"fmt"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/breaker"
	"github.com/dipwell/dipwell/internal/coalesce"
	"github.com/dipwell/dipwell/internal/server"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
)

// redis decides in Redis: refusals that are known are answered here, and callers
// that wait ride together. Its other abilities are redisstore's own.
type redis struct {
	*redisstore.Store
	front dipwell.Store // denycache, or breaker
	guard *breaker.Store
	tally

	together *coalesce.Store
}

var _ dipwell.Store = (*redis)(nil)

// Apply decides through the decorators, not past them.
func (r *redis) Apply(ctx context.Context, b *store.Batch) error { return r.front.Apply(ctx, b) }

// Close ends everything in reverse order.
func (r *redis) Close() error {
	if r.guard != nil {
		_ = r.guard.Close()
	}
	if r.together != nil {
		_ = r.together.Close()
	}
	return r.Store.Close()
}

// Abilities are redisstore's and those of the decorators.
func (r *redis) Abilities() store.Abilities { return r.tally.abilities(r, r.Store, r.front) }

// silent takes the client's own lines about lost connections: what matters of
// them comes as errors.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

func init() { goredis.SetLogger(silent{}) }

// openRedis opens a store for a client, which asks once, or for a service.
func openRedis(ctx context.Context, url string, o storeOptions) (dipwell.Store, error) {
	if o.once {
		store, err := redisstore.Open(ctx, url, redisstore.Config{Poll: -1, OnError: o.report})
		if err != nil {
			return nil, fmt.Errorf("store %s: %w", redact(url), err)
		}
		return store, nil
	}
	store, err := redisstore.Open(ctx, url, redisstore.Config{Lazy: true, WaitForAccess: o.wait, OnError: o.report})
	if err != nil {
		return nil, fmt.Errorf("store %s: %w", redact(url), err)
	}
	r := &redis{Store: store}
	if err = r.open(o); err != nil {
		_ = r.Close()
		return nil, err
	}
	return r, nil
}

func (r *redis) open(o storeOptions) (err error) {
	r.tally.open()
	lanes := make([]dipwell.Store, defaultLanes())
	for i := range lanes {
		lanes[i] = &counted{r.Store, &r.tally}
	}
	if r.together, err = coalesce.New(store.Lanes{Stores: lanes}, coalesce.Config{Timeout: statementTimeout}); err != nil {
		return err
	}
	if r.guard, err = newBreaker(r.together, o); err != nil {
		return err
	}
	r.front, err = withDenyCache(r.guard, o)
	return err
}

// gauges puts what is counted on /metrics.
func (r *redis) gauges(s *server.Server) { r.tally.gauges(s) }
