package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/filestore"
	"github.com/dipwell/dipwell/internal/fallback"
	"github.com/dipwell/dipwell/internal/server"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
)

// openers open a store by the scheme of its URL. Where the store holds
// something of the system, it has a Close method.
var openers = map[string]func(ctx context.Context, url string, o storeOptions) (dipwell.Store, error){
	"memory":     openMemory,
	"file":       openFile,
	"postgres":   openPostgres,
	"postgresql": openPostgres,
	"yugabyte":   openPostgres,
	"cockroach":  openPostgres,

	"redis":           openRedis,
	"rediss":          openRedis,
	"redis+cluster":   openRedis,
	"rediss+cluster":  openRedis,
	"redis+sentinel":  openRedis,
	"rediss+sentinel": openRedis,
}

// storeOptions are settings that only some stores have a use for.
type storeOptions struct {
	maxKeys    int           // 0: the store's default
	denyMaxAge time.Duration // 0: the cache's default; negative: no cache
	wait       bool          // for a role or a database that the server refuses
	once       bool          // a client asks once: nothing is kept ready for others
	report     func(error)   // hears what goes wrong while nobody is calling
	note       func(string)  // hears when that is over; may be nil
}

// openStore opens a store, and decides here while one outside this process
// cannot answer, for the limits that ask for it.
func openStore(ctx context.Context, url string, o storeOptions) (dipwell.Store, func() error, error) {
	if err := knownStore(url); err != nil {
		return nil, nil, err
	}
	scheme, _, _ := strings.Cut(url, ":")
	st, err := openers[scheme](ctx, url, o)
	if err != nil {
		return nil, nil, err
	}
	if _, file := st.(*filestore.Store); o.once || file || store.AbilitiesOf(st).InProcess { // a filestore falls back to its own memory
		return st, func() error { return closeStore(st) }, nil
	}
	local, err := fallback.New(st, fallback.Config{MaxKeys: o.maxKeys})
	if err != nil {
		_ = closeStore(st)
		return nil, nil, err
	}
	return local, func() error { return errors.Join(closeStore(local), closeStore(st)) }, nil
}

func knownStore(url string) error {
	scheme, _, ok := strings.Cut(url, ":")
	if !ok || openers[scheme] == nil {
		return fmt.Errorf("store: %q is not one that this program can open; it has %s", redact(url), storeList())
	}
	return nil
}

// checkStore says what is wrong with a store's URL, without opening the store.
func checkStore(url string) error {
	err := knownStore(url)
	if err != nil {
		return err
	}
	switch scheme, _, _ := strings.Cut(url, ":"); {
	case scheme == "memory":
		err = checkMemory(url)
	case scheme == "file":
		_, _, err = filestore.ParseURL(url)
	case strings.HasPrefix(scheme, "redis"):
		if err = redisstore.CheckURL(url); err != nil {
			err = fmt.Errorf("store %s: %w", redact(url), err)
		}
	default:
		_, err = poolConfig(url)
	}
	return err
}

func checkMemory(url string) error {
	if url != "memory:" {
		return fmt.Errorf("store: %q: memory: takes nothing after the colon", url)
	}
	return nil
}

func storeList() string {
	names := slices.Sorted(maps.Keys(openers))
	for i, n := range names {
		if names[i] += ":"; n != "memory" && n != "file" {
			names[i] += "//"
		}
	}
	return strings.Join(names, ", ")
}

func openMemory(_ context.Context, url string, o storeOptions) (dipwell.Store, error) {
	if err := checkMemory(url); err != nil {
		return nil, err
	}
	return memstore.New(memstore.Config{MaxKeys: o.maxKeys})
}

// gauges puts on /metrics what is counted around a store.
func gauges(s *server.Server, st dipwell.Store) {
	if g, ok := store.As[interface{ gauges(s *server.Server) }](st); ok {
		g.gauges(s)
	}
}

// redact leaves out what a URL may carry of a password: its user and its
// settings. Where it cannot tell which part the password is, it keeps the scheme
// alone.
func redact(url string) string {
	scheme, rest, ok := strings.Cut(url, "://")
	if !ok {
		if !strings.HasPrefix(url, "file:") && strings.ContainsAny(url, "@=") { // such as host=db password=...
			return "..."
		}
		return url
	}
	at, settings := strings.LastIndexByte(rest, '@'), strings.IndexByte(rest, '?')
	switch {
	case settings >= 0 && at > settings: // the user's password may have the ?, or a setting the @
		return scheme + "://..."
	case settings >= 0:
		rest = rest[:settings] + "?..."
	}
	if at >= 0 {
		rest = "..." + rest[at:]
	}
	return scheme + "://" + rest
}

// closeStore closes a store that can be closed.
func closeStore(s dipwell.Store) error {
	if c, ok := s.(io.Closer); ok {
		return c.Close()
	}
	return nil
}
